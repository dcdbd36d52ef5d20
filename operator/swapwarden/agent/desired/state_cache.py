"""Keeps the last state on the node: in force until the API server answers.

It is kept in two directories. The one in memory, which does not survive a reboot, gets it before it is applied, so that
no restarted agent uses an older state than the one before it. The one on a disk gets it some time later: a disk that
the node swaps to may take seconds.

A file is a line with the CRC-32 of the rest, which is JSON: a value that a bad disk changed must not pass for one from
the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import pathlib
import zlib
from typing import Final

import msgspec

from swapwarden.agent.desired import spec
from swapwarden.agent.host import files, worker
from swapwarden.api import state as api
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

CORRUPT = metrics.counter(
    "swapwarden_agent_cache_corrupt_total", "Times that the state kept on the node was unreadable."
)
FAILURES = metrics.counter(
    "swapwarden_agent_cache_failures_total", "Times that the state could not be kept on the node."
)

KEY: Final = "state-disk"
"""Key of the worker's jobs."""
FILE: Final = "state.json"
NEW: Final = ".new"
CORRUPTED: Final = ".corrupt"
MAX_BYTES: Final = 8 * 1024 * 1024
"""Largest size of the file: well above what etcd takes for one object (1.5 MiB)."""
MIN_SECONDS: Final = 1.0
"""Least time between two writes."""
LOAD_SECONDS: Final = 5.0
"""How long the agent's start waits for the disk; `NOTED_SECONDS` if the memory has a state of this boot, which is
usually the newest."""
NOTED_SECONDS: Final = 1.0
STORE_SECONDS: Final = 30.0
"""How long a write may take before the log and a metric report it."""
END_SECONDS: Final = 5.0
"""How long the agent's end waits for the disk: half of what it has (terminationGracePeriodSeconds in the chart)."""

_HANGS: Final = "the disk has not answered for %.0f s"


class Cached(msgspec.Struct, frozen=True):
    """The file's content."""

    node: str
    uid: str
    generation: int
    spec: msgspec.Raw
    boot: str = ""
    """The kernel's boot_id when an agent had this state."""


class Loaded(msgspec.Struct, frozen=True):
    """The state in force when an agent last ran."""

    state: spec.ReceivedState
    boot: str
    """The kernel's boot_id at that time; empty if unknown."""


def store(directory: pathlib.Path, node: str, state: spec.ReceivedState, boot: str) -> None:
    """Replace the cached state and wait for the disk. A crash leaves the old or the new one. OSError on failure."""
    _replace(directory, node, state, boot, sync=True)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def note(directory: pathlib.Path, node: str, state: spec.ReceivedState, boot: str) -> None:
    """Replace the cached state in a directory in memory, without waiting for a disk. OSError on failure.

    In that case the older file is also removed: it is no longer the last state.
    """
    try:
        _replace(directory, node, state, boot, sync=False)
    except OSError:
        with contextlib.suppress(OSError):
            (directory / FILE).unlink(missing_ok=True)
        raise


def _replace(directory: pathlib.Path, node: str, state: spec.ReceivedState, boot: str, *, sync: bool) -> None:
    cached = Cached(node, state.metadata.uid, state.metadata.generation, state.spec, boot)
    new = directory / f"{FILE}{NEW}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123 pathlib opens no descriptors
        file.write(sealed(msgspec.json.encode(cached)))
        file.flush()
        if sync:
            os.fsync(file.fileno())
    new.replace(directory / FILE)


def remove(directory: pathlib.Path) -> None:
    """Remove the cached state, and the files that a crash or a bad disk left. OSError on failure."""
    for suffix in ("", NEW, CORRUPTED):
        (directory / f"{FILE}{suffix}").unlink(missing_ok=True)


def sealed(body: bytes) -> bytes:
    """Return the content of a file: a line with the CRC-32 of `body`, then `body`."""
    return b"%08x\n" % zlib.crc32(body) + body


def _opened(file: pathlib.Path) -> bytes:
    """Return the body of a file. ValueError if its checksum is wrong."""
    data = files.whole(file, MAX_BYTES)
    body = data.partition(b"\n")[2]
    if data != sealed(body):
        raise ValueError("its checksum is not that of its content")
    return body


def load(directory: pathlib.Path, node: str, page: int) -> Loaded | None:
    """Return the state cached for this node, or None. An invalid file is moved aside."""
    file = directory / FILE
    try:
        cached = msgspec.json.decode(_opened(file), type=Cached)
        state = spec.ReceivedState(api.ObjectMeta(name=node, uid=cached.uid, generation=cached.generation), cached.spec)
        spec.parse(state, page)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        CORRUPT.inc()
        aside = directory / f"{FILE}{CORRUPTED}"
        log.error(  # noqa: TRY400 the message has it all
            "the cached state is unreadable and was moved aside; waiting for the API server's",
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


def newest(noted: Loaded | None, stored: Loaded | None, boot: str) -> Loaded | None:
    """Return the state cached last: `noted` in memory, or `stored` on the disk.

    The one in memory counts only if it is of this boot and the disk has no newer generation of the same object: an
    agent of a version that kept nothing in memory may have run since.
    """
    if noted is None or noted.boot != boot:
        return stored
    if stored is not None and stored.state.metadata.uid == noted.state.metadata.uid:
        return max(noted, stored, key=lambda each: each.state.metadata.generation)
    return noted


class StateCache:
    """Caches the newest state that it was given: in memory at once, on the disk in the background."""

    def __init__(
        self, memory: pathlib.Path, directory: pathlib.Path, node: str, boot: str, disks: worker.Worker
    ) -> None:
        """`memory` does not survive a reboot, `directory` does; `boot` is the kernel's boot_id."""
        self._memory = memory
        self._directory = directory
        self._node = node
        self._boot = boot
        self._newest: spec.ReceivedState | None = None
        self._stored: spec.ReceivedState | None = None
        self._disks = disks
        self._due = asyncio.Event()
        self._failed = False
        """Whether the disk lacks the newest state; `_unnoted`: whether the memory does."""
        self._unnoted = False

    async def load(self, page: int) -> Loaded | None:
        """Return the state cached last; the one in memory if the disk takes too long."""
        noted = load(self._memory, self._node, page)
        seconds = LOAD_SECONDS if noted is None or noted.boot != self._boot else NOTED_SECONDS
        try:
            stored = await self._disks.do(KEY, functools.partial(load, self._directory, self._node, page), seconds)
        except (TimeoutError, RuntimeError) as error:  # the latter: no thread can be started
            FAILURES.inc()
            log.error(  # noqa: TRY400 the message has it all
                "the cached state could not be read; using those of --run-dir and the API server: %s",
                str(error) or _HANGS % seconds,
                extra={"dir": str(self._directory)},
            )
            stored = None
        return newest(noted, stored, self._boot)

    def is_of_this_boot(self, loaded: Loaded) -> bool:
        """Return whether a state was in force since the node's last reboot."""
        return bool(self._boot) and loaded.boot == self._boot

    def remove(self) -> None:
        """Remove the cached state; OSError on failure."""
        for folder in (self._memory, self._directory):
            remove(folder)

    def keep(self, state: spec.ReceivedState) -> None:
        """Cache a state before it is applied: in memory now, on the disk after the write under way, the newest only."""
        self._newest = state
        self._due.set()
        self._note(state)

    def retry(self) -> None:
        """Retry failed writes."""
        if self._failed:
            self._due.set()
        if self._unnoted and self._newest is not None:
            self._note(self._newest)

    async def run(self) -> None:
        """Store new states until cancelled, then the newest one, unless that fails or hangs.

        Unless it hangs, no write is under way after that: a file that is removed then does not reappear.
        """
        try:
            while True:
                await self._due.wait()
                await self._store(STORE_SECONDS)
                await asyncio.sleep(MIN_SECONDS)
        except asyncio.CancelledError:
            if self._due.is_set():
                await self._store(END_SECONDS)
            raise

    def _note(self, state: spec.ReceivedState) -> None:
        try:
            note(self._memory, self._node, state, self._boot)
        except OSError as error:
            FAILURES.inc()
            if not self._unnoted:
                log.error(  # noqa: TRY400 the message has it all
                    "the state cannot be cached in --run-dir; after a crash the agent uses the state on the disk, which"
                    " may be older: %s",
                    error,
                )
            self._unnoted = True
        else:
            self._unnoted = False

    async def _store(self, seconds: float) -> None:
        state = self._newest
        if state is None:
            return
        self._due.clear()
        try:
            await self._disks.do(KEY, functools.partial(self._write, state), seconds)
        except asyncio.CancelledError:
            self._due.set()  # `run` stores it before it ends
            raise
        except (OSError, RuntimeError) as error:
            self._failed = True
            FAILURES.inc()
            why = str(error) or _HANGS % seconds
            log.error(  # noqa: TRY400 the message has it all
                "the state cannot be cached: %s", why, extra={"dir": str(self._directory)}
            )
        else:
            self._failed = False

    def _write(self, state: spec.ReceivedState) -> None:
        """Store a state unless it is stored: a cancelled caller does not learn that its write succeeded."""
        if self._stored is not state:
            store(self._directory, self._node, state, self._boot)
            self._stored = state
