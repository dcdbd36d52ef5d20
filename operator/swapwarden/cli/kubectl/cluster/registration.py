"""Which pods the API server sends to the webhook: what its MutatingWebhookConfiguration says of one pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.cli.kubectl.cluster import workloads
from swapwarden.policy.observed import pods
from swapwarden.policy.profile import compiled

ENTRY: Final = "pods.swapwarden.dev"
"""The name of the entry for pods with annotations of ours. The names of the others end with it, after a dot."""
OPTIONAL: Final = "warnings."
"""How the name begins of the entry that only warns."""
CONDITIONS: Final = frozenset({"has-one-of-our-annotations", "has-no-policy-of-its-own", "is-no-mirror-pod"})
"""The names of matchConditions whose expressions (CEL) are known here, as those of the chart."""


class _Expression(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: list[str] = []


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    """A metav1.LabelSelector."""

    match_labels: dict[str, str] = {}
    match_expressions: list[_Expression] = []

    def requirements(self) -> Iterator[compiled.Requirement]:
        """Yield what must hold, all of it."""
        for key, value in self.match_labels.items():
            yield compiled.Requirement(key, "In", frozenset({value}))
        for one in self.match_expressions:
            yield compiled.Requirement(one.key, one.operator, frozenset(one.values))


class MatchCondition(msgspec.Struct, frozen=True):
    """A condition in CEL, of which only the name is read."""

    name: str


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """One of the webhooks of a configuration."""

    name: str
    object_selector: Selector = Selector()
    namespace_selector: Selector = Selector()
    match_conditions: list[MatchCondition] = []


class _Meta(msgspec.Struct, frozen=True):
    name: str


class Registration(msgspec.Struct, frozen=True):
    """A MutatingWebhookConfiguration, as far as it is read."""

    metadata: _Meta
    webhooks: list[Entry] = []

    def entry(self, name: str) -> Entry | None:
        """The entry of that name."""
        return next((one for one in self.webhooks if one.name == name), None)


def is_there(found: Iterable[Registration]) -> bool:
    """Whether one of them is for our webhook."""
    return any(is_ours(one.name) for each in found for one in each.webhooks)


def is_ours(name: str) -> bool:
    """Whether an entry of that name is for our webhook."""
    return name == ENTRY or name.endswith(f".{ENTRY}")


def needs_namespace(found: Iterable[Registration], pod: workloads.Pod) -> bool:
    """Whether labels of the pod's namespace decide on what is missed: by selectors, or as its default is."""
    entries = [one for each in found for one in each.webhooks if is_ours(one.name)]
    defaults = (one for one in entries if one.name.endswith(f".default.{ENTRY}"))
    hidden = not is_own(pod) and any(_passed_by(one, pod, None) for one in defaults)
    return hidden or any(not is_known(one.namespace_selector.requirements()) for one in entries)


def is_own(pod: workloads.Pod) -> bool:
    """Whether the pod has a policy, so that its namespace's default does not matter."""
    return names.POLICY_ANNOTATION in pod.metadata.annotations


def is_known(requirements: Iterable[compiled.Requirement]) -> bool:
    """Whether a namespaceSelector is by the chart's own labels, by which a namespace without a default is none."""
    return all(one.key in {names.NAME_LABEL, names.DEFAULT_POLICY_LABEL} for one in requirements)


def missed(found: Iterable[Registration], pod: workloads.Pod, namespace: Mapping[str, str] | None) -> str:
    """Why the webhook is not asked about such a pod, and what comes of it; empty where it is, or where nothing does.

    `namespace` are the labels of the pod's namespace; None where only its name is known. It is judged by how things are
    now: the pod may be older.
    """
    row = pods.project(pod)
    default = (namespace or {}).get(names.DEFAULT_POLICY_LABEL)
    if row.defaulted:
        return ""  # it was asked
    if row.policy is not None or row.limited():
        name = ENTRY
        lost = "its policy places it nowhere, and contradictions in what it says are not noticed"
    elif default in frozenset[str](names.Policy):
        name, lost = f"{default.lower()}.default.{ENTRY}", f"the default {default} of its namespace does not reach it"
    else:
        return ""
    for each in found:
        entry = each.entry(name)
        if entry is None:
            continue
        where = f"{each.metadata.name}, {name}"
        why = _passed_by(entry, pod, namespace)
        if why:
            return f"the webhook is not asked about pods like it: {why} ({where}); {lost}"
        unknown = ", ".join(one.name for one in entry.match_conditions if one.name not in CONDITIONS)
        if unknown:
            return f"the webhook is asked about it only if {unknown} holds (matchConditions of {where}); else {lost}"
    return ""


def _passed_by(entry: Entry, pod: workloads.Pod, namespace: Mapping[str, str] | None) -> str:
    return passed_by(entry.object_selector.requirements(), entry.namespace_selector.requirements(), pod, namespace)


def passed_by(
    of_object: Iterable[compiled.Requirement],
    of_namespace: Iterable[compiled.Requirement],
    pod: workloads.Pod,
    namespace: Mapping[str, str] | None,
) -> str:
    """Why selectors pass by a pod, by requirements on its labels and its namespace's; empty where they do not.

    `namespace` is None where only its name is known.
    """
    if pod.is_mirror:
        return "it is a static pod, of which the API server only has a mirror"
    if not compiled.selects(tuple(of_object), pod.metadata.labels):
        return "the objectSelector does not match its labels"
    known = {names.NAME_LABEL: pod.metadata.namespace, **(namespace or {})}
    told = [one for one in of_namespace if namespace is not None or one.key in known]
    if not compiled.selects(tuple(told), known):
        return f"the namespaceSelector does not match namespace {pod.metadata.namespace}"
    return ""
