"""Finds evidence for guarantee Strict: whether systemd itself holds pods at 0.

Drop-in files on the disk do not prove that systemd has loaded them. A pod's slice at 0 by a write that was not the
agent's proves it: at its start, or when systemd writes its value back.
"""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroupfs, systemd_dropins, worker
from swapwarden.agent.inventory import board, records
from swapwarden.agent.ledger import ledger
from swapwarden.api import names

SLICE: Final = ".slice"


class ZeroEvidence(msgspec.Struct, frozen=True):
    """The evidence so far."""

    desired: bool
    """Whether the state in force is enforced and asks for Strict."""
    installed: bool
    """Whether the installation has the drop-in files for these pods, whatever the state asks for."""
    root: str | None
    """The cgroup above all pods, or None."""
    proved: bool
    """Whether systemd held a slice at 0, and no later one at another value."""
    refuted: bool
    """Whether systemd last took a slice to no limit."""
    held: tuple[str, ...]
    """UIDs of pods that systemd holds at 0."""


def wants(state: spec.NodeSpec | None) -> bool:
    """Return whether a state asks for Strict; in Audit and Restore nothing may enforce."""
    return state is not None and state.mode is names.Mode.ENFORCE and state.guarantee is names.Guarantee.STRICT


def prefix(root: str) -> str | None:
    """Return the prefix of slices in the tree below `root`; None if the kubelet's cgroup driver is not systemd."""
    name = root.rpartition("/")[2]
    return name.removesuffix(SLICE) if name.endswith(SLICE) else None


def covers(root: str | None, pod: str) -> bool:
    """Return whether the drop-ins apply to the slice of the pod at this path. Guaranteed pods share no prefix."""
    begin = None if root is None else prefix(root)
    return begin is not None and pod.rpartition("/")[2].startswith(
        tuple(f"{begin}-{name}-" for name in systemd_dropins.CLASSES)
    )


class Evidence:
    """Collects the evidence; the ledger keeps it for each pod, so that a later run of the agent has it."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        book: ledger.Ledger,
        reports: board.Board,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reports` has the drop-in files that the installation has on the node."""
        self._board = reports
        self._fs = cgroups
        self._ledger = book
        self._limits = book.limits
        self._clock = clock
        self._proved: float | None = None
        """When the first of the slices at 0 was found since the last one at another value; None without one."""
        self._refuted = False
        self._enforces = False
        self.desired = False

    @property
    def installed(self) -> bool:
        """Whether the node has the drop-in files: then 0 from systemd is Swapwarden's own in every mode."""
        return bool(self._board.drop_ins[board.PODS].held)

    @property
    def sought(self) -> bool:
        """Whether it matters which pods systemd holds at 0."""
        return self.desired or self.installed

    def follow(self, state: spec.NodeSpec | None, root: str | None, known: Iterable[records.Pod]) -> None:
        """Take a new state: if it begins Strict, examine all pods before the agent writes for it."""
        before, self.desired = self.desired, wants(state)
        self._enforces = state is not None and state.mode is names.Mode.ENFORCE
        if self.desired and not (before or self.installed):
            for pod in known:
                self.came(root, pod)

    def came(self, root: str | None, pod: records.Pod) -> None:
        """Examine a pod to which the agent has not written in this run, perhaps again.

        With drop-in files or under guarantee Strict, memory.swap.max of its slice is evidence:

        | it holds | the ledger | conclusion |
        |---|---|---|
        | 0 | the agent did not write it | systemd holds it at 0 |
        | a value that the agent wrote | the agent wrote over a 0 | systemd holds it at 0 |
        | 0 | lost lines, and the slice is older than this run | the agent may have written it: no evidence |
        | max | the agent wrote another value | systemd holds no limit, and took it back to that |
        | else | | no evidence |

        A ledger entry of an earlier run that systemd held the slice at 0 stays evidence in any case.
        """
        entry = self._limits.get(pod.file.key)
        if entry is not None and entry.systemd_zero:
            pod.file.systemd.zero = True
            self._prove()
        if not covers(root, pod.path):
            return
        if not self.sought:
            # Nobody asks for it any more. A 0 over a number of the agent is systemd's, from drop-in files that were
            # removed and are in force until it reads its units again. A restore must not take it for the agent's.
            if self._enforces and entry is not None and entry.wrote and 0 not in entry.wrote:
                self._leave(pod)
            return
        observed = self._limit(pod)
        if (
            observed == 0
            and not self._ledger.complete
            and pod.file.created_at == records.NEVER
            and (entry is None or not entry.wrote)
        ):
            # The agent may have written it: the ledger may have lost that line. Without the drop-ins, systemd's value
            # is no limit, which a restore must write in either case.
            if not pod.file.systemd.zero:
                self._limits.record(pod.file.key, cgroupfs.NO_LIMIT, 0)
            return
        own = entry is not None and observed in entry.wrote
        # A slice that was just made shows max for some milliseconds, until systemd's first write. So max refutes only
        # if it replaced a value of the agent.
        if (observed == 0 and not own) or (own and entry is not None and entry.found == 0):
            self._zero(pod)
        elif observed == cgroupfs.NO_LIMIT and entry is not None and entry.wrote and not own:
            self._unlimited(pod)

    def rewritten(self, root: str | None, file: records.ControlFile) -> bool:
        """Examine a file after an external write. Return whether the evidence changed."""
        pod = file.pod
        if (
            pod is None
            or file is not pod.file
            or not (self.sought or pod.file.systemd.zero)
            or not covers(root, pod.path)
        ):
            return False
        before = pod.file.systemd.zero, self._proved, self._refuted
        observed = self._limit(pod)
        if observed == 0 and self.sought:
            self._zero(pod)
        elif observed == 0:
            self._leave(pod)
        elif observed == cgroupfs.NO_LIMIT:
            self._unlimited(pod)
        return before != (pod.file.systemd.zero, self._proved, self._refuted)

    def view(self, root: str | None, known: Iterable[records.Pod]) -> ZeroEvidence:
        """Return the evidence for the status."""
        mine = [pod for pod in known if (self.sought or pod.file.systemd.zero) and covers(root, pod.path)]
        held = tuple(sorted(pod.uid for pod in mine if pod.file.systemd.zero))
        # If systemd holds none of the current pods at 0 (any more), evidence of earlier pods counts no longer.
        proved = self._proved is not None and (bool(held) or not mine)
        return ZeroEvidence(self.desired, self.installed, root, proved, self._refuted, held)

    def _leave(self, pod: records.Pod) -> None:
        """Leave a 0 to systemd: nobody asks for it, and no file is seen that would make it the agent's own."""
        if pod.file.systemd.zero and self._limit(pod) == 0:
            self._limits.leave_zero(pod.file.key)

    def _limit(self, pod: records.Pod) -> int | None:
        return self._fs.number(pod.path, cgroupfs.SWAP_MAX)  # reconciling an unreadable file reports why

    def _prove(self) -> None:
        self._refuted = False
        if self._proved is None:
            self._proved = self._clock()

    def _zero(self, pod: records.Pod) -> None:
        self._prove()
        # Once it was restored, systemd takes it back at each reload for as long as the files exist.
        if not pod.file.systemd.zero or not self._limits.holds_ours(pod.file.key):
            pod.file.systemd.zero = True
            self._limits.set_systemd_zero(pod.file.key, held=True)

    def _unlimited(self, pod: records.Pod) -> None:
        """Note a slice without limit: it refutes the proof unless the slice is older than that."""
        if pod.file.systemd.zero:
            pod.file.systemd.zero = False
            self._limits.set_systemd_zero(pod.file.key, held=False)
        elif self._proved is not None:
            if pod.since <= self._proved:
                return
            self._proved = None
        self._refuted = True


_JOB: Final = "drop-ins"


class DropInView:
    """Reads systemd's drop-in files, which an init container installs, in the background: a busy disk takes seconds.

    Files on the disk are no evidence that systemd holds a pod at 0, but a 0 that it holds is Swapwarden's own if they
    exist.
    """

    def __init__(
        self,
        pods: pathlib.Path | None,
        slices: pathlib.Path | None,
        reports: board.Board,
        disks: worker.Worker,
    ) -> None:
        """`pods` and `slices` hold systemd's drop-in folders for them; None if the agent does not see these."""
        self._pods = pods
        self._slices = slices
        self._board = reports
        self._disks = disks
        self._due = asyncio.Event()

    def observe(self) -> None:
        """Record which files there are: must be called before anything depends on it."""
        self._take(self._read())

    def check(self) -> None:
        """Read the files again soon."""
        self._due.set()

    async def run(self) -> None:
        """Read the files when that is due; never returns."""
        while True:
            await self._due.wait()
            self._due.clear()
            self._take(await self._disks.do(_JOB, self._read, None))

    def _read(self) -> dict[str, board.DropInStatus]:
        return {
            board.PODS: _status(self._pods, systemd_dropins.pod_files),
            board.SLICES: _status(self._slices, systemd_dropins.slice_files),
        }

    def _take(self, observed: dict[str, board.DropInStatus]) -> None:
        if observed != self._board.drop_ins:
            self._board.drop_ins = observed
            self._board.touch()


def _status(folder: pathlib.Path | None, look: systemd_dropins.Look) -> board.DropInStatus:
    if folder is None:
        return board.DropInStatus()
    there, missing = look(folder)
    return board.DropInStatus(visible=True, held=there, missing=missing)
