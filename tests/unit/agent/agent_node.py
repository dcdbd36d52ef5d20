"""One node with one agent's reconciler on it: a directory tree, no API server."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator

import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroupfs, inotify
from swapwarden.agent.inventory import board, records
from swapwarden.agent.ledger import ledger
from swapwarden.agent.reconcile import queue, reconciler, schedule
from swapwarden.agent.report import collector, status
from swapwarden.api import names
from swapwarden.api import state as api

from tests.unit.agent.cgroup_tree import PAGE, CgroupTree, container_id, uid

MIB = 1 << 20


def swap(limit: int) -> spec.FileSettings:
    """Settings with a limit of swap only."""
    return {cgroupfs.SWAP_MAX: spec.FileSetting(limit)}


def state(
    entries: dict[int, int | None] | None = None,
    *,
    mode: names.Mode = names.Mode.ENFORCE,
    unknown: names.BeforePlan = names.BeforePlan.NO_SWAP,
    kubepods: int | None = None,
    containers: dict[int, dict[str, spec.FileSetting]] | None = None,
    each: int | None = None,
    generation: int = 1,
) -> spec.NodeSpec:
    """A state: limits by the pod's number, containers by the pod's number and their names, or alike in all pods."""
    inner = containers or {}
    made = {
        uid(number): spec.PodEntry(
            {} if limit is None else swap(limit),
            {container_id(name)[:13]: {cgroupfs.SWAP_MAX: c} for name, c in inner.get(number, {}).items()},
            None if each is None else swap(each),
            {name: {cgroupfs.SWAP_MAX: c} for name, c in inner.get(number, {}).items()},
        )
        for number, limit in (entries or {}).items()
    }
    return spec.NodeSpec("u", generation, mode, unknown, kubepods, made)


Hook = Callable[[str, int], object]


class Cgroups(cgroupfs.Cgroups):
    """All its writes go through `write` where a test has put a hook, or another function in that place."""

    before: Hook | None = None
    """Receives the file and the value of each write, and refuses the write by an exception."""
    after: Hook | None = None

    def refuse(self, within: str = "", error: Exception | None = None) -> None:
        """Let writes to files whose path has `within` fail from now on; by default, permission is denied."""

        def deny(name: str, _: int) -> None:
            if within in name:
                raise error or cgroupfs.DeniedError(f"{name}: Permission denied")

        self.before = deny

    def write(self, name: str, value: int) -> None:
        if self.before:
            self.before(name, value)
        super().write(name, value)
        if self.after:
            self.after(name, value)

    def replace(self, name: str, observed: int, value: int) -> int:
        if not (self.before or self.after) and getattr(self.write, "__func__", None) is Cgroups.write:
            return super().replace(name, observed, value)
        self.write(name, value)
        return observed


class Node:
    """Its agent may be stopped and started again, as a restarted process would be."""

    def __init__(self, folder: pathlib.Path, naming: str = "systemd") -> None:
        self.folder = folder
        self.tree = CgroupTree(folder, naming)
        self.agent: reconciler.NodeReconciler | None = None
        self.later = 0.0
        """Seconds by which the agent's clock is ahead."""
        self.reports = board.Board()

    def start(
        self,
        cached: spec.NodeSpec | None = None,
        own_uid: str = "",
        away: float | None = None,
        slices: Collection[str] = (),
        prefixes: Collection[str] = (),
        *,
        nri: bool = False,
    ) -> reconciler.NodeReconciler:
        """`slices`, and slices of pods that begin with `prefixes`, have a drop-in file of the installation.

        With `nri` plugins of the runtime can connect.
        """
        self.reports.drop_ins[board.PODS] = board.DropInStatus(visible=bool(prefixes), held=frozenset(prefixes))
        self.reports.drop_ins[board.SLICES] = board.DropInStatus(visible=True, held=frozenset(slices))
        loop = asyncio.get_running_loop()
        self.cgroups = Cgroups(str(self.tree.root), PAGE)
        self.ledger = ledger.Ledger(self.folder)
        self.agent = reconciler.NodeReconciler(
            self.cgroups,
            self.ledger,
            self.reports,
            proc=self.tree.proc,
            own_uid=own_uid,
            away=away,
            nri_dir=self.folder if nri else None,
            clock=lambda: loop.time() + self.later,
        )
        self.agent.start(cached)
        return self.agent

    @property
    def told(self) -> int:
        """So many times it was said that the status may have become another."""
        return self.reports.revision

    def stop(self) -> None:
        if self.agent is not None:
            self.agent.close()
            self.ledger.close()
            self.cgroups.close()
            self.agent = None

    async def run(self, number: int, *containers: str) -> pathlib.Path:
        """Make a pod, and its containers when the agent has seen it: how it is where the agent is not late."""
        assert self.agent is not None
        agent, pod = self.agent, self.tree.pod(number)
        await until(lambda: pod.name in {path.rpartition("/")[2] for path in agent.inventory.pods})
        for name in containers:
            self.tree.container(pod, name)
        await until(lambda: len(self.known(pod).containers) == len(containers))
        return pod

    def known(self, path: pathlib.Path) -> records.Pod:
        """Return the agent's record of the pod with the cgroup at `path`."""
        assert self.agent is not None
        return self.agent.inventory.pods[str(path.relative_to(self.tree.root))]


async def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 files have no event to wait for, and inotify is what is tested
            await asyncio.sleep(0.001)


def snapshot(agent: reconciler.NodeReconciler) -> collector.Snapshot:
    """How things stand, as the status would report it."""
    return collector.collect(
        agent.inventory,
        agent.progress,
        cgroups=agent.inventory._fs,
        now=agent.work.clock(),
    )


def built(agent: reconciler.NodeReconciler, facts: api.Facts) -> api.StateStatus:
    """The status that an agent would write."""
    collected = snapshot(agent)
    return status.build(collected, facts, status.verdicts(collected, facts), [], "2026-01-01T00:00:00Z")


def unseen(file: records.ControlFile) -> bool:
    """Whether a file was not seen to hold its desired value."""
    return file.status.confirmed != file.desired.value


def reasons(agent: reconciler.NodeReconciler) -> list[str]:
    """Of the deviations that it would report."""
    collected = snapshot(agent)
    return sorted(
        [*(violation.reason for violation in collected.violations), *("Exposed" for _ in collected.recent.exposures)]
    )


# Access to the inside: only here, so that tests stay as they are when that changes.


def settle(agent: reconciler.NodeReconciler) -> None:
    """Reconcile all that waits, in one turn."""
    while agent.work.waiting:
        agent.turn()


def apply(agent: reconciler.NodeReconciler, desired: spec.NodeSpec) -> None:
    """Put a state in force, and have everything brought to it, in one turn."""
    agent.set_desired(desired)
    settle(agent)


def is_idle(agent: reconciler.NodeReconciler) -> bool:
    """Whether nothing waits to be reconciled."""
    return not agent.work.waiting


def waits(agent: reconciler.NodeReconciler) -> list[queue.Key]:
    """Return the keys that wait to be reconciled."""
    return list(agent.work.waiting)


def mark(agent: reconciler.NodeReconciler, key: queue.Key, noticed: float = 0.0) -> None:
    """Have a key reconciled as one that came."""
    agent.work.waiting.mark(key, queue.Priority.ARRIVAL, queue.Mark(noticed, noticed))


def due(agent: reconciler.NodeReconciler, key: queue.Key, why: schedule.Why) -> float | None:
    """In how many seconds a key is due for this reason."""
    when = agent.work.due.times.get((key, why))
    return None if when is None else when - agent.work.clock()


def armed(agent: reconciler.NodeReconciler) -> asyncio.TimerHandle | None:
    """The timer that has the agent go on."""
    return agent.alarm.timer


def look_again(agent: reconciler.NodeReconciler, file: records.ControlFile) -> None:
    """Reconcile one file, as when it is due."""
    agent.work.due.at(file, schedule.Why.RETRY, agent.work.clock())
    agent.wake()


def lose_events(agent: reconciler.NodeReconciler) -> None:
    """Lose the events as the kernel does if there are too many, here even without its report."""
    list(agent.work.watching.read())


@contextlib.contextmanager
def unheard(agent: reconciler.NodeReconciler) -> Iterator[None]:
    """Delay events until the context ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent.work.watching, "read", lambda: iter(()))
        yield


def hear(agent: reconciler.NodeReconciler, *events: tuple[inotify.Watched | None, inotify.InotifyEvent]) -> None:
    """Take in these events, of nobody where events were lost, and no others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent.work.watching, "read", lambda: iter(events))
        agent.catch_up()


def watched(agent: reconciler.NodeReconciler) -> int:
    """How much inotify watches."""
    return len(agent.work.watching.owners)


def all_writes_heard(agent: reconciler.NodeReconciler) -> bool:
    """Whether the events of all the agent's own writes have been read."""
    return agent.work.horizon.writes == agent._files.writes


def find_tree(agent: reconciler.NodeReconciler) -> None:
    """Search for the tree of pods now."""
    agent.tasks.find()
    settle(agent)


def find_causes(agent: reconciler.NodeReconciler) -> None:
    """Find the causes of the external writes until now, in the turns that follow."""
    agent.work.due.at(queue.Task.CAUSES, schedule.Why.DUE, agent.work.clock())
    agent.wake()


def causes_found(agent: reconciler.NodeReconciler) -> bool:
    """Whether no cause is yet to be found."""
    return agent._attribution.idle


def compare(agent: reconciler.NodeReconciler) -> None:
    """Have everything compared, to the end, in one turn."""
    agent.resync()
    settle(agent)


def recorded(folder: pathlib.Path) -> list[ledger.Key]:
    """The settings of which the next run would know that they hold a value of the agent's."""
    with tempfile.TemporaryDirectory() as copy:
        if (folder / ledger.FILE).exists():
            shutil.copy(folder / ledger.FILE, copy)
        book = ledger.Ledger(pathlib.Path(copy))
        book.close()
        return [record.key for record in book.settings]
