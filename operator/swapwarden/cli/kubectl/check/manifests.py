"""Problems of manifests that are not applied yet: what admission would refuse, and what would have no effect. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.cli import documents, objects
from swapwarden.cli.kubectl.check import catalogue, problems
from swapwarden.cli.kubectl.check.catalogue import Check, ClusterProblem, problem
from swapwarden.cli.kubectl.cluster import snapshot
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy import plan
from swapwarden.policy.admission import pod_annotations
from swapwarden.policy.node import labels
from swapwarden.policy.observed import pods
from swapwarden.policy.observed.namespaces import UNDEFAULTED
from swapwarden.policy.profile import compiled

_POD: Final = ("", "Pod")
_NAMESPACE: Final = ("", "Namespace")
_PROFILE: Final = (names.GROUP, names.PROFILE_KIND)
_REFUSED: Final[frozenset[str]] = frozenset(
    {names.ProtectionReason.NOT_OFFERED, names.ProtectionReason.OVERRIDE_REFUSES}
    | {names.ThrottlingReason.NOT_OFFERED, names.ThrottlingReason.OVERRIDE_REFUSES}
)
_OFFER: Final = "set {} in a profile of these nodes, change the override that refuses, or remove the annotation"
_UNRECLAIMED: Final = frozenset(
    {names.ReclaimReason.NOT_OFFERED, names.ReclaimReason.OVERRIDE_REFUSES, names.ReclaimReason.NO_SWAP}
)
_LESS: Final = frozenset({names.Reason.BOUNDED, names.Reason.OVERRIDE_LIMIT})


class _Setting:
    """Namespaces and profiles as they would be with these manifests, and the cluster."""

    def __init__(self, manifests: Iterable[documents.Found], view: snapshot.ClusterSnapshot | None) -> None:
        self.namespaces: dict[str, dict[str, str]] = dict(view.namespaces) if view is not None else {}
        self.profiles: dict[str, tuple[documents.Found, compiled.Profile]] = {}
        for one in manifests:
            if _kind(one.object) not in {_NAMESPACE, _PROFILE}:
                continue
            read = objects.collect([one], documents.Log())
            self.namespaces.update(read.namespaces)
            self.profiles.update({name: (one, profile) for name, profile in read.profiles.items()})
        self.planned = self._planned(view)

    def _planned(self, view: snapshot.ClusterSnapshot | None) -> Mapping[str, snapshot.PlannedNode] | None:
        needed = {"nodes", "nodeswapprofiles", "nodeswapstates"}
        if view is None or not view.installed or needed & view.unread.keys():
            return None
        known = view.known_profiles()
        change = snapshot.ProfileChange(put=tuple(profile for _, profile in self.profiles.values()))
        return view.planned(snapshot.apply(known, change), known.history)


def judge(
    read: Iterable[documents.Found], view: snapshot.ClusterSnapshot | None, namespace: str = objects.DEFAULT_NAMESPACE
) -> Iterator[ClusterProblem]:
    """Yield the problems of manifests; without a view of a cluster, those that need none.

    `namespace` is for objects that name none.
    """
    every = list(read)
    setting = _Setting(every, view)
    for one in every:
        kind = _kind(one.object)
        if kind == _POD:
            yield from _pod(one, one.object, setting, namespace)
        elif kind in objects.TEMPLATES:
            yield from _workload(one, objects.TEMPLATES[kind], setting, namespace)
        elif kind in {_NAMESPACE, _PROFILE}:
            log = documents.Log()
            collected = objects.collect([one], log)
            yield from _logged(one, log)
            for name, found_labels in collected.namespaces.items():
                here = str(one.place.below("metadata.labels"))
                for wrong in problems.namespace(here, found_labels, exempt=name in UNDEFAULTED):
                    yield msgspec.structs.replace(wrong, message=f"Namespace {name}: {wrong.message}")
    yield from _profiles(setting)


def _kind(document: documents.Json) -> tuple[str, str]:
    return document["apiVersion"].rpartition("/")[0], document["kind"]


def _called(document: documents.Json) -> str:
    """Return the name of a manifest for a sentence: Deployment web."""
    metadata = document.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    return f"{document['kind']} {name}" if isinstance(name, str) else str(document["kind"])


def _logged(one: documents.Found, log: documents.Log) -> Iterator[ClusterProblem]:
    for wrong in log.problems:
        yield problem(Check.REFUSED, str(wrong.place), f"{_called(one.object)}: {wrong.text}")
    for note in log.notes:
        sentence = f"{_called(one.object)}: {note.text}"
        yield problem(Check.NO_EFFECT, str(note.place), sentence, remedy=catalogue.CORRECT)


def _workload(one: documents.Found, path: str, setting: _Setting, namespace: str) -> Iterator[ClusterProblem]:
    try:
        pod = objects.pod_of_workload(one.object, namespace)
    except objects.InvalidError as refused:
        for where, reason in refused.problems:
            sentence = f"{_called(one.object)}: {reason}"
            yield problem(Check.REFUSED, str(one.place.below(where)), sentence)
        return
    yield from _pod(documents.Found(one.place.below(path), one.object), pod, setting, namespace)


def _pod(one: documents.Found, document: documents.Json, setting: _Setting, namespace: str) -> Iterator[ClusterProblem]:
    """Yield the problems of a pod that is, or would be made from, the manifest."""
    metadata = document.get("metadata", {})
    if isinstance(metadata, dict):
        generated = metadata.get("generateName")
        named = {"name": f"{generated}x"} if isinstance(generated, str) and generated else {}
        document = {**document, "metadata": {"namespace": namespace, **named, **metadata}}
        # An export of a live object has a UID, but the pod is created again.
        document["metadata"].pop("uid", None)
    log = documents.Log()
    read = objects.collect([documents.Found(one.place, document)], log)
    read.namespaces = setting.namespaces
    yield from _logged(one, log)
    if log.problems:
        return
    called = _called(one.object)
    for wire in read.pods.values():
        if not objects.is_not_created(wire):
            continue
        refused, warnings = objects.admission_of(read, wire)
        for path, reason in refused:
            here = str(one.place.below(path)) if path.startswith(("metadata", "spec")) else str(one.place)
            sentence = reason if here.endswith(path) else f"{path}: {reason}"
            yield problem(Check.REFUSED, here, f"{called}: {sentence}")
        for sentence in warnings:
            path, _, text = sentence.partition(": ")
            here = str(one.place.below(path))
            yield problem(Check.NO_EFFECT, here, f"{called}: {text}", remedy=catalogue.CORRECT)
        if refused:
            continue
        (row,) = objects.pod_rows(read)
        yield from _effect(row, wire.spec.node_selector or {}, setting, str(one.place), called)


def _effect(
    row: pods.PodRow, selector: Mapping[str, str], setting: _Setting, here: str, called: str
) -> Iterator[ClusterProblem]:
    """Yield what of a pod's policy and limits would have no effect on any node that it may run on."""
    known = setting.planned
    if known is None:
        return
    chosen = [node for node in known.values() if selector.items() <= node.node.labels.items()]
    kinds = {(node.target, node.facts) for node in chosen}
    number = tables.count(len(chosen), "node")
    if row.policy == names.Policy.REQUIRED and not any(
        labels.gives_swap(profile.swap, facts) for profile, facts in kinds
    ):
        sentence = f"{called}: requires swap, which none of {number} that it may run on gives: it would wait"
        remedy = "turn on swap on a node whose profile gives it, or choose policy Preferred"
        yield problem(Check.NO_EFFECT, here, sentence, reason=names.Policy.REQUIRED, remedy=remedy)
        return
    if not (row.limited() or row.asks or row.reclaim) or not kinds:
        return
    explained = [
        one for profile, facts in kinds for one in plan.explain_node(profile, facts, [row], setting.namespaces).pods
    ]
    for what, reasons in _refused(row, explained):
        sentence = f"{called}: would have no {what} on any of {number}: {', '.join(reasons)}"
        yield problem(Check.NO_EFFECT, here, sentence, reason="Memory", remedy=_OFFER.format("memoryQoS"))
    if reasons := _unreclaimed(row, explained):
        sentence = f"{called}: would have no idle memory moved to swap on any of {number}: {', '.join(reasons)}"
        yield problem(Check.NO_EFFECT, here, sentence, reason="Reclaim", remedy=_OFFER.format("reclaim.mode and swap"))
    if not row.limited():
        return
    decided = [one.decision for one in explained]
    reasons = sorted({one.reason for one in decided})
    if decided and all(one.swap_max == "0" and one.reason is not names.Reason.POLICY_DISABLED for one in decided):
        effect = f"its swap limit would have no effect on any of {number}"
        remedy = "docs/semantics.md has the reasons; remove the limit, or have a profile give swap"
    elif decided and all(one.reason in _LESS for one in decided):
        effect = f"would get less swap than its limit on each of {number}"
        remedy = "lower the limit, or raise the bound of the profile"
    else:
        return
    sentence = f"{called}: {effect}: {', '.join(reasons)}"
    yield problem(Check.NO_EFFECT, here, sentence, reason="Limit", remedy=remedy)


def _refused(row: pods.PodRow, explained: Iterable[plan.ExplainedPod]) -> Iterator[tuple[str, list[str]]]:
    """Yield what the pod asks of memory QoS and is refused everywhere, with the reasons."""
    decided = [one.memory for one in explained if one.memory is not None]
    asked: list[tuple[str, set[str]]] = []
    if row.asks is not None and row.asks.wants_protection:
        asked.append(("protected memory", {one.protection for one in decided}))
    if row.asks is not None and row.asks.wants_throttling:
        asked.append(("memory.high", {each.throttling for one in decided for each in one.containers}))
    yield from ((what, sorted(reasons)) for what, reasons in asked if reasons and reasons <= _REFUSED)


def _unreclaimed(row: pods.PodRow, explained: Iterable[plan.ExplainedPod]) -> list[str]:
    """Return why the pod's idle memory is moved nowhere, although it asks; empty if it is, or admission said so."""
    if row.reclaim not in pod_annotations.RECLAIMING or row.policy == names.Policy.DISABLED:
        return []
    reasons = {one.reclaim.reason for one in explained if one.reclaim is not None}
    return sorted(reasons) if reasons <= _UNRECLAIMED else []


def _profiles(setting: _Setting) -> Iterator[ClusterProblem]:
    known = setting.planned
    if known is None:
        return
    ties: dict[str, set[str]] = {}
    for node in known.values():
        tied = (node.target.name, *node.conflicts)
        for each in tied if node.conflicts else ():
            ties.setdefault(each, set()).update(set(tied) - {each})
    for name, (one, profile) in setting.profiles.items():
        here = str(one.place)
        for wrong in problems.ungoverned(profile, known, here):
            yield msgspec.structs.replace(wrong, message=f"{_called(one.object)}: {wrong.message}")
        if name in ties:
            sentence = f"{_called(one.object)}: has the same priority as {', '.join(sorted(ties[name]))} on some nodes"
            yield problem(Check.PROFILE_CONFLICT, here, sentence)
