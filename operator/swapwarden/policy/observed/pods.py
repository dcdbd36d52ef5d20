"""Pods: the fields that are read, and the compact row that is kept of each of 150,000 pods."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from swapwarden.api import names, quantity, state
from swapwarden.api.conditions import ConditionType
from swapwarden.api.quantity import MAX_LENGTH
from swapwarden.policy.observed import resources
from swapwarden.policy.observed.new_pods import NewPod, NewPodSpec, WireContainer
from swapwarden.policy.observed.resources import Class, Kind, ResourceList, Resources

CRITICAL_PRIORITY = 2_000_000_000
"""The priority from which on the kubelet considers a pod critical (k/k: pkg/kubelet/types/pod_update.go)."""

CRITICAL_CLASSES = frozenset({"system-node-critical", "system-cluster-critical"})

_POD_KEY = re.compile(state.POD_KEY)
_MAX_WRITTEN = MAX_LENGTH + 1
"""Characters of a text that are kept: a longer one is neither a policy nor a quantity, even when it is cut."""

_MAX_SHARED = 1024
"""Characters of labels that are remembered beyond their pod: nearly all pods have fewer, and some have a million."""

_CONTAINER_ID = re.compile(r"[0-9A-Za-z_.-]{1,128}")
"""Runtimes use 64 hexadecimal digits. Any other id must at least not grow in JSON."""


class WireRunning(msgspec.Struct, frozen=True):
    """state.running of a container's status: only its presence counts."""


class WireContainerState(msgspec.Struct, frozen=True):
    """State of a container: the fields that are read."""

    running: WireRunning | None = None


class WireContainerStatus(msgspec.Struct, frozen=True):
    """Status of a container: the fields that are read."""

    name: str
    container_id: str = msgspec.field(default="", name="containerID")
    state: WireContainerState = WireContainerState()
    resources: Resources | None = None
    """All resources in force, if the kubelet reports them (k/k: pkg/kubelet/kubelet_pods.go)."""


class WireVolume(msgspec.Struct, frozen=True):
    """A volume of a pod: whether it may hold secrets."""

    name: str = ""
    secret: WireRunning | None = None
    projected: WireRunning | None = None


class WirePodSpec(NewPodSpec, frozen=True, rename="camel"):
    """Spec of a pod: the fields that are read."""

    ephemeral_containers: list[WireContainer] = []  # noqa: RUF012 msgspec copies it, which ruff sees in direct subclasses only
    priority: int | None = None
    priority_class_name: str = ""
    termination_grace_period_seconds: int | None = None
    volumes: list[WireVolume] | None = None


class WirePodCondition(msgspec.Struct, frozen=True):
    """A condition of a pod: the fields that are read."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class WirePodStatus(msgspec.Struct, frozen=True, rename="camel"):
    """Status of a pod: the fields that are read."""

    phase: str = ""
    start_time: str = ""
    qos_class: Class | None = None
    conditions: list[WirePodCondition] = []
    container_statuses: list[WireContainerStatus] = []
    init_container_statuses: list[WireContainerStatus] = []
    ephemeral_container_statuses: list[WireContainerStatus] = []

    @property
    def is_ready(self) -> bool:
        """Whether all containers of the pod are ready."""
        return any(each.type == "Ready" and each.status == "True" for each in self.conditions)


class WirePod(NewPod, frozen=True):
    """A pod as received from the API server or read from a file."""

    spec: WirePodSpec
    status: WirePodStatus = WirePodStatus()


class WholePod(NamedTuple):
    """The memory of a pod's spec beside that of its containers."""

    stated: bool = False
    """Whether the pod as a whole has resources, of whatever kind (KEP-2837)."""
    request: int = 0
    limit: int = 0
    overhead: int = 0
    """The memory that its runtime class adds."""


NOTHING: Final = WholePod()
"""The memory that nearly all pods have beside that of their containers."""


def of_container(resources: Resources) -> tuple[int, int]:
    """Return the request and the limit. QuantityError if one is no quantity."""
    limit = resources.limits.memory or 0
    request = resources.requests.memory
    if request is None:  # A file lacks the API server's defaults.
        request = limit
    return quantity.capped(str(request)), quantity.capped(str(limit))


def of_pod(resources: Resources | None, overhead: ResourceList, containers: Iterable[Resources]) -> WholePod:
    """Return the memory of a pod with these resources as a whole. QuantityError if an amount is no quantity."""
    added = quantity.capped(str(overhead.memory or 0))
    if resources is None or not any(True for _ in resources.quantities("")):
        return WholePod(overhead=added) if added else NOTHING
    request, limit = of_container(resources)
    if resources.requests.memory is None and any(
        one.requests.memory is not None or one.limits.memory is not None for one in containers
    ):
        # The API server fills in the sum of the containers' requests (k/k: pkg/apis/core/v1/defaults.go).
        request = 0
    return WholePod(stated=True, request=request, limit=limit, overhead=added)


_BY_KUBELET: Final = ("DisruptionTarget", "True", "TerminationByKubelet")
_FOR_MEMORY: Final = "The node was low on resource: memory"
"""The begin of the message (k/k: pkg/kubelet/eviction/helpers.go). With another, it evicts a pod that exceeds its own
limit of a disk: a tenant could have that at any time."""


class ContainerRow(msgspec.Struct, frozen=True, gc=False):
    """A row of a container. Memory in bytes, 0 if unset."""

    name: str
    kind: Kind
    request: int
    limit: int
    swap_limit: str | None = None
    """The container's swap-limit annotation, as written, or its beginning; ephemeral containers have none."""
    swap_resource: int | None = None
    """The container's request of the extended resource, in bytes; None if it has none."""
    id: str = ""
    """The runtime's id, without its prefix (containerd://); empty unless the container runs."""


class Enforced(NamedTuple):
    """A pod's condition SWAP_POLICY_ENFORCED: the fields that are kept."""

    status: str
    reason: str
    holder: str = ""
    """Who holds the limit, of names.Holder; empty if its message does not end with one."""


# One object for all pods with equal values.
_enforced: Final = functools.lru_cache(maxsize=256)(Enforced)


class Mirror(NamedTuple):
    """A pod's claims to be the mirror of a static pod. Everyone who can create pods can make them."""

    key: str
    """The UID in the name of the static pod's cgroup."""
    node_uid: str
    """UID of the Node that owns the mirror."""


class PodRow(msgspec.Struct, frozen=True, gc=False):
    """A row of a pod."""

    key: str
    """The UID in the name of the pod's cgroup; namespace/name for a pod from a file, which has none."""
    uid: str
    namespace: str
    name: str
    node: str
    terminal: bool
    """Whether it has ended, or no kubelet will ever run it."""
    critical: bool
    qos: Class
    policy: str | None
    """The policy annotation, as written, or the beginning of one that is too long to be valid."""
    swap_limit: str | None
    """The swap-limit annotation, as written, or its beginning."""
    created: str
    started: str
    """When the kubelet accepted the pod (RFC 3339, UTC, seconds); empty before."""
    containers: tuple[ContainerRow, ...]
    """The pod's containers in the order init, app, ephemeral, each as in the spec."""
    agent: bool = False
    """Whether it is Ready and has the labels of Swapwarden's agent. Anyone can label pods: check the namespace also."""
    defaulted: bool = False
    """Whether the policy is the default of its namespace rather than the pod's own."""
    labels: str = ""
    """Labels as text, which parse_labels() reads."""
    enforced: Enforced | None = None
    """The pod's condition SWAP_POLICY_ENFORCED; None without it."""
    mirror: Mirror | None = None
    """The claims of a mirror of a static pod, or of a pod that pretends to be one; None for others."""
    whole: WholePod = NOTHING
    asks: resources.MemoryAsks | None = None
    """The pod's annotations about memory.low and memory.high; None without any."""
    ending: bool = False
    """Whether it was deleted, and its containers may still run."""
    reclaim: names.ReclaimMode | None = None
    """The mode in its annotation; None without one."""
    evicted: bool = False
    """Whether the kubelet evicted it for want of memory."""

    def on(self, node_uid: str) -> PodRow:
        """Return the row as it counts on the Node with this UID.

        A mirror that another Node owns, or none, does not identify its cgroup.
        """
        if self.mirror is None:
            return self
        key = self.mirror.key if self.mirror.node_uid == node_uid else self.uid
        return self if key == self.key else msgspec.structs.replace(self, key=key)

    def limited(self) -> bool:
        """Return whether the pod, or a container of it, has a swap limit."""
        return self.swap_limit is not None or any(
            one.swap_limit is not None or one.swap_resource is not None for one in self.containers
        )


def project(wire: WirePod) -> PodRow:
    """Reduce a pod to its row. QuantityError if a resource is no quantity (the API server accepts none)."""
    meta, spec, status = wire.metadata, wire.spec, wire.status
    annotations = meta.annotations
    policy = _written(annotations, names.POLICY_ANNOTATION)
    mirror, containers = _mirror(wire), tuple(spec.created())
    return PodRow(
        key=(mirror.key if mirror else meta.uid) or f"{meta.namespace}/{meta.name}",
        uid=meta.uid,
        namespace=sys.intern(meta.namespace),
        name=meta.name,
        node=sys.intern(spec.node_name),
        terminal=status.phase in {"Succeeded", "Failed"} or _is_left_behind(wire),
        critical=_is_critical(wire),
        qos=_qos_class(wire),
        policy=policy if policy is None else sys.intern(policy),
        swap_limit=_written(annotations, names.LIMIT_ANNOTATION),
        created=meta.creation_timestamp or "",
        started=sys.intern(status.start_time),
        containers=(
            *_rows(containers, (*status.init_container_statuses, *status.container_statuses), annotations),
            *_rows(
                ((Kind.EPHEMERAL, one) for one in spec.ephemeral_containers), status.ephemeral_container_statuses, {}
            ),
        ),
        agent=names.AGENT_LABELS.items() <= meta.labels.items() and status.is_ready,
        defaulted=annotations.get(names.POLICY_SOURCE_ANNOTATION) == names.SOURCE_NAMESPACE,
        labels=_labels(meta.labels),
        enforced=next(
            (
                _enforced(each.status[:_MAX_WRITTEN], each.reason[:_MAX_WRITTEN], _holder(each.message))
                for each in status.conditions
                if each.type == ConditionType.SWAP_POLICY_ENFORCED
            ),
            None,
        ),
        mirror=mirror,
        whole=of_pod(spec.resources, spec.overhead, (one.resources for _, one in containers)),
        asks=resources.memory_asks(annotations, (one.name for _, one in containers)),
        ending=bool(meta.deletion_timestamp),
        reclaim=_reclaim(annotations),
        evicted=is_evicted(status.conditions),
    )


def pod_request(row: PodRow, *, whole: bool = True) -> int:
    """Return the bytes of memory that the pod requests, with its overhead; 0 if nothing is requested.

    Resources of the pod as a whole (KEP-2837) replace the containers' sum unless `whole` is False. In k/k:
    component-helpers/resource/helpers.go, PodRequests.
    """
    own = row.whole.request if whole else 0
    return (own or resources.peak((one.kind, one.request) for one in row.containers)) + row.whole.overhead


def pod_limit(row: PodRow) -> int:
    """Return the bytes to which the pod is limited, with its overhead; 0 if nothing is limited.

    As the kubelet does (PodLimits beside PodRequests), this sums the limits of the containers that have one: see
    `is_limited`.
    """
    limit = row.whole.limit or resources.peak((one.kind, one.limit) for one in row.containers)
    return limit + row.whole.overhead if limit else 0


def is_limited(row: PodRow) -> bool:
    """Return whether the memory of the pod's cgroup is limited: by its own limit, or because each container has one.

    Ephemeral containers have no resources and do not count (k/k: pkg/kubelet/cm/helpers_linux.go).
    """
    counted = [one for one in row.containers if one.kind is not Kind.EPHEMERAL]
    return bool(row.whole.limit) or all(one.limit for one in counted)


def only_started(old: PodRow, new: PodRow) -> bool:
    """Return whether only a pod's start (and the end of containers) turned one row into the other."""
    return _not_started(old) == _not_started(new)


def _not_started(row: PodRow) -> PodRow:
    containers = tuple(msgspec.structs.replace(container, id="") for container in row.containers)
    return msgspec.structs.replace(row, started="", agent=False, enforced=None, containers=containers)


def parse_labels(text: str) -> dict[str, str]:
    """Labels in the form of rows: key=value, joined by commas; neither can contain a comma."""
    return dict(each.split("=", 1) for each in text.split(",")) if text else {}


def holder_of(key: str, swap_max: str | None, holds: state.Holds | None, *, no_nri: bool = False) -> str:
    """Return who was observed to hold a pod's limit, of names.Holder.

    Empty if that is not known, or if the pod has no limit of its own. `no_nri`: the node's runtime never holds any.
    """
    if swap_max in {None, "", names.MAX_SWAP}:
        return ""
    if holds is None or key in holds.agent_only:
        return names.Holder.AGENT
    if not (holds.runtime or holds.systemd):
        # While its plugin is away, the runtime keeps the limits that it has.
        return names.Holder.AGENT if no_nri else ""
    # A list that is cut may lack the pod.
    if holds.agent_only_omitted:
        return ""
    if holds.runtime and holds.systemd and swap_max == "0":  # drop-in files hold no other number
        return names.Holder.RUNTIME_OR_SYSTEMD
    return names.Holder.RUNTIME if holds.runtime else names.Holder.SYSTEMD


def held_by(holder: str) -> str:
    """Return the end of the message of the condition SWAP_POLICY_ENFORCED."""
    return f"; held by {holder}"


_HOLDERS: Final = {held_by(each): each.value for each in names.Holder}


def _holder(message: str) -> str:
    return next((holder for end, holder in _HOLDERS.items() if message.endswith(end)), "")


def _written(annotations: dict[str, str], key: str) -> str | None:
    text = annotations.get(key)
    return text if text is None else text[:_MAX_WRITTEN]


def _reclaim(annotations: dict[str, str]) -> names.ReclaimMode | None:
    """Return what a pod asks. An invalid value, which admission refuses, asks for Off."""
    text = annotations.get(names.RECLAIM_ANNOTATION)
    if text is None:
        return None
    return names.ReclaimMode(text) if text in frozenset[str](names.ReclaimMode) else names.ReclaimMode.OFF


def _labels(labels: dict[str, str]) -> str:
    text = ",".join(f"{key}={value}" for key, value in labels.items())
    return _shared(text) if len(text) <= _MAX_SHARED else text


@functools.lru_cache(maxsize=4096)
def _shared(text: str) -> str:
    """Return one object for equal texts: a workload's pods have the same labels and arrive one after the other."""
    return text


def quantities(wire: WirePod) -> Iterator[tuple[str, str]]:
    """Yield all resource quantities of a pod, with their paths, to check those of a pod from a file."""
    spec, status = wire.spec, wire.status
    if spec.resources is not None:
        yield from spec.resources.quantities("spec.resources")
    if spec.overhead.memory is not None:
        yield "spec.overhead.memory", str(spec.overhead.memory)
    lists: tuple[tuple[str, Sequence[WireContainer | WireContainerStatus]], ...] = (
        ("spec.initContainers", spec.init_containers),
        ("spec.containers", spec.containers or ()),
        ("status.initContainerStatuses", status.init_container_statuses),
        ("status.containerStatuses", status.container_statuses),
    )
    for path, entries in lists:
        for index, entry in enumerate(entries):
            if entry.resources is not None:
                yield from entry.resources.quantities(f"{path}[{index}].resources")


def _mirror(wire: WirePod) -> Mirror | None:
    """Return the pod's claims to be the mirror of a static pod; None if it has none that can count.

    The cgroup of a static pod carries the hash of its file; its mirror, the object at the API server, has another UID.
    Kubelets make mirrors that their own Node owns (k/k: pkg/kubelet/pod/mirror_client.go). No other pod's annotations
    count: the kubelet overwrites them for itself, whatever their author wrote.
    """
    meta = wire.metadata
    key = meta.annotations.get(names.CONFIG_HASH_ANNOTATION, "")
    if names.CONFIG_MIRROR_ANNOTATION not in meta.annotations or _POD_KEY.fullmatch(key) is None:
        return None
    for owner in meta.owner_references:
        if (owner.api_version, owner.kind, owner.name) == ("v1", "Node", wire.spec.node_name) and owner.uid:
            return Mirror(key, sys.intern(owner.uid))
    return None


def _is_left_behind(wire: WirePod) -> bool:
    """Return whether the pod is a forged mirror that its kubelet deleted and a finalizer keeps.

    A kubelet reports on the mirrors of its pods, and deletes all others.
    """
    meta = wire.metadata
    forged = names.CONFIG_MIRROR_ANNOTATION in meta.annotations and not wire.status.start_time
    return forged and bool(meta.deletion_timestamp)


def is_evicted(conditions: Iterable[WirePodCondition]) -> bool:
    """Return whether the kubelet evicted the pod for want of memory of the node.

    It says so once the pod has ended, and not before (k/k: pkg/kubelet/status/status_manager.go).
    """
    return any(
        (each.type, each.status, each.reason) == _BY_KUBELET and each.message.startswith(_FOR_MEMORY)
        for each in conditions
    )


def _is_critical(wire: WirePod) -> bool:
    spec = wire.spec
    if wire.is_static:
        return True
    if spec.priority is None:
        return spec.priority_class_name in CRITICAL_CLASSES
    return spec.priority >= CRITICAL_PRIORITY


def _qos_class(wire: WirePod) -> Class:
    if wire.status.qos_class is not None:
        return wire.status.qos_class
    return resources.compute(wire.spec.resources, [(kind, one.resources) for kind, one in wire.spec.created()])


def _rows(
    containers: Iterable[tuple[Kind, WireContainer]],
    statuses: Iterable[WireContainerStatus],
    annotations: dict[str, str],
) -> Iterator[ContainerRow]:
    by_name = {status.name: status for status in statuses}
    for kind, container in containers:
        status = by_name.get(container.name)
        in_force = status.resources if status is not None else None
        request, limit = of_container(container.resources if in_force is None else in_force)
        running = status is not None and status.state.running is not None
        # The field is immutable, so the spec is in force.
        asked = container.resources.limits.swap
        yield ContainerRow(
            name=sys.intern(container.name),
            kind=kind,
            request=request,
            limit=limit,
            swap_limit=_written(annotations, names.CONTAINER_LIMIT_PREFIX + container.name) if annotations else None,
            swap_resource=None if asked is None else quantity.capped(str(asked)),
            id=_container_id(status.container_id) if status is not None and running else "",
        )


def _container_id(text: str) -> str:
    """Return the runtime's id, without its prefix; empty for an invalid one."""
    runtime_id = text.partition("://")[2]
    return runtime_id if _CONTAINER_ID.fullmatch(runtime_id) else ""
