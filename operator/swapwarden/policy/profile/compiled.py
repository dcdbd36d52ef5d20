"""Profiles in the form in which decisions use them, and the choice of the one that governs a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from swapwarden.api import names, quantity, state, throttling
from swapwarden.api import profile as api
from swapwarden.policy.memory import settings
from swapwarden.policy.node import kernel_settings
from swapwarden.policy.pressure import thresholds
from swapwarden.policy.profile import requirements
from swapwarden.policy.reclaim import settings as reclaim_settings


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
    policy: names.Policy | None = None
    """Disabled or NoPreference."""
    swap_limit: int | None = None
    """Bytes."""
    memory_reservation: names.ReservationPolicy | None = None
    """None or Soft."""
    memory_throttling: int | None = None
    """Percents, throttling.NEVER for Disabled."""
    reclaim: names.ReclaimMode | None = None

    def about_memory(self) -> bool:
        """Return whether it changes a pod's memory QoS."""
        return self.memory_reservation is not None or self.memory_throttling is not None


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
    before_plan: names.BeforePlan = names.BeforePlan.NO_SWAP
    behavior: names.Behavior = names.Behavior.KUBELET
    reserved: str | None = None
    """A quantity or percents, as written: percents need a node to become bytes."""
    max_per_container: int | None = None
    max_per_pod: int | None = None
    overcommit_percent: int | None = None
    """The bound on the sum of the pods' limits, as a share of their swap. None: no bound."""

    taint_effect: names.TaintEffect | None = None
    max_unavailable: str = "25%"
    """How many of its nodes may change to another generation at once: a number, or percents."""
    hold: bool = False
    """Whether nodes keep their limits while a change would take swap from pods that use it."""
    paused: bool = False
    """Whether no further node gets the newest generation."""
    overrides: tuple[Override, ...] = ()
    extended_resource: bool = False
    kernel: tuple[tuple[str, str], ...] = ()
    """Settings of the kernel, by name, as their files take them."""
    units: tuple[tuple[str, state.UnitSettings], ...] = ()
    """Settings of slices and services of its nodes, by name."""
    require: requirements.Require | None = None
    memory_qos: settings.MemoryQoS | None = None
    """None: no pod has memory QoS, whatever it asks."""
    pressure: thresholds.Pressure | None = None
    """None: memory pressure is not reported."""
    reclaim: reclaim_settings.Reclaim | None = None
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

    def reserved_bytes(self, swap_bytes: int) -> int:
        """Swap kept back from pods on a node with `swap_bytes` of it, in bytes; at most all of it."""
        if self.reserved is None:
            return 0
        return min(swap_bytes, quantity.percent_or_bytes(self.reserved, swap_bytes))


BUILT_IN: Final = Profile(name=names.BUILT_IN_PROFILE)
"""Governs nodes that no profile selects: the kubelet's limits stay, and policy Disabled works."""


class Selection(msgspec.Struct, frozen=True):
    """The profile that governs a node."""

    profile: Profile
    conflicts: tuple[str, ...] = ()
    """Names of other profiles with the same priority that also select the node."""


def compile_profile(model: api.NodeSwapProfile) -> Profile:
    """Compile a checked NodeSwapProfile."""
    spec, bounds = model.spec, model.spec.swap.workload_controlled
    return Profile(
        name=model.metadata.name,
        selector=_selector(spec.node_selector),
        generation=model.metadata.generation,
        uid=model.metadata.uid,
        created=model.metadata.creation_timestamp,
        priority=spec.priority,
        mode=names.Mode(spec.mode),
        guarantee=names.Guarantee(spec.guarantee),
        before_plan=names.BeforePlan(spec.swap.before_plan),
        behavior=spec.swap.behavior,
        reserved=spec.swap.reserved,
        max_per_container=_bound(bounds.max_per_container if bounds else None),
        max_per_pod=_bound(bounds.max_per_pod if bounds else None),
        overcommit_percent=bounds.overcommit_percent if bounds else None,
        taint_effect=spec.scheduling.taint_effect,
        max_unavailable=spec.rollout.max_unavailable,
        hold=spec.rollout.on_swap_in_use == "Hold",
        paused=spec.rollout.paused,
        overrides=tuple(_override(entry) for entry in spec.overrides),
        extended_resource=spec.scheduling.extended_resource == "Enabled",
        kernel=_kernel(spec.kernel),
        units=tuple((unit.name, _unit(unit)) for unit in spec.system_units),
        require=requirements.require(spec.swap.requirements, spec.swap.allowed_backing),
        memory_qos=_memory_qos(spec.memory_qos),
        pressure=_pressure(spec.pressure, spec.mode),
        reclaim=_reclaim(spec.reclaim),
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


def _memory_qos(model: api.memory.MemoryQoSSpec | None) -> settings.MemoryQoS | None:
    if model is None:
        return None
    guard = model.guard
    return settings.MemoryQoS(
        reservation=model.reservation_policy,
        reservation_percent=model.reservation_percent,
        throttling_percent=model.throttling_percent,
        without_swap=model.without_swap,
        max_stall=model.max_stall_seconds,
        guard=settings.Guard(guard.action, guard.window_seconds, guard.hold_seconds, guard.kubelet),
        **({} if model.system_low is None else {"system_low": model.system_low}),
    )


def _reclaim(model: api.reclaim.ReclaimSpec | None) -> reclaim_settings.Reclaim | None:
    if model is None or model.mode is names.ReclaimMode.OFF:
        return None
    return reclaim_settings.Reclaim(
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
        kernel_settings.MIN_FREE: model.min_free_kbytes,
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


def _selector(model: api.selectors.LabelSelector | None) -> Selector:
    if model is None:
        return ()
    labels = (LabelExpression(key, "In", frozenset({value})) for key, value in model.match_labels.items())
    expressions = (
        LabelExpression(expression.key, expression.operator, frozenset(expression.values))
        for expression in model.match_expressions
    )
    return (*labels, *expressions)


def _override(model: api.spec.ProfileOverride) -> Override:
    swap, memory = model.swap, model.memory
    return Override(
        namespaces=_selector(model.namespace_selector),
        pods=_selector(model.pod_selector),
        name=model.name,
        policy=names.Policy(swap.policy) if swap and swap.policy else None,
        swap_limit=_bound(swap.limit if swap else None),
        memory_reservation=names.ReservationPolicy(memory.reservation) if memory and memory.reservation else None,
        memory_throttling=throttling.percent(memory.throttling) if memory and memory.throttling else None,
        reclaim=model.reclaim.mode if model.reclaim else None,
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
