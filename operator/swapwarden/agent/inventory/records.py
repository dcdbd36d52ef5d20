"""The agent's records of its node's cgroups, and what the names mean that kubelets and runtimes give to these.

Limits in bytes, times in monotonic seconds. The names, where L is `-burstable`, `-besteffort` or nothing (Guaranteed):

- systemd: `kubepods.slice/[kubepodsL.slice/]kubepodsL-pod<uid with _>.slice/cri-containerd-<id>.scope`
- cgroupfs: `kubepods/[burstable/|besteffort/]pod<uid>/<id>`
- kind, or any `cgroupRoot`: the same below other cgroups, under systemd with their names in front
  (`kubelet.slice/kubelet-kubepods.slice/...`)
- KEP-5894 puts pods of the system into one more level, `system`, below the root.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from swapwarden.agent.desired import resolve
from swapwarden.agent.host import cgroup_files, cgroupfs, inotify
from swapwarden.agent.inventory import exposure
from swapwarden.agent.ledger import ledger
from swapwarden.api import names
from swapwarden.api.violations import ViolationReason
from swapwarden.kube import backoff

_UNITS: Final = (".slice", ".scope", ".service")
NEVER: Final = float("-inf")

_LEVELS: Final = frozenset({"burstable", "besteffort", "system"})
_ROOT = re.compile(r"kubepods|(?:.+-)?kubepods\.slice")
_LEVEL_SLICE = re.compile(r"(?:.+-)?kubepods(?:-system)?(?:-burstable|-besteffort)?\.slice")
_UID = r"[0-9a-fA-F][0-9a-fA-F{}]{{6,126}}[0-9a-fA-F]"
_POD = re.compile(rf"pod({_UID.format('-')})")
_POD_SLICE = re.compile(rf"(?:.+-)?kubepods(?:-system)?(?:-burstable|-besteffort)?-pod({_UID.format('_')})\.slice")
_CONTAINER = re.compile(r"(?:[a-z][a-z-]*-)?([0-9a-f]{64})(?:\.scope)?")
_NOT_A_CONTAINER: Final = "crio-conmon-"

INNER: Final = "container"
"""crun makes a cgroup of this name below the scope, and puts the processes there."""


def is_root(name: str) -> bool:
    """Return whether a directory of this name is the cgroup above all pods of a node."""
    return _ROOT.fullmatch(name) is not None


def is_level(name: str) -> bool:
    """Return whether a directory of this name, below the root of pods and outside pods, has pods of one class."""
    return name in _LEVELS or _LEVEL_SLICE.fullmatch(name) is not None


def is_burstable(name: str) -> bool:
    """Return whether a level of this name has the Burstable pods."""
    return name == "burstable" or name.endswith("-burstable.slice")


def pod_uid(name: str) -> str | None:
    """Return the UID in the name of a pod's cgroup, with dashes; None for other names."""
    if match := _POD.fullmatch(name):
        return match[1]
    if match := _POD_SLICE.fullmatch(name):
        return match[1].replace("_", "-")
    return None


def container_id(name: str) -> str | None:
    """Return the container id in the name of a cgroup below a pod; None for other names, such as conmon's."""
    match = _CONTAINER.fullmatch(name)
    return match[1] if match and not name.startswith(_NOT_A_CONTAINER) else None


def is_monitor(name: str) -> bool:
    """Return whether a cgroup below a pod is that of CRI-O's own process for a container, which is not the pod's."""
    return name.startswith(_NOT_A_CONTAINER)


class Contention(msgspec.Struct, eq=False):
    """How often another writer lowered a file below its limit, in bytes."""

    limit: int
    """The desired value."""
    since: float
    rounds: int = 0
    until: float | None = None
    """Until when the agent leaves the lower value alone; None while it does not."""


class Desired(msgspec.Struct, frozen=True):
    """The desired value of a file."""

    value: resolve.DesiredValue = resolve.Handling.UNMANAGED
    if_enforced: resolve.DesiredValue = resolve.Handling.UNMANAGED
    """The value in mode Enforce."""
    at_most: bool = False
    """Whether a smaller value of another writer stays."""


UNMANAGED: Final = Desired()


def desired(
    file: ControlFile,
    enforced: resolve.DesiredValue,
    *,
    mode: names.Mode,
    owns: Collection[resolve.Owned],
    at_most: bool = False,
) -> Desired:
    """Return the desired value of a file that Enforce would bring to `enforced`, unless the kubelet sets it itself."""
    if resolve.is_kubelets(owns, file.spec, container=bool(file.container)):
        enforced = resolve.Handling.RESTORE
    return Desired(enforced if mode is names.Mode.ENFORCE else resolve.Handling.RESTORE, enforced, at_most)


class FileStatus(msgspec.Struct, frozen=True):
    """The status of a file, with everything that is reported about it. Bytes."""

    observed: int = cgroupfs.NO_LIMIT
    in_use: int = 0
    limit: int | None = None
    """The desired value as a number, also of a restore; None if the agent leaves the file alone."""
    draining: bool = False
    """Whether more is in use than desired."""
    confirmed: resolve.DesiredValue | None = None
    """The desired value that the file last held, or was on the way to; None after a failure."""
    reason: ViolationReason | None = None
    """Why the file could not be brought to its desired value; None if it could."""
    message: str = ""
    to_restore: bool = False
    """Whether the file holds a value that the agent must restore."""
    pending: float | None = None
    """When the write under way began, in monotonic seconds; None without one."""
    foreign: bool = False
    """True if another writer owns this memory.* file; the agent leaves its value."""


UNKNOWN: Final = FileStatus()


class OpenExposure(msgspec.Struct, frozen=True):
    """A file may hold more than desired, and could not be read or written yet."""

    since: float
    ran: names.Cause | None
    """Why its pod may have run before the file had its value; None if another writer replaced that."""


class Throttling(msgspec.Struct, frozen=True):
    """How a memory.high throttled its cgroup, and what the guard made of it."""

    least: int = 0
    """The least that the file must hold, in bytes; 0: as planned."""
    phase: str = ""
    """How the guard raised it; empty: it did not."""
    why: str = ""
    """Why the guard acted, or what it only reports, for the status."""
    trips: int = 0
    """How often the guard found the cgroup at a standstill."""
    foreign: int = 0
    """Another writer's value in bytes, which throttles; 0: the planned one does."""
    since: str = ""
    """When the sums began, RFC 3339."""
    events: int = 0
    """How often the kernel throttled."""
    seconds: float = 0.0
    """Seconds in which some task stalled meanwhile."""
    last: float = NEVER
    """When the kernel throttled last, as far as the agent noticed."""


NOT_THROTTLED: Final = Throttling()


class Times(msgspec.Struct, eq=False):
    """When something last happened to a file. The file reconciler writes all."""

    right_at: float = NEVER
    """When the agent last read its own value."""
    right_watch: int | None = None
    """The file's watch at that time: while it has the same one, events report each later write."""
    written_at: float = NEVER
    """When the agent last wrote to the file."""
    write_seq: int = 0
    """Number of the agent's last write to the file among all its writes; 0: none."""
    touched_at: float = NEVER
    """When another writer last wrote to the file, as far as the agent noticed."""
    progress_at: float = NEVER
    """When the use or the limit last changed while the file drained."""


class SystemdHold(msgspec.Struct, eq=False):
    """systemd's value for the unit of a file's cgroup, which it may write again. Bytes."""

    value: int | None = None
    """systemd's value in bytes; None while unknown. Attribution writes it, after the record was made. systemd may also
    write "max" to a pod: a kubelet can write its limit past systemd."""
    zero: bool = False
    """Whether systemd held the pod at 0 (guarantee Strict), whatever the value. systemd_zero writes it."""


class Retries(msgspec.Struct, frozen=True):
    """The waits before retries of a file."""

    missing: backoff.Backoff
    """Wait between reads of a file that is missing or empty."""
    refused: backoff.Backoff
    """Wait between writes that the kernel refuses."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class FileIdentity(inotify.Watched):
    """The part of a file's record that never changes: which limit of which cgroup it is."""

    path: str
    """The cgroup's."""
    inode: int
    pod: Pod | None
    container: str = ""
    spec: cgroup_files.CgroupFile = cgroup_files.SWAP_MAX
    is_units: bool = False
    """Whether its cgroup is a slice or service of the node, without pods."""
    name: str = dataclasses.field(init=False)
    usage: str = dataclasses.field(init=False)
    """The file that counts its use; empty: none does."""
    key: ledger.Key = dataclasses.field(init=False)
    kind: str = dataclasses.field(init=False)
    """Label of metrics."""
    is_pods: bool = dataclasses.field(init=False)
    """Whether its cgroup is a pod's own: the kubelet may write to it at any time."""
    is_inner: bool = dataclasses.field(init=False)
    """Whether its cgroup is inside a container's: crun's, or one that the container made and writes to."""

    def __post_init__(self) -> None:
        self.name = f"{self.path}/{self.spec.name}"
        self.usage = f"{self.path}/{self.spec.usage}" if self.spec.usage else ""
        self.key = ledger.Key(self.spec.name, self.path, inode=self.inode)
        if self.pod is None:
            self.kind = "system" if self.is_units else "kubepods"
        else:
            self.kind = "container" if self.container else "pod"
        self.is_pods = self.kind == "pod"
        self.is_inner = self.container != "" and self.path.endswith(f"/{INNER}")

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"

    @property
    def setting(self) -> str:
        """The name of the file's setting in a state, such as memoryLow."""
        first, *others = self.spec.field.split("_")
        return first + "".join(map(str.title, others))

    @property
    def is_tenants(self) -> bool:
        """True for a container, and for a unit, since a service with Delegate= may own its cgroup."""
        return self.container != "" or self.is_units


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class ControlFile(FileIdentity):
    """A file with its desired value and its status."""

    desired: Desired = dataclasses.field(default=UNMANAGED, init=False)
    last_stated: int | None = dataclasses.field(default=None, init=False)
    """A pod's: its value in the last state that had one."""
    last_applied: int | None = dataclasses.field(default=None, init=False)
    """The agent's value that it last read there; another value found later is another writer's."""
    status: FileStatus = dataclasses.field(default=UNKNOWN, init=False)
    times: Times = dataclasses.field(default_factory=Times, init=False)
    open_exposure: OpenExposure | None = dataclasses.field(default=None, init=False)
    retries: Retries | None = dataclasses.field(default=None, init=False)
    """Waits between tries; None if the last try succeeded."""
    throttling: Throttling = dataclasses.field(default=NOT_THROTTLED, init=False)
    """The guard writes it."""
    created_at: float = dataclasses.field(default=NEVER, init=False)
    """When its cgroup appeared; NEVER if it existed before."""
    systemd: SystemdHold = dataclasses.field(default_factory=SystemdHold, init=False)
    contention: Contention | None = dataclasses.field(default=None, init=False)
    resources: tuple[str, ...] | None = dataclasses.field(default=None, init=False)
    """The cgroup's other limits when last read."""

    def __post_init__(self) -> None:
        FileIdentity.__post_init__(self)
        # A runtime may have set a container's unit, an administrator a service's.
        if not (self.container or self.is_units):
            self.systemd.value = self.spec.unset

    def is_systemds(self, value: int) -> bool:
        """Return whether this is systemd's value for the cgroup, which it may write at any time.

        Under the cgroupfs driver, and inside containers, systemd has no units.
        """
        held = 0 if self.systemd.zero else self.systemd.value
        unset = self.is_pods and value == self.spec.unset and not self.systemd.zero
        return (value == held or unset) and self.path.endswith(_UNITS)


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Cgroup(inotify.Watched):
    """A cgroup below that of all pods, or that one."""

    path: str

    def __str__(self) -> str:
        """For logs."""
        return f"/{self.path}"


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Container(Cgroup):
    """A container's cgroup; with crun a second one below it."""

    pod: Pod
    id: str
    since: float
    """When it appeared; NEVER if it existed before."""
    stirs: int = dataclasses.field(default=0, init=False)
    """Events of it or of the cgroup inside, each soon after the one before."""
    stirred: float = dataclasses.field(default=NEVER, init=False)
    """When the last of these was."""
    files: list[ControlFile] = dataclasses.field(default_factory=list, init=False)
    """Files of the container's cgroups: memory.swap.max, and those of OF_MEMORY that are set or on record."""

    @property
    def is_tenants(self) -> bool:
        """A runtime may give it to the container's user."""
        return True


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Pod(Cgroup):
    """A pod's cgroup."""

    uid: str
    inode: dataclasses.InitVar[int]
    origin: resolve.Origin
    since: float
    stated: bool = dataclasses.field(default=False, init=False)
    """Whether a state ever had an entry for it."""
    enforced: bool = dataclasses.field(default=False, init=False)
    """Whether its file held the value of a state once, or it appeared while nothing was enforced."""
    ended_at: float = dataclasses.field(default=NEVER, init=False)
    """When the agent last noticed that a container had ended."""
    own: tuple[ControlFile, ...] = dataclasses.field(init=False)
    """The pod's own files: memory.swap.max, then those of cgroup_files.OF_MEMORY that are set or on record."""
    file: ControlFile = dataclasses.field(init=False)
    """The pod's own memory.swap.max."""
    containers: dict[str, Container] = dataclasses.field(default_factory=dict, init=False)
    """Containers by the name of their cgroup."""
    tally: exposure.Tally = dataclasses.field(default_factory=exposure.Tally, init=False)

    def __post_init__(self, inode: int) -> None:
        self.file = ControlFile(self.path, inode, self)
        self.own = (self.file,)

    def files(self) -> Iterator[ControlFile]:
        """Yield its files, ancestors first."""
        yield from self.own
        for container in self.containers.values():
            yield from container.files


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Level(Cgroup):
    """A cgroup in which pods appear."""

    inode: int
    own: tuple[ControlFile, ...] = dataclasses.field(default=(), init=False)
    """The level's own files: those of cgroup_files.OF_MEMORY that are set or on record."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Parent(inotify.Watched):
    """The cgroup above the root of the tree, watched for the root's removal."""
