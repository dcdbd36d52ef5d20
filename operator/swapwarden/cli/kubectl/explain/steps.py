"""What can be changed about the rule that decides on a pod's swap, and what is planned once it is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.cli.kubectl.cluster import workloads
from swapwarden.cli.kubectl.explain.planned import PlannedPod, wrong_limits
from swapwarden.cli.kubectl.output.sizes import exact
from swapwarden.policy import quantity
from swapwarden.policy.observed import pods
from swapwarden.policy.swap import limits, phases, qos

Reason = names.Reason

_MOST_OVERCOMMIT: Final = 10_000
"""What a profile can say."""
EXAMPLE: Final = "512Mi"
EXAMPLE_BYTES: Final = 512 << 20


class Remedy(msgspec.Struct, frozen=True):
    """One thing that can be changed, and what the plan is made from when it is."""

    what: str
    """What is changed: once is enough, whatever it is changed to."""
    how: str
    try_: Callable[[PlannedPod], PlannedPod]
    command: str = ""


def policy_words(pod: workloads.DetailedPod, policy: names.Policy) -> tuple[str, str]:
    if pod.is_mirror:
        return f"write the annotation {names.POLICY_ANNOTATION}: {policy} into the pod's file on its node", ""
    command = f"kubectl swap policy -n {pod.metadata.namespace} pod/{pod.metadata.name} {policy}"
    return f"the policy {policy}, for pods that are made from then on", command


def bytes_of(planned: PlannedPod) -> int:
    """What the pod may use; "max" is more than any number, and what cannot be limited is more still."""
    swap_max = planned.trace.decision.swap_max
    return 2**65 if swap_max is None else limits.in_bytes(swap_max)


def _nothing(_: PlannedPod) -> Iterator[Remedy]:
    yield from ()


def _not_disabled(planned: PlannedPod) -> Iterator[Remedy]:
    how, command = policy_words(planned.pod, names.Policy.NO_PREFERENCE)
    written = {names.POLICY_ANNOTATION: names.Policy.NO_PREFERENCE.value, names.POLICY_SOURCE_ANNOTATION: None}
    yield Remedy("policy", how, lambda it: it.recreated(_annotated(it.pod, written)), command)


def _understandable(planned: PlannedPod) -> Iterator[Remedy]:
    yield corrected(planned)


def corrected(planned: PlannedPod) -> Remedy:
    wrong = [key for key, _ in wrong_limits(planned.row)]
    if limits.forbids_swap(planned.row.policy) and planned.row.policy != names.Policy.DISABLED:
        wrong.append(names.POLICY_ANNOTATION)
    how = f"correct {', '.join(wrong)} in {planned.where}"
    return Remedy("mistakes", how, lambda it: it.recreated(_annotated(it.pod, dict.fromkeys(wrong))))


def _override_policy(planned: PlannedPod) -> Iterator[Remedy]:
    place = planned.trace.override or 0

    def lifted(it: PlannedPod) -> PlannedPod:
        entry = msgspec.structs.replace(it.profile.overrides[place], policy=names.Policy.NO_PREFERENCE)
        return it.with_profile(overrides=(*it.profile.overrides[:place], entry, *it.profile.overrides[place + 1 :]))

    how = f"policy NoPreference in {planned.override_name} of {planned.profile.name}"
    yield Remedy("policy of the override", how, lifted, planned.edit)


def _override_limit(planned: PlannedPod) -> Iterator[Remedy]:
    yield _raised_override(planned)
    match planned.profile.behavior:
        case names.Behavior.LIMITED_SWAP:
            yield from _share(planned)
        case names.Behavior.WORKLOAD_CONTROLLED:
            yield from _workload(planned)
        case _:
            yield from _kubelet(planned)


def _raised_override(planned: PlannedPod) -> Remedy:
    place = planned.trace.override or 0
    top = planned.override.swap_limit if planned.override else None

    def raised(it: PlannedPod) -> PlannedPod:
        entry = msgspec.structs.replace(it.profile.overrides[place], swap_limit=_twice(top or 0))
        return it.with_profile(overrides=(*it.profile.overrides[:place], entry, *it.profile.overrides[place + 1 :]))

    how = f"a swap.limit above {exact(top or 0)} in {planned.override_name} of {planned.profile.name}"
    return Remedy("limit of the override", how, raised, planned.edit)


def _not_required(planned: PlannedPod) -> Iterator[Remedy]:
    how = f"take what is not met out of swap.requirements of {planned.profile.name}"
    yield Remedy("require", how, lambda it: it.with_profile(require=None), planned.edit)


def _behavior(planned: PlannedPod) -> Iterator[Remedy]:
    yield _to_behavior(planned, names.Behavior.LIMITED_SWAP)
    yield _to_behavior(planned, names.Behavior.WORKLOAD_CONTROLLED)


def _to_behavior(planned: PlannedPod, behavior: names.Behavior) -> Remedy:
    how = f"behavior {behavior} of {planned.profile.name}"
    return Remedy(behavior, how, lambda it: it.with_profile(behavior=behavior), planned.edit)


def _kubelet(planned: PlannedPod) -> Iterator[Remedy]:
    if planned.row.swap_limit is not None:
        yield _limit_above(planned)
    yield _larger_node(planned)


def _uncritical(planned: PlannedPod) -> Iterator[Remedy]:
    if not planned.pod.is_static:
        yield Remedy(
            "priority",
            "a priority class below 2000000000, as LimitedSwap gives critical pods none",
            lambda it: it.recreated(_respecified(it.pod, priority=0, priority_class_name="")),
        )
    yield _to_behavior(planned, names.Behavior.WORKLOAD_CONTROLLED)


def _burstable(planned: PlannedPod) -> Iterator[Remedy]:
    """Yield what makes the pod Burstable, of which one container is enough."""
    made = planned.recreated(planned.pod)
    whole = planned.pod.spec.resources
    if whole is not None and made.row.qos is qos.Class.GUARANTEED:
        stated = whole.limits.memory if whole.requests.memory is None else whole.requests.memory
        request = quantity.capped(str(stated or 0))
        how = f"a memory limit of the whole pod above its request ({exact(request)}), which makes it Burstable"
        limits = msgspec.structs.replace(whole.limits, memory=str(_twice(request)))
        requests = msgspec.structs.replace(whole.requests, memory=str(request))
        fitting = msgspec.structs.replace(whole, limits=limits, requests=requests)
        yield Remedy(
            "resources of the pod",
            f"{how}, in {planned.where}",
            lambda it: it.recreated(_respecified(it.pod, resources=fitting)),
        )
    else:
        for one in _asking(made.row):
            yield from _requests(planned, one, ", which makes the pod Burstable")


def _share(planned: PlannedPod) -> Iterator[Remedy]:
    """Yield what gives a larger share of the node's swap; first containers that have none."""
    row = planned.recreated(planned.pod).row
    for one in sorted(_asking(row), key=lambda each: bool(each.request) and each.request != each.limit):
        yield from _requests(planned, one)
    yield from _own_limits(planned, row)
    yield from _reserve(planned)
    yield _larger_node(planned)


def _asking(row: pods.PodRow) -> list[pods.ContainerRow]:
    """Containers that can ask for memory; the app's before those of its start."""
    found = [one for one in row.containers if one.kind is not phases.Kind.EPHEMERAL]
    return sorted(found, key=lambda one: one.kind is not phases.Kind.APP)


def _requests(planned: PlannedPod, one: pods.ContainerRow, so_that: str = "") -> Iterator[Remedy]:
    """Yield how a container's memory request and limit get it a larger share."""
    memory = planned.facts.memory_bytes
    where = f"{so_that}, in {planned.where}"
    request = f"request of {one.name}"
    if one.request > memory:
        most = min(memory, one.limit - 1) if one.limit else memory
        how = f"a memory request of {one.name} of at most the node's memory ({exact(memory)}){where}"
        yield Remedy(request, how, _request(one.name, most))
    elif one.request and one.request == one.limit:
        lower = Remedy(
            request,
            f"a memory request of {one.name} below its limit ({exact(one.limit)}){where}",
            _request(one.name, one.request // 2),
        )
        # A limit of the whole pod may leave no room for a larger one.
        if planned.pod.spec.resources is None:
            how = f"a memory limit of {one.name} above its request ({exact(one.request)})"
            alternative = ", or a smaller request" if bytes_of(lower.try_(planned)) > bytes_of(planned) else ""
            larger = _limit_of_memory(one, _twice(one.limit))
            yield Remedy(f"limit of {one.name}", f"{how}{alternative}{where}", larger)
        else:
            yield lower
    elif not one.request and one.limit > memory:
        how = f"a memory request of {one.name} of at most the node's memory ({exact(memory)}){where}"
        yield Remedy(request, how, _request(one.name, memory))
    elif not one.request:
        below = f" below its limit ({exact(one.limit)})" if one.limit else ""
        wanted = one.limit // 2 if one.limit else memory // 8
        how = f"a memory request of {one.name}{below}{where}"
        yield Remedy(request, how, _request(one.name, wanted))
    elif one.request < memory:
        below = f" and below its limit ({exact(one.limit)})" if one.limit else ""
        most = min(memory, one.limit - 1) if one.limit else memory
        how = f"a memory request of {one.name} above {exact(one.request)}{below}{where}"
        yield Remedy(request, how, _request(one.name, min(most, _twice(one.request))))


def _request(name: str, request: int) -> Callable[[PlannedPod], PlannedPod]:
    def changed(resources: qos.Resources) -> qos.Resources:
        requests = msgspec.structs.replace(resources.requests, memory=str(request))
        return msgspec.structs.replace(resources, requests=requests)

    return _resources(name, changed)


def _limit_of_memory(one: pods.ContainerRow, limit: int) -> Callable[[PlannedPod], PlannedPod]:
    def changed(resources: qos.Resources) -> qos.Resources:
        # The request stays, also where the API server made it from the limit.
        requests = msgspec.structs.replace(resources.requests, memory=str(one.request))
        limits = msgspec.structs.replace(resources.limits, memory=str(limit))
        return msgspec.structs.replace(resources, requests=requests, limits=limits)

    return _resources(one.name, changed)


def _resource(name: str, limit: int) -> Callable[[PlannedPod], PlannedPod]:
    def changed(resources: qos.Resources) -> qos.Resources:
        return msgspec.structs.replace(resources, limits=msgspec.structs.replace(resources.limits, swap=str(limit)))

    return _resources(name, changed)


def _resources(name: str, change: Callable[[qos.Resources], qos.Resources]) -> Callable[[PlannedPod], PlannedPod]:
    """The pod, made anew with other resources of a container."""

    def changed(one: pods.WireContainer) -> pods.WireContainer:
        return one if one.name != name else msgspec.structs.replace(one, resources=change(one.resources))

    def applied(it: PlannedPod) -> PlannedPod:
        spec = it.pod.spec
        containers = [changed(one) for one in spec.containers]
        first = [changed(one) for one in spec.init_containers]
        return it.recreated(_respecified(it.pod, containers=containers, init_containers=first))

    return applied


def _workload(planned: PlannedPod) -> Iterator[Remedy]:
    """Yield what gives more where pods name their limits: these limits, and what bounds them."""
    row, profile = planned.recreated(planned.pod).row, planned.profile
    if planned.override is not None and planned.override.swap_limit is not None and not row.limited():
        yield _raised_override(planned)
    elif row.limited():
        yield from _own_limits(planned, row)
    else:
        yield _limit(planned)
    for field, name, top in (
        ("max_per_pod", "maxPerPod", profile.max_per_pod),
        ("max_per_container", "maxPerContainer", profile.max_per_container),
    ):
        if top is not None:
            how = f"a {name} above {exact(top)} in {profile.name}"
            yield Remedy(name, how, _bound(field, _twice(top)), planned.edit)
    yield from _reserve(planned)
    if profile.overcommit_percent is not None and profile.overcommit_percent < _MOST_OVERCOMMIT:
        how = f"an overcommitPercent above {profile.overcommit_percent} in {profile.name}"
        yield Remedy("overcommitPercent", how, _bound("overcommit_percent", _MOST_OVERCOMMIT), planned.edit)
    yield _larger_node(planned)


def _bound(field: str, value: int) -> Callable[[PlannedPod], PlannedPod]:
    return lambda it: it.with_profile(**{field: value})


def _reserve(planned: PlannedPod) -> Iterator[Remedy]:
    if planned.facts.swap_bytes and planned.profile.reserved_bytes(planned.facts.swap_bytes):
        how = f"less swap.reserved than {planned.profile.reserved} in {planned.profile.name}"
        yield Remedy("reserved", how, lambda it: it.with_profile(reserved=None), planned.edit)


def _larger_node(planned: PlannedPod) -> Remedy:
    found = planned.facts.swap_bytes
    how = f"a node with more swap than {exact(found)}" if found else "turn on swap on the node, which has none"
    facts = msgspec.structs.replace(planned.facts, swap_bytes=max(2**40, 16 * found))
    return Remedy("node", how, lambda it: it.on(facts))


def _own_limits(planned: PlannedPod, row: pods.PodRow) -> Iterator[Remedy]:
    """Yield larger limits where the pod or a container of it names one."""
    if row.swap_limit is not None:
        yield _limit_above(planned)
    for one in row.containers:
        if one.swap_limit is not None:
            key = names.CONTAINER_LIMIT_PREFIX + one.name
            above = _twice(quantity.capped(one.swap_limit))
            how = f"annotation {key} above {one.swap_limit}, in {planned.where}"
            yield Remedy(key, how, annotation(key, above))
        if one.swap_resource is not None:
            how = f"a limit of {names.SWAP_RESOURCE} of {one.name} above {exact(one.swap_resource)}, in {planned.where}"
            yield Remedy(f"resource of {one.name}", how, _resource(one.name, _twice(one.swap_resource)))


def _limit_above(planned: PlannedPod) -> Remedy:
    how = f"annotation {names.LIMIT_ANNOTATION} above {planned.row.swap_limit}, in {planned.where}"
    above = _twice(quantity.capped(planned.row.swap_limit or "0"))
    return Remedy(names.LIMIT_ANNOTATION, how, annotation(names.LIMIT_ANNOTATION, above))


def _limit(planned: PlannedPod) -> Remedy:
    how = f"annotation {names.LIMIT_ANNOTATION}: {EXAMPLE} in {planned.where}"
    return Remedy("first limit", how, annotation(names.LIMIT_ANNOTATION, EXAMPLE_BYTES))


TOWARDS_SWAP: Final[dict[names.Reason, Callable[[PlannedPod], Iterator[Remedy]]]] = {
    Reason.NODE_INCOMPATIBLE: _nothing,
    Reason.POLICY_DISABLED: _not_disabled,
    Reason.INVALID_POLICY: _understandable,
    Reason.OVERRIDE_DISABLED: _override_policy,
    Reason.OVERRIDE_LIMIT: _override_limit,
    Reason.REQUIREMENT_UNMET: _not_required,
    Reason.PROFILE_NO_SWAP: _behavior,
    Reason.KUBELET_DECIDES: _kubelet,
    Reason.CRITICAL_POD: _uncritical,
    Reason.QOS_NOT_ELIGIBLE: _burstable,
    Reason.LIMITED_SWAP: _share,
    Reason.WORKLOAD_LIMIT: _workload,
    Reason.NO_LIMIT: _workload,
    Reason.BOUNDED: _workload,
    Reason.OVERCOMMIT_REACHED: _workload,
}


# The pod, changed


def _annotated(pod: workloads.DetailedPod, written: dict[str, str | None]) -> workloads.DetailedPod:
    """The pod with these annotations; None: without it."""
    every: dict[str, str | None] = {**pod.metadata.annotations, **written}
    kept = {key: value for key, value in every.items() if value is not None}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=kept))


def annotation(key: str, limit: int) -> Callable[[PlannedPod], PlannedPod]:
    return lambda it: it.recreated(_annotated(it.pod, {key: str(limit)}))


def _respecified(pod: workloads.DetailedPod, **fields: object) -> workloads.DetailedPod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **fields))


def _twice(number: int) -> int:
    return max(1 << 30, 2 * number)
