"""The objects that a plan is made from, checked as the API server would check them, as far as they are read."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import pydantic

from swapwarden.api import names, state
from swapwarden.api import profile as api
from swapwarden.cli import documents
from swapwarden.policy import nodes, pods, profiles, quantity

Struct = TypeVar("Struct")
Object = TypeVar("Object")

DEFAULT_NAMESPACE = "default"


class _NamespaceMeta(msgspec.Struct, frozen=True):
    name: str
    labels: dict[str, str] = {}


class _Namespace(msgspec.Struct, frozen=True):
    metadata: _NamespaceMeta


class _StateMeta(msgspec.Struct, frozen=True):
    name: str


class _StateStatus(msgspec.Struct, frozen=True):
    facts: state.Facts | None = None


class _State(msgspec.Struct, frozen=True):
    """A NodeSwapState: what the agent found is all that counts."""

    metadata: _StateMeta
    status: _StateStatus = _StateStatus()


@dataclasses.dataclass
class Inputs:
    """All that was read; by name, pods by namespace/name."""

    nodes: dict[str, nodes.NodeRow] = dataclasses.field(default_factory=dict)
    facts: dict[str, state.Facts | None] = dataclasses.field(default_factory=dict)
    profiles: dict[str, profiles.Profile] = dataclasses.field(default_factory=dict)
    namespaces: dict[str, _Namespace] = dataclasses.field(default_factory=dict)
    pods: dict[str, pods.WirePod] = dataclasses.field(default_factory=dict)


def pod_rows(inputs: Inputs) -> Iterator[pods.PodRow]:
    """The pods; those that have no UID, and so were not created yet, with the default of their namespace."""
    for wire in inputs.pods.values():
        row = pods.project(wire)
        namespace = inputs.namespaces.get(row.namespace)
        mirror = names.CONFIG_MIRROR_ANNOTATION in wire.metadata.annotations
        if row.policy is None and not row.uid and not mirror and namespace is not None:
            default = namespace.metadata.labels.get(names.DEFAULT_POLICY_LABEL)
            row = msgspec.structs.replace(row, policy=default)
        yield row


class _InvalidError(Exception):
    """The object cannot be used; all that is wrong with it, as paths and reasons."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__()
        self.problems = problems


def collect(found: Iterable[documents.Found], log: documents.Log) -> Inputs:
    """Check objects and sort them by kind. What is wrong is in the log, and then the result is not to be used."""
    inputs = Inputs()
    for one in found:
        version, kind = one.object["apiVersion"], one.object["kind"]
        group = version.rpartition("/")[0]
        reader = _READERS.get((group, kind))
        try:
            name = _name(one.object) if reader else ""
            if reader is None:
                log.note(one.place, f"{version} {kind} is passed over: only {_KNOWN} count")
            elif reader(inputs, one.object):
                log.note(one.place, f"{kind} {name!r} was read before; this one counts")
        except _InvalidError as refused:
            for path, reason in refused.problems:
                log.problem(one.place.below(path), reason)
    return inputs


def _name(document: documents.Json) -> str:
    """The object's name, after what all kinds have in common was checked."""
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        raise _InvalidError(("metadata", f"expected a mapping, got {documents.type_name(metadata)}"))
    wrong = []
    for part in ("labels", "annotations"):
        entries = metadata.get(part, {})
        if isinstance(entries, dict):
            wrong += [
                (f"metadata.{part}[{key}]", f"expected a string, got {_shown(value)}: put it in quotes")
                for key, value in entries.items()
                if not isinstance(value, str)
            ]
    name = metadata.get("name")
    if name is None or name == "":
        wrong.append(("metadata.name", "Required value"))
    elif not isinstance(name, str):
        wrong.append(("metadata.name", f"expected a string, got {_shown(name)}: put it in quotes"))
    if wrong:
        raise _InvalidError(*wrong)
    return str(name)


def _struct(document: documents.Json, kind: type[Struct]) -> Struct:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _InvalidError(_from_msgspec(str(error))) from None


_AT = re.compile(r"(?P<text>.*?)(?: - at `(?P<key>key in )?\$\.?(?P<path>.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


def _from_msgspec(message: str) -> tuple[str, str]:
    """Path and reason out of "Expected `str`, got `int` - at `$.spec.nodeName`"."""
    match = _AT.fullmatch(message)
    text, path = (match["text"], match["path"] or "") if match else (message, "")
    missing = _MISSING.fullmatch(text)
    if missing:
        return documents.join(path, missing["name"]), "Required value"
    return path, text.replace("`", "")


def _put(objects: dict[str, Object], name: str, value: Object) -> bool:
    """Whether there was one of this name."""
    known = name in objects
    objects[name] = value
    return known


def _read_node(inputs: Inputs, document: documents.Json) -> bool:
    wire = _struct(document, nodes.WireNode)
    try:
        row = nodes.project(wire)
    except quantity.QuantityError as error:
        raise _InvalidError(("status.capacity.memory", f"Invalid value: {error}")) from None
    return _put(inputs.nodes, row.name, row)


def _read_namespace(inputs: Inputs, document: documents.Json) -> bool:
    wire = _struct(document, _Namespace)
    return _put(inputs.namespaces, wire.metadata.name, wire)


def _read_pod(inputs: Inputs, document: documents.Json) -> bool:
    document = {**document, "metadata": {"namespace": DEFAULT_NAMESPACE, **document["metadata"]}}
    wire = _struct(document, pods.WirePod)
    if not wire.spec.containers:
        raise _InvalidError(("spec.containers", "Required value"))
    wrong = []
    for path, text in pods.quantities(wire):
        try:
            quantity.nano(text)
        except quantity.QuantityError as error:
            wrong.append((path, f"Invalid value: {error}"))
    if wrong:
        raise _InvalidError(*wrong)
    return _put(inputs.pods, f"{wire.metadata.namespace}/{wire.metadata.name}", wire)


def _read_state(inputs: Inputs, document: documents.Json) -> bool:
    if document["apiVersion"] != names.API_VERSION:
        raise _InvalidError(("apiVersion", _unsupported(document["apiVersion"], [names.API_VERSION])))
    wire = _struct(document, _State)
    return _put(inputs.facts, wire.metadata.name, wire.status.facts)


def _read_profile(inputs: Inputs, document: documents.Json) -> bool:
    try:
        # As JSON and strictly, because the API server does not take "100" for 100 either.
        model = api.NodeSwapProfile.model_validate_json(json.dumps(document), strict=True)
    except pydantic.ValidationError as error:
        raise _InvalidError(*_from_pydantic(error)) from None
    return _put(inputs.profiles, model.metadata.name, profiles.compile_profile(model))


def _from_pydantic(error: pydantic.ValidationError) -> Iterator[tuple[str, str]]:
    """Paths and reasons as the API server words them."""
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
                shown = "" if isinstance(given, (dict, list)) else f"{_shown(given)}: "
                reason = f"Invalid value: {shown}{message}"
        yield path, reason


def _unsupported(value: Any, accepted: Iterable[str]) -> str:
    return f"Unsupported value: {_shown(value)}: supported values: {', '.join(map(_shown, accepted))}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:80]}..."


_READERS: dict[tuple[str, str], Callable[[Inputs, documents.Json], bool]] = {
    ("", "Node"): _read_node,
    ("", "Namespace"): _read_namespace,
    ("", "Pod"): _read_pod,
    (names.GROUP, names.PROFILE_KIND): _read_profile,
    (names.GROUP, names.STATE_KIND): _read_state,
}
_KNOWN = ", ".join(kind for _, kind in _READERS)
