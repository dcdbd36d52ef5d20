"""Profiles in the form in which decisions use them, and the choice of the one that governs a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from swapwarden.api import names, quantity, state, throttling, values
from swapwarden.api import profile as api
from swapwarden.policy.memory import settings as memory_settings
from swapwarden.policy.node import settings as node_settings
from swapwarden.policy.pressure import thresholds
from swapwarden.policy.reclaim.decisions import Reclaim
from swapwarden.policy.swap import requirements
from swapwarden.policy.swap import settings as swap_settings


class LabelExpression(msgspec.Struct, frozen=True):
    """One expression of a label selector; `operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether it holds, as in metav1.LabelSelector: NotIn also holds without such a label."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case _:
                return self.key not in labels


Selector = tuple[LabelExpression, ...]
"""A label selector: all of it must hold; the empty one selects everything."""


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether it selects an object with these labels."""
    return all(requirement.matches(labels) for requirement in selector)


class Override(msgspec.Struct, frozen=True):
    """One entry of a profile's overrides."""

    name: str = ""
    namespaces: Selector = ()
    pods: Selector = ()
    swap: swap_settings.SwapOverride = swap_settings.SwapOverride()
    memory: memory_settings.MemoryOverride | None = None
    """None: it changes nothing about memory QoS."""
    reclaim: names.ReclaimMode | None = None


class Profile(msgspec.Struct, frozen=True):
    """A NodeSwapProfile, compiled. Sizes in bytes."""

    name: str
    selector: Selector = ()
    generation: int = 0
    uid: str = ""
    created: str = ""
    """metadata.creationTimestamp, RFC 3339 in UTC; empty for an object from a file."""
    priority: int = 0
    mode: names.Mode = names.Mode.ENFORCE
    guarantee: names.Guarantee = names.Guarantee.STANDARD
    swap: swap_settings.SwapOptions = swap_settings.SwapOptions()
    node: node_settings.NodeOptions = node_settings.NodeOptions()
    max_unavailable: str = "25%"
    """How many of its nodes may change to another generation at once: a number, or percents."""
    hold: bool = False
    """Whether nodes keep their limits while a change would take swap from pods that use it."""
    paused: bool = False
    """Whether no further node gets the newest generation."""
    overrides: tuple[Override, ...] = ()
    memory_qos: memory_settings.MemoryQoS | None = None
    """None: no pod has memory QoS, whatever it asks."""
    pressure: thresholds.Pressure | None = None
    """None: memory pressure is not reported."""
    reclaim: Reclaim | None = None
    """None: no pod's idle memory is moved to swap, whatever it asks."""

    @property
    def eviction(self) -> thresholds.Eviction:
        """Return what bounds evictions from its nodes."""
        return thresholds.Eviction() if self.pressure is None else self.pressure.eviction

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether it selects a node with these labels."""
        return selects(self.selector, labels)

    def needs_namespaces(self) -> bool:
        """Return whether pods cannot be planned without the labels of their namespaces."""
        return any(override.namespaces for override in self.overrides)

    def overrides_in(self, namespace: Mapping[str, str] | None) -> tuple[Override, ...] | None:
        """Return those that can select pods of a namespace with these labels; None if the labels are unknown."""
        if namespace is None:
            return None
        return tuple(override for override in self.overrides if selects(override.namespaces, namespace))


BUILT_IN: Final = Profile(name=names.BUILT_IN_PROFILE)
"""Governs nodes that no profile selects: the kubelet's limits stay, and policy Disabled works."""


class Selection(msgspec.Struct, frozen=True):
    """The profile that governs a node."""

    profile: Profile
    conflicts: tuple[str, ...] = ()
    """Names of other profiles with the same priority that also select the node."""


def compile_profile(model: api.NodeSwapProfile) -> Profile:
    """Compile a checked NodeSwapProfile."""
    spec = model.spec
    return Profile(
        name=model.metadata.name,
        selector=_selector(spec.node_selector),
        generation=model.metadata.generation,
        uid=model.metadata.uid,
        created=model.metadata.creation_timestamp,
        priority=spec.priority,
        mode=names.Mode(spec.mode),
        guarantee=names.Guarantee(spec.guarantee),
        swap=_swap(spec.swap),
        node=node_settings.NodeOptions(
            enforce=names.Mode(spec.mode) is names.Mode.ENFORCE,
            taint_effect=spec.scheduling.taint_effect,
            extended_resource=spec.scheduling.extended_resource == "Enabled",
            kernel=_kernel(spec.kernel),
            units=tuple((unit.name, _unit(unit)) for unit in spec.system_units),
        ),
        max_unavailable=spec.rollout.max_unavailable,
        hold=spec.rollout.on_swap_in_use == "Hold",
        paused=spec.rollout.paused,
        overrides=tuple(_override(entry) for entry in spec.overrides),
        memory_qos=_memory_qos(spec.memory_qos),
        pressure=_pressure(spec.pressure, spec.mode),
        reclaim=_reclaim(spec.reclaim),
    )


def _swap(model: api.spec.Swap) -> swap_settings.SwapOptions:
    bounds = model.workload_controlled
    return swap_settings.SwapOptions(
        behavior=model.behavior,
        before_plan=names.BeforePlan(model.before_plan),
        reserved=model.reserved,
        max_per_container=_bound(bounds.max_per_container if bounds else None),
        max_per_pod=_bound(bounds.max_per_pod if bounds else None),
        overcommit_percent=bounds.overcommit_percent if bounds else None,
        require=requirements.require(model.requirements, model.allowed_backing),
    )


def _pressure(model: api.pressure.PressureSpec | None, mode: str) -> thresholds.Pressure | None:
    if model is None or model.mode is names.PressureMode.OFF:
        return None
    headroom, stall, eviction = model.headroom, model.stall, model.eviction
    return thresholds.Pressure(
        headroom.below,
        headroom.clear,
        headroom.for_seconds,
        stall.full_percent,
        stall.over_seconds,
        model.taint_effect,
        # In Audit nothing is written, so nobody is evicted either.
        enforce=model.mode is names.PressureMode.ENFORCE and mode == names.Mode.ENFORCE,
        eviction=thresholds.Eviction(
            frozenset(eviction.exclude_namespaces),
            daemon_sets=eviction.daemon_sets == "Evict",
            unmanaged=eviction.unmanaged == "Evict",
            grace=eviction.max_grace_period_seconds,
            settle=eviction.settle_seconds,
            per_hour=eviction.per_node_per_hour,
        ),
    )


def _memory_qos(model: api.memory.MemoryQoSSpec | None) -> memory_settings.MemoryQoS | None:
    if model is None:
        return None
    guard = model.guard
    return memory_settings.MemoryQoS(
        reservation=model.reservation_policy,
        reservation_percent=model.reservation_percent,
        throttling_percent=model.throttling_percent,
        without_swap=model.without_swap,
        max_stall=model.max_stall_seconds,
        guard=memory_settings.Guard(guard.action, guard.window_seconds, guard.hold_seconds, guard.kubelet),
        **({} if model.system_low is None else {"system_low": model.system_low}),
    )


def _reclaim(model: api.memory.ReclaimSpec | None) -> Reclaim | None:
    if model is None or model.mode is names.ReclaimMode.OFF:
        return None
    return Reclaim(
        mode=model.mode,
        max_stall_permille=model.max_stall_permille,
        interval=model.interval_seconds,
        step_percent=model.step_percent,
        keep_swap_free=model.keep_swap_free,
        writes_per_day=quantity.capped(model.writes_per_day),
    )


def _kernel(model: api.spec.Kernel) -> tuple[tuple[str, str], ...]:
    """Return a profile's settings, by the names in states (those of sysctl), as the kernel's files accept them."""
    zswap = model.zswap or api.spec.Zswap()
    asked = {
        "vm.swappiness": model.swappiness,
        node_settings.MIN_FREE: model.min_free_kbytes,
        "vm.watermark_scale_factor": model.watermark_scale_factor,
        "vm.page-cluster": model.page_cluster,
        "zswap.enabled": None if zswap.enabled is None else "Y" if zswap.enabled else "N",
        "zswap.compressor": zswap.compressor,
        "zswap.max_pool_percent": zswap.max_pool_percent,
    }
    return tuple((name, str(value)) for name, value in asked.items() if value is not None)


def _unit(model: api.spec.SystemUnit) -> state.UnitSettings:
    latency = model.io.latency_target_milliseconds if model.io else None
    return state.UnitSettings(
        swap_max="0" if model.swap else None,
        io_latency_microseconds=None if latency is None else latency * 1000,
        io_weight=model.io.weight if model.io else None,
    )


def _selector(model: values.LabelSelector | None) -> Selector:
    if model is None:
        return ()
    labels = (LabelExpression(key, "In", frozenset({value})) for key, value in model.match_labels.items())
    expressions = (
        LabelExpression(expression.key, expression.operator, frozenset(expression.values))
        for expression in model.match_expressions
    )
    return (*labels, *expressions)


def _override(model: api.spec.ProfileOverride) -> Override:
    swap = model.swap
    return Override(
        namespaces=_selector(model.namespace_selector),
        pods=_selector(model.pod_selector),
        name=model.name,
        swap=swap_settings.SwapOverride(
            policy=names.Policy(swap.policy) if swap and swap.policy else None,
            limit=_bound(swap.limit if swap else None),
        ),
        memory=_memory_override(model.memory),
        reclaim=model.reclaim.mode if model.reclaim else None,
    )


def _memory_override(model: api.memory.OverrideMemory | None) -> memory_settings.MemoryOverride | None:
    if model is None or not (model.reservation or model.throttling):
        return None
    return memory_settings.MemoryOverride(
        reservation=names.ReservationPolicy(model.reservation) if model.reservation else None,
        throttling=throttling.percent(model.throttling) if model.throttling else None,
    )


def _bound(text: str | None) -> int | None:
    return None if text is None else quantity.capped(text)


def _rank(profile: Profile) -> tuple[int, bool, str, str]:
    """Sort the governing profile first: by highest priority, then age (oldest; from a file: newest), then name."""
    return -profile.priority, not profile.created, profile.created, profile.name


def select(profiles: Iterable[Profile], labels: Mapping[str, str]) -> Selection:
    """Return the profile that governs a node with these labels; BUILT_IN if none selects it."""
    candidates = sorted((profile for profile in profiles if profile.selects(labels)), key=_rank)
    if not candidates:
        return Selection(BUILT_IN)
    first = candidates[0]
    ties = tuple(profile.name for profile in candidates[1:] if profile.priority == first.priority)
    return Selection(first, ties)
