"""What the agent knows of the cgroups of its node. Limits in bytes, times in monotonic seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

from swapwarden.agent.desired import problems, resolve, spec
from swapwarden.agent.host import cgroupfs, values, watches
from swapwarden.agent.inventory import exposure, layout
from swapwarden.agent.ledger import ledger
from swapwarden.api import names
from swapwarden.api.violations import ViolationReason
from swapwarden.kube import backoff

_UNITS: Final = (".slice", ".scope", ".service")


class KeyFailure(NamedTuple):
    """Something other than one file that could not be reconciled."""

    pod: str
    """UID of the pod; `kubepods` for what is above pods."""
    container: str
    reason: ViolationReason
    message: str


class Progress(NamedTuple):
    """What is to be reported of reconciling beside the records of pods and files."""

    spec: spec.NodeSpec | None
    """The state in force."""
    problem: layout.TreeError | None
    """Why the tree of pods was not found."""
    degraded: str
    """Why not everything can be watched; empty where everything is."""
    lost: int
    """How often the kernel dropped events lately."""
    failures: tuple[KeyFailure, ...]
    others: str
    """Writers other than systemd that were noticed lately; empty where there is none."""
    settings: tuple[problems.SettingProblem, ...] | None
    """Settings of the node that are not as desired; None where none are to be set or restored."""
    to_restore: int
    """Settings that still hold a value of the agent's and should not."""


class Fight:
    """How often another writer lowered a file that is to hold more. Limits in bytes."""

    __slots__ = ("limit", "rounds", "since", "until")

    def __init__(self, limit: int, since: float) -> None:
        self.limit = limit
        """What the file is to hold."""
        self.since = since
        self.rounds = 0
        self.until: float | None = None
        """Until when the lower value is left to the other; None while it is not."""


class Above(NamedTuple):
    """A file may hold more than it is to, and could not be read or written yet."""

    since: float
    ran: names.Cause | None
    """Why its pod may have run before it held what it is to; None where another wrote over that."""


class Knob(watches.Watched):
    """One memory.swap.max: what it is to hold, and how that stands."""

    __slots__ = (
        "above",
        "came",
        "cap",
        "container",
        "draining",
        "failed",
        "fight",
        "found",
        "holds",
        "inode",
        "key",
        "limit",
        "missing",
        "moved",
        "number",
        "path",
        "pod",
        "reason",
        "refused",
        "resources",
        "retry",
        "right",
        "right_watch",
        "seen",
        "shadow",
        "swap",
        "target",
        "touched",
        "unit",
        "written",
    )

    def __init__(self, path: str, inode: int, pod: Pod | None, container: str = "") -> None:
        super().__init__()
        self.path = path
        self.inode = inode
        self.key = ledger.Key(cgroupfs.SWAP_MAX, path, inode=inode)
        self.pod = pod
        self.container = container
        self.target: resolve.DesiredValue = resolve.Handling.UNMANAGED
        self.shadow: resolve.DesiredValue = resolve.Handling.UNMANAGED
        """What the target would be if the mode were Enforce."""
        self.cap = False
        """Whether a smaller value than the target is as good."""
        self.holds: int | None = None
        """What it was last seen to hold as wanted; another value found later is another writer's."""
        self.limit: int | None = None
        """The number that the target comes to, also where that is to put back what was there; None: none of ours."""
        self.found = values.NO_LIMIT
        self.swap = 0
        self.draining = False
        self.moved = float("-inf")
        """When its usage or its limit was last seen to be another than before, while it drains."""
        self.number = 0
        """Of the settler's last write to it."""
        self.above: Above | None = None
        self.failed = ""
        """Why it could not be brought to its target; empty where it could."""
        self.reason = ViolationReason.WRITE_FAILED
        """What kind of failure that is."""
        self.missing: backoff.Backoff | None = None
        """Between looks for a file that is not there, or is empty."""
        self.refused: backoff.Backoff | None = None
        """Between tries of what the kernel refuses."""
        self.right = float("-inf")
        """When it was last seen to hold what the agent left in it."""
        self.right_watch: int | None = None
        """The watch that it had then: while it has the same, events tell of each write since."""
        self.seen = False
        """Whether it was seen to hold what its target comes to, or to be on the way there."""
        self.retry: asyncio.TimerHandle | None = None
        self.came = float("-inf")
        """When its cgroup was seen to come; long ago where it was found."""
        self.unit: int | None = None if container else values.NO_LIMIT
        """What systemd holds for the cgroup's unit, where it has one, and writes back; None where that is not known."""
        self.fight: Fight | None = None
        self.resources: tuple[str, ...] | None = None
        """The cgroup's other limits when last looked at."""
        self.touched = self.written = float("-inf")
        """When another last wrote to it, as far as that was seen, and when the agent did."""

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"

    def aim(self, target: resolve.DesiredValue) -> None:
        """Give it a target; what was seen of it says nothing of another one."""
        self.seen = self.seen and target == self.target
        self.target = target

    @property
    def unseen(self) -> bool:
        """Whether it is not known to hold what it is to, and not for a failure either."""
        return not (self.seen or self.failed or self.target is resolve.Handling.UNMANAGED)

    @property
    def settled(self) -> bool:
        """Whether it was looked at since the agent came up."""
        return self.written > float("-inf") or self.moved > float("-inf")

    def is_units(self, value: int) -> bool:
        """Whether systemd holds this value for the cgroup, and so writes it at times.

        Under the cgroupfs driver, and inside of containers, it has no units.
        """
        held = 0 if self.pod is not None and self.pod.covered and self is self.pod.knob else self.unit
        return value == held and self.path.endswith(_UNITS)

    @property
    def yielded(self) -> bool:
        """Whether it holds less than it is to, because another writer would not have it otherwise."""
        fight = self.fight
        return fight is not None and fight.until is not None and self.limit == fight.limit and self.found < fight.limit

    @property
    def kind(self) -> str:
        """Label of metrics."""
        return "kubepods" if self.pod is None else "container" if self.container else "pod"

    @property
    def is_tenants(self) -> bool:
        """As Container."""
        return self.container != ""

    @property
    def is_inner(self) -> bool:
        """Whether its cgroup is inside of a container's: crun's, or one that the container made, and writes to."""
        return self.container != "" and self.path.endswith(f"/{layout.INNER}")

    @property
    def standing(self) -> tuple[object, ...]:
        """What the status tells of it."""
        return self.draining, self.failed, self.found, self.swap, self.target, self.seen


class Container(watches.Watched):
    """A container's cgroup; with crun a second one below it."""

    __slots__ = ("id", "knobs", "path", "pod", "ripe", "since", "stirred", "stirs")

    def __init__(self, pod: Pod, container: str, path: str, since: float) -> None:
        super().__init__()
        self.pod = pod
        self.id = container
        self.path = path
        self.since = since
        """When it came; long ago where it was found."""
        self.ripe: asyncio.TimerHandle | None = None
        """When it is looked at again because it has just come."""
        self.stirs = 0
        """So many times something happened to it or to the cgroup inside, each time soon after the one before."""
        self.stirred = float("-inf")
        """When that was last."""
        self.knobs: list[Knob] = []

    @property
    def is_tenants(self) -> bool:
        """A runtime may give it to the container's user."""
        return True

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"


class Pod(watches.Watched):
    """A pod's cgroup."""

    __slots__ = (
        "containers",
        "covered",
        "enforced",
        "knob",
        "last",
        "origin",
        "path",
        "since",
        "stated",
        "tally",
        "uid",
    )

    def __init__(self, uid: str, path: str, inode: int, origin: resolve.Origin, since: float) -> None:
        super().__init__()
        self.uid = uid
        self.path = path
        self.origin = origin
        self.since = since
        self.last: int | None = None
        """What the state last gave it."""
        self.stated = False
        """Whether a state ever had an entry for it."""
        self.enforced = False
        """Whether it was seen to hold what a state says, or came when nothing was to be enforced."""
        self.covered = False
        """Whether systemd was seen to hold it at 0 (guarantee Strict)."""
        self.knob = Knob(path, inode, self)
        self.containers: dict[str, Container] = {}
        """By the name of the cgroup."""
        self.tally = exposure.Tally()

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"

    def knobs(self) -> Iterator[Knob]:
        """Ancestors first."""
        yield self.knob
        for container in self.containers.values():
            yield from container.knobs


class Level(watches.Watched):
    """A cgroup in which pods appear."""

    __slots__ = ("inode", "path")

    def __init__(self, path: str, inode: int) -> None:
        super().__init__()
        self.path = path
        self.inode = inode

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"


class Parent(watches.Watched):
    """The cgroup that holds the root of the tree: tells when that goes."""

    __slots__ = ()
