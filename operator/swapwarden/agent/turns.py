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
    """One step in each turn of the event loop, after what the kernel had to tell by then.

    A task that sleeps for no time goes on before that: what is told during a step would wait for two of them.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    timer: asyncio.Handle

    def step() -> None:
        nonlocal timer
        if done.done():  # cancelled
            return
        try:
            next(steps)
        except StopIteration as end:
            done.set_result(end.value)
        except Exception as error:  # noqa: BLE001 the caller's, to whom it is raised
            done.set_exception(error)
        else:
            timer = loop.call_later(0, step)

    timer = loop.call_soon(step)
    try:
        return await done
    finally:
        timer.cancel()
        steps.close()
