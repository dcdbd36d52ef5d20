"""Find errors in a new pod's annotations, and annotations without effect. Pure functions of the pod."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Final

from swapwarden.api import names, quantity
from swapwarden.policy.admission import answers, memory, pod_annotations, scheduling
from swapwarden.policy.observed.new_pods import NewPod

MAX_OWN: Final = 256
"""Limit of our annotations on a pod: more than anybody has containers, and quick to read."""

_MAX_LISTED: Final = 20
_MAX_KEY: Final = 128
"""Characters of a key that are shown: a limit's, with the longest name that a container can have, has 89."""

# Reasons of causes, as the API server itself uses them (k8s.io/apimachinery: pkg/util/validation/field/errors.go).
_NOT_SUPPORTED = "FieldValueNotSupported"
_INVALID = "FieldValueInvalid"
_FORBIDDEN = "FieldValueForbidden"
_TOO_MANY = "FieldValueTooMany"

_Own = list[tuple[str, str, pod_annotations.AnnotationRule]]

quoted: Final = pod_annotations.quoted


def errors(pod: NewPod) -> Iterator[answers.StatusCause]:
    """Yield all errors, by key: invalid values, then contradictions."""
    own = _own(pod)
    if not own:
        return
    if len(own) > MAX_OWN:
        message = f"Too many: {len(own)} with keys of {names.GROUP}: must have at most {MAX_OWN} items"
        yield answers.StatusCause(_TOO_MANY, message, "metadata.annotations")
        del own[MAX_OWN:]
    suggester = pod_annotations.Suggester()
    containers = dict.fromkeys(one.name for _, one in pod.spec.created())
    for key, value, rule in own:
        if rule.per_container:
            yield from _container(key, key.removeprefix(rule.key), containers, suggester)
        if not pod_annotations.accepts(rule, value):
            yield _wrong_value(key, value, rule, suggester)
    yield from _contradictions(pod, own)
    if any(rule.about_memory for _, _, rule in own):
        yield from memory.contradictions(pod)


def wrong_values(pod: NewPod) -> Iterator[answers.StatusCause]:
    """Yield invalid values: the policies inside the API server refuse the same."""
    suggester = pod_annotations.Suggester()
    for key, value, rule in _own(pod):
        if not pod_annotations.accepts(rule, value):
            yield _wrong_value(key, value, rule, suggester)


def _own(pod: NewPod) -> _Own:
    """Return the annotations that have a meaning, by key."""
    ours = sorted((key, value) for key, value in pod.annotations.items() if pod_annotations.DOMAIN in key)
    return [(key, value, rule) for key, value in ours if (rule := pod_annotations.rule_of(key)) is not None]


def warnings(pod: NewPod) -> Iterator[str]:
    """Yield a warning for each annotation or label without effect."""
    own = _own(pod)
    known = {key for key, _, _ in own}
    unknown = [key for key in pod.annotations if key not in known and pod_annotations.is_of_domain(key)]
    suggester = pod_annotations.Suggester()
    for key in sorted(unknown):
        yield f"{_at(key)}: {pod_annotations.NO_SUCH_KEY}{_did_you_mean(suggester.closest_key(key))}"
    for key in sorted(key for key in pod.metadata.labels if pod_annotations.DOMAIN in key):
        if pod_annotations.rule_of(key) is not None:
            yield f"metadata.labels[{pod_annotations.shown(key, _MAX_KEY)}]: {pod_annotations.AS_LABEL}"
    if any(rule.about_memory for _, _, rule in own):
        for key, why in memory.without_effect(pod):
            yield f"{_at(key)}: {why}"
    policy = pod.annotations.get(names.POLICY_ANNOTATION)
    if policy in pod_annotations.PLACING and (pod.spec.node_name or pod.is_of_daemon_set):
        why = pod_annotations.NODE_CHOSEN if pod.spec.node_name else pod_annotations.DAEMON_SET_CHOOSES
        yield f"{_at(names.POLICY_ANNOTATION)}: {policy} {pod_annotations.NOT_PLACED}{why}"
    if policy == names.Policy.DISABLED and _is_by_default(pod):
        for key, value in _limits(own):
            if value:
                yield f"{_at(key)}: {pod_annotations.OVERRULED}"


def _contradictions(pod: NewPod, own: _Own) -> Iterator[answers.StatusCause]:
    policy = pod.annotations.get(names.POLICY_ANNOTATION)
    limits = dict(_limits(own))
    # A namespace's default contradicts nobody: the limit has no effect there, with a warning.
    if policy == names.Policy.DISABLED and not _is_by_default(pod):
        for key, value in limits.items():
            if value:
                yield _invalid(pod.annotations[key], pod_annotations.DISABLED_HAS_NONE, _at(key))
    whole = limits.pop(names.LIMIT_ANNOTATION, None)
    for key, value in limits.items():
        if whole is not None and value > whole:
            why = f"{pod_annotations.MORE_THAN_POD}, {quoted(pod.annotations[names.LIMIT_ANNOTATION])}"
            yield _invalid(pod.annotations[key], why, _at(key))
    if policy == names.Policy.REQUIRED and not _is_by_default(pod):
        if pod.is_of_daemon_set:
            yield answers.StatusCause(_FORBIDDEN, pod_annotations.OF_DAEMON_SET, _at(names.POLICY_ANNOTATION))
        elif (asked := scheduling.contradicts(pod)) is not None:
            yield _invalid(asked, pod_annotations.SELECTS_ANOTHER, f"spec.nodeSelector[{names.SWAP_LABEL}]")


def _limits(own: _Own) -> Iterator[tuple[str, int]]:
    """Yield the pod's swap limits that are quantities, in billionths of bytes, by key: exact, as for the API server."""
    for key, value, rule in own:
        if rule.is_amount and not rule.about_memory and quantity.is_quantity(value):
            yield key, quantity.nano(value)


def _is_by_default(pod: NewPod) -> bool:
    return pod.annotations.get(names.POLICY_SOURCE_ANNOTATION) == names.SOURCE_NAMESPACE


def _wrong_value(
    key: str, value: str, rule: pod_annotations.AnnotationRule, suggester: pod_annotations.Suggester
) -> answers.StatusCause:
    if rule.allowed_values:
        listed = ", ".join(map(pod_annotations.quoted, rule.allowed_values))
        message = f"Unsupported value: {quoted(value)}: supported values: {listed}"
        meant = _did_you_mean(suggester.closest(value, rule.allowed_values))
        return answers.StatusCause(_NOT_SUPPORTED, message + meant, _at(key))
    if rule.is_throttling:
        meant = _did_you_mean(pod_annotations.closest_throttling(value))
        return _invalid(value, pod_annotations.NO_THROTTLING + meant, _at(key))
    meant = _did_you_mean(pod_annotations.closest_quantity(value)) or "; write for example 512Mi or 2Gi"
    why = f"not a quantity, which is a number without a sign, with a unit such as Mi, Gi or M{meant}"
    return _invalid(value, why, _at(key))


def _container(
    key: str, name: str, containers: Collection[str], suggester: pod_annotations.Suggester
) -> Iterator[answers.StatusCause]:
    if name not in containers:
        listed = ", ".join(map(pod_annotations.quoted, itertools.islice(containers, _MAX_LISTED))) or "none"
        if len(containers) > _MAX_LISTED:
            listed += f" and {len(containers) - _MAX_LISTED} more"
        meant = _did_you_mean(suggester.closest(name, containers))
        yield _invalid(name, f"{pod_annotations.NO_CONTAINER}; it has: {listed}{meant}", _at(key))


def _invalid(value: str, why: str, field: str) -> answers.StatusCause:
    return answers.StatusCause(_INVALID, f"Invalid value: {quoted(value)}: {why}", field)


def _did_you_mean(word: str | None) -> str:
    return f"; did you mean {quoted(word)}?" if word else ""


def _at(key: str) -> str:
    return f"metadata.annotations[{pod_annotations.shown(key, _MAX_KEY)}]"
