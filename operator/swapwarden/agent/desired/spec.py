"""The spec of a NodeSwapState, as the agent holds it."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from swapwarden.agent.host import cgroup_files, cgroupfs
from swapwarden.api import decoding, names, state


class ReceivedState(msgspec.Struct, frozen=True):
    """A NodeSwapState as received. `parse` decodes the spec; the status is compared with the next one undecoded."""

    metadata: state.ObjectMeta = state.ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: dict[str, Any] = {}


class FileSetting(msgspec.Struct, frozen=True):
    """The desired value of a cgroup file, in bytes."""

    value: int
    at_most: bool = False
    """Whether a smaller value of another writer stays."""


FileSettings = Mapping[str, FileSetting]
"""Settings by the name of the cgroup file. A file without one must hold the value that another writer last gave it."""


class PodEntry(msgspec.Struct, frozen=True):
    """Settings of a pod's cgroups."""

    settings: FileSettings
    """Settings of the pod's own cgroup."""
    containers: Mapping[str, FileSettings]
    """Settings of containers by the beginning of the id, as in the state."""
    each: FileSettings | None = None
    """Settings of the containers that `containers` does not list; None: they have none."""
    named: Mapping[str, FileSettings] = {}
    """Settings of containers by name, also before the containers have ids."""
    reclaim: names.ReclaimMode | None = None
    """When its idle memory is moved to swap; None: never."""

    def container(self, container_id: str) -> FileSettings | None:
        """Return the settings of one container; None if it has none of its own."""
        return self.containers.get(container_id[: state.ID_LENGTH])


class Preview(msgspec.Struct, frozen=True):
    """The limits of a profile that is not in force yet, in bytes by pod UID."""

    profile: str
    generation: int
    pods: Mapping[str, int]


class UnitEntry(msgspec.Struct, frozen=True):
    """Settings of one of the node's own units; None: the value that it held before."""

    limit: int | None
    """Limit of swap in bytes; None: none is set."""
    latency: int | None = None
    """io.latency's target on disks with swap, in microseconds."""
    weight: int | None = None
    """io.weight on such disks."""
    memory: FileSettings = types.MappingProxyType({})
    """Settings of the unit's memory files."""


class Unsupported(msgspec.Struct, frozen=True):
    """A setting that this agent does not know."""

    setting: str
    owner: str
    """The first cgroup with it: a pod's UID, kubepods, or the name of a unit."""
    cgroups: int
    """How many have it."""


class NodeSpec(msgspec.Struct, frozen=True):
    """A whole spec, and which version of which object it is."""

    uid: str
    generation: int
    mode: names.Mode
    before_plan: names.BeforePlan
    kubepods: int | None
    pods: Mapping[str, PodEntry]
    preview: Preview | None = None
    profile: tuple[str, int] = ("", 0)
    """Name and generation."""
    units: Mapping[str, UnitEntry] = {}
    """Slices and services of the node, by name."""
    kernel: Mapping[str, str] = {}
    """Settings of the kernel, by name."""
    guarantee: names.Guarantee = names.Guarantee.STANDARD
    unsupported: tuple[Unsupported, ...] = ()
    above: Mapping[str, FileSettings] = {}
    """Settings of memory files in the cgroups above pods, by KUBEPODS and BURSTABLE."""
    guard: state.GuardSettings = state.GuardSettings()
    """Settings of the guard for pods with memory.high."""
    pressure: state.PressureSettings | None = None
    """When to report memory pressure; None: never."""
    reclaim: state.ReclaimSettings | None = None
    """Bounds for moving idle memory of pods to swap; None: no pod asks for it."""


KUBEPODS: Final = "kubepods"
BURSTABLE: Final = "burstable"


def parse(received: ReceivedState, page: int) -> NodeSpec:
    """Return a received state with its limits as numbers, floored to the page. ValueError if it is invalid.

    Unknown fields, from a newer controller, are ignored; unknown settings of cgroups are listed as unsupported.
    """
    plain = decoding.decode(received.spec, dict[str, Any])
    unsupported = tuple(_take_unsupported(plain))
    spec = msgspec.convert(_without_reasons(plain), state.StateSpec)
    return NodeSpec(
        uid=received.metadata.uid,
        generation=received.metadata.generation,
        mode=spec.mode,
        before_plan=spec.before_plan,
        kubepods=_bytes(spec.kubepods.swap_max, page) if spec.kubepods else None,
        pods={uid: _pod(pod, page) for uid, pod in spec.pods.items()},
        preview=None if spec.preview is None else _preview(spec.preview, page),
        profile=(spec.profile_ref.name, spec.profile_ref.generation),
        units={
            name: UnitEntry(
                _bytes(unit.swap_max, page), unit.io_latency_microseconds, unit.io_weight, _of_memory(unit, page)
            )
            for name, unit in spec.units.items()
        },
        kernel=spec.kernel_settings,
        guarantee=spec.guarantee,
        unsupported=unsupported,
        guard=spec.memory_guard or state.GuardSettings(),
        pressure=None if spec.pressure is None else spec.pressure.planned(),
        reclaim=spec.reclaim,
        above={
            name: memory
            for name, cgroup in ((KUBEPODS, spec.kubepods), (BURSTABLE, spec.burstable))
            if cgroup is not None and (memory := _of_memory(cgroup, page))
        },
    )


def _pod(pod: state.PodSettings, page: int) -> PodEntry:
    """Return the settings of a pod. A limit of "max" is none: what the kubelet gives the pod's cgroup stays."""
    own = {name: each for name, each in _settings(pod, page).items() if each.value < cgroupfs.NO_LIMIT}
    named = {name: parsed for name, each in pod.containers.items() if (parsed := _settings(each, page))}
    default = None if pod.container_default is None else _settings(pod.container_default, page) or None
    containers = {each.id: named[name] for name, each in pod.containers.items() if each.id and name in named}
    return PodEntry(own, containers, default, named, pod.reclaim)


def _of_memory(settings: state.CgroupSettings, page: int) -> FileSettings:
    parsed = _settings(settings, page)
    return {file.name: parsed[file.name] for file in cgroup_files.OF_MEMORY if file.name in parsed}


def _settings(settings: state.CgroupSettings, page: int) -> FileSettings:
    """Return the settings of one cgroup. ValueError if a file has both a value and a ceiling."""
    parsed = {}
    for file in cgroup_files.OF_PODS:
        exact: str | None = getattr(settings, file.field)
        ceiling: str | None = getattr(settings, file.ceiling, None)
        if exact is not None and ceiling is not None:
            raise ValueError(f"a cgroup has both {_NAMES[file.field]} and {_NAMES[file.ceiling]}")
        if (limit := _bytes(exact or ceiling, page)) is not None:
            parsed[file.name] = FileSetting(limit, at_most=exact is None)
    return parsed


def _preview(preview: state.ProfilePreview, page: int) -> Preview:
    limit = {uid: cgroupfs.parse(text, page) for uid, text in preview.pods.items()}
    return Preview(preview.profile_ref.name, preview.profile_ref.generation, limit)


def _bytes(text: str | None, page: int) -> int | None:
    return None if text is None else cgroupfs.parse(text, page)


_Part = dict[str, Any]
_KNOWN: Final = {
    kind: frozenset(field.encode_name for field in msgspec.structs.fields(kind))
    for kind in (state.CgroupSettings, state.PodSettings, state.ContainerDefault, state.ContainerSettings)
}
_NAMES: Final = {field.name: field.encode_name for field in msgspec.structs.fields(state.CappedSettings)}
_OF_UNITS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(state.UnitSettings))


def _without_reasons(plain: _Part) -> _Part:
    """Leave out the reasons: nothing is enforced by them, and a newer controller may have others."""
    pods = plain.get("pods")
    if isinstance(pods, dict):
        for pod in pods.values():
            if isinstance(pod, dict):
                pod.pop("reason", None)
    return {key: value for key, value in plain.items() if key != "defaultReason"}


def _take_unsupported(plain: _Part) -> Iterator[Unsupported]:
    """Yield settings that this agent does not know, each once."""
    unsupported: dict[str, list[str]] = {}
    for owner, settings, known in _each_settings(plain):
        for name in settings.keys() - known:
            unsupported.setdefault(name, []).append(owner)
    for name, owners in sorted(unsupported.items()):
        yield Unsupported(name, owners[0], len(owners))


def _each_settings(plain: _Part) -> Iterator[tuple[str, _Part, frozenset[str]]]:
    """Yield all settings of cgroups, with whose they are and the names that are known."""
    yield from _dicts(((name, plain.get(name)) for name in (KUBEPODS, BURSTABLE)), _KNOWN[state.CgroupSettings])
    yield from _dicts(_items(plain.get("units")), _OF_UNITS)
    for uid, pod, known in _dicts(_items(plain.get("pods")), _KNOWN[state.PodSettings]):
        yield uid, pod, known
        yield from _dicts([(uid, pod.get("containerDefault"))], _KNOWN[state.ContainerDefault])
        containers = ((uid, each) for _, each in _items(pod.get("containers")))
        yield from _dicts(containers, _KNOWN[state.ContainerSettings])


def _items(value: object) -> Iterable[tuple[str, object]]:
    return value.items() if isinstance(value, dict) else ()


def _dicts(items: Iterable[tuple[str, object]], known: frozenset[str]) -> Iterator[tuple[str, _Part, frozenset[str]]]:
    for owner, settings in items:
        if isinstance(settings, dict):
            yield owner, settings, known
