"""Brings one cgroup file to its desired value, and reads it back."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Final

import msgspec

from swapwarden.agent.desired import resolve
from swapwarden.agent.drift import attribution, repairs
from swapwarden.agent.host import cgroup_files, cgroupfs, faults, inotify
from swapwarden.agent.inventory import records
from swapwarden.agent.ledger import ledger
from swapwarden.agent.reconcile import guard, pending, queue, schedule, swap_drain, work
from swapwarden.api import names
from swapwarden.api.violations import ViolationReason
from swapwarden.kube import backoff

log = logging.getLogger(__name__)

ATTEMPTS: Final = 5
"""Writes in a row to a file that another writer changes at the same time, before letting other files have a turn."""
CONTESTED_SECONDS: Final = 0.01
DRAIN_SECONDS: Final = (2.0, 30.0)
"""Shortest and longest wait between checks of a cgroup with more swap in use than its limit: the kernel does not report
when the use shrinks. The longer it has not changed, the rarer they are: an idle process may never need its pages.
"""


class ContestedError(cgroupfs.CgroupError):
    """Another writer changes the file as often as the agent does."""


class FileReconciler:
    """Reconciles files, and never waits: one that cannot be reconciled at once is due again. Not thread-safe."""

    def __init__(
        self,
        shared: work.Work,
        cgroups: cgroupfs.Cgroups,
        book: ledger.Ledger,
        space: swap_drain.Headroom,
        stalls: guard.ThrottleGuard,
        *,
        why: attribution.Attribution,
        own_uid: str,
    ) -> None:
        self._work = shared
        self._fs = cgroups
        self._ledger = book
        self._limits = book.limits
        self._headroom = space
        self.guard = stalls
        self._attribution = why
        self.failures = FileFailures(shared, cgroups, own_uid=own_uid)
        self.writes = 0
        """How many writes were made; `write_seq` of a file is this number after the last one to it."""
        self.pending = pending.PendingWrites(cgroups)
        self.repairs = repairs.Repairs(cgroups, why, book.runtime, shared.clock)
        self._contentions = self.repairs.contentions

    def reconcile(
        self,
        file: records.ControlFile,
        noticed: float,
        *,
        since: float | None = None,
        ran: names.Cause | None = None,
        written: bool = False,
        after: int | None = None,
    ) -> None:
        """Bring one file to its desired value. It never raises: a failure is the file's own, and is retried.

        `noticed` is when an event or a read showed that its value may be wrong, `since` from when it may have been, if
        that is earlier. `ran` is why its pod may have run before the file had its value. `written`: an event reported a
        write to it; `after`: it was another writer's, after this write of the agent.
        """
        before, order = file.status, self._work.order
        if written and noticed - file.times.written_at > attribution.MOMENT_SECONDS:
            file.times.touched_at = noticed
        try:
            if written and after is None and self._kept(file):  # the event is of the agent's own write
                return
            if file.watch is None:
                self._work.watching.watch(file, self._fs.absolute(file.name), inotify.CONTENT)
            if order.raises:
                order.begin(file)
            external = after is not None and after == file.times.write_seq
            wait = self._try(file, noticed, noticed if since is None else since, ran=ran, external=external)
        except Exception as error:  # noqa: BLE001 a mistake about one file must not stop the others
            fail(file, ViolationReason.INTERNAL_ERROR, faults.fault(str(file), error))
            if not self.failures.may_break(file):
                order.lowered(file)
            wait = retries(file).refused.next()
        if file.desired.value is resolve.Handling.RESTORE:
            file.status = msgspec.structs.replace(file.status, to_restore=self._limits.holds_ours(file.key))
        order.turn = None
        if file.spec.reclaims:
            self.guard.follow(file)
        if wait is not None:
            self._work.due.at(file, schedule.Why.RETRY, self._work.clock() + wait)
        elif (file, schedule.Why.RETRY) in self._work.due.times:
            self._work.due.cancel(file, schedule.Why.RETRY)
        if file.status != before:
            self._work.reports.touch()

    def _try(
        self, file: records.ControlFile, noticed: float, since: float, *, ran: names.Cause | None, external: bool
    ) -> float | None:
        """Do the work of `reconcile`. Return the seconds until the next check; None for never."""
        try:
            if self.pending.writes and (ended := self._ended(file)) is not None:
                self._wrote(file, ended)
                since, ran, external = self._work.clock(), None, False
            wait = self._converge(file, noticed, since, ran=ran, external=external)
        except cgroupfs.GoneError as error:
            return self.failures.gone(file, error)
        except cgroupfs.TransientError as error:
            return self.failures.pending(file, error)
        except pending.PendingError as error:
            file.status = msgspec.structs.replace(file.status, confirmed=None, reason=None, pending=error.began)
            lasted = self._work.clock() - error.began
            if lasted >= pending.REPORT_SECONDS:
                faults.warn("the kernel has not finished a write", str(file), f"it began {lasted:.0f} s ago")
            return pending.REPORT_SECONDS
        except ContestedError as error:
            reason = ViolationReason.ACCESS_DENIED if file.is_inner else ViolationReason.WRITE_FAILED
            fail(file, reason, str(error))
            return retries(file).refused.next() if file.is_inner else CONTESTED_SECONDS
        except cgroupfs.CgroupError as error:
            return self.failures.refused(file, error)
        file.retries = None
        if self._work.order.unlowered:
            self._work.order.lowered(file)
        return wait

    def recall(
        self, file: records.ControlFile, right_at: float = records.NEVER, *, incomplete: bool = False
    ) -> int | None:
        """Load the ledger's record of a new file. Return the value that was last applied to it.

        `right_at` is when it last held that, as far as is known. If the ledger is `incomplete`, the value for unknown
        pods counts as the agent's own: if the kubelet gave a pod that value, it also gave it to the containers.
        """
        record = self._limits.get(file.key)
        if record is None and incomplete and file.spec.denied is not None:
            with contextlib.suppress(cgroupfs.CgroupError):  # reconciling the file reports it
                if self._fs.read(file.name) == file.spec.denied:
                    self._limits.record(file.key, file.spec.unset, file.spec.denied)
            return None
        if record is None or record.last_applied is None:
            return None
        file.last_applied = record.last_applied
        file.times.right_at = max(file.times.right_at, right_at)
        self._attribution.learn_hold(file)
        return file.last_applied

    def drop(self, file: records.ControlFile) -> None:
        """Forget a file whose cgroup is gone."""
        self._work.due.cancel(file, schedule.Why.RETRY)
        if file.usage:
            self._headroom.release(file.path)
        self.pending.drop(file)
        self.guard.drop(file)
        self._limits.forget(file.key)
        self._work.waiting.discard(file)
        self._work.order.drop(file)
        self._work.order.lowered(file)

    def must_restore(self, file: records.ControlFile) -> bool:
        """Return whether the file holds a value that the agent must restore."""
        return file.desired.value is resolve.Handling.RESTORE and self._limits.holds_ours(file.key)

    def _converge(
        self, file: records.ControlFile, noticed: float, since: float, *, ran: names.Cause | None, external: bool
    ) -> float | None:
        """Do the work of `_try`, with no thread at a write of the file; PendingError once one is.

        The file is read, and read again after each write. The first row that holds decides:

        | the file | what happens |
        |---|---|
        | is UNMANAGED | it is not read |
        | is a memory file with another writer's number, or a restore has nothing to put back | it is left alone |
        | holds its limit as the agent left it, and no more swap is in use | it is settled: the usual case |
        | holds another writer's smaller number, and its own is a ceiling | that number stays, also for a restore |
        | was raised, but one below it could not be lowered | it gets back what it held |
        | holds what it must hold for now, be it more than the limit during a drain | it is settled, or due again |
        | must be raised, and others wait to be lowered | it waits for its turn (`WriteOrder`) |
        | else | it is written and read back |

        One write does not suffice: at a pod's start systemd writes `max` two or three times within milliseconds, and a
        kubelet that limits pods past systemd writes its number after each. A writer that never stops gets a pause after
        ATTEMPTS writes, since repairs of other files wait meanwhile.
        """
        desired, times = file.desired.value, file.times
        if desired is resolve.Handling.UNMANAGED:
            return self._settled(file, file.status.observed)
        mark = queue.Mark(noticed, since)
        # If the file cannot be read now, its exposure still counts from here once it can be.
        file.open_exposure = file.open_exposure or records.OpenExposure(since, ran)
        looked = self._work.clock()
        observed = self._fs.read(file.name)
        # At the first look in this run, nobody knows when the value was written: no agent watched.
        down = names.Cause.AGENT_DOWN if times.written_at == times.progress_at == records.NEVER else None
        used: int | None = None
        for attempt in range(ATTEMPTS):
            # A kubelet sets memory files by a policy of its own (memoryReservationPolicy, memoryThrottlingFactor). For
            # swap, no larger number of another writer may stay.
            foreign = not file.usage and pending.is_foreign(file, observed, self._ledger)
            overwritten = times.write_seq and observed != file.last_applied is not None
            # systemd and the kubelet write a pod's limit of their own accord. A container's may be the agent's own
            # request, which the runtime writes.
            if file.is_pods and not foreign and (external or overwritten):
                self._limits.hear(file.key, observed)
            limit = None if foreign else self._limit(file, observed)
            file.status = msgspec.structs.replace(file.status, limit=limit)
            if limit is None:
                self._leave(file, observed)
                return self._settled(file, observed, looked=looked, foreign=foreign)
            swap = 0 if limit >= cgroupfs.NO_LIMIT else _usage(self._fs, file) if used is None else used
            if observed == limit == file.last_applied and swap <= limit and file.contention is None:
                return self._settled(file, observed, swap, looked=looked, cut=True)  # there is nothing to be done
            if file.contention is not None:
                self._contentions.expire(file, None if file.desired.at_most and isinstance(desired, int) else limit)
            action, barred, others = self._next(file, observed, limit, swap)
            if barred or others:
                self._hold_back(file, observed, mark, barred=barred)
            if action.write is None:
                file.last_applied, draining, cut = observed, action.draining, observed <= limit
                wait = self._settled(file, observed, swap, looked=looked, draining=draining, cut=cut, seen=not barred)
                return wait if wait is not None or file.contention is None else self._contentions.retry_in(file)
            eases = (action.write - observed) * file.spec.exposed
            # memory.high waits for no other file: no cgroup can use more than its limits by it, and a pod that the
            # kernel throttles may be at a standstill until it is raised.
            if eases > 0 and not (file.spec.reclaims or self._work.order.claim_raise(file, mark)):
                return self._settled(file, observed, swap, looked=looked, seen=False)
            if eases < 0:  # the exposure may have begun with an earlier try, which failed
                since, ran = min(since, file.open_exposure.since), ran or file.open_exposure.ran
            write = repairs.CgroupWrite(observed, action.write, noticed, since, swap, ran, down)
            observed, used, made = self._apply(file, write, looks=attempt == 0)
            looked, since, external = times.written_at if made else looked, self._work.clock(), not made
            noticed = noticed if observed == action.write else since  # a value after the agent's write is a new event
            ran = down = None
        if eases < 0:  # until it holds less, nothing above it may be raised
            self._work.order.lower_first(file)
        raise ContestedError(f"{file.path}: another writer changes it all the time")

    def _kept(self, file: records.ControlFile) -> bool:
        """Return whether a file that held its desired value holds it still, so that nothing must be done."""
        checks = file.status.draining or file.contention is not None  # and another check becomes due
        if checks or not file.last_applied == file.status.confirmed == file.desired.value:
            return False
        looked = self._work.clock()
        try:
            observed = self._fs.read(file.name)
        except cgroupfs.CgroupError:  # reconciling it fails in the same way
            return False
        if observed == file.last_applied:
            file.times.right_at, file.times.right_watch = max(looked, file.times.right_at), file.watch
        return observed == file.last_applied

    def _limit(self, file: records.ControlFile, observed: int) -> int | None:
        """Return the number that a file must hold, or None."""
        desired = file.desired
        if file.throttling.foreign and pending.is_released(file, observed):
            return file.throttling.least
        if isinstance(desired.value, int) and not desired.at_most:
            return max(desired.value, file.throttling.least)
        return resolve.limit_of(desired.value, self._limits.get(file.key), observed)

    def _ended(self, file: records.ControlFile) -> repairs.CgroupWrite | None:
        """Return the file's write that ended in a thread, or None. A larger value is written at once, which ends it."""
        observed = self.pending.overtaken(file)
        if observed is not None and (limit := self._limit(file, observed)) is not None:
            self.pending.overtake(file, observed, limit, self._limits)
        return self.pending.end(file)

    def _next(
        self, file: records.ControlFile, observed: int, limit: int, swap: int
    ) -> tuple[swap_drain.Action, bool, bool]:
        """Return the next write, whether a raise to the file's limit is barred, and whether `observed` is another's.

        The target is `limit`, or while the raise is barred the agent's last value. The first row that holds decides:

        | the file | the next write |
        |---|---|
        | has a ceiling for its limit, and another writer's smaller number | none: that number stays |
        | is memory.high and must be lowered | a step of 64 MiB below its use (`pending.step`) |
        | has no swap in use under it | the target |
        | has swap in use under it | the target if that kills nobody, else room for the drain (`swap_drain`) |

        While the agent yields to another writer, a smaller number stays as well.
        """
        held = file.last_applied
        limits = file.spec.exposed is cgroup_files.Exposed.ABOVE
        barred = limits and held is not None and held < min(observed, limit) and self._work.order.is_barred(file)
        most = file.desired.value if file.desired.at_most else None
        less = isinstance(most, int) and resolve.to_restore(self._limits.get(file.key), observed) is None
        target = limit
        if held is not None and barred:
            target = held  # another writer raised it; to its own limit it is raised when the others are lowered
        elif isinstance(most, int) and less and observed <= limit:
            return swap_drain.Action(None, draining=swap > most), barred, True
        cap = less or (file.contention is not None and file.contention.until is not None)
        # The writer of a memory.high below the use reclaims the difference itself, for seconds if the cgroup is busy
        # (memory_high_write in the kernel's mm/memcontrol.c). In steps, another value can come in between.
        if file.spec.reclaims and target < observed:
            used = self._fs.read(cgroupfs.join(file.path, cgroupfs.MEMORY_CURRENT))
            return swap_drain.Action(pending.step(target, observed, used, self._fs.page), draining=False), barred, False
        if swap == 0:  # nothing has to drain
            holds = observed == target or (cap and (observed - target) * file.spec.exposed < 0)
            return swap_drain.Action(None if holds else target, draining=False), barred, False
        # A limit below the swap in use brings no page back. A pod that is at its memory limit then cannot get a swapped
        # page either, and is OOM-killed. systemd writes its value without regard to that, at each reload.
        action = swap_drain.next_write(
            target,
            observed,
            swap,
            functools.partial(self._headroom.usages, file.path),
            cap=cap,
            held=held,
            units=swap > limit and file.is_systemds(observed),
            above=functools.partial(self._headroom.least_above, file),
            page=self._fs.page,
        )
        return action, barred, False

    def _hold_back(self, file: records.ControlFile, observed: int, mark: queue.Mark, *, barred: bool) -> None:
        """Have a barred file wait for its raise; for another one, record that another writer's limit stays."""
        if barred:
            self._work.order.claim_raise(file, mark)
        else:
            self._limits.leave(file.key, observed)

    def _leave(self, file: records.ControlFile, observed: int) -> None:
        """Record that the file has no value (any more) that the agent wrote."""
        file.last_applied = None
        record = self._limits.get(file.key)
        if record is not None and observed != record.found is not None:
            log.info("a value of another writer is left as it is", extra={"cgroup": f"/{file.path}"})
        self._limits.leave(file.key, observed)

    def _settled(
        self,
        file: records.ControlFile,
        observed: int,
        swap: int = 0,
        *,
        looked: float | None = None,
        draining: bool = False,
        cut: bool = False,
        seen: bool = True,
        foreign: bool = False,
    ) -> float | None:
        """Note the status of a file that must not be written now. Return the seconds until the next check.

        It was read after `looked`; `seen` unless it holds less than desired until other files are written.
        """
        if looked is not None:
            file.times.right_at, file.times.right_watch = max(looked, file.times.right_at), file.watch
        if not (draining and file.status.draining) or (observed, swap) != (file.status.observed, file.status.in_use):
            file.times.progress_at = self._work.clock()
        confirmed, drained = file.desired.value if seen else None, file.status.draining
        file.status = records.FileStatus(observed, swap, file.status.limit, draining, confirmed, foreign=foreign)
        file.open_exposure = None
        if draining and cut:
            self._headroom.reserve(file.path)
        elif drained:
            self._headroom.release(file.path)
        entry = self._limits.get(file.key) if file.desired.value is resolve.Handling.RESTORE else None
        if entry is not None and entry.found == observed:
            self._limits.mark_known(file.key, observed)
            file.last_applied = None
        least, most = DRAIN_SECONDS
        return min(most, max(least, (self._work.clock() - file.times.progress_at) / 2)) if draining else None

    def _apply(
        self, file: records.ControlFile, write: repairs.CgroupWrite, *, looks: bool
    ) -> tuple[int, int | None, bool]:
        """Record a write, make it, and read it back, as `_wrote`. Until it has succeeded, a lowering bars raises.

        The third value is False if it was not made: it `looks` once more, and another writer replaced a pod's limit.
        An exposure ended then. A kubelet that limits pods past systemd writes its number just after systemd's "max".
        """
        if self._fs.inode(file.path) != file.inode:  # another cgroup, of which the event is yet to be heard
            raise cgroupfs.GoneError(f"{file.path}: made anew")
        lowers, over = (write.value - write.observed) * file.spec.exposed < 0, write.observed
        try:
            self._limits.record(file.key, over, write.value)
            if file.systemd.value is None:
                self._attribution.learn_hold(file)
            if file.spec.reclaims and write.value < over:
                self.pending.begin(file, write, self._work.clock())
            if not (looks and file.is_pods and file.usage):
                self._fs.write(file.name, write.value)
            elif (held := self._fs.replace(file.name, over, write.value)) != over:
                if lowers:
                    self._book(file, write, write.swap)
                return held, None, False
            return *self._wrote(file, write), True
        except Exception:
            if lowers:
                self._work.order.lower_first(file)
            raise

    def _wrote(self, file: records.ControlFile, write: repairs.CgroupWrite) -> tuple[int, int | None]:
        """Read a file after a write, and its use as far as possible; count the write."""
        file.times.written_at = self._work.clock()
        self.writes += 1
        file.times.write_seq = self.writes
        observed = self._fs.read(file.name)
        if file.is_pods and file.last_applied is None and write.observed != file.spec.unset:
            self._attribution.learn_hold(file)
        if log.isEnabledFor(logging.DEBUG):
            held = cgroupfs.render(write.observed)
            log.debug("wrote", extra={"cgroup": str(file), "observed": held, "wrote": write.value})
        used = None
        if write.value < cgroupfs.NO_LIMIT:
            with contextlib.suppress(cgroupfs.CgroupError):  # the write has been made
                used = _usage(self._fs, file)
        file.times.right_at = self._work.clock()
        self._book(file, write, used or 0)
        repairs.count_write(file, "ok" if observed == write.value else "overwritten")
        file.last_applied = write.value
        return observed, used

    def _book(self, file: records.ControlFile, write: repairs.CgroupWrite, used: int) -> None:
        if write.down is None and file.last_applied is not None and write.observed != file.last_applied:
            file.times.touched_at = write.noticed
        # Start the next exposure at this read: an event may arrive later.
        file.open_exposure = records.OpenExposure(self._work.clock(), None)
        if (taken := self.repairs.book(file, write, used)) is not None:
            file.status = msgspec.structs.replace(file.status, in_use=taken)  # the next turn must not count it again
            self._work.reports.touch()


def _usage(cgroups: cgroupfs.Cgroups, file: records.ControlFile) -> int:
    """Return the bytes in use under the limit; 0 if no file counts them (the kernel makes both together)."""
    try:
        return cgroups.read(file.usage) if file.usage else 0
    except cgroupfs.GoneError:
        return 0


class FileFailures:
    """Records failures of cgroup files in the files' status, and decides the wait before the next try."""

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
        if retries(file).missing.failures >= queue.SOON_ATTEMPTS:
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
        file.retries = records.Retries(backoff.Backoff(*queue.SOON_SECONDS), backoff.Backoff(*queue.RETRY_SECONDS))
    return file.retries
