"""Restarts the parts of the controller that fail: a fault in one ends neither the process nor the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from swapwarden.kube import backoff
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FAULTS = metrics.counter(
    "swapwarden_controller_part_faults_total",
    "Unexpected errors in a part of the controller, by part. It is restarted, or continues with the next object.",
    labels=("part",),
)

Job = Callable[[], Coroutine[Any, Any, None]]

BACKOFF_SECONDS: Final = (0.5, 60.0)
CALM_SECONDS: Final = 120.0
"""Seconds after which a running part begins with its shortest wait again."""


async def run(parts: Mapping[str, Job]) -> None:
    """Run these parts until cancelled; all of them have then ended."""
    FAULTS.begin((part,) for part in parts)
    async with asyncio.TaskGroup() as group:
        for part, job in parts.items():
            group.create_task(unending(part, job))


async def unending(
    part: str, job: Job, *, sleep: Callable[[float], Coroutine[Any, Any, object]] = asyncio.sleep
) -> None:
    """Run a job that never ends, and restart it after each error, until cancelled."""
    waits = backoff.Backoff(*BACKOFF_SECONDS)
    loop = asyncio.get_running_loop()
    while True:
        begun = loop.time()
        try:
            await job()
        except Exception:
            FAULTS.inc(part)
            if loop.time() - begun > CALM_SECONDS:
                waits.reset()
            wait = waits.next()
            log.exception("unexpected error in %s; it restarts in %.1f s, all other parts continue", part, wait)
            await sleep(wait)
        else:
            return
