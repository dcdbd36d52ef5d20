"""The objects that a plan is made from, checked as the API server would check them, as far as they are read."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, TypeVar

import msgspec
import pydantic

from swapwarden.api import names, state
from swapwarden.api import profile as api
from swapwarden.cli import documents
from swapwarden.policy import quantity
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.profile import compiled
from swapwarden.webhook import admission, review, validation

Struct = TypeVar("Struct")
Object = TypeVar("Object")

DEFAULT_NAMESPACE = "default"

TEMPLATES: Final = {
    ("apps", "Deployment"): "spec.template",
    ("apps", "StatefulSet"): "spec.template",
    ("apps", "DaemonSet"): "spec.template",
    ("apps", "ReplicaSet"): "spec.template",
    ("batch", "Job"): "spec.template",
    ("batch", "CronJob"): "spec.jobTemplate.spec.template",
    ("", "ReplicationController"): "spec.template",
}
"""Where workloads have their pod template, by group and kind."""
_VERSIONS: Final = {"": "v1", names.GROUP: names.API_VERSION}
"""By group; of all others that count it is the group's v1."""


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
    """All that was read; by name, pods by namespace/name. Of namespaces the labels.

    A workload counts as the pod that it would make, by the name kind/name: deployment/web.
    """

    nodes: dict[str, nodes.NodeRow] = dataclasses.field(default_factory=dict)
    facts: dict[str, state.Facts | None] = dataclasses.field(default_factory=dict)
    profiles: dict[str, compiled.Profile] = dataclasses.field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    pods: dict[str, pods.WirePod] = dataclasses.field(default_factory=dict)
    asked: dict[str, review.Pod] = dataclasses.field(default_factory=dict)
    """The same pods, as far as admission reads them."""
    existing: set[str] = dataclasses.field(default_factory=set)
    """Those of the pods that a workload would make which exists already, and so has pods of its own."""


def pod_rows(inputs: Inputs) -> Iterator[pods.PodRow]:
    """The pods; those that have no UID, and so were not created yet, with the default of their namespace."""
    for wire in inputs.pods.values():
        row = pods.project(wire)
        if row.policy is None and is_awaited(wire) and _is_sent(wire):
            row = msgspec.structs.replace(row, policy=_default(inputs, wire), defaulted=True)
        yield row


def _default(inputs: Inputs, wire: pods.WirePod) -> str | None:
    """The policy that the pod's namespace gives to those that have none."""
    return inputs.namespaces.get(wire.metadata.namespace, {}).get(names.DEFAULT_POLICY_LABEL)


def is_awaited(wire: pods.WirePod) -> bool:
    """Whether the pod does not exist yet and will be checked when it is created."""
    return not wire.metadata.uid and names.CONFIG_MIRROR_ANNOTATION not in wire.metadata.annotations


def _is_sent(wire: pods.WirePod) -> bool:
    """Whether the webhook is asked about new pods of the namespace, and not only the policies inside the API server."""
    return wire.metadata.namespace not in namespaces.UNDEFAULTED


def refusals(inputs: Inputs, wire: pods.WirePod) -> Iterator[tuple[str, str]]:
    """What an awaited pod would be refused for at admission, as paths and reasons."""
    asked = inputs.asked[f"{wire.metadata.namespace}/{wire.metadata.name}"]
    if not _is_sent(wire):
        yield from ((cause.field, cause.message) for cause in validation.wrong_values(asked))
        return
    default = _default(inputs, wire)
    understood = default in {None, *names.Policy}
    if names.POLICY_ANNOTATION not in wire.metadata.annotations and not understood:
        accepted = ", ".join(names.Policy)
        path = f"label {names.DEFAULT_POLICY_LABEL} of namespace {wire.metadata.namespace}"
        yield path, f"Unsupported value: {_shown(default)}: supported values: {accepted}"
    status = _answer(asked, default).status
    if status is not None:
        yield from ((cause.field, cause.message) for cause in status.details.causes)


def warnings(inputs: Inputs, wire: pods.WirePod) -> Iterator[str]:
    """What in an awaited pod has no effect, whether it is refused for something else or not."""
    asked = inputs.asked[f"{wire.metadata.namespace}/{wire.metadata.name}"]
    answer = _answer(asked, _default(inputs, wire)) if _is_sent(wire) else None
    if answer is not None and answer.allowed:
        yield from answer.warnings
        return
    # An answer that refuses the pod need not have any, and a misspelt key is told with the rest all the same.
    yield from _warnings_beside({path for path, _ in refusals(inputs, wire)}, asked)


def _warnings_beside(refused: Collection[str], asked: review.Pod) -> Iterator[str]:
    """Warnings of what is not refused anyway."""
    for told in validation.warnings(asked):
        if told.partition(": ")[0] not in refused:
            yield told


def _answer(asked: review.Pod, default: str | None) -> review.Response:
    """The webhook's; a default that is not understood counts as none."""
    request = review.Request("", review.Resource(), "CREATE", object=asked)
    return admission.admit(request, names.Policy(default) if default in frozenset[str](names.Policy) else None)


class InvalidError(Exception):
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
        if kind == "Pod":
            for text in _from_swap_policy(one.object):
                log.note(one.place, text)
        if (group, kind) in TEMPLATES:
            _collect_template(inputs, one, TEMPLATES[group, kind], log)
            continue
        if reader is None:
            log.note(one.place, f"{version} {kind} is passed over: only {_KNOWN} count")
            continue
        try:
            name = _name(one.object)
            if reader(inputs, one.object):
                log.note(one.place, f"{kind} {name!r} was read before; this one counts")
        except InvalidError as refused:
            for path, reason in refused.problems:
                log.problem(one.place.below(path), reason)
            if kind == "Pod":
                _log_annotations(one, log)
    return inputs


def _collect_template(inputs: Inputs, one: documents.Found, path: str, log: documents.Log) -> None:
    """Take a workload for the pod that its template makes."""
    kind = one.object["kind"]
    try:
        name = _name(one.object)
        made = made_by(one.object, DEFAULT_NAMESPACE)
    except InvalidError as refused:
        for where, reason in refused.problems:
            log.problem(one.place.below(where), reason)
        return
    pod = documents.Found(one.place.below(path), made)
    if wrong := list(_wrong_texts(made["metadata"])):
        for where, reason in wrong:
            log.problem(pod.place.below(where), reason)
        _log_annotations(pod, log)
        return
    for text in _from_swap_policy(made):
        log.note(pod.place, text)
    # Its own metadata.name, as there may be a pod of this name.
    made["metadata"]["name"] = f"{kind.lower()}/{name}"
    if one.object["metadata"].get("uid"):
        inputs.existing.add(f"{made['metadata']['namespace']}/{made['metadata']['name']}")
    try:
        if _read_pod(inputs, made):
            log.note(one.place, f"{kind} {name!r} was read before; this one counts")
    except InvalidError as refused:
        for where, reason in refused.problems:
            log.problem(pod.place.below(where), reason)
        _log_annotations(pod, log)


def made_by(workload: documents.Json, namespace: str) -> documents.Json:
    """The pod that a workload would make; `namespace` is for one that names none. InvalidError without a template."""
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
    """Tell of the annotations of a pod, too, which is not read because of something else."""
    try:
        asked = _struct(_with_texts_only(one.object), review.Pod)
    except InvalidError:
        return
    if one.object.get("metadata", {}).get("uid") or asked.is_mirror:
        return  # it exists, and is not checked any more
    causes = list(validation.errors(asked))
    for cause in causes:
        log.problem(one.place.below(cause.field), cause.message)
    for told in _warnings_beside({cause.field for cause in causes}, asked):
        path, _, text = told.partition(": ")
        log.note(one.place.below(path), text)


def _name(document: documents.Json) -> str:
    """The object's name, after what all kinds have in common was checked."""
    version, group = document["apiVersion"], document["apiVersion"].rpartition("/")[0]
    known = _VERSIONS.get(group, f"{group}/v1")
    if version != known:
        raise InvalidError(("apiVersion", _unsupported(version, [known])))
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        raise InvalidError(("metadata", f"expected a mapping, got {documents.type_name(metadata)}"))
    wrong = list(_wrong_texts(metadata))
    name = metadata.get("name")
    generated = metadata.get("generateName")
    if not name and document["kind"] == "Pod" and isinstance(generated, str) and generated:
        name = metadata["name"] = f"{generated}x"  # what the API server would add
    if name is None or name == "":
        wrong.append(("metadata.name", "Required value"))
    elif not isinstance(name, str):
        wrong.append(("metadata.name", f"expected a string, got {_shown(name)}: put it in quotes"))
    elif not _SUBDOMAIN.fullmatch(name) or len(name) > _SUBDOMAIN_LENGTH:
        wrong.append(("metadata.name", f"Invalid value: {_shown(name)}: {_SUBDOMAIN_RULE}"))
    if wrong:
        raise InvalidError(*wrong)
    return str(name)


def _wrong_texts(metadata: documents.Json) -> Iterator[tuple[str, str]]:
    """Labels and annotations that YAML does not take for text: each is a number or a truth value without quotes."""
    for part in ("labels", "annotations"):
        entries = metadata.get(part, {})
        if isinstance(entries, dict):
            for key, value in entries.items():
                if not isinstance(value, str):
                    yield f"metadata.{part}[{key}]", f"expected a string, got {_shown(value)}: put it in quotes"


def _with_texts_only(document: documents.Json) -> documents.Json:
    """The object without the labels and annotations of _wrong_texts."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return document
    texts = {
        part: {key: value for key, value in entries.items() if isinstance(value, str)}
        for part in ("labels", "annotations")
        if isinstance(entries := metadata.get(part), dict)
    }
    return {**document, "metadata": {**metadata, **texts}}


def _struct(document: documents.Json, kind: type[Struct]) -> Struct:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InvalidError(_from_msgspec(str(error))) from None


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_RULE = "a name has at most 63 characters, of a-z, 0-9 and -, with a letter or digit at both ends"
_LABEL_LENGTH = 63
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_SUBDOMAIN_RULE = "a name has at most 253 characters, of a-z, 0-9, - and ., with a letter or digit at both ends"
_SUBDOMAIN_LENGTH = 253

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
    wrong = list(_wrong_quantities(nodes.quantities(wire)))
    if wrong:
        raise InvalidError(*wrong)
    row = nodes.project(wire)
    return _put(inputs.nodes, row.name, row)


def _read_namespace(inputs: Inputs, document: documents.Json) -> bool:
    wire = _struct(document, namespaces.WireNamespace)
    return _put(inputs.namespaces, wire.metadata.name, namespaces.project(wire))


def _read_pod(inputs: Inputs, document: documents.Json) -> bool:
    document = {**document, "metadata": {"namespace": DEFAULT_NAMESPACE, **document["metadata"]}}
    wire = _struct(document, pods.WirePod)
    if not wire.spec.containers:
        raise InvalidError(("spec.containers", "Required value"))
    wrong = [*_wrong_names(wire), *_wrong_quantities(pods.quantities(wire))]
    if wrong:
        raise InvalidError(*wrong)
    name = f"{wire.metadata.namespace}/{wire.metadata.name}"
    inputs.asked[name] = _struct(document, review.Pod)
    return _put(inputs.pods, name, wire)


def _from_swap_policy(document: documents.Json) -> Iterator[str]:
    """Read spec.swapPolicy as the annotation that works, and yield what its author should write.

    The first draft of KEP-5359 has `spec.swapPolicy.mode`, with Disabled and NoPreference. No API server knows it: each
    drops it without a word.
    """
    spec, metadata = document.get("spec"), document.get("metadata", {})
    if not isinstance(spec, dict) or not isinstance(metadata, dict) or "swapPolicy" not in spec:
        return
    policy = spec["swapPolicy"]
    mode = policy.get("mode") if isinstance(policy, dict) else None
    told = "spec.swapPolicy is dropped by the API server"
    annotations = metadata.setdefault("annotations", {})
    if not isinstance(mode, str) or not isinstance(annotations, dict):
        yield f"{told}: write the annotation {names.POLICY_ANNOTATION} instead"
    elif names.POLICY_ANNOTATION in annotations:
        yield f"{told}: the annotation {names.POLICY_ANNOTATION} counts; remove spec.swapPolicy"
    else:
        annotations[names.POLICY_ANNOTATION] = mode
        yield f"{told}: write the annotation {names.POLICY_ANNOTATION}: {_shown(mode)} instead, as is assumed here"


def _wrong_names(wire: pods.WirePod) -> Iterator[tuple[str, str]]:
    spec = wire.spec
    namespace = wire.metadata.namespace
    if not _is_label(namespace):
        yield "metadata.namespace", f"Invalid value: {_shown(namespace)}: {_LABEL_RULE}"
    seen: set[str] = set()
    for part, containers in (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for index, name in enumerate(one.name for one in containers):
            path = f"spec.{part}[{index}].name"
            if not _is_label(name):
                yield path, f"Invalid value: {_shown(name)}: {_LABEL_RULE}"
            elif name in seen:
                yield path, f"Duplicate value: {_shown(name)}"
            seen.add(name)


def _is_label(name: str) -> bool:
    return len(name) <= _LABEL_LENGTH and _LABEL.fullmatch(name) is not None


def _wrong_quantities(stated: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for path, text in stated:
        try:
            quantity.nano(text)
        except quantity.QuantityError as error:
            yield path, f"Invalid value: {error}"


def _read_state(inputs: Inputs, document: documents.Json) -> bool:
    wire = _struct(document, _State)
    return _put(inputs.facts, wire.metadata.name, wire.status.facts)


def _read_profile(inputs: Inputs, document: documents.Json) -> bool:
    try:
        # As JSON and strictly, because the API server does not take "100" for 100 either.
        model = api.NodeSwapProfile.model_validate_json(json.dumps(document), strict=True)
    except pydantic.ValidationError as error:
        raise InvalidError(*_from_pydantic(error)) from None
    return _put(inputs.profiles, model.metadata.name, compiled.compile_profile(model))


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
_KNOWN = ", ".join([*(kind for _, kind in _READERS), "workloads"])
