"""Advice for another outcome than the one that a pod has, by the rule that decides: words and commands. Pure.

Nothing is advised that was not tried: each change is applied to the pod, to the profile or to the node, and planned
again. Only changes that lead to their outcome by themselves are shown.
"""

from __future__ import annotations

import enum
import itertools
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from swapwarden.api import names, quantity
from swapwarden.api.sizes import exact
from swapwarden.cli.kubectl.cluster import workloads
from swapwarden.cli.kubectl.explain.rules import PlannedPod, wrong_limits
from swapwarden.policy.observed import pods, resources
from swapwarden.policy.observed.new_pods import WireContainer
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.swap import limits, requirements

Reason = names.Reason
MOST_OVERCOMMIT: Final = 10_000
"""The largest valid value."""
EXAMPLE: Final = "512Mi"
EXAMPLE_BYTES: Final = 512 << 20


class AdviceKind(enum.StrEnum):
    """The kind of a change."""

    POLICY = "Policy"
    POLICY_IN_FILE = "PolicyInFile"
    NAMESPACE_DEFAULT = "NamespaceDefault"
    MISTAKES = "Mistakes"
    FIRST_LIMIT = "FirstLimit"
    LIMIT = "Limit"
    LOWER_LIMIT = "LowerLimit"
    SWAP_RESOURCE = "SwapResource"
    PRIORITY = "Priority"
    POD_MEMORY_LIMIT = "PodMemoryLimit"
    MEMORY_LIMIT = "MemoryLimit"
    MEMORY_LIMIT_OR_REQUEST = "MemoryLimitOrRequest"
    MEMORY_REQUEST = "MemoryRequest"
    MEMORY_REQUEST_IN_NODE = "MemoryRequestInNode"
    NEW_PROFILE = "NewProfile"
    BEHAVIOR = "Behavior"
    OVERRIDE_POLICY = "OverridePolicy"
    OVERRIDE_LIMIT = "OverrideLimit"
    REQUIREMENTS = "Requirements"
    BOUND = "Bound"
    OVERCOMMIT = "Overcommit"
    RESERVED = "Reserved"
    REQUIREMENT = "Requirement"
    NODE_SWAP = "NodeSwap"
    SWAP_ON = "SwapOn"
    CGROUP = "Cgroup"


class Advice(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One thing to change for another outcome; any value between `above` and `below` will do."""

    outcome: str = ""
    how: str
    command: str = ""
    kind: AdviceKind
    target: str = ""
    """The container, annotation, field, policy, behavior or override."""
    above: int | None = None
    """In bytes; of OVERCOMMIT in percents."""
    below: int | None = None


_IN_POD: Final = ", in {where}"
_WORDS: Final[dict[AdviceKind, str]] = {
    AdviceKind.POLICY: "the policy {target}{instead}" + _IN_POD,
    AdviceKind.POLICY_IN_FILE: (
        f"write the annotation {names.POLICY_ANNOTATION}: {{target}} into the pod's file on its node"
    ),
    AdviceKind.NAMESPACE_DEFAULT: "remove the default of the namespace",
    AdviceKind.MISTAKES: "correct {target} in {where}",
    AdviceKind.FIRST_LIMIT: f"annotation {{target}}: {EXAMPLE}{{instead}}" + _IN_POD,
    AdviceKind.LIMIT: "annotation {target} above {text}" + _IN_POD,
    AdviceKind.LOWER_LIMIT: "annotation {target} below {below}" + _IN_POD,
    AdviceKind.SWAP_RESOURCE: f"a limit of {names.SWAP_RESOURCE} of {{target}} above {{above}}" + _IN_POD,
    AdviceKind.PRIORITY: "a priority class below 2000000000, as LimitedSwap gives critical pods none",
    AdviceKind.POD_MEMORY_LIMIT: "a memory limit of the whole pod above its request ({above}), which makes it Burstable"
    + _IN_POD,
    AdviceKind.MEMORY_LIMIT: "a memory limit of {target} above its request ({above}){burstable}" + _IN_POD,
    AdviceKind.MEMORY_LIMIT_OR_REQUEST: (
        "a memory limit of {target} above its request ({above}), or a smaller request{burstable}" + _IN_POD
    ),
    AdviceKind.MEMORY_REQUEST: "a memory request of {target}{bounds}{burstable}" + _IN_POD,
    AdviceKind.MEMORY_REQUEST_IN_NODE: (
        "a memory request of {target} of at most the node's memory ({below}){burstable}" + _IN_POD
    ),
    AdviceKind.NEW_PROFILE: "a NodeSwapProfile that selects the node, with behavior LimitedSwap",
    AdviceKind.BEHAVIOR: "behavior {target} of {profile}",
    AdviceKind.OVERRIDE_POLICY: "policy NoPreference in overrides[{target}] of {profile}",
    AdviceKind.OVERRIDE_LIMIT: "a swap.limit above {above} in overrides[{target}] of {profile}",
    AdviceKind.REQUIREMENTS: "remove the unmet requirements from swap.requirements of {profile}",
    AdviceKind.BOUND: "a {target} above {above} in {profile}",
    AdviceKind.OVERCOMMIT: "an overcommitPercent above {text} in {profile}",
    AdviceKind.RESERVED: "less swap.reserved than {text} in {profile}",
    AdviceKind.REQUIREMENT: "{text}",
    AdviceKind.NODE_SWAP: "a node with more swap than {above}",
    AdviceKind.SWAP_ON: "turn on swap on the node, which has none",
    AdviceKind.CGROUP: "run it on a node with cgroup v2 and its swap controller",
}


def policy(pod: WirePod, value: names.Policy, outcome: str = "") -> Advice:
    """Advise another policy of the pod, on any node."""
    return _worded(
        AdviceKind.POLICY_IN_FILE if pod.is_mirror else AdviceKind.POLICY, pod, outcome=outcome, target=value.value
    )


def advise(planned: PlannedPod, kind: AdviceKind, text: str = "", **fields: Any) -> Advice:
    """Return advice about a pod as it is planned; `text` is a value as a user wrote it."""
    by_class = planned.trace.decision.reason is Reason.QOS_NOT_ELIGIBLE
    burstable = ", which makes the pod Burstable" if by_class else ""
    words = {"profile": planned.profile.name, "text": text, "burstable": burstable}
    return _worded(kind, planned.pod, words, **fields)


def _worded(kind: AdviceKind, pod: WirePod, words: dict[str, str] | None = None, **fields: Any) -> Advice:
    advice = Advice(how="", kind=kind, **fields)
    above = "" if advice.above is None else exact(advice.above)
    below = "" if advice.below is None else exact(advice.below)
    bounds = [f" above {above}"] if above else []
    bounds += [f" below its limit ({below})"] if below else []
    removed = [key for key, value in _annotations(pod, advice).items() if value is None]
    instead = f" in place of {', '.join(removed)}" if removed else ""
    known = {"where": workloads.place(pod), "target": advice.target, "instead": instead, **(words or {})}
    known |= {"above": above, "below": below, "bounds": " and".join(bounds)}
    return msgspec.structs.replace(advice, how=_WORDS[kind].format_map(known))


# The command


def with_command(advice: Advice, pod: WirePod, profile: str, flags: Sequence[str] = ()) -> Advice:
    """Return the advice with the command that makes the change to a pod or to its PROFILE.

    The `flags` choose the cluster, whatever kubectl's current one is when the command is run.
    """
    commands = _commands(advice, pod, profile)
    return msgspec.structs.replace(advice, command=" | ".join(shlex.join([*words, *flags]) for words in commands))


def _annotations(pod: WirePod, advice: Advice) -> dict[str, str | None]:
    """Return the annotations to write, None for those to remove; empty if the advice leaves the value open.

    Limits that admission refuses beside the new value are removed.
    """
    limits = {key: value for key, value in pod.metadata.annotations.items() if key.startswith(_LIMIT_KEYS)}
    if advice.kind is AdviceKind.FIRST_LIMIT:
        valid = {key: quantity.capped(value) for key, value in limits.items() if quantity.is_quantity(value)}
        refused = [key for key, value in valid.items() if value > EXAMPLE_BYTES]
        return {**dict.fromkeys(refused), advice.target: EXAMPLE}
    if advice.kind in {AdviceKind.POLICY, AdviceKind.POLICY_IN_FILE}:
        return {
            names.POLICY_ANNOTATION: advice.target,
            **dict.fromkeys(limits if advice.target == names.Policy.DISABLED else ()),
        }
    return {}


_LIMIT_KEYS: Final = (names.LIMIT_ANNOTATION, names.CONTAINER_LIMIT_PREFIX)


def _commands(advice: Advice, pod: WirePod, profile: str) -> list[list[str]]:
    """Return the words of the command, or of several that are joined by pipes; empty if none makes the change."""
    if advice.kind is AdviceKind.CGROUP:
        return [["kubectl", "swap", "nodes"]]
    if advice.kind is AdviceKind.NAMESPACE_DEFAULT:
        return [["kubectl", "label", "namespace", pod.metadata.namespace, f"{names.DEFAULT_POLICY_LABEL}-"]]
    if "{profile}" in _WORDS[advice.kind]:
        return [["kubectl", "edit", "nodeswapprofile", profile]]
    annotations = _annotations(pod, advice)
    if not annotations or pod.is_mirror:
        return []
    workload = workloads.workload(pod)
    if workload is None:
        return _recreating(pod, annotations)
    return [] if workload.kind.immutable else [_patching(pod.metadata.namespace, workload, annotations)]


def _patching(namespace: str, workload: workloads.Workload, annotations: dict[str, str | None]) -> list[str]:
    """Return a patch of a pod template."""
    patch: dict[str, Any] = {"metadata": {"annotations": annotations}}
    for part in reversed(workload.kind.template):
        patch = {part: patch}
    # Only Kubernetes' own kinds have kubectl's default, a strategic merge patch. Both change annotations alike.
    form = [] if workload.kind in workloads.WORKLOAD_KINDS else ["--type=merge"]
    body = json.dumps(patch, separators=(",", ":"))
    return ["kubectl", "patch", workload.kind.word, workload.name, "-n", namespace, *form, "-p", body]


def _recreating(pod: WirePod, annotations: dict[str, str | None]) -> list[list[str]]:
    """Return what ends a pod that nobody manages, and makes it again: its own annotations are immutable."""
    if names.POLICY_ANNOTATION in annotations and names.POLICY_SOURCE_ANNOTATION in pod.metadata.annotations:
        annotations = {**annotations, names.POLICY_SOURCE_ANNOTATION: None}
    words = [f"{key}-" if value is None else f"{key}={value}" for key, value in annotations.items()]
    return [
        ["kubectl", "get", "pod", pod.metadata.name, "-n", pod.metadata.namespace, "-o", "yaml"],
        ["kubectl", "annotate", "--local", "--overwrite", "-f", "-", "-o", "yaml", *words],
        ["kubectl", "replace", "--force", "-f", "-"],
    ]


# The effect on the plan


def tried(planned: PlannedPod, advice: Advice) -> PlannedPod:
    """Return the plan of the pod with the advice applied, with a value within its bounds."""
    return _CHANGES[advice.kind](planned, advice)


def bytes_of(planned: PlannedPod) -> int:
    """Return the limit of the pod; "max" is more than any number, and a pod without limits has more still."""
    swap_max = planned.trace.decision.swap_max
    return 2**65 if swap_max is None else limits.in_bytes(swap_max)


def _larger(advice: Advice) -> int:
    return max(1 << 30, 2 * (advice.above or 0))


def _policy(it: PlannedPod, advice: Advice) -> PlannedPod:
    return _annotated(it, {**_annotations(it.pod, advice), names.POLICY_SOURCE_ANNOTATION: None})


def _annotated(it: PlannedPod, written: dict[str, str | None]) -> PlannedPod:
    """Return the pod recreated with these annotations; None: without it."""
    every: dict[str, str | None] = {**it.pod.metadata.annotations, **written}
    kept = {key: value for key, value in every.items() if value is not None}
    metadata = msgspec.structs.replace(it.pod.metadata, annotations=kept)
    return it.recreated(msgspec.structs.replace(it.pod, metadata=metadata))


def _respecified(it: PlannedPod, **fields: object) -> PlannedPod:
    return it.recreated(msgspec.structs.replace(it.pod, spec=msgspec.structs.replace(it.pod.spec, **fields)))


def _overridden(it: PlannedPod, advice: Advice, **fields: object) -> PlannedPod:
    entries = (
        msgspec.structs.replace(one, swap=msgspec.structs.replace(one.swap, **fields))
        if one.name == advice.target
        else one
        for one in it.profile.overrides
    )
    return it.with_profile(overrides=tuple(entries))


def _whole_limit(it: PlannedPod, advice: Advice) -> PlannedPod:
    whole = it.pod.spec.resources or resources.Resources()
    return _respecified(it, resources=_resources(whole, _larger(advice), advice.above))


def _container(
    it: PlannedPod, advice: Advice, change: Callable[[resources.Resources], resources.Resources]
) -> PlannedPod:
    """Return the pod recreated with other resources of a container."""

    def changed(every: Iterable[WireContainer]) -> list[WireContainer]:
        return [
            msgspec.structs.replace(one, resources=change(one.resources)) if one.name == advice.target else one
            for one in every
        ]

    spec = it.pod.spec
    return _respecified(it, containers=changed(spec.containers or ()), init_containers=changed(spec.init_containers))


def _resources(given: resources.Resources, limit: int | None = None, request: int | None = None) -> resources.Resources:
    """Advise another memory limit or request."""
    limits = given.limits if limit is None else msgspec.structs.replace(given.limits, memory=str(limit))
    requests = given.requests if request is None else msgspec.structs.replace(given.requests, memory=str(request))
    return msgspec.structs.replace(given, limits=limits, requests=requests)


def _memory_limit(it: PlannedPod, advice: Advice) -> PlannedPod:
    # The request stays, even if the API server derived it from the limit.
    return _container(it, advice, lambda resources: _resources(resources, _larger(advice), advice.above))


def _memory_request(it: PlannedPod, advice: Advice) -> PlannedPod:
    memory, above, below = it.facts.memory_bytes, advice.above, advice.below
    request = memory // 8 if below is None else below // 2
    if above is not None:
        request = min(memory, _larger(advice), memory if below is None else below - 1)
    return _container(it, advice, lambda resources: _resources(resources, request=request))


def _swap_resource(it: PlannedPod, advice: Advice) -> PlannedPod:
    def change(given: resources.Resources) -> resources.Resources:
        return msgspec.structs.replace(given, limits=msgspec.structs.replace(given.limits, swap=str(_larger(advice))))

    return _container(it, advice, change)


def _more_swap(it: PlannedPod, _: Advice) -> PlannedPod:
    return it.on(msgspec.structs.replace(it.facts, swap_bytes=max(2**40, 16 * it.facts.swap_bytes)))


_FIELDS: Final = {"maxPerPod": "max_per_pod", "maxPerContainer": "max_per_container"}
_CHANGES: Final[dict[AdviceKind, Callable[[PlannedPod, Advice], PlannedPod]]] = {
    AdviceKind.POLICY: _policy,
    AdviceKind.POLICY_IN_FILE: _policy,
    AdviceKind.MISTAKES: lambda it, advice: _annotated(it, dict.fromkeys(advice.target.split(", "))),
    AdviceKind.FIRST_LIMIT: lambda it, advice: _annotated(it, _annotations(it.pod, advice)),
    AdviceKind.LIMIT: lambda it, advice: _annotated(it, {advice.target: str(_larger(advice))}),
    AdviceKind.LOWER_LIMIT: lambda it, advice: _annotated(it, {advice.target: str((advice.below or 0) // 2)}),
    AdviceKind.SWAP_RESOURCE: _swap_resource,
    AdviceKind.PRIORITY: lambda it, _: _respecified(it, priority=0, priority_class_name=""),
    AdviceKind.POD_MEMORY_LIMIT: _whole_limit,
    AdviceKind.MEMORY_LIMIT: _memory_limit,
    AdviceKind.MEMORY_LIMIT_OR_REQUEST: _memory_limit,
    AdviceKind.MEMORY_REQUEST: _memory_request,
    AdviceKind.MEMORY_REQUEST_IN_NODE: lambda it, advice: _container(
        it, advice, lambda resources: _resources(resources, request=advice.below)
    ),
    AdviceKind.BEHAVIOR: lambda it, advice: it.with_swap(behavior=names.Behavior(advice.target)),
    AdviceKind.OVERRIDE_POLICY: lambda it, advice: _overridden(it, advice, policy=names.Policy.NO_PREFERENCE),
    AdviceKind.OVERRIDE_LIMIT: lambda it, advice: _overridden(it, advice, limit=_larger(advice)),
    AdviceKind.REQUIREMENTS: lambda it, _: it.with_swap(require=None),
    AdviceKind.BOUND: lambda it, advice: it.with_swap(**{_FIELDS[advice.target]: _larger(advice)}),
    AdviceKind.OVERCOMMIT: lambda it, _: it.with_swap(overcommit_percent=MOST_OVERCOMMIT),
    AdviceKind.RESERVED: lambda it, _: it.with_swap(reserved=None),
    AdviceKind.NODE_SWAP: _more_swap,
    AdviceKind.SWAP_ON: _more_swap,
}
"""The effect of the kinds that lead towards more or less swap."""


# Advice by the rule that decides


_SHOWN: Final = 2
"""The number of ways to one outcome that are shown."""


def changes(pod: WirePod, row: pods.PodRow, planned: PlannedPod | None, flags: Sequence[str]) -> Iterator[Advice]:
    """Yield advice for other outcomes, the likeliest first, with commands; `flags` choose their cluster."""
    advised: Iterable[Advice] = [policy(pod, names.Policy.DISABLED, "no swap")]
    if planned is not None:
        advised = _by_plan(planned)
    elif row.policy == names.Policy.DISABLED:
        advised = [policy(pod, names.Policy.NO_PREFERENCE, "swap, where the node gives some")]
    yield from (with_command(each, pod, planned.profile.name if planned else "", flags) for each in advised)


def _by_plan(planned: PlannedPod) -> Iterator[Advice]:
    reason = planned.trace.decision.reason
    if reason is Reason.NODE_INCOMPATIBLE:
        yield advise(planned, AdviceKind.CGROUP, outcome="limits that hold")
        return
    if reason is Reason.INVALID_POLICY:
        yield from _towards("what was meant", *_correct(planned))
        return
    if reason is Reason.REQUIREMENT_UNMET:
        for field, obstacle in (requirements.unmet(planned.profile.swap.require, planned.facts) or {}).items():
            yield advise(planned, AdviceKind.REQUIREMENT, obstacle, target=field, outcome=f"{field} met")
    if reason is Reason.KUBELET_DECIDES and planned.profile.name == names.BUILT_IN_PROFILE:
        yield advise(planned, AdviceKind.NEW_PROFILE, outcome="limits by Swapwarden")
    elif reason is Reason.KUBELET_DECIDES:
        yield _to_behavior(planned, names.Behavior.LIMITED_SWAP, "limits by Swapwarden")
    yield from _more(planned)
    if planned.row.defaulted and reason is Reason.POLICY_DISABLED:
        yield advise(planned, AdviceKind.NAMESPACE_DEFAULT, outcome="no such default for new pods")
    yield from _less(planned)
    if planned.trace.decision.swap_max != "0":
        yield policy(planned.pod, names.Policy.DISABLED, "no swap")


def _towards(outcome: str, *changes_to_it: Advice) -> Iterator[Advice]:
    yield from (msgspec.structs.replace(each, outcome=outcome) for each in changes_to_it)


def _more(planned: PlannedPod) -> Iterator[Advice]:
    """Yield single changes that give the pod more swap than it has."""
    now = bytes_of(planned)
    candidates = _BY_REASON[planned.trace.decision.reason](planned)
    leading = (each for each in candidates if bytes_of(tried(planned, each)) > now)
    yield from _towards("swap" if now == 0 else "more", *itertools.islice(leading, _SHOWN))


def _less(planned: PlannedPod) -> Iterator[Advice]:
    """Yield how the pod gets less, but some: by a limit of its own."""
    now = planned.trace.decision.swap_max
    if now in {None, "0"}:
        return
    below = min(planned.facts.swap_bytes, limits.in_bytes(now or "0"))
    advice = advise(planned, AdviceKind.LOWER_LIMIT, target=names.LIMIT_ANNOTATION, below=below, outcome="less")
    if now == names.MAX_SWAP and below > EXAMPLE_BYTES:
        advice = advise(planned, AdviceKind.FIRST_LIMIT, target=names.LIMIT_ANNOTATION, outcome="less")
    if 0 < bytes_of(tried(planned, advice)) < bytes_of(planned):
        yield advice


# Changes to the rule that decides, the likeliest first


def _correct(planned: PlannedPod) -> Iterator[Advice]:
    """Yield what to do about annotations that are not understood."""
    wrong = [key for key, _ in wrong_limits(planned.row)]
    if limits.forbids_swap(planned.row.policy) and planned.row.policy != names.Policy.DISABLED:
        wrong.append(names.POLICY_ANNOTATION)
    yield advise(planned, AdviceKind.MISTAKES, target=", ".join(wrong))


def _override_limit(planned: PlannedPod) -> Iterator[Advice]:
    yield _raised_override(planned)
    match planned.profile.swap.behavior:
        case names.Behavior.LIMITED_SWAP:
            yield from _share(planned)
        case names.Behavior.WORKLOAD_CONTROLLED:
            yield from _workload(planned)
        case _:
            yield from _kubelet(planned)


def _raised_override(planned: PlannedPod) -> Advice:
    name, top = (planned.override.name, planned.override.swap.limit) if planned.override else ("", None)
    return advise(planned, AdviceKind.OVERRIDE_LIMIT, target=name, above=top or 0)


def _to_behavior(planned: PlannedPod, behavior: names.Behavior, outcome: str = "") -> Advice:
    """Advise another behavior of the profile."""
    return advise(planned, AdviceKind.BEHAVIOR, target=behavior.value, outcome=outcome)


def _kubelet(planned: PlannedPod) -> Iterator[Advice]:
    yield from _limit(planned, names.LIMIT_ANNOTATION, planned.row.swap_limit)
    yield _larger_node(planned)


def _uncritical(planned: PlannedPod) -> Iterator[Advice]:
    if not planned.pod.is_static:
        yield advise(planned, AdviceKind.PRIORITY)
    yield _to_behavior(planned, names.Behavior.WORKLOAD_CONTROLLED)


def _burstable(planned: PlannedPod) -> Iterator[Advice]:
    """Yield changes that make the pod Burstable; one container is enough."""
    made = planned.recreated(planned.pod)
    whole = planned.pod.spec.resources
    if whole is not None and made.row.qos is resources.Class.GUARANTEED:
        stated = whole.limits.memory if whole.requests.memory is None else whole.requests.memory
        yield advise(planned, AdviceKind.POD_MEMORY_LIMIT, above=quantity.capped(str(stated or 0)))
    else:
        for one in _asking(made.row):
            yield from _requests(planned, one)


def _share(planned: PlannedPod) -> Iterator[Advice]:
    """Yield what gives a larger share of the node's swap; first containers that have none."""
    row = planned.recreated(planned.pod).row
    for one in sorted(_asking(row), key=lambda each: bool(each.request) and each.request != each.limit):
        yield from _requests(planned, one)
    yield from _own_limits(planned, row)
    yield from _reserve(planned)
    yield _larger_node(planned)


def _asking(row: pods.PodRow) -> list[pods.ContainerRow]:
    """Return the containers that can request memory: the app's first, then init containers."""
    asking = [one for one in row.containers if one.kind is not resources.Kind.EPHEMERAL]
    return sorted(asking, key=lambda one: one.kind is not resources.Kind.APP)


def _requests(planned: PlannedPod, one: pods.ContainerRow) -> Iterator[Advice]:
    """Yield how a container's memory request and limit get it a larger share."""
    memory, limit = planned.facts.memory_bytes, one.limit or None
    if one.request > memory or (not one.request and one.limit > memory):
        yield advise(planned, AdviceKind.MEMORY_REQUEST_IN_NODE, target=one.name, below=memory)
    elif one.request and one.request == one.limit:
        lower = advise(planned, AdviceKind.MEMORY_REQUEST, target=one.name, below=limit)
        # A limit of the whole pod may leave no room for a larger one.
        if planned.pod.spec.resources is not None:
            yield lower
            return
        either = bytes_of(tried(planned, lower)) > bytes_of(planned)
        kind = AdviceKind.MEMORY_LIMIT_OR_REQUEST if either else AdviceKind.MEMORY_LIMIT
        yield advise(planned, kind, target=one.name, above=one.request)
    elif one.request < memory:
        yield advise(planned, AdviceKind.MEMORY_REQUEST, target=one.name, above=one.request or None, below=limit)


def _workload(planned: PlannedPod) -> Iterator[Advice]:
    """Yield what gives more where pods name their limits: these limits, and what bounds them."""
    row, profile = planned.recreated(planned.pod).row, planned.profile
    if planned.override is not None and planned.override.swap.limit is not None and not row.limited():
        yield _raised_override(planned)
    elif row.limited():
        yield from _own_limits(planned, row)
    else:
        yield advise(planned, AdviceKind.FIRST_LIMIT, target=names.LIMIT_ANNOTATION)
    for field, top in (("maxPerPod", profile.swap.max_per_pod), ("maxPerContainer", profile.swap.max_per_container)):
        if top is not None:
            yield advise(planned, AdviceKind.BOUND, target=field, above=top)
    yield from _reserve(planned)
    percent = profile.swap.overcommit_percent
    if percent is not None and percent < MOST_OVERCOMMIT:
        yield advise(planned, AdviceKind.OVERCOMMIT, str(percent), above=percent)
    yield _larger_node(planned)


def _reserve(planned: PlannedPod) -> Iterator[Advice]:
    if planned.facts.swap_bytes and planned.profile.swap.reserved_bytes(planned.facts.swap_bytes):
        yield advise(planned, AdviceKind.RESERVED, str(planned.profile.swap.reserved))


def _larger_node(planned: PlannedPod) -> Advice:
    swap_bytes = planned.facts.swap_bytes
    return (
        advise(planned, AdviceKind.NODE_SWAP, above=swap_bytes) if swap_bytes else advise(planned, AdviceKind.SWAP_ON)
    )


def _own_limits(planned: PlannedPod, row: pods.PodRow) -> Iterator[Advice]:
    """Yield larger limits if the pod or one of its containers has one."""
    yield from _limit(planned, names.LIMIT_ANNOTATION, row.swap_limit)
    for one in row.containers:
        yield from _limit(planned, names.CONTAINER_LIMIT_PREFIX + one.name, one.swap_limit)
        if one.swap_resource is not None:
            yield advise(planned, AdviceKind.SWAP_RESOURCE, target=one.name, above=one.swap_resource)


def _limit(planned: PlannedPod, key: str, stated: str | None) -> Iterator[Advice]:
    if stated is not None:
        yield advise(planned, AdviceKind.LIMIT, stated, target=key, above=quantity.capped(stated))


_BY_REASON: Final[dict[Reason, Callable[[PlannedPod], Iterable[Advice]]]] = {
    Reason.NODE_INCOMPATIBLE: lambda _: (),
    Reason.POLICY_DISABLED: lambda it: [policy(it.pod, names.Policy.NO_PREFERENCE)],
    Reason.INVALID_POLICY: _correct,
    Reason.OVERRIDE_DISABLED: lambda it: [
        advise(it, AdviceKind.OVERRIDE_POLICY, target=it.override.name if it.override else "")
    ],
    Reason.OVERRIDE_LIMIT: _override_limit,
    Reason.REQUIREMENT_UNMET: lambda it: [advise(it, AdviceKind.REQUIREMENTS)],
    Reason.PROFILE_NO_SWAP: lambda it: [
        _to_behavior(it, names.Behavior.LIMITED_SWAP),
        _to_behavior(it, names.Behavior.WORKLOAD_CONTROLLED),
    ],
    Reason.KUBELET_DECIDES: _kubelet,
    Reason.CRITICAL_POD: _uncritical,
    Reason.QOS_NOT_ELIGIBLE: _burstable,
    Reason.LIMITED_SWAP: _share,
    Reason.WORKLOAD_LIMIT: _workload,
    Reason.NO_LIMIT: _workload,
    Reason.BOUNDED: _workload,
    Reason.OVERCOMMIT_REACHED: _workload,
}
