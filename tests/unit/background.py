"""Work that runs beside a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, object]) -> AsyncIterator[asyncio.Task[object]]:
    """Run `work` during the block, then cancel it. An error of the work that ended before is raised after the block."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
