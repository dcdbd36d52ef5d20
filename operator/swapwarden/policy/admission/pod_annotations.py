"""The annotations of a pod that are read, and the values that each accepts: one table for all checks.

The webhook uses it directly. The policies inside the API server check the same in CEL, written by hand in the chart
(deploy/helm/swapwarden/templates/admission); its lists and its pattern of quantities are made from this table.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection
from typing import Final

import msgspec

from swapwarden.api import names, quantity, throttling

DOMAIN: Final = f"{names.GROUP}/"
"""The beginning of our keys; subdomains have it after a dot. It is reserved."""

PREFERENCE_WEIGHT: Final = 50
"""Weight of the preferred scheduling term: half of the largest, so that users' own can weigh more or less."""

PREFERRED_LABEL: Final = {names.Policy.PREFERRED: "In", names.Policy.AVOID: "NotIn"}
"""Operator of the preferred node affinity for the label of nodes with swap, by policy."""

TOLERATING: Final = (names.Policy.REQUIRED, names.Policy.PREFERRED)
"""Policies that add a toleration of the taint of nodes with swap."""

PLACING: Final = (names.Policy.REQUIRED, *PREFERRED_LABEL)
"""Policies with a meaning for the scheduler."""

RECLAIM_MODES: Final = tuple(sorted(names.ReclaimMode))
"""Values of the reclaim annotation."""

RECLAIMING: Final = tuple(sorted(set(names.ReclaimMode) - {names.ReclaimMode.OFF}))
"""Values of the reclaim annotation that ask for reclaim."""

RESERVATIONS: Final = (names.ReservationPolicy.NONE.value, names.ReservationPolicy.SOFT.value)
"""Values of the memory-reservation annotation: hard protection is the administrator's."""

# Messages about contradictions, after the value that is part of it; and about annotations without effect.
DISABLED_HAS_NONE: Final = f"a pod with the policy {names.Policy.DISABLED} has no swap; remove the limit, or the policy"
MORE_THAN_POD: Final = "more than the pod's own limit"
NO_CONTAINER: Final = "the pod has no container of that name"
OF_DAEMON_SET: Final = (
    f"Forbidden: a DaemonSet's pods run on every node that it chooses, so {names.Policy.REQUIRED} is impossible;"
    f" restrict the DaemonSet instead: spec.template.spec.nodeSelector {names.SWAP_LABEL}: true"
)
SELECTS_ANOTHER: Final = f"the policy {names.Policy.REQUIRED} needs nodes where this label is true"
ABOVE_REQUEST: Final = "must be at most the pod's memory request"
BELOW_REQUEST: Final = "must be at least the memory request"
ABOVE_LIMIT: Final = "must be at most the memory limit"
RESERVES_NOTHING: Final = (
    f"a pod with the reservation {names.ReservationPolicy.NONE} has no protected memory; remove the amount, or the"
    " reservation"
)
THROTTLES_NOTHING: Final = (
    f"a pod with the throttling {throttling.DISABLED} has no memory.high; remove the amount, or the throttling"
)
NO_THROTTLING: Final = "must be Disabled, or percents from 1% to 99%"
RECLAIMS_NOTHING: Final = f"no effect: a pod with the policy {names.Policy.DISABLED} has no swap"
NO_REQUEST: Final = "no effect: the pod requests no memory"
NO_LIMIT: Final = "no effect: there is no memory limit above the memory request"
SEVERAL_CONTAINERS: Final = (
    f"no effect: the pod has several containers; write {names.CONTAINER_HIGH_PREFIX}<container> for each"
)
NO_SUCH_KEY: Final = "no effect: there is no such annotation"
AS_LABEL: Final = "no effect: it is an annotation, so write it in metadata.annotations"
NOT_PLACED: Final = "has no effect on where the pod runs: "
NODE_CHOSEN: Final = "the pod's node is chosen already"
DAEMON_SET_CHOOSES: Final = "a DaemonSet chooses the pod's node"
OVERRULED: Final = (
    f"no effect: the policy {names.Policy.DISABLED} is the namespace's default; give the pod a policy of its own to"
    f" have swap ({names.POLICY_ANNOTATION}: {names.Policy.NO_PREFERENCE})"
)

MAX_NAME: Final = 253
"""Characters of a name that are shown: no object has a longer one (k/k: apimachinery, DNS1123SubdomainMaxLength)."""

_MAX_VALUE: Final = 80
_SUGGESTED_LENGTH: Final = 64
"""Longer texts are not typing errors, and comparing them costs time."""

_SUGGESTED_FROM: Final = 64
"""Texts are not compared with more words than this."""

_COMPARISONS: Final = 20_000
"""Pairs of characters that a Suggester compares. An ordinary mistake takes some hundred; all of them
take 2 ms."""

_UNITS: Final = {unit.lower(): unit for unit in ("k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")}


class AnnotationRule(msgspec.Struct, frozen=True):
    """The values that an annotation accepts."""

    key: str
    allowed_values: tuple[str, ...] = ()
    """The values; without any, a quantity, as in api.quantity."""
    per_container: bool = False
    """The key is a prefix; the name of a container follows."""
    is_throttling: bool = False
    """The values are those of api.throttling."""
    about_memory: bool = False
    """Whether it is about memory beside swap limits: the webhook is not called for a pod that has only such ones."""

    @property
    def is_amount(self) -> bool:
        """Return whether the values are quantities."""
        return not self.allowed_values and not self.is_throttling


RULES: Final = (
    AnnotationRule(names.POLICY_ANNOTATION, tuple(sorted(names.Policy))),
    AnnotationRule(names.POLICY_SOURCE_ANNOTATION, (names.SOURCE_NAMESPACE,)),
    AnnotationRule(names.LIMIT_ANNOTATION),
    AnnotationRule(names.CONTAINER_LIMIT_PREFIX, per_container=True),
    AnnotationRule(names.MEMORY_RESERVATION_ANNOTATION, RESERVATIONS, about_memory=True),
    AnnotationRule(names.MEMORY_LOW_ANNOTATION, about_memory=True),
    AnnotationRule(names.MEMORY_THROTTLING_ANNOTATION, is_throttling=True, about_memory=True),
    AnnotationRule(names.MEMORY_HIGH_ANNOTATION, about_memory=True),
    AnnotationRule(names.CONTAINER_HIGH_PREFIX, per_container=True, about_memory=True),
    AnnotationRule(names.RECLAIM_ANNOTATION, RECLAIM_MODES, about_memory=True),
)

_BY_KEY: Final = {rule.key: rule for rule in RULES if not rule.per_container}
_BY_PREFIX: Final = tuple(rule for rule in RULES if rule.per_container)


def rule_of(key: str) -> AnnotationRule | None:
    """Return the rule for an annotation; None for a foreign or misspelt key."""
    rule = _BY_KEY.get(key)
    if rule is None:
        rule = next((rule for rule in _BY_PREFIX if key.startswith(rule.key)), None)
    return rule


def is_of_domain(key: str) -> bool:
    """Return whether a key is reserved, whether it exists or not."""
    return DOMAIN in key and (key.startswith(DOMAIN) or f".{DOMAIN}" in key)


def accepts(rule: AnnotationRule, value: str) -> bool:
    """Return whether the annotation may hold this value."""
    if rule.allowed_values:
        return value in rule.allowed_values
    return throttling.is_throttling(value) if rule.is_throttling else quantity.is_quantity(value)


def shown(text: str, limit: int = _MAX_VALUE) -> str:
    """Return a user's text for a message or a log: at most `limit` characters of it, and only printable ones."""
    cut = text if len(text) <= limit else f"{text[:limit]}..."
    return cut if cut.isprintable() else quoted(cut, len(cut))[1:-1]


def quoted(text: str, limit: int = _MAX_VALUE) -> str:
    """Return a user's text in quotes, as JSON writes it: at most `limit` characters of it."""
    cut = text if len(text) <= limit else f"{text[:limit]}..."
    # DEL is the one character of ASCII that JSON leaves as it is.
    return json.dumps(cut, ensure_ascii=not cut.isprintable()).replace("\x7f", "\\u007f")


class Suggester:
    """Suggest the word that a user may have meant, within a budget: when it is spent, there are no more suggestions."""

    def __init__(self) -> None:
        """Use one for all messages about one object."""
        self.left = _COMPARISONS

    def closest(self, text: str, known: Collection[str]) -> str | None:
        """Return the known word that a user may have meant by the unknown `text`."""
        text = text.strip()
        if len(text) > _SUGGESTED_LENGTH or len(known) > _SUGGESTED_FROM:
            return None
        # Each word counts: even to find that two cannot resemble each other takes a look at all of both.
        cost = (len(text) + 1) * sum(len(word) + 1 for word in known)
        if cost > self.left:
            self.left = 0
            return None
        self.left -= cost
        by_folded = {word.casefold(): word for word in known}
        alike = difflib.get_close_matches(text.casefold(), by_folded, n=1, cutoff=0.7)
        return by_folded[alike[0]] if alike else None

    def closest_key(self, key: str) -> str | None:
        """Return the key of ours that a user may have meant by an unknown key of our domain."""
        domain, _, name = key.partition("/")
        prefixes = [rule.key.rstrip("/") for rule in _BY_PREFIX]
        known = [names.GROUP, *prefixes]
        meant = domain if domain in known else self.closest(domain, known)
        if meant in prefixes:
            return f"{meant}/{name}" if name else None
        closest_name = self.closest(name, [own.partition("/")[2] for own in _BY_KEY]) if meant else None
        return f"{meant}/{closest_name}" if closest_name else None


def closest(text: str, known: Collection[str]) -> str | None:
    """Return `Suggester.closest` of a text on its own."""
    return Suggester().closest(text, known)


def closest_throttling(text: str) -> str | None:
    """Return the value of memory-throttling that a user may have meant by `text`: 90 or 0.9 is 90%."""
    share = re.fullmatch(r"(0?[.])?([1-9][0-9]?) ?%?", text.strip(), re.ASCII)
    if share:
        return throttling.written(int(share[2]) * (10 if share[1] and len(share[2]) == 1 else 1))
    return closest(text, [throttling.DISABLED])


def closest_quantity(text: str) -> str | None:
    """Return the quantity that a user may have meant by `text`: 1 GB is 1G, 512mi is 512Mi."""
    amount = re.fullmatch(r"([0-9.]{1,32})([a-z]{1,2}?)b?", text.replace(" ", "").lower(), re.ASCII)
    if not amount:
        return None
    meant = amount[1] + _UNITS.get(amount[2], amount[2])
    return meant if meant != text and quantity.is_quantity(meant) else None
