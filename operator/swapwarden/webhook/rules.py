"""What is wrong with a new pod's annotations, and what in them has no effect. Pure functions of the pod."""

from __future__ import annotations

import json
from collections.abc import Iterator

from swapwarden.api import names
from swapwarden.policy import quantity, vocabulary
from swapwarden.webhook import placement, review

_MAX_VALUE = 80
_MAX_LISTED = 20

# Reasons of causes, as the API server itself uses them (k8s.io/apimachinery: pkg/util/validation/field/errors.go).
_NOT_SUPPORTED = "FieldValueNotSupported"
_INVALID = "FieldValueInvalid"
_FORBIDDEN = "FieldValueForbidden"


def errors(pod: review.Pod) -> Iterator[review.Cause]:
    """Yield all that is wrong, by key: values that are not understood, then what contradicts itself."""
    containers = pod.containers
    for key, value in sorted(pod.annotations.items()):
        rule = vocabulary.rule_of(key)
        if rule is None:
            continue
        if rule.per_container:
            yield from _container(key, key.removeprefix(rule.key), containers)
        yield from _value(key, value, rule)
    yield from _contradictions(pod)


def wrong_values(pod: review.Pod) -> Iterator[review.Cause]:
    """Yield values that are not understood: what the policies inside the API server refuse, too."""
    for key, value in sorted(pod.annotations.items()):
        rule = vocabulary.rule_of(key)
        if rule is not None:
            yield from _value(key, value, rule)


def warnings(pod: review.Pod) -> Iterator[str]:
    """Yield what has no effect although somebody wrote it."""
    for key in sorted(pod.annotations):
        if vocabulary.is_of_domain(key) and vocabulary.rule_of(key) is None:
            meant = vocabulary.resembling_key(key)
            yield f"{_at(key)}: {vocabulary.NO_SUCH_KEY}{_did_you_mean(meant)}"
    for key in sorted(pod.metadata.labels or {}):
        if vocabulary.rule_of(key) is not None:
            yield f"metadata.labels[{key}]: {vocabulary.AS_LABEL}"
    policy = pod.annotations.get(names.POLICY_ANNOTATION)
    if policy in vocabulary.PLACING and (pod.spec.node_name or pod.is_of_daemon_set):
        why = vocabulary.NODE_CHOSEN if pod.spec.node_name else vocabulary.DAEMON_SET_CHOOSES
        yield f"{_at(names.POLICY_ANNOTATION)}: {policy} {vocabulary.NOT_PLACED}{why}"
    if policy == names.Policy.DISABLED and _is_by_default(pod):
        for key, value in _limits(pod):
            if value:
                yield f"{_at(key)}: {vocabulary.OVERRULED}"


def _contradictions(pod: review.Pod) -> Iterator[review.Cause]:
    policy = pod.annotations.get(names.POLICY_ANNOTATION)
    limits = dict(_limits(pod))
    # What comes from a namespace's default is nobody's contradiction: the limit has no effect there, with a warning.
    if policy == names.Policy.DISABLED and not _is_by_default(pod):
        for key, value in limits.items():
            if value:
                told = f"Invalid value: {quoted(pod.annotations[key])}: {vocabulary.DISABLED_HAS_NONE}"
                yield review.Cause(_INVALID, told, _at(key))
    whole = limits.pop(names.LIMIT_ANNOTATION, None)
    for key, value in limits.items():
        if whole is not None and value > whole:
            told = f"Invalid value: {quoted(pod.annotations[key])}: {vocabulary.MORE_THAN_POD}"
            yield review.Cause(_INVALID, f"{told}, {quoted(pod.annotations[names.LIMIT_ANNOTATION])}", _at(key))
    if policy == names.Policy.REQUIRED and not _is_by_default(pod):
        if pod.is_of_daemon_set:
            yield review.Cause(_FORBIDDEN, vocabulary.OF_DAEMON_SET, _at(names.POLICY_ANNOTATION))
        elif (found := placement.contradicts(pod)) is not None:
            told = f"Invalid value: {quoted(found)}: {vocabulary.SELECTS_ANOTHER}"
            yield review.Cause(_INVALID, told, f"spec.nodeSelector[{names.SWAP_LABEL}]")


def _limits(pod: review.Pod) -> Iterator[tuple[str, int]]:
    """The pod's limits that are quantities, in billionths of bytes, by key: exact, as the API server compares them."""
    for key, value in sorted(pod.annotations.items()):
        rule = vocabulary.rule_of(key)
        if rule is not None and not rule.accepted and quantity.is_quantity(value):
            yield key, quantity.nano(value)


def _is_by_default(pod: review.Pod) -> bool:
    return pod.annotations.get(names.POLICY_SOURCE_ANNOTATION) == vocabulary.SOURCE_NAMESPACE


def _value(key: str, value: str, rule: vocabulary.Rule) -> Iterator[review.Cause]:
    if not vocabulary.accepts(rule, value):
        yield _not_supported(key, value, rule.accepted) if rule.accepted else _no_quantity(key, value)


def _not_supported(key: str, value: str, accepted: tuple[str, ...]) -> review.Cause:
    listed = ", ".join(map(quoted, accepted))
    message = f"Unsupported value: {quoted(value)}: supported values: {listed}"
    return review.Cause(_NOT_SUPPORTED, message + _did_you_mean(vocabulary.resembling(value, accepted)), _at(key))


def _no_quantity(key: str, value: str) -> review.Cause:
    message = (
        f"Invalid value: {quoted(value)}: not a quantity, which is a number without a sign, with a unit such as Mi, Gi"
        " or M"
    )
    meant = vocabulary.resembling_quantity(value)
    return review.Cause(_INVALID, message + (_did_you_mean(meant) or "; write for example 512Mi or 2Gi"), _at(key))


def _container(key: str, name: str, containers: list[str]) -> Iterator[review.Cause]:
    if name not in containers:
        listed = ", ".join(map(quoted, containers[:_MAX_LISTED])) or "none"
        if len(containers) > _MAX_LISTED:
            listed += f" and {len(containers) - _MAX_LISTED} more"
        message = f"Invalid value: {quoted(name)}: {vocabulary.NO_CONTAINER}; it has: {listed}"
        yield review.Cause(_INVALID, message + _did_you_mean(vocabulary.resembling(name, containers)), _at(key))


def _did_you_mean(word: str | None) -> str:
    return f"; did you mean {quoted(word)}?" if word else ""


def _at(key: str) -> str:
    return f"metadata.annotations[{key}]"


def quoted(value: str) -> str:
    """A text of somebody's, in quotes and of a bounded length."""
    return json.dumps(value if len(value) <= _MAX_VALUE else f"{value[:_MAX_VALUE]}...", ensure_ascii=False)
