"""The table of vocabulary.py in CEL, for the admission policies inside the API server.

Expressions are about `variables.now`, annotations as they are to be, and `variables.before`, as they were: maps of
texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from swapwarden.api import names
from swapwarden.policy import quantity, vocabulary

SHOWN: Final = 80
"""Of a value in a message, so many characters."""

TOLD: Final = 2000
"""Of a message, so many characters. The API server throws one away that has more than 5 KiB, or a line break."""


def text(value: str) -> str:
    """A text as CEL writes it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def texts(values: Iterable[str]) -> str:
    """A list of texts."""
    return f"[{', '.join(map(text, values))}]"


def is_own(key: str = "k") -> str:
    """Whether a key is one of ours."""
    exact = [rule.key for rule in vocabulary.RULES if not rule.per_container]
    prefixes = [f"{key}.startsWith({text(rule.key)})" for rule in vocabulary.RULES if rule.per_container]
    return "(" + " || ".join([f"{key} in {texts(exact)}", *prefixes]) + ")"


def is_of_domain(key: str = "k") -> str:
    """Whether a key is one that only we may use."""
    return f"({key}.startsWith({text(vocabulary.DOMAIN)}) || {key}.contains({text(f'.{vocabulary.DOMAIN}')}))"


def is_valid(key: str = "k", value: str = "variables.now[k]") -> str:
    """Whether the annotation may have this value; of one of ours only."""
    grammar = f"{value}.matches({text(f'^({quantity.SYNTAX})$')})"
    expression = f"({value}.size() <= {quantity.MAX_LENGTH} && {grammar})"
    for rule in vocabulary.RULES:
        if rule.accepted:
            expression = f"({key} == {text(rule.key)} ? {value} in {texts(rule.accepted)} : {expression})"
    return expression


def changed() -> str:
    """Whether the annotation `k` is new, or another than before."""
    return "!(k in variables.before && variables.before[k] == variables.now[k])"


def wrong_values() -> str:
    """Those of our annotations that are new or changed, and not understood, each as a message."""
    value = f"(variables.now[k].size() > {SHOWN} ? variables.now[k].substring(0, {SHOWN}) + '...' : variables.now[k])"
    problem, remedy = (
        text("Invalid"),
        text("not a quantity, which is a number without a sign, with a unit such as Mi or G"),
    )
    for rule in vocabulary.RULES:
        if rule.accepted:
            listed = ", ".join(map(json.dumps, rule.accepted))
            problem = f"(k == {text(rule.key)} ? {text('Unsupported')} : {problem})"
            remedy = f"(k == {text(rule.key)} ? {text(f'supported values: {listed}')} : {remedy})"
    message = f"'metadata.annotations[' + k + ']: ' + {problem} + ' value: \"' + {value} + '\": ' + {remedy}"
    return f"variables.now.filter(k, {is_own()} && {changed()} && !{is_valid()}).map(k, {message})"


def differing_keys() -> str:
    """Those of our keys that were added, changed or removed."""
    set_anew = f"variables.now.filter(k, {is_own()} && {changed()})"
    removed = f"variables.before.filter(k, {is_own()} && !(k in variables.now))"
    return f"({set_anew} + {removed})"


def told() -> str:
    """`variables.told`, cut and on one line, so that the API server passes it on."""
    cut = f"(variables.told.size() > {TOLD} ? variables.told.substring(0, {TOLD}) + '...' : variables.told)"
    return f"{cut}.replace('\\n', ' ')"


# --- what the webhook does, for clusters that run without it (admission.mode: Policy) ---

_POLICY: Final = text(names.POLICY_ANNOTATION)
_SOURCE: Final = text(names.POLICY_SOURCE_ANNOTATION)
_NAMESPACE: Final = text(vocabulary.SOURCE_NAMESPACE)
_LIMIT: Final = text(names.LIMIT_ANNOTATION)
_SWAP: Final = text(names.SWAP_LABEL)
_TRUE: Final = text("true")
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_DISABLED: Final = f"variables.policy == {text(names.Policy.DISABLED)}"
_REQUIRED: Final = f"variables.policy == {text(names.Policy.REQUIRED)}"
_LIMITS_ABOVE_0: Final = "variables.limits.filter(k, quantity(variables.now[k]).isGreaterThan(quantity('0')))"


def variables() -> dict[str, str]:
    """What the expressions below are about, by name and in this order: each of a new pod."""
    labels, default = "namespaceObject.metadata.labels", text(names.DEFAULT_POLICY_LABEL)
    containers = "(has(object.spec.{0}) ? object.spec.{0}.map(c, c.name) : [])"
    quantities = " || ".join(
        f"k.startsWith({text(rule.key)})" if rule.per_container else f"k == {text(rule.key)}"
        for rule in vocabulary.RULES
        if not rule.accepted
    )
    return {
        "now": "has(object.metadata.annotations) ? object.metadata.annotations : {}",
        "own": f"{_POLICY} in variables.now ? variables.now[{_POLICY}] : ''",
        "default": (
            f"{_POLICY} in variables.now || !has({labels}) || !({default} in {labels})"
            f" || !({labels}[{default}] in {texts(sorted(names.Policy))}) ? '' : {labels}[{default}]"
        ),
        "policy": "variables.default == '' ? variables.own : variables.default",
        "byDefault": (
            f"variables.default != '' || {_SOURCE} in variables.now && variables.now[{_SOURCE}] == {_NAMESPACE}"
        ),
        "ofDaemonSet": (
            "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, o.kind == 'DaemonSet'"
            " && has(o.controller) && o.controller)"
        ),
        "onItsNode": "has(object.spec.nodeName) && object.spec.nodeName != ''",
        "limits": f"variables.now.filter(k, ({quantities}) && {is_valid()} && isQuantity(variables.now[k]))",
        "containers": " + ".join(containers.format(kind) for kind in ("initContainers", "containers")),
    }


def contradictions() -> str:
    """What contradicts itself or the pod, each as a message; see swapwarden.webhook.rules, which says more."""
    prefix = text(names.CONTAINER_LIMIT_PREFIX)
    name, asked = f"k.substring({len(names.CONTAINER_LIMIT_PREFIX)})", f"object.spec.nodeSelector[{_SWAP}]"
    unknown = _joined(
        _invalid(name),
        text(f': {vocabulary.NO_CONTAINER}; it has: "'),
        "variables.containers.join('\", \"')",
        text('"'),
    )
    of_disabled = _joined(_invalid("variables.now[k]"), text(f": {vocabulary.DISABLED_HAS_NONE}"))
    more = "quantity(variables.now[k]).isGreaterThan(quantity(variables.now[" + _LIMIT + "]))"
    above = _joined(
        _invalid("variables.now[k]"), text(f': {vocabulary.MORE_THAN_POD}, "'), f"variables.now[{_LIMIT}]", text('"')
    )
    of_daemon_set = text(f"metadata.annotations[{names.POLICY_ANNOTATION}]: {vocabulary.OF_DAEMON_SET}")
    elsewhere = _joined(
        text(f'spec.nodeSelector[{names.SWAP_LABEL}]: Invalid value: "'),
        asked,
        text(f'": {vocabulary.SELECTS_ANOTHER}'),
    )
    parts = [
        f"variables.now.filter(k, k.startsWith({prefix}) && !({name} in variables.containers)).map(k, {unknown})",
        f"({_DISABLED} && !variables.byDefault ? {_LIMITS_ABOVE_0}.map(k, {of_disabled}) : [])",
        f"({_LIMIT} in variables.limits ? variables.limits.filter(k, k != {_LIMIT} && {more}).map(k, {above}) : [])",
        (
            f"(!({_REQUIRED}) || variables.byDefault ? [] : variables.ofDaemonSet ? [{of_daemon_set}]"
            f" : has(object.spec.nodeSelector) && {_SWAP} in object.spec.nodeSelector && {asked} != {_TRUE}"
            f" ? [{elsewhere}] : [])"
        ),
    ]
    return " + ".join(parts)


def without_effect() -> str:
    """What somebody wrote that has no effect, each as a message."""
    at_policy = _joined(text(f"metadata.annotations[{names.POLICY_ANNOTATION}]: "), "variables.policy")
    labels = f"object.metadata.labels.filter(k, {is_own()})"
    at_label = _joined(text("metadata.labels["), "k", text(f"]: {vocabulary.AS_LABEL}"))
    chosen, of_daemon_set = (
        _joined(at_policy, text(f" {vocabulary.NOT_PLACED}{why}"))
        for why in (vocabulary.NODE_CHOSEN, vocabulary.DAEMON_SET_CHOOSES)
    )
    parts = [
        f"variables.now.filter(k, {is_of_domain()} && !{is_own()}).map(k, {_at(vocabulary.NO_SUCH_KEY)})",
        f"(has(object.metadata.labels) ? {labels}.map(k, {at_label}) : [])",
        (
            f"(!(variables.policy in {texts(vocabulary.PLACING)}) ? [] : variables.onItsNode ? [{chosen}]"
            f" : variables.ofDaemonSet ? [{of_daemon_set}] : [])"
        ),
        f"({_DISABLED} && variables.byDefault ? {_LIMITS_ABOVE_0}.map(k, {_at(vocabulary.OVERRULED)}) : [])",
    ]
    return " + ".join(parts)


def completion() -> str:
    """The namespace's default and the pod's place, as a JSON patch; see swapwarden.webhook.placement."""
    default, is_free = "string(variables.default)", "!variables.onItsNode && !variables.ofDaemonSet"
    annotations = {names.POLICY_ANNOTATION: default, names.POLICY_SOURCE_ANNOTATION: _NAMESPACE}
    each = ", ".join(_add(value, "metadata", "annotations", key) for key, value in annotations.items())
    all_at_once = _add(_object({text(key): value for key, value in annotations.items()}), "metadata", "annotations")
    selector = "object.spec.nodeSelector"
    parts = [
        f"(variables.default == '' ? [] : has(object.metadata.annotations) ? [{each}] : [{all_at_once}])",
        (
            f"(!({is_free} && {_REQUIRED}) ? []"
            f" : !has({selector}) ? [{_add(_object({_SWAP: _TRUE}), 'spec', 'nodeSelector')}]"
            f" : {_SWAP} in {selector} ? [] : [{_add(_TRUE, 'spec', 'nodeSelector', names.SWAP_LABEL)}])"
        ),
        f"(!({is_free} && variables.policy in {texts(vocabulary.PREFERRED_LABEL)}) ? [] : {_preference()})",
        f"(!({is_free} && variables.policy in {texts(vocabulary.TOLERATING)}) ? [] : {_toleration()})",
    ]
    return " + ".join(parts)


def _preference() -> str:
    wanted = " : ".join(
        f"variables.policy == {text(policy)} ? {text(operator)}"
        for policy, operator in vocabulary.PREFERRED_LABEL.items()
    )
    operator = f"({wanted} : '')"
    expression = _object({"'key'": f"dyn({_SWAP})", "'operator'": f"dyn({operator})", "'values'": f"dyn([{_TRUE}])"})
    preference = _object({"'matchExpressions'": f"[{expression}]"})
    term = _object({"'weight'": f"dyn({vocabulary.PREFERENCE_WEIGHT})", "'preference'": f"dyn({preference})"})
    is_there = (
        f"t.weight == {vocabulary.PREFERENCE_WEIGHT} && !has(t.preference.matchFields)"
        " && has(t.preference.matchExpressions) && t.preference.matchExpressions.size() == 1"
        f" && t.preference.matchExpressions.all(e, e.key == {_SWAP} && e.operator == {operator} && has(e.values)"
        f" && e.values == [{_TRUE}])"
    )
    affinity = ("spec", "affinity")
    of_node = (*affinity, "nodeAffinity")
    terms = (*of_node, _PREFERRED)
    in_node = _object({text(_PREFERRED): f"[{term}]"})
    return (
        f"!has(object.{'.'.join(affinity)}) ? [{_add(_object({text('nodeAffinity'): in_node}), *affinity)}]"
        f" : !has(object.{'.'.join(of_node)}) ? [{_add(in_node, *of_node)}]"
        f" : !has(object.{'.'.join(terms)}) ? [{_add(f'[{term}]', *terms)}]"
        f" : object.{'.'.join(terms)}.exists(t, {is_there}) ? [] : [{_add(term, *terms, '-')}]"
    )


def _toleration() -> str:
    toleration = _object({"'key'": text(names.SWAP_TAINT), "'operator'": "'Exists'"})
    is_there = (
        f"t.?operator.orValue('') == 'Exists' && t.?key.orValue('') in ['', {text(names.SWAP_TAINT)}]"
        " && t.?effect.orValue('') == ''"
    )
    tolerations = "object.spec.tolerations"
    return (
        f"!has({tolerations}) ? [{_add(f'[{toleration}]', 'spec', 'tolerations')}]"
        f" : {tolerations}.exists(t, {is_there}) ? [] : [{_add(toleration, 'spec', 'tolerations', '-')}]"
    )


def _joined(*expressions: str) -> str:
    return " + ".join(expressions)


def _at(words: str) -> str:
    return _joined(text("metadata.annotations["), "k", text(f"]: {words}"))


def _invalid(value: str) -> str:
    return _joined(_at('Invalid value: "'), value, text('"'))


def _object(fields: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}"


def _add(value: str, *keys: str) -> str:
    pointer = "/".join(["", *(key.replace("~", "~0").replace("/", "~1") for key in keys)])
    return f"JSONPatch{{op: 'add', path: {text(pointer)}, value: {value}}}"
