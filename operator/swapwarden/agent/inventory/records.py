"""What the agent knows of the cgroups of its node. Limits in bytes, times in monotonic seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final, NamedTuple

from swapwarden.agent.desired import problems, resolve, spec
from swapwarden.agent.host import cgroup_files, inotify, values
from swapwarden.agent.inventory import exposure, layout
from swapwarden.agent.ledger import ledger
from swapwarden.api import names
from swapwarden.api.violations import ViolationReason
from swapwarden.kube import backoff

_UNITS: Final = (".slice", ".scope", ".service")
NEVER: Final = float("-inf")


class KeyFailure(NamedTuple):
    """Something other than one file that could not be reconciled."""

    pod: str
    """UID of the pod; `kubepods` for what is above pods."""
    container: str
    reason: ViolationReason
    message: str


class ReconcileProgress(NamedTuple):
    """What is to be reported of reconciling beside the records of pods and files."""

    spec: spec.NodeSpec | None
    """The state in force."""
    watches: int
    """Of inotify, in use."""
    problem: layout.TreeError | None
    """Why the tree of pods was not found."""
    degraded: str
    """Why not everything can be watched; empty where everything is."""
    generation: int
    """Of the newest state that everything was brought to as far as it could be."""
    lost: int
    """How often the kernel dropped events lately."""
    failures: tuple[KeyFailure, ...]
    others: str
    """Writers other than systemd that were noticed lately; empty where there is none."""
    settings: tuple[problems.SettingProblem, ...] | None
    """Settings of the node that are not as desired; None where none are to be set or restored."""
    to_restore: int
    """Settings that still hold a value of the agent's and should not."""


class Contention:
    """How often another writer lowered a file that is to hold more. Limits in bytes."""

    __slots__ = ("limit", "rounds", "since", "until")

    def __init__(self, limit: int, since: float) -> None:
        self.limit = limit
        """What the file is to hold."""
        self.since = since
        self.rounds = 0
        self.until: float | None = None
        """Until when the lower value is left to the other; None while it is not."""


class Desired(NamedTuple):
    """What a file must hold."""

    value: resolve.DesiredValue = resolve.Handling.UNMANAGED
    if_enforced: resolve.DesiredValue = resolve.Handling.UNMANAGED
    """What the value would be if the mode were Enforce."""
    at_most: bool = False
    """Whether a smaller value is as good."""


UNMANAGED: Final = Desired()


class FileStatus(NamedTuple):
    """How a file stands: all that is reported of it. Bytes."""

    observed: int = values.NO_LIMIT
    in_use: int = 0
    limit: int | None = None
    """The desired value as a number, also where that is to restore what was there; None: none of the agent's."""
    draining: bool = False
    """Whether more is in use than desired."""
    confirmed: resolve.DesiredValue | None = None
    """The desired value that the file was last seen to hold, or to be on the way to; None after a failure."""
    reason: ViolationReason | None = None
    """Why it could not be brought to its desired value; None if it could."""
    message: str = ""
    to_restore: bool = False
    """Whether the file holds a value of the agent's and must not."""
    pending: float | None = None
    """Since when the kernel has been at a write, in monotonic seconds; None if it is at none."""


UNKNOWN: Final = FileStatus()


class OpenExposure(NamedTuple):
    """A file may hold more than it is to, and could not be read or written yet."""

    since: float
    ran: names.Cause | None
    """Why its pod may have run before it held what it is to; None where another wrote over that."""


@dataclasses.dataclass(slots=True, eq=False)
class Times:
    """When something last happened to a file. The file reconciler writes all but `touched_at` (attribution's)."""

    right_at: float = NEVER
    """It was seen to hold what the agent left in it."""
    right_watch: int | None = None
    """The watch that it had then: while it has the same, events tell of each write since."""
    written_at: float = NEVER
    """The agent wrote to it."""
    write_seq: int = 0
    """Which of the agent's writes that was; 0: none."""
    touched_at: float = NEVER
    """Another wrote to it, as far as that was seen."""
    progress_at: float = NEVER
    """Its usage or its limit was seen to be another than before, while it drains."""


@dataclasses.dataclass(slots=True, eq=False)
class SystemdHold:
    """What systemd holds for a file's unit, where it has one, and writes back. Bytes."""

    value: int | None = None
    """None while that is unknown. Attribution writes it."""
    zero: bool = False
    """Whether it was seen to hold a pod at 0 (guarantee Strict), whatever the value. Written by systemd_zero."""


class Retries(NamedTuple):
    """The waits before a file is tried again."""

    missing: backoff.Backoff
    """Between looks for a file that is not there, or is empty."""
    refused: backoff.Backoff
    """Between tries of what the kernel refuses."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class FileIdentity(inotify.Watched):
    """Which file it is: a limit of one cgroup. This never changes."""

    path: str
    """The cgroup's."""
    inode: int
    pod: Pod | None
    container: str = ""
    spec: cgroup_files.CgroupFile = cgroup_files.SWAP_MAX
    name: str = dataclasses.field(init=False)
    usage: str = dataclasses.field(init=False)
    """The file that counts what is in use of it; empty if there is none."""
    key: ledger.Key = dataclasses.field(init=False)
    kind: str = dataclasses.field(init=False)
    """Label of metrics."""
    is_inner: bool = dataclasses.field(init=False)
    """Whether its cgroup is inside of a container's: crun's, or one that the container made, and writes to."""

    def __post_init__(self) -> None:
        self.name = f"{self.path}/{self.spec.name}"
        self.usage = f"{self.path}/{self.spec.usage}" if self.spec.usage else ""
        self.key = ledger.Key(self.spec.name, self.path, inode=self.inode)
        self.kind = "kubepods" if self.pod is None else "container" if self.container else "pod"
        self.is_inner = self.container != "" and self.path.endswith(f"/{layout.INNER}")

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"

    @property
    def is_tenants(self) -> bool:
        """As Container."""
        return self.container != ""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class ControlFile(FileIdentity):
    """What a file must hold, and how that stands."""

    desired: Desired = dataclasses.field(default=UNMANAGED, init=False)
    last_applied: int | None = dataclasses.field(default=None, init=False)
    """What it was last seen to hold as wanted; another value found later is another writer's."""
    status: FileStatus = dataclasses.field(default=UNKNOWN, init=False)
    times: Times = dataclasses.field(default_factory=Times, init=False)
    open_exposure: OpenExposure | None = dataclasses.field(default=None, init=False)
    retries: Retries | None = dataclasses.field(default=None, init=False)
    """None where the last try succeeded."""
    created_at: float = dataclasses.field(default=NEVER, init=False)
    """When its cgroup was seen to come; long ago where it was found."""
    systemd: SystemdHold = dataclasses.field(default_factory=SystemdHold, init=False)
    contention: Contention | None = dataclasses.field(default=None, init=False)
    resources: tuple[str, ...] | None = dataclasses.field(default=None, init=False)
    """The cgroup's other limits when last looked at."""

    def __post_init__(self) -> None:
        FileIdentity.__post_init__(self)
        if not self.container:
            self.systemd.value = self.spec.unset

    def is_systemds(self, value: int) -> bool:
        """Whether systemd holds this value for the cgroup, and so writes it at times.

        Under the cgroupfs driver, and inside of containers, it has no units.
        """
        held = 0 if self.systemd.zero else self.systemd.value
        return value == held and self.path.endswith(_UNITS)


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Container(inotify.Watched):
    """A container's cgroup; with crun a second one below it."""

    pod: Pod
    id: str
    path: str
    since: float
    """When it came; long ago where it was found."""
    stirs: int = dataclasses.field(default=0, init=False)
    """So many times something happened to it or to the cgroup inside, each time soon after the one before."""
    stirred: float = dataclasses.field(default=NEVER, init=False)
    """When that was last."""
    files: list[ControlFile] = dataclasses.field(default_factory=list, init=False)

    @property
    def is_tenants(self) -> bool:
        """A runtime may give it to the container's user."""
        return True

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Pod(inotify.Watched):
    """A pod's cgroup."""

    uid: str
    path: str
    inode: dataclasses.InitVar[int]
    origin: resolve.Origin
    since: float
    last: int | None = dataclasses.field(default=None, init=False)
    """What the state last gave it."""
    stated: bool = dataclasses.field(default=False, init=False)
    """Whether a state ever had an entry for it."""
    enforced: bool = dataclasses.field(default=False, init=False)
    """Whether it was seen to hold what a state says, or came when nothing was to be enforced."""
    file: ControlFile = dataclasses.field(init=False)
    containers: dict[str, Container] = dataclasses.field(default_factory=dict, init=False)
    """By the name of the cgroup."""
    tally: exposure.Tally = dataclasses.field(default_factory=exposure.Tally, init=False)

    def __post_init__(self, inode: int) -> None:
        self.file = ControlFile(self.path, inode, self)

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"

    def files(self) -> Iterator[ControlFile]:
        """Ancestors first."""
        yield self.file
        for container in self.containers.values():
            yield from container.files


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Level(inotify.Watched):
    """A cgroup in which pods appear."""

    path: str
    inode: int

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Parent(inotify.Watched):
    """The cgroup that holds the root of the tree: tells when that goes."""
