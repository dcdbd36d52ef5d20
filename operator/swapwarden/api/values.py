"""Values of single fields of a profile: quantities, labels, names of units. Each for the models and for the CRD."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import pydantic

from swapwarden.api import quantity, rules, throttling

T = TypeVar("T")

QUANTITY_REFUSAL = "must be a quantity without a sign, such as 512Mi, 2G or 1073741824"
QUANTITY_OR_PERCENT_PATTERN = quantity.SYNTAX + r"|(100|\d\d?)%"
QUANTITY_OR_PERCENT_REFUSAL = "must be a quantity without a sign, such as 512Mi or 2G, or percents from 0% to 100%"
LABEL_KEY_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
LABEL_KEY_LENGTH = 317
LABEL_KEY_REFUSAL = (
    "a key must be that of a label: pool, or example.com/pool, with at most 63 characters after the slash"
)
LABEL_VALUE_REFUSAL = (
    "must be the value of a label: letters, digits, '-', '_' and '.', with a letter or digit at both ends; or empty"
)
LABEL_VALUE_PATTERN = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"


def _quantity(
    pattern: str, refusal: str, *, least: int = 0, listed: bool = False
) -> tuple[pydantic.BeforeValidator, pydantic.WithJsonSchema]:
    """Return validator and schema of a quantity, for model and CRD. YAML reads `maxPerPod: 1024` as a number.

    `least` is the smallest such number; the pattern says the same of text. `listed`: one of many.
    """

    def checked(value: object) -> str:
        text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
        if len(text) > quantity.MAX_LENGTH or not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(refusal)
        return text

    schema: dict[str, object] = {"x-kubernetes-int-or-string": True, "maxLength": quantity.MAX_LENGTH}
    if listed:
        # Before Kubernetes 1.34 the estimate of a rule assumes that text which may also be a number is as long as a
        # request can be: in a list that is more than an API server allows.
        schema |= {"pattern": f"^({pattern})$", "minimum": least}
    else:
        # A rule instead of `pattern`, whose message would be the pattern.
        rule = f"type(self) == int ? self >= {least} : self.matches(r'^({pattern})$')"
        schema["x-kubernetes-validations"] = [{"rule": rule, "message": refusal}]
    return pydantic.BeforeValidator(checked), pydantic.WithJsonSchema(schema)


def no_duplicates(values: list[T]) -> list[T]:
    """Refuse what the API server refuses in a list of type set."""
    if len(set(values)) < len(values):
        raise ValueError("Duplicate value")
    return values


def as_set(most: int) -> tuple[Any, pydantic.AfterValidator]:
    """Return bounds and schema, and the check, of a list of type set: 1 to `most` different values."""
    listed = pydantic.Field(min_length=1, max_length=most, json_schema_extra={"x-kubernetes-list-type": "set"})
    return listed, pydantic.AfterValidator(no_duplicates)


Quantity = Annotated[str, *_quantity(quantity.SYNTAX, QUANTITY_REFUSAL)]
"""Bytes as a Kubernetes quantity: 512Mi, 2G, 1073741824."""

ListedQuantity = Annotated[str, *_quantity(quantity.SYNTAX, QUANTITY_REFUSAL, listed=True)]
"""A quantity as a field of list items, for which an older API server accepts no rule (see _quantity)."""

QuantityOrPercent = Annotated[str, *_quantity(QUANTITY_OR_PERCENT_PATTERN, QUANTITY_OR_PERCENT_REFUSAL)]
"""A quantity, or whole percents of the node's swap: 10%."""

NODES_OR_PERCENT_PATTERN = r"[1-9]\d{0,5}|([1-9]\d?|100)%"
NodesOrPercent = Annotated[
    str,
    *_quantity(
        NODES_OR_PERCENT_PATTERN, "must be a number of nodes from 1, or percents of them from 1% to 100%", least=1
    ),
]
"""So many nodes: 3, 25%."""


ListedThrottling = Annotated[str, pydantic.Field(max_length=16, pattern=f"^({throttling.SYNTAX})$")]
"""Disabled, or whole percents from 1% to 99%; as one of many."""


def _label(pattern: str, length: int, refusal: str) -> tuple[pydantic.AfterValidator, pydantic.WithJsonSchema]:
    """Return validator and schema of a part of a label, for model and CRD."""

    def checked(text: str) -> str:
        if len(text) > length or not re.fullmatch(pattern, text):
            raise ValueError(refusal)
        return text

    # A rule instead of `pattern`, as above.
    rules = [{"rule": f"self.matches(r'{pattern}')", "message": refusal}]
    return pydantic.AfterValidator(checked), pydantic.WithJsonSchema(
        {"type": "string", "maxLength": length, "x-kubernetes-validations": rules}
    )


LabelKey = Annotated[str, *_label(LABEL_KEY_PATTERN, LABEL_KEY_LENGTH, LABEL_KEY_REFUSAL)]
LabelValue = Annotated[str, *_label(LABEL_VALUE_PATTERN, 63, LABEL_VALUE_REFUSAL)]
ListedLabelValue = Annotated[str, pydantic.Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]
"""One of many: for lists in lists, where a rule would cost the API server more than it allows."""


def _are_keys(labels: dict[str, str]) -> dict[str, str]:
    for key in labels:
        if len(key) > LABEL_KEY_LENGTH or not re.fullmatch(LABEL_KEY_PATTERN, key):
            raise ValueError(f"{LABEL_KEY_REFUSAL} (got {key[:LABEL_KEY_LENGTH]!r})")
    return labels


MatchLabels = Annotated[
    dict[str, LabelValue],
    pydantic.Field(
        max_length=64,
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": f"self.all(key, size(key) <= {LABEL_KEY_LENGTH} && key.matches(r'{LABEL_KEY_PATTERN}'))",
                    "message": LABEL_KEY_REFUSAL,
                }
            ]
        },
    ),
    pydantic.AfterValidator(_are_keys),
]
"""Labels by key."""


class LabelSelectorRequirement(rules.Model):
    """One expression of a label selector."""

    RULES = (
        rules.Rule(
            "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
            " : !has(self.values) || size(self.values) == 0",
            lambda model: (model.operator in {"In", "NotIn"}) == bool(model.values),
            "In and NotIn need values; Exists and DoesNotExist take none",
        ),
    )

    key: LabelKey
    """Label key that the expression is about."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label is compared with values."""
    values: Annotated[list[ListedLabelValue], pydantic.Field(max_length=64)] = pydantic.Field(default=[])
    """Values for In and NotIn; empty with Exists and DoesNotExist."""


class LabelSelector(rules.Model):
    """A label selector, as metav1.LabelSelector: all parts must match; an empty one matches everything."""

    ATOMIC = True

    match_labels: MatchLabels = pydantic.Field(default={})
    """Labels that must be there, with exactly these values."""
    match_expressions: Annotated[list[LabelSelectorRequirement], pydantic.Field(max_length=32)] = pydantic.Field(
        default=[]
    )
    """Expressions over labels, all of which must hold."""


UNIT_LENGTH = 128
UNIT_PATTERN = r"^([A-Za-z0-9_:.\\]+(-[A-Za-z0-9_:.\\]+)*[.]slice|[A-Za-z0-9_][A-Za-z0-9_:.@\\-]*[.]service)$"
UNIT_REFUSAL = (
    "must be the name of a systemd slice or service, such as system.slice or kubelet.service: without a path, and not"
    " -.slice"
)
PODS_REFUSAL = "must not be a slice of pods: swap.behavior says what these get"


def _unit(text: str) -> str:
    if len(text) > UNIT_LENGTH or not re.fullmatch(UNIT_PATTERN, text):
        raise ValueError(UNIT_REFUSAL)
    if "kubepods" in text:
        raise ValueError(PODS_REFUSAL)
    return text


Unit = Annotated[
    str,
    pydantic.AfterValidator(_unit),
    pydantic.WithJsonSchema(
        {
            "type": "string",
            "maxLength": UNIT_LENGTH,
            "x-kubernetes-validations": [
                {"rule": f"self.matches(r'{UNIT_PATTERN}')", "message": UNIT_REFUSAL},
                {"rule": "!self.contains('kubepods')", "message": PODS_REFUSAL},
            ],
        }
    ),
]
"""Name of a systemd slice or service."""
