"""The objects that a plan is made from, checked as the API server checks the fields that are read."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pydantic

from swapwarden.api import names, quantity, state
from swapwarden.api import profile as api
from swapwarden.cli import checks, documents
from swapwarden.cli.kubectl.cluster.workloads import WORKLOAD_KINDS
from swapwarden.policy.admission import decide, memory, validation
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.observed.new_pods import NewPod
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.profile import compiled

Struct = TypeVar("Struct")
Object = TypeVar("Object")

DEFAULT_NAMESPACE = "default"

TEMPLATES: Final = {(kind.group, kind.name): ".".join(kind.template) for kind in WORKLOAD_KINDS}
"""Where workloads have their pod template, by group and kind."""


@dataclasses.dataclass
class Inputs:
    """All that was read; by name, pods by namespace/name. Of namespaces the labels.

    A workload counts as the pod that it would make, by the name kind/name: deployment/web.
    """

    nodes: dict[str, nodes.NodeRow] = dataclasses.field(default_factory=dict)
    facts: dict[str, state.Facts | None] = dataclasses.field(default_factory=dict)
    allocatable: dict[str, int] = dataclasses.field(default_factory=dict)
    """Memory in status.allocatable of those Nodes that have it, in bytes."""
    profiles: dict[str, compiled.Profile] = dataclasses.field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    pods: dict[str, WirePod] = dataclasses.field(default_factory=dict)
    existing: set[str] = dataclasses.field(default_factory=set)
    """Keys of pods that existing workloads would make: these workloads have pods of their own."""


def pod_rows(inputs: Inputs) -> Iterator[pods.PodRow]:
    """Yield the pods; those that have no UID, and so were not created yet, with the default of their namespace."""
    for wire in inputs.pods.values():
        row = pods.project(wire)
        if row.policy is None and is_not_created(wire) and _is_sent(wire):
            row = msgspec.structs.replace(row, policy=_default(inputs, wire), defaulted=True)
        yield row


def _default(inputs: Inputs, wire: WirePod) -> str | None:
    """Return the policy that the pod's namespace gives to those that have none."""
    return inputs.namespaces.get(wire.metadata.namespace, {}).get(names.DEFAULT_POLICY_LABEL)


def is_not_created(wire: WirePod) -> bool:
    """Return whether the pod does not exist yet and will be checked when it is created."""
    return not wire.metadata.uid and names.CONFIG_MIRROR_ANNOTATION not in wire.metadata.annotations


def _is_sent(wire: WirePod) -> bool:
    """Return whether the webhook is asked about new pods of the namespace, not only the API server's policies."""
    return wire.metadata.namespace not in namespaces.UNDEFAULTED


class _WireAmounts(msgspec.Struct, frozen=True):
    memory: str | int | float | None = None


class _StatusInFile(msgspec.Struct, frozen=True):
    allocatable: _WireAmounts = _WireAmounts()


class _WireAllocatable(msgspec.Struct, frozen=True):
    """The part of a Node that no decision of the controller reads."""

    status: _StatusInFile = _StatusInFile()


class Admission(NamedTuple):
    """The answer of admission to a pod that does not exist yet."""

    refusals: list[tuple[str, str]]
    """Paths and reasons."""
    warnings: list[str]
    """Settings without effect, whether or not the pod is refused for another reason."""


def admission_of(inputs: Inputs, wire: WirePod) -> Admission:
    """Return what admission would answer about an awaited pod."""
    if not _is_sent(wire):
        causes = (*validation.wrong_values(wire), *memory.contradictions(wire))
        wrong = [(cause.field, cause.message) for cause in causes]
        return Admission(wrong, _warnings_beside(wrong, wire))
    refusals, default = [], _default(inputs, wire)
    understood = default in frozenset[str](names.Policy)
    if names.POLICY_ANNOTATION not in wire.metadata.annotations and default is not None and not understood:
        path = f"label {names.DEFAULT_POLICY_LABEL} of namespace {wire.metadata.namespace}"
        reason = f"Unsupported value: {checks.shown(default)}: supported values: {', '.join(names.Policy)}"
        refusals.append((path, reason))
    decision = decide.decide(wire, names.Policy(default) if default is not None and understood else None)
    refusals += ((cause.field, cause.message) for cause in decision.causes)
    return Admission(refusals, _warnings_beside(refusals, wire) if decision.causes else decision.warnings)


def _warnings_beside(refusals: Iterable[tuple[str, str]], asked: NewPod) -> list[str]:
    """Return warnings about fields that are not refused anyway."""
    refused = {path for path, _ in refusals}
    return [warning for warning in validation.warnings(asked) if warning.partition(": ")[0] not in refused]


def collect(documents_read: Iterable[documents.Found], log: documents.Log) -> Inputs:
    """Check objects and sort them by kind. Errors are in the log, and then the result must not be used."""
    inputs = Inputs()
    for one in documents_read:
        version, kind = one.object["apiVersion"], one.object["kind"]
        group = version.rpartition("/")[0]
        path = TEMPLATES.get((group, kind))
        reader = _READERS.get((group, kind)) if path is None else _read_pod
        if reader is None:
            log.note(one.place, f"{version} {kind} is ignored: only {_KNOWN} count")
            continue
        read = one
        try:
            name = checks.name_of(one.object)
            if path is not None:
                read = documents.Found(one.place.below(path), pod_of_workload(one.object, DEFAULT_NAMESPACE))
                _take_template(inputs, one.object, read.object["metadata"], name)
            if reader(inputs, read.object):
                log.note(one.place, f"{kind} {name!r} was read before; this one counts")
        except checks.InvalidError as refused:
            log.refuse(read.place, refused.problems)
            if read.object["kind"] == "Pod":
                _log_annotations(read, log)
    return inputs


def _take_template(inputs: Inputs, workload: documents.Json, made: documents.Json, name: str) -> None:
    """Name the pod that a workload's template makes; MADE is its metadata. InvalidError if that is wrong."""
    if wrong := list(checks.wrong_texts(made)):
        raise checks.InvalidError(*wrong)
    # Not only the workload's own name, as there may be a pod of this name.
    made["name"] = f"{workload['kind'].lower()}/{name}"
    if workload["metadata"].get("uid"):
        inputs.existing.add(f"{made['namespace']}/{made['name']}")


def pod_of_workload(workload: documents.Json, namespace: str) -> documents.Json:
    """Return the pod that a workload would make, in `namespace` if it names none. InvalidError without a template."""
    path = TEMPLATES[workload["apiVersion"].rpartition("/")[0], workload["kind"]]
    template: Any = workload
    for step in path.split("."):
        template = template.get(step) if isinstance(template, dict) else None
    if not isinstance(template, dict):
        raise checks.InvalidError((path, "Required value"))
    own, metadata = workload.get("metadata", {}), template.get("metadata", {})
    for where, given in (("metadata", own), (f"{path}.metadata", metadata)):
        if not isinstance(given, dict):
            raise checks.InvalidError((where, f"expected a mapping, got {documents.type_name(given)}"))
    made = {**metadata, "namespace": own.get("namespace") or namespace, "name": own.get("name") or "unnamed"}
    made.pop("uid", None)
    if workload["kind"] == "DaemonSet":
        made["ownerReferences"] = [{"kind": "DaemonSet", "controller": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": template.get("spec", {})}


def _log_annotations(one: documents.Found, log: documents.Log) -> None:
    """Report the annotations also of a pod that is invalid for another reason."""
    try:
        asked = _struct(checks.with_texts_only(one.object), NewPod)
    except checks.InvalidError:
        return
    if one.object.get("metadata", {}).get("uid") or asked.is_mirror:
        return  # it exists, and is not checked any more
    refusals = [(cause.field, cause.message) for cause in validation.errors(asked)]
    log.refuse(one.place, refusals)
    for warning in _warnings_beside(refusals, asked):
        path, _, text = warning.partition(": ")
        log.note(one.place.below(path), text)


def _struct(document: documents.Json, kind: type[Struct]) -> Struct:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise checks.InvalidError(checks.from_msgspec(str(error))) from None


def _put(objects: dict[str, Object], name: str, value: Object) -> bool:
    """Whether there was one of this name."""
    known = name in objects
    objects[name] = value
    return known


def _read_node(inputs: Inputs, document: documents.Json) -> bool:
    wire = _struct(document, nodes.WireNode)
    wrong = list(checks.wrong_quantities(nodes.quantities(wire)))
    if wrong:
        raise checks.InvalidError(*wrong)
    row = nodes.project(wire)
    _take_allocatable(inputs, row.name, _struct(document, _WireAllocatable).status.allocatable.memory)
    return _put(inputs.nodes, row.name, row)


def _take_allocatable(inputs: Inputs, name: str, memory: str | float | None) -> None:
    inputs.allocatable.pop(name, None)
    if memory is None:
        return
    if wrong := list(checks.wrong_quantities([("status.allocatable.memory", str(memory))])):
        raise checks.InvalidError(*wrong)
    inputs.allocatable[name] = quantity.capped(str(memory))


def _read_namespace(inputs: Inputs, document: documents.Json) -> bool:
    wire = _struct(document, namespaces.WireNamespace)
    return _put(inputs.namespaces, wire.metadata.name, namespaces.project(wire))


def _read_pod(inputs: Inputs, document: documents.Json) -> bool:
    document = {**document, "metadata": {"namespace": DEFAULT_NAMESPACE, **document["metadata"]}}
    wire = _struct(document, WirePod)
    if not wire.spec.containers:
        raise checks.InvalidError(("spec.containers", "Required value"))
    wrong = [*checks.wrong_names(wire), *checks.wrong_quantities(pods.quantities(wire))]
    if wrong:
        raise checks.InvalidError(*wrong)
    name = f"{wire.metadata.namespace}/{wire.metadata.name}"
    return _put(inputs.pods, name, wire)


def _read_state(inputs: Inputs, document: documents.Json) -> bool:
    status = document.get("status", {})
    # Only the facts count: another version may have written the rest.
    facts = {"facts": status.get("facts")} if isinstance(status, dict) else status
    read = _struct({**document, "spec": None, "status": facts}, state.NodeSwapState)
    return _put(inputs.facts, read.metadata.name, read.status.facts)


def _read_profile(inputs: Inputs, document: documents.Json) -> bool:
    try:
        # As JSON and strictly, because the API server does not take "100" for 100 either.
        model = api.NodeSwapProfile.model_validate_json(json.dumps(document), strict=True)
    except pydantic.ValidationError as error:
        raise checks.InvalidError(*checks.from_pydantic(error)) from None
    return _put(inputs.profiles, model.metadata.name, compiled.compile_profile(model))


_READERS: dict[tuple[str, str], Callable[[Inputs, documents.Json], bool]] = {
    ("", "Node"): _read_node,
    ("", "Namespace"): _read_namespace,
    ("", "Pod"): _read_pod,
    (names.GROUP, names.PROFILE_KIND): _read_profile,
    (names.GROUP, names.STATE_KIND): _read_state,
}
_KNOWN = ", ".join([*(kind for _, kind in _READERS), "workloads"])


# The pods by the node that each is planned on


Placed = dict[str, list[pods.PodRow]]
"""Pods by node."""


def place(inputs: Inputs, rows: Iterable[pods.PodRow], only: str | None, notes: list[str]) -> tuple[Placed, Placed]:
    """Return the pods on the nodes, or on the chosen one, and the pods without a node that may be scheduled there."""
    chosen = inputs.nodes.keys() if only is None else {only}
    bound: Placed = collections.defaultdict(list)
    free: Placed = collections.defaultdict(list)
    for row in rows:
        pod = f"pod {row.namespace}/{row.name} is left out"
        if row.node:
            if row.node in chosen:
                bound[row.node].append(row)
            elif row.node not in inputs.nodes:
                notes.append(f"{pod}: no Node {row.node!r} (its spec.nodeName) in the input")
            continue
        if row.uid and only is None:
            notes.append(f"{pod}: it waits to be scheduled; --node NAME plans it on that one")
            continue
        if f"{row.namespace}/{row.name}" in inputs.existing and only is None:
            # An export of a whole cluster has thousands of them, and of nodes.
            notes.append(f"{pod}: its workload exists, and its pods count; --node NAME plans its template")
            continue
        selector = inputs.pods[f"{row.namespace}/{row.name}"].spec.node_selector or {}
        fitting = [name for name in sorted(chosen) if selector.items() <= inputs.nodes[name].labels.items()]
        if not fitting:
            notes.append(f"{pod}: no Node that it may be planned on has all labels of its spec.nodeSelector")
        for name in fitting:
            free[name].append(row)
    return bound, free


def unknown(inputs: Inputs, only: str | None) -> str:
    """Return the problem of a choice that the input does not have; empty if there is none."""
    if only is None or only in inputs.nodes:
        return ""
    there = ", ".join(sorted(inputs.nodes)) or "none"
    return f"--node {only}: no Node of this name in the input, which has: {there}"
