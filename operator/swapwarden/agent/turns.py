"""Work that is done a little at a time, so that what the kernel tells meanwhile does not wait for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Gives way wherever it can, and returns what came of it."""


def finish(steps: Steps[T]) -> T:
    """At once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def share(steps: Steps[T]) -> T:
    """One step in each turn of the event loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
