"""The last state, on a directory that survives reboots: in force before the API server can be asked.

The file is a line with the CRC-32 of what follows, and that is JSON: a value that a bad disk changed must not be taken
for what the controller said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import zlib
from typing import Final, NamedTuple

import msgspec

from swapwarden.agent import wanted
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

CORRUPT = metrics.counter(
    "swapwarden_agent_cache_corrupt_total", "Times that the state kept on the node was not readable."
)
FAILURES = metrics.counter(
    "swapwarden_agent_cache_failures_total", "Times that the state could not be kept on the node."
)

FILE: Final = "state.json"
NEW: Final = ".new"
CORRUPTED: Final = ".corrupt"
MAX_BYTES: Final = 8 * 1024 * 1024
"""Of the file: above what etcd takes for one object (1.5 MiB) with room."""


MIN_SECONDS: Final = 1.0
"""Least time between two writes."""


class Cached(msgspec.Struct, frozen=True):
    """The file's content."""

    node: str
    uid: str
    generation: int
    spec: wanted.WireSpec
    boot: str = ""
    """The kernel's boot_id when an agent had this state."""


class Loaded(NamedTuple):
    """What was in force when an agent was there last."""

    state: wanted.WireState
    boot: str
    """The kernel's boot_id at that time; empty where that is not known."""


def store(directory: pathlib.Path, node: str, state: wanted.WireState, boot: str) -> None:
    """Replace what is cached, and wait for the disk; a crash leaves the old or the new. OSError where it fails."""
    cached = Cached(node, state.metadata.uid, state.metadata.generation, state.spec, boot)
    new = directory / f"{FILE}{NEW}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123 pathlib opens no descriptors
        file.write(_sealed(msgspec.json.encode(cached)))
        file.flush()
        os.fsync(file.fileno())
    new.replace(directory / FILE)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove(directory: pathlib.Path) -> None:
    """Forget what is cached, and what a crash or a bad disk left of it. OSError where that fails."""
    for suffix in ("", NEW, CORRUPTED):
        (directory / f"{FILE}{suffix}").unlink(missing_ok=True)


def _sealed(body: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(body) + body


def _opened(file: pathlib.Path) -> bytes:
    """The body. ValueError where it is not what was written."""
    with file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    body = data.partition(b"\n")[2]
    if data != _sealed(body):
        raise ValueError("its checksum is not that of its content")
    return body


def load(directory: pathlib.Path, node: str, page: int) -> Loaded | None:
    """What is cached for this node; None where there is nothing, or nothing fit for use (it is then moved aside)."""
    file = directory / FILE
    try:
        cached = msgspec.json.decode(_opened(file), type=Cached)
        state = wanted.WireState(wanted.WireMeta(node, cached.uid, "", cached.generation), cached.spec)
        wanted.compile_state(state, page)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        CORRUPT.inc()
        aside = directory / f"{FILE}{CORRUPTED}"
        log.error(  # noqa: TRY400 the message has it all
            "the cached state is not readable and was moved aside; waiting for the API server's",
            extra={"file": str(file), "aside": str(aside), "error": str(error)},
        )
        try:
            file.replace(aside)
        except OSError as problem:
            log.warning("the cached state could not be moved aside", extra={"error": str(problem)})
        return None
    if cached.node != node:
        log.warning("the cached state is another node's and is not used", extra={"file": str(file), "of": cached.node})
        return None
    return Loaded(state, cached.boot)


class Keeper:
    """Caches the newest state that it was given, in the background: a disk that is busy with swapping takes seconds."""

    def __init__(self, directory: pathlib.Path, node: str, boot: str) -> None:
        """`boot`: the kernel's boot_id."""
        self._directory = directory
        self._node = node
        self._boot = boot
        self._newest: wanted.WireState | None = None
        self._due = asyncio.Event()
        self._failed = False

    def keep(self, state: wanted.WireState) -> None:
        """Cache it when the last write is done; what was waiting is left out."""
        self._newest = state
        self._due.set()

    def retry(self) -> None:
        """Try again what could not be written."""
        if self._failed:
            self._due.set()

    async def run(self) -> None:
        """Until cancelled. No write is under way once this has ended: who removes the file then removes it for good."""
        while True:
            await self._due.wait()
            self._due.clear()
            if self._newest is not None:
                await self._store(self._newest)
            await asyncio.sleep(MIN_SECONDS)

    async def _store(self, state: wanted.WireState) -> None:
        writing = asyncio.create_task(asyncio.to_thread(store, self._directory, self._node, state, self._boot))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await writing
            raise
        except OSError as error:
            self._failed = True
            FAILURES.inc()
            log.error("the state cannot be cached: %s", error)  # noqa: TRY400 the message has it all
        else:
            self._failed = False
