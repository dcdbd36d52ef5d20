"""Writes for which the kernel reclaims memory: a thread waits for them, not the event loop.

Also which values of other writers stay in files of memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

import msgspec

from swapwarden.agent.drift import repairs
from swapwarden.agent.host import cgroupfs, worker
from swapwarden.agent.inventory import records
from swapwarden.agent.ledger import ledger

REPORT_SECONDS: Final = 30.0
"""Seconds after which a write that has not ended is logged, each time."""
NICE: Final = 10
"""Reclaim takes CPU time in the kernel: on busy CPUs, repairs would wait for it. It is a tenth of their share then."""
STEP_BYTES: Final = 64 << 20
"""Memory that one write has the kernel reclaim at most: between two writes another value may be desired."""


def step(target: int, observed: int, used: int, page: int) -> int:
    """Return the next memory.high on the way from `observed` down to `target`, with `used` in use; all in bytes."""
    return max(target, min(observed, used) - STEP_BYTES) // page * page


def is_foreign(file: records.ControlFile, observed: int, book: ledger.Ledger) -> bool:
    """Return whether a file of memory holds another writer's number, which the agent leaves alone.

    It repairs only the values that systemd and kubelets write without a policy of their own: 0 and max. Where the
    ledger lost lines, any number may be the agent's.
    """
    desired = file.desired.value
    if is_released(file, observed):
        return False
    if not isinstance(desired, int) or observed in {desired, file.last_applied, 0, cgroupfs.NO_LIMIT}:
        return False
    record = book.limits.get(file.key)
    return book.complete and (record is None or observed not in record.wrote)


def is_released(file: records.ControlFile, observed: int) -> bool:
    """Return whether the guard replaces another writer's memory.high, and `observed` is that or no value at all."""
    known = file.throttling
    return known.foreign > 0 and known.least > 0 and observed in {known.foreign, cgroupfs.NO_LIMIT}


class PendingError(Exception):
    """The kernel is at a write of this file; `began` in monotonic seconds."""

    def __init__(self, began: float) -> None:
        super().__init__("a write has not ended yet")
        self.began = began


class PendingWrite(msgspec.Struct):
    """A write of which a thread waits for the end."""

    job: worker.Job
    write: repairs.CgroupWrite
    raised: int | None = None
    """The larger value that the event loop has written meanwhile, in bytes."""


class PendingWrites:
    """Writes that threads make: one to a file at a time, and few at once. Only the event loop may use it."""

    def __init__(self, cgroups: cgroupfs.Cgroups) -> None:
        self._fs = cgroups
        self._worker = worker.Worker(nice=NICE)
        self.writes: dict[records.ControlFile, PendingWrite] = {}

    def fileno(self) -> int:
        """Return the descriptor: readable once a write ended."""
        return self._worker.fileno()

    def begin(self, file: records.ControlFile, write: repairs.CgroupWrite, now: float) -> None:
        """Begin a write, or wait for a thread. It raises PendingError."""
        work = functools.partial(_write, self._fs, file.path, file.inode, file.name, write.value)
        self.writes[file] = PendingWrite(self._worker.submit(file, work), write)
        raise PendingError(now)

    def end(self, file: records.ControlFile) -> repairs.CgroupWrite | None:
        """Return the write that ended since the last call, or None. PendingError if it has not, or its own error.

        Where the file holds the larger value that was written meanwhile, that is the write.
        """
        if (one := self.writes.get(file)) is None:
            return None
        if not one.job.ended:
            raise PendingError(one.write.noticed if one.job.began is None else one.job.began)
        del self.writes[file]
        if one.job.error is not None:
            raise one.job.error
        if one.raised is None or self._fs.read(file.name) != one.raised:
            return one.write
        return msgspec.structs.replace(one.write, value=one.raised)

    def overtaken(self, file: records.ControlFile) -> int | None:
        """Return what a file holds while a thread is at its write; None if none is."""
        if (one := self.writes.get(file)) is None or one.job.ended or one.job.began is None:
            return None
        return self._fs.read(file.name)

    def overtake(self, file: records.ControlFile, observed: int, limit: int, book: ledger.LimitRecords) -> None:
        """Write at once, and so end the thread's write, if the limit is larger than its value and the observed one."""
        one, record = self.writes[file], book.get(file.key)
        if limit <= max(observed, one.write.value):
            return
        # Until the thread has written its value, the file holds another one: the ledger must not drop it for that.
        to_come = record is not None and record.last_applied == one.write.value
        book.record(file.key, one.write.value if to_come else observed, limit)
        one.raised = limit
        self._fs.write(file.name, limit)
        # Else the kernel continues to reclaim down to the smaller value (memory_high_write in its mm/memcontrol.c).
        self._worker.interrupt(one.job)

    def ended(self) -> Iterator[records.ControlFile]:
        """Yield the files whose writes ended."""
        for job in self._worker.take():
            if isinstance(job.key, records.ControlFile) and job.key in self.writes:
                yield job.key

    def drop(self, file: records.ControlFile) -> None:
        """Forget the write of a file that is gone."""
        self.writes.pop(file, None)

    def close(self) -> None:
        """Begin no more writes."""
        self._worker.close()


def _write(cgroups: cgroupfs.Cgroups, path: str, inode: int, name: str, value: int) -> None:
    if cgroups.inode(path) != inode:  # it waited for a thread: there may be another cgroup by now
        raise cgroupfs.GoneError(f"{path}: made anew")
    cgroups.write(name, value)
