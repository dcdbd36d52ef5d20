"""Failures of cgroup files: reasons for the status, and the wait before the next try."""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from swapwarden.agent.drift import repairs
from swapwarden.agent.host import cgroupfs, faults
from swapwarden.agent.inventory import records
from swapwarden.agent.reconcile import queue, work
from swapwarden.api.violations import ViolationReason
from swapwarden.kube import backoff

FILE_SECONDS: Final = (0.01, 5.0)
"""First and longest bound of the wait for the files of a cgroup that has just been made."""
FILE_ATTEMPTS: Final = 9
"""Looks for such files, within some seconds, after which their lack is a failure."""
FAILED_SECONDS: Final = queue.RETRY_SECONDS
"""First and longest bound of the wait before trying a refused write again."""


class FileFailures:
    """Each is the file's own, in its status."""

    def __init__(self, shared: work.Work, cgroups: cgroupfs.Cgroups, *, own_uid: str) -> None:
        self._work = shared
        self._fs = cgroups
        self._own_uid = own_uid

    def gone(self, file: records.ControlFile, error: cgroupfs.CgroupError) -> float | None:
        """Handle a missing file: its cgroup was removed (events report it), or was just made and has no files yet."""
        with contextlib.suppress(cgroupfs.CgroupError):
            if self._fs.inode(file.path) != file.inode:
                repairs.count_write(file, "gone")
                return None
        return self.pending(file, error)

    def pending(self, file: records.ControlFile, error: cgroupfs.CgroupError) -> float:
        """Handle a missing or empty file, which is normal for a moment."""
        file.status = msgspec.structs.replace(file.status, confirmed=None)
        if retries(file).missing.failures >= FILE_ATTEMPTS:
            # The owner of a container's cgroup can remove the files of the cgroups in it.
            fail(file, ViolationReason.ACCESS_DENIED if file.is_tenants else ViolationReason.WRITE_FAILED, str(error))
        return retries(file).missing.next()

    def refused(self, file: records.ControlFile, error: cgroupfs.CgroupError) -> float | None:
        """Handle a read or write that the kernel refuses. Return the seconds until the next try; None for none."""
        denied = isinstance(error, cgroupfs.DeniedError)
        repairs.count_write(file, "denied" if denied else "error")
        if denied and file.container and file.pod is not None and file.pod.uid == self._own_uid:
            # With nsdelegate nobody may write to the cgroup that is the root of their own namespace.
            file.status = msgspec.structs.replace(file.status, confirmed=file.desired.value)
            self._work.order.lowered(file)
            return None
        kept_out = denied and file.is_tenants and not isinstance(error, cgroupfs.ReadOnlyError)
        if kept_out and self.may_break(file):
            self._work.order.lower_first(file)
        elif kept_out:
            self._work.order.lowered(file)
        if file.status.reason is None:
            faults.warn(f"cannot set {file.spec.name}; trying again", str(file), str(error))
        fail(file, ViolationReason.ACCESS_DENIED if kept_out else ViolationReason.WRITE_FAILED, str(error))
        return retries(file).refused.next()

    def may_break(self, file: records.ControlFile) -> bool:
        """Return whether a file's value may break a promise: a limit above the desired one, a protection below it.

        An unreadable one may.
        """
        if not isinstance(file.desired.value, int):
            return False
        try:
            return (self._fs.read(file.name) - file.desired.value) * file.spec.exposed > 0
        except Exception:  # noqa: BLE001 reconciling it fails in the same way, and reports why
            return True


def fail(file: records.ControlFile, reason: ViolationReason, message: str) -> None:
    """Note why a file cannot be reconciled."""
    file.status = msgspec.structs.replace(file.status, confirmed=None, reason=reason, message=message, pending=None)


def retries(file: records.ControlFile) -> records.Retries:
    """Return the file's waits between tries."""
    if file.retries is None:
        file.retries = records.Retries(backoff.Backoff(*FILE_SECONDS), backoff.Backoff(*FAILED_SECONDS))
    return file.retries
