"""Watches for swapon and swapoff: /proc/swaps then reports an exceptional condition (mm/swapfile.c)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import select
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)


@contextlib.contextmanager
def watch(file: pathlib.Path, changed: Callable[[], None]) -> Iterator[None]:
    """Call `changed` in the running event loop after each swapon and swapoff, until the context ends.

    If the file cannot be watched, that is logged and nothing else happens.
    """
    with contextlib.ExitStack() as stack:
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            # A poller of its own: to that of the event loop the file would always be readable.
            poller = stack.enter_context(select.epoll())
            poller.register(fd, select.EPOLLPRI)
        except OSError as error:
            log.info(
                "swap devices cannot be watched (%s); they are looked at with each full comparison", error.strerror
            )
        else:
            loop = asyncio.get_running_loop()

            def ready() -> None:
                poller.poll(0)
                changed()

            loop.add_reader(poller.fileno(), ready)
            stack.callback(loop.remove_reader, poller.fileno())
        yield
