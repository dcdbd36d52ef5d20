"""The objects that a plan is made from, checked as the API server checks the fields that are read; with its wording."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pydantic

from swapwarden.api import names, quantity, state, values
from swapwarden.api import profile as api
from swapwarden.cli import documents
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
"""Paths of the pod templates of workloads, by group and kind."""


_VERSIONS: Final = {"": "v1", names.GROUP: names.API_VERSION}
"""Accepted versions by group; all other groups that count have v1."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_RULE = "a name has at most 63 characters, of a-z, 0-9 and -, with a letter or digit at both ends"
_LABEL_LENGTH = 63
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_SUBDOMAIN_RULE = "a name has at most 253 characters, of a-z, 0-9, - and ., with a letter or digit at both ends"
_SUBDOMAIN_LENGTH = 253

_AT = re.compile(r"(?P<text>.*?)(?: - at `(?P<key>key in )?\$\.?(?P<path>.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


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
        reason = f"Unsupported value: {shown(default)}: supported values: {', '.join(names.Policy)}"
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
            name = name_of(one.object)
            if path is not None:
                read = documents.Found(one.place.below(path), pod_of_workload(one.object, DEFAULT_NAMESPACE))
                _take_template(inputs, one.object, read.object["metadata"], name)
            if reader(inputs, read.object):
                log.note(one.place, f"{kind} {name!r} was read before; this one counts")
        except InvalidError as refused:
            log.refuse(read.place, refused.problems)
            if read.object["kind"] == "Pod":
                _log_annotations(read, log)
    return inputs


def _take_template(inputs: Inputs, workload: documents.Json, made: documents.Json, name: str) -> None:
    """Name the pod that a workload's template makes; MADE is its metadata. InvalidError if that is wrong."""
    if wrong := list(wrong_texts(made)):
        raise InvalidError(*wrong)
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
        raise InvalidError((path, "Required value"))
    own, metadata = workload.get("metadata", {}), template.get("metadata", {})
    for where, given in (("metadata", own), (f"{path}.metadata", metadata)):
        if not isinstance(given, dict):
            raise InvalidError((where, f"expected a mapping, got {documents.type_name(given)}"))
    made = {**metadata, "namespace": own.get("namespace") or namespace, "name": own.get("name") or "unnamed"}
    made.pop("uid", None)
    if workload["kind"] == "DaemonSet":
        made["ownerReferences"] = [{"kind": "DaemonSet", "controller": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": template.get("spec", {})}


def _log_annotations(one: documents.Found, log: documents.Log) -> None:
    """Report the annotations also of a pod that is invalid for another reason."""
    try:
        asked = _struct(with_texts_only(one.object), NewPod)
    except InvalidError:
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
        raise InvalidError(from_msgspec(str(error))) from None


def _put(objects: dict[str, Object], name: str, value: Object) -> bool:
    """Whether there was one of this name."""
    known = name in objects
    objects[name] = value
    return known


def _read_node(inputs: Inputs, document: documents.Json) -> bool:
    wire = _struct(document, nodes.WireNode)
    wrong = list(wrong_quantities(nodes.quantities(wire)))
    if wrong:
        raise InvalidError(*wrong)
    row = nodes.project(wire)
    _take_allocatable(inputs, row.name, _struct(document, _WireAllocatable).status.allocatable.memory)
    return _put(inputs.nodes, row.name, row)


def _take_allocatable(inputs: Inputs, name: str, memory: str | float | None) -> None:
    inputs.allocatable.pop(name, None)
    if memory is None:
        return
    if wrong := list(wrong_quantities([("status.allocatable.memory", str(memory))])):
        raise InvalidError(*wrong)
    inputs.allocatable[name] = quantity.capped(str(memory))


def _read_namespace(inputs: Inputs, document: documents.Json) -> bool:
    wire = _struct(document, namespaces.WireNamespace)
    return _put(inputs.namespaces, wire.metadata.name, namespaces.project(wire))


def _read_pod(inputs: Inputs, document: documents.Json) -> bool:
    document = {**document, "metadata": {"namespace": DEFAULT_NAMESPACE, **document["metadata"]}}
    wire = _struct(document, WirePod)
    if not wire.spec.containers:
        raise InvalidError(("spec.containers", "Required value"))
    wrong = [*wrong_names(wire), *wrong_quantities(pods.quantities(wire))]
    if wrong:
        raise InvalidError(*wrong)
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
        raise InvalidError(*from_pydantic(error)) from None
    return _put(inputs.profiles, model.metadata.name, compiled.compile_profile(model))


_READERS: dict[tuple[str, str], Callable[[Inputs, documents.Json], bool]] = {
    ("", "Node"): _read_node,
    ("", "Namespace"): _read_namespace,
    ("", "Pod"): _read_pod,
    (names.GROUP, names.PROFILE_KIND): _read_profile,
    (names.GROUP, names.STATE_KIND): _read_state,
}
_KNOWN = ", ".join([*(kind for _, kind in _READERS), "workloads"])


# Checks of the API server before admission: names, texts, quantities


class InvalidError(Exception):
    """The object cannot be used; all that is wrong with it, as paths and reasons."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__()
        self.problems = problems


def name_of(document: documents.Json) -> str:
    """Check the common fields of all kinds and return the object's name; InvalidError."""
    version, group = document["apiVersion"], document["apiVersion"].rpartition("/")[0]
    known = _VERSIONS.get(group, f"{group}/v1")
    if version != known:
        raise InvalidError(("apiVersion", _unsupported(version, [known])))
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        raise InvalidError(("metadata", f"expected a mapping, got {documents.type_name(metadata)}"))
    wrong = list(wrong_texts(metadata))
    name = metadata.get("name")
    generated = metadata.get("generateName")
    if not name and document["kind"] == "Pod" and isinstance(generated, str) and generated:
        name = metadata["name"] = f"{generated}x"  # what the API server would add
    if name is None or name == "":
        wrong.append(("metadata.name", "Required value"))
    elif not isinstance(name, str):
        wrong.append(("metadata.name", f"expected a string, got {shown(name)}: put it in quotes"))
    elif not _SUBDOMAIN.fullmatch(name) or len(name) > _SUBDOMAIN_LENGTH:
        wrong.append(("metadata.name", f"Invalid value: {shown(name)}: {_SUBDOMAIN_RULE}"))
    if wrong:
        raise InvalidError(*wrong)
    return str(name)


def wrong_texts(metadata: documents.Json) -> Iterator[tuple[str, str]]:
    """Yield labels and annotations that YAML does not take for text: numbers and truth values without quotes."""
    for part in ("labels", "annotations"):
        entries = metadata.get(part, {})
        if isinstance(entries, dict):
            for key, value in entries.items():
                if not isinstance(value, str):
                    yield f"metadata.{part}[{key}]", f"expected a string, got {shown(value)}: put it in quotes"


def with_texts_only(document: documents.Json) -> documents.Json:
    """Return the object without the labels and annotations of wrong_texts."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return document
    texts = {
        part: {key: value for key, value in entries.items() if isinstance(value, str)}
        for part in ("labels", "annotations")
        if isinstance(entries := metadata.get(part), dict)
    }
    return {**document, "metadata": {**metadata, **texts}}


def from_msgspec(message: str) -> tuple[str, str]:
    """Return path and reason of "Expected `str`, got `int` - at `$.spec.nodeName`"."""
    match = _AT.fullmatch(message)
    text, path = (match["text"], match["path"] or "") if match else (message, "")
    missing = _MISSING.fullmatch(text)
    if missing:
        return documents.join(path, missing["name"]), "Required value"
    return path, text.replace("`", "")


def wrong_names(wire: WirePod) -> Iterator[tuple[str, str]]:
    spec = wire.spec
    namespace = wire.metadata.namespace
    if not _is_label(namespace):
        yield "metadata.namespace", f"Invalid value: {shown(namespace)}: {_LABEL_RULE}"
    for key, value in wire.metadata.labels.items():
        if len(key) > values.LABEL_KEY_LENGTH or not re.fullmatch(values.LABEL_KEY_PATTERN, key):
            yield "metadata.labels", f"Invalid value: {shown(key)}: {values.LABEL_KEY_REFUSAL}"
        elif len(value) > _LABEL_LENGTH or not re.fullmatch(values.LABEL_VALUE_PATTERN, value):
            yield f"metadata.labels[{key}]", f"Invalid value: {shown(value)}: {values.LABEL_VALUE_REFUSAL}"
    seen: set[str] = set()
    for part, containers in (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers or ()),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for index, name in enumerate(one.name for one in containers):
            path = f"spec.{part}[{index}].name"
            if not _is_label(name):
                yield path, f"Invalid value: {shown(name)}: {_LABEL_RULE}"
            elif name in seen:
                yield path, f"Duplicate value: {shown(name)}"
            seen.add(name)


def _is_label(name: str) -> bool:
    return len(name) <= _LABEL_LENGTH and _LABEL.fullmatch(name) is not None


def wrong_quantities(stated: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for path, text in stated:
        try:
            quantity.nano(text)
        except quantity.QuantityError as error:
            yield path, f"Invalid value: {error}"


def from_pydantic(error: pydantic.ValidationError) -> Iterator[tuple[str, str]]:
    """Return paths and reasons in the words of the API server."""
    for detail in error.errors(include_url=False):
        path = ""
        for step in detail["loc"]:
            path = documents.join(path, f"[{step}]" if isinstance(step, int) else str(step))
        given, context = detail["input"], detail.get("ctx", {})
        match detail["type"]:
            case "missing":
                reason = "Required value"
            case "extra_forbidden":
                reason = "unknown field"
            case "enum" | "literal_error":
                reason = _unsupported(given, re.findall(r"'([^']*)'", str(context["expected"])))
            case _:
                message = str(context["error"]) if "error" in context else detail["msg"]
                value = "" if isinstance(given, (dict, list)) else f"{shown(given)}: "
                reason = f"Invalid value: {value}{message}"
        yield path, reason


def _unsupported(value: Any, accepted: Iterable[str]) -> str:
    return f"Unsupported value: {shown(value)}: supported values: {', '.join(map(shown, accepted))}"


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:80]}..."


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
