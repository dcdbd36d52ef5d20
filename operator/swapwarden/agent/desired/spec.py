"""The spec of a NodeSwapState, as the agent holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from swapwarden.agent.host import values
from swapwarden.api import names


class WireContainer(msgspec.Struct, frozen=True, rename="camel"):
    """As swapwarden.api.state.ContainerState, less what the agent has no use for."""

    swap_max: str
    cap: bool = False


class WirePod(msgspec.Struct, frozen=True, rename="camel"):
    """As swapwarden.api.state.PodState; reasons that a newer controller may have are not looked at."""

    swap_max: str | None = None
    each: str | None = None
    containers: dict[str, WireContainer] = {}


class WireKubepods(msgspec.Struct, frozen=True, rename="camel"):
    """As swapwarden.api.state.KubepodsState."""

    swap_max: str


class WireProfileRef(msgspec.Struct, frozen=True, rename="camel"):
    """As swapwarden.api.state.ProfileRef."""

    name: str
    generation: int = 0


class WirePreview(msgspec.Struct, frozen=True, rename="camel"):
    """As swapwarden.api.state.Preview."""

    profile_ref: WireProfileRef
    pods: dict[str, str] = {}


class WireSystem(msgspec.Struct, frozen=True, rename="camel"):
    """As swapwarden.api.state.SystemState."""

    units: list[str]
    swap_max: str | None = None
    io_latency_microseconds: int | None = None
    io_weight: int | None = None


class WireSpec(msgspec.Struct, frozen=True, rename="camel"):
    """As swapwarden.api.state.StateSpec."""

    profile_ref: WireProfileRef = WireProfileRef("")
    mode: names.Mode = names.Mode.ENFORCE
    guarantee: names.Guarantee = names.Guarantee.STANDARD
    before_plan: names.BeforePlan = names.BeforePlan.NO_SWAP
    kubepods: WireKubepods | None = None
    pods: dict[str, WirePod] = {}
    unmet: dict[str, str] | None = None
    preview: WirePreview | None = None
    system: WireSystem | None = None
    kernel_settings: dict[str, str] = {}
    refused: dict[str, str] = {}
    kubelet_swap_bytes: int | None = None


class WireMeta(msgspec.Struct, frozen=True, rename="camel"):
    """As swapwarden.api.state.ObjectMeta."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0


class WireState(msgspec.Struct, frozen=True, rename="camel"):
    """As swapwarden.api.state.NodeSwapState; the status stays as it came, to be compared with the next."""

    metadata: WireMeta = WireMeta()
    spec: WireSpec = WireSpec()
    status: dict[str, Any] = {}


class ContainerSpec(NamedTuple):
    """What a container's cgroups are to hold, in bytes."""

    limit: int
    cap: bool


class PodSpec(NamedTuple):
    """What a pod's cgroup is to hold, in bytes; None: what it held before. Containers by id, or all alike."""

    limit: int | None
    containers: Mapping[str, ContainerSpec]
    each: ContainerSpec | None = None


class Preview(NamedTuple):
    """What pods are to get next, in bytes by UID, and the profile that would give it."""

    profile: str
    generation: int
    pods: Mapping[str, int]


class System(NamedTuple):
    """What the cgroups of the node's own units are to hold; None: what they held before."""

    limit: int | None
    """Of swap, in bytes."""
    units: tuple[str, ...]
    """Slices and services, by name."""
    latency: int | None = None
    """io.latency's target on disks with swap, in microseconds."""
    weight: int | None = None
    """io.weight on such disks."""


class NodeSpec(NamedTuple):
    """A whole spec, and which version of which object it is."""

    uid: str
    generation: int
    mode: names.Mode
    before_plan: names.BeforePlan
    kubepods: int | None
    pods: Mapping[str, PodSpec]
    preview: Preview | None = None
    profile: tuple[str, int] = ("", 0)
    """Name and generation."""
    system: System | None = None
    kernel: Mapping[str, str] = {}
    """Settings of the kernel, by name."""
    refused: Mapping[str, str] = {}
    """Settings that the profile asks for and the node must not have, with the reason."""
    kubelet_swap: int | None = None
    """Swap in bytes that the kubelet counted, where that is not what there is; None elsewhere."""
    guarantee: names.Guarantee = names.Guarantee.STANDARD
    unmet: Mapping[str, str] | None = None
    """What the profile requires and the node does not have; None where nothing is required."""


def _pod(wire: WirePod, page: int) -> PodSpec:
    containers = {
        key: ContainerSpec(values.parse(entry.swap_max, page), entry.cap) for key, entry in wire.containers.items()
    }
    return PodSpec(
        None if wire.swap_max is None else values.parse(wire.swap_max, page),
        containers,
        None if wire.each is None else ContainerSpec(values.parse(wire.each, page), cap=False),
    )


def _preview(wire: WirePreview, page: int) -> Preview:
    limit = {uid: values.parse(text, page) for uid, text in wire.pods.items()}
    return Preview(wire.profile_ref.name, wire.profile_ref.generation, limit)


def _system(wire: WireSystem, page: int) -> System:
    limit = None if wire.swap_max is None else values.parse(wire.swap_max, page)
    return System(limit, tuple(wire.units), wire.io_latency_microseconds, wire.io_weight)


def parse(wire: WireState, page: int) -> NodeSpec:
    """Take a state as it came to numbers, floored to the page. ValueError where a value is none."""
    spec = wire.spec
    return NodeSpec(
        uid=wire.metadata.uid,
        generation=wire.metadata.generation,
        mode=spec.mode,
        before_plan=spec.before_plan,
        kubepods=None if spec.kubepods is None else values.parse(spec.kubepods.swap_max, page),
        pods={uid: _pod(pod, page) for uid, pod in spec.pods.items()},
        preview=None if spec.preview is None else _preview(spec.preview, page),
        profile=(spec.profile_ref.name, spec.profile_ref.generation),
        system=None if spec.system is None else _system(spec.system, page),
        kernel=spec.kernel_settings,
        refused=spec.refused,
        kubelet_swap=spec.kubelet_swap_bytes,
        guarantee=spec.guarantee,
        unmet=spec.unmet,
    )
