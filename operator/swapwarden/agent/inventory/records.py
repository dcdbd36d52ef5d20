"""What the agent knows of the cgroups of its node. Limits in bytes, times in monotonic seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final, NamedTuple

from swapwarden.agent.desired import problems, resolve, spec
from swapwarden.agent.host import cgroup_files, cgroupfs, inotify, values
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

    value: int | None
    """None while that is unknown. Attribution writes it."""
    zero: bool = False
    """Whether it was seen to hold a pod at 0 (guarantee Strict), whatever the value. Written by systemd_zero."""


class Retries(NamedTuple):
    """The waits before a file is tried again."""

    missing: backoff.Backoff
    """Between looks for a file that is not there, or is empty."""
    refused: backoff.Backoff
    """Between tries of what the kernel refuses."""


class ControlFile(inotify.Watched):
    """A limit of one cgroup: what it must hold, and how that stands."""

    __slots__ = (
        "container",
        "contention",
        "created_at",
        "desired",
        "inode",
        "key",
        "last_applied",
        "name",
        "open_exposure",
        "path",
        "pod",
        "resources",
        "retries",
        "spec",
        "status",
        "systemd",
        "times",
    )

    def __init__(
        self,
        path: str,
        inode: int,
        pod: Pod | None,
        container: str = "",
        described: cgroup_files.CgroupFile = cgroup_files.SWAP_MAX,
    ) -> None:
        super().__init__()
        self.path = path
        self.inode = inode
        self.spec = described
        self.name = cgroupfs.join(path, described.name)
        self.key = ledger.Key(described.name, path, inode=inode)
        self.pod = pod
        self.container = container
        self.desired = UNMANAGED
        self.last_applied: int | None = None
        """What it was last seen to hold as wanted; another value found later is another writer's."""
        self.status = UNKNOWN
        self.times = Times()
        self.open_exposure: OpenExposure | None = None
        self.retries: Retries | None = None
        """None where the last try succeeded."""
        self.created_at = NEVER
        """When its cgroup was seen to come; long ago where it was found."""
        self.systemd = SystemdHold(None if container else described.unset)
        self.contention: Contention | None = None
        self.resources: tuple[str, ...] | None = None
        """The cgroup's other limits when last looked at."""

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"

    @property
    def unseen(self) -> bool:
        """Whether it is not known to hold what it is to, and not for a failure either."""
        if self.status.reason is not None or self.desired.value is resolve.Handling.UNMANAGED:
            return False
        return self.status.confirmed != self.desired.value

    @property
    def settled(self) -> bool:
        """Whether it was looked at since the agent came up."""
        return self.times.written_at > NEVER or self.times.progress_at > NEVER

    def is_systemds(self, value: int) -> bool:
        """Whether systemd holds this value for the cgroup, and so writes it at times.

        Under the cgroupfs driver, and inside of containers, it has no units.
        """
        held = 0 if self.systemd.zero else self.systemd.value
        return value == held and self.path.endswith(_UNITS)

    @property
    def yielded(self) -> bool:
        """Whether it holds less than it is to, because another writer would not have it otherwise."""
        fight = self.contention
        return (
            fight is not None
            and fight.until is not None
            and self.status.limit == fight.limit
            and self.status.observed < fight.limit
        )

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


class Container(inotify.Watched):
    """A container's cgroup; with crun a second one below it."""

    __slots__ = ("files", "id", "path", "pod", "since", "stirred", "stirs")

    def __init__(self, pod: Pod, container: str, path: str, since: float) -> None:
        super().__init__()
        self.pod = pod
        self.id = container
        self.path = path
        self.since = since
        """When it came; long ago where it was found."""
        self.stirs = 0
        """So many times something happened to it or to the cgroup inside, each time soon after the one before."""
        self.stirred = NEVER
        """When that was last."""
        self.files: list[ControlFile] = []

    @property
    def is_tenants(self) -> bool:
        """A runtime may give it to the container's user."""
        return True

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"


class Pod(inotify.Watched):
    """A pod's cgroup."""

    __slots__ = (
        "containers",
        "enforced",
        "file",
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
        self.file = ControlFile(path, inode, self)
        self.containers: dict[str, Container] = {}
        """By the name of the cgroup."""
        self.tally = exposure.Tally()

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"

    def files(self) -> Iterator[ControlFile]:
        """Ancestors first."""
        yield self.file
        for container in self.containers.values():
            yield from container.files


class Level(inotify.Watched):
    """A cgroup in which pods appear."""

    __slots__ = ("inode", "path")

    def __init__(self, path: str, inode: int) -> None:
        super().__init__()
        self.path = path
        self.inode = inode

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"


class Parent(inotify.Watched):
    """The cgroup that holds the root of the tree: tells when that goes."""

    __slots__ = ()
