"""NodeSwapProfile: the swap policy of a set of nodes, as people write it.

The pydantic models are the definition: the CRD, its validation and the API reference are generated from them. The same
models check files in `swapwarden plan`, so that a file which passes there is accepted by the API server.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import pydantic
from pydantic import alias_generators

from swapwarden.api import names

QUANTITY_PATTERN = r"([0-9]+[.]?[0-9]*|[.][0-9]+)([KMGTPE]i|[kMGTPEm]|[eE][+-]?[0-9]{1,2})?"
"""Kubernetes quantities without a sign (k/k: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go)."""

QUANTITY_REFUSAL = "must be a quantity without a sign, such as 512Mi, 2G or 1073741824"
QUANTITY_OR_PERCENT_PATTERN = QUANTITY_PATTERN + r"|(100|[0-9]{1,2})%"
QUANTITY_OR_PERCENT_REFUSAL = "must be a quantity without a sign, such as 512Mi or 2G, or percents from 0% to 100%"
QUANTITY_LENGTH = 32
LABEL_KEY_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
)
LABEL_KEY_REFUSAL = "a key must be that of a label: pool, or example.com/pool"
LABEL_VALUE_PATTERN = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"


def _quantity(pattern: str, refusal: str) -> tuple[pydantic.BeforeValidator, pydantic.WithJsonSchema]:
    """What makes a field a quantity, in the model and in the CRD. YAML reads `maxPerPod: 1024` as a number."""

    def checked(value: object) -> str:
        text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
        if len(text) > QUANTITY_LENGTH or not re.fullmatch(pattern, text):
            raise ValueError(refusal)
        return text

    # A rule instead of `pattern`, whose message would be the pattern.
    rule = f"type(self) == int ? self >= 0 : size(self) <= {QUANTITY_LENGTH} && self.matches('^({pattern})$')"
    return pydantic.BeforeValidator(checked), pydantic.WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": QUANTITY_LENGTH,
            "x-kubernetes-validations": [{"rule": rule, "message": refusal}],
        }
    )


Quantity = Annotated[str, *_quantity(QUANTITY_PATTERN, QUANTITY_REFUSAL)]
"""Bytes as a Kubernetes quantity: 512Mi, 2G, 1073741824."""

QuantityOrPercent = Annotated[str, *_quantity(QUANTITY_OR_PERCENT_PATTERN, QUANTITY_OR_PERCENT_REFUSAL)]
"""A quantity, or whole percents of the node's swap: 10%."""

LabelKey = Annotated[str, pydantic.Field(max_length=317, pattern=LABEL_KEY_PATTERN)]
LabelValue = Annotated[str, pydantic.Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]


BOUNDS_REFUSAL = (
    "workloadControlled has no effect unless behavior is WorkloadControlled: set the behavior or remove the bounds"
)


class Model(pydantic.BaseModel):
    """What all parts of a profile share: camelCase in YAML, unknown fields refused, immutable once read."""

    model_config = pydantic.ConfigDict(
        alias_generator=alias_generators.to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
    )


class LabelSelectorRequirement(Model):
    """One expression of a label selector."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
                    " : !has(self.values) || size(self.values) == 0",
                    "message": "In and NotIn need values; Exists and DoesNotExist take none",
                }
            ]
        }
    )

    key: LabelKey = pydantic.Field(description="Label key that the expression is about.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = pydantic.Field(
        description="How the label is compared with values."
    )
    values: Annotated[list[LabelValue], pydantic.Field(max_length=64)] = pydantic.Field(
        default=[], description="Values for In and NotIn; empty with Exists and DoesNotExist."
    )

    @pydantic.model_validator(mode="after")
    def _values_fit_operator(self) -> LabelSelectorRequirement:
        if (self.operator in {"In", "NotIn"}) != bool(self.values):
            raise ValueError(
                f"In and NotIn need values; Exists and DoesNotExist take none (key {self.key!r}: {self.operator})"
            )
        return self


class LabelSelector(Model):
    """A selector over node labels, as metav1.LabelSelector: all parts must match; an empty one matches every node."""

    match_labels: Annotated[dict[str, LabelValue], pydantic.Field(max_length=64)] = pydantic.Field(
        default={},
        description="Labels that a node must carry with exactly these values.",
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": f"self.all(key, size(key) <= 317 && key.matches(r'{LABEL_KEY_PATTERN}'))",
                    "message": LABEL_KEY_REFUSAL,
                }
            ]
        },
    )
    match_expressions: Annotated[list[LabelSelectorRequirement], pydantic.Field(max_length=32)] = pydantic.Field(
        default=[], description="Expressions over labels, all of which must hold."
    )

    @pydantic.field_validator("match_labels")
    @classmethod
    def _keys_are_those_of_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for key in labels:
            if len(key) > 317 or not re.fullmatch(LABEL_KEY_PATTERN, key):
                raise ValueError(f"{LABEL_KEY_REFUSAL} (got {key[:317]!r})")
        return labels


class WorkloadControlled(Model):
    """Bounds on what pods may ask for under behavior WorkloadControlled."""

    max_per_container: Quantity | None = pydantic.Field(
        default=None, description="Largest swap limit of one container. Absent: the node's swap."
    )
    max_per_pod: Quantity | None = pydantic.Field(
        default=None, description="Largest swap limit of one pod. Absent: the node's swap."
    )
    overcommit_percent: Annotated[int, pydantic.Field(ge=1, le=10_000)] | None = pydantic.Field(
        default=None,
        description=(
            "What the limits of a node's pods may add up to, in percent of its swap less systemReserved (150). Pods"
            " that come when it is reached get what is left. Absent: no bound on the sum."
        ),
    )


class Swap(Model):
    """How pods on these nodes get swap."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "!has(self.workloadControlled) || self.behavior == 'WorkloadControlled'",
                    "message": BOUNDS_REFUSAL,
                    "fieldPath": ".workloadControlled",
                }
            ]
        }
    )

    behavior: Annotated[names.Behavior, pydantic.Field()] = pydantic.Field(
        default=names.Behavior.KUBELET,
        description=(
            "Kubelet: what the kubelet gives stays in force. NoSwap: no pod swaps. LimitedSwap: Burstable pods get swap"
            " in proportion to their memory requests (KEP-2400). WorkloadControlled: pods get what their annotations"
            " ask for."
        ),
    )
    system_reserved: QuantityOrPercent | None = pydantic.Field(
        default=None,
        description="Swap kept back from pods: a quantity, or percent of the node's swap (50Mi, 10%).",
    )
    workload_controlled: WorkloadControlled | None = pydantic.Field(
        default=None, description="Bounds for behavior WorkloadControlled; refused with another behavior."
    )

    @pydantic.model_validator(mode="after")
    def _bounds_fit_behavior(self) -> Swap:
        if self.workload_controlled and self.behavior != names.Behavior.WORKLOAD_CONTROLLED:
            raise ValueError(BOUNDS_REFUSAL)
        return self


class ProfileSpec(Model):
    """What an administrator decides for a set of nodes."""

    node_selector: LabelSelector = pydantic.Field(description="Which nodes the profile governs. {} selects every node.")
    priority: Annotated[int, pydantic.Field(ge=-1_000_000, le=1_000_000)] = pydantic.Field(
        default=100, description="Where several profiles select a node, the highest wins; at a tie the oldest does."
    )
    mode: Literal["Enforce", "Audit"] = pydantic.Field(
        default="Enforce", description="Enforce: write and repair. Audit: compute and report, write nothing."
    )
    on_unknown_pod: Literal["Deny", "Allow"] = pydantic.Field(
        default="Deny",
        description=(
            "What a pod cgroup gets that appears before the controller has planned it. Deny: no swap. Allow: it is left"
            " as the kubelet made it, so that a pod with policy Disabled may swap for a moment."
        ),
    )
    swap: Swap = pydantic.Field(default=Swap(), description="How pods on these nodes get swap.")


class Condition(Model):
    """A condition in the form of metav1.Condition."""

    type: str = pydantic.Field(max_length=316, description="Ready, Conflicted or Degraded.")
    status: Literal["True", "False", "Unknown"] = pydantic.Field(description="True, False or Unknown.")
    reason: str = pydantic.Field(max_length=1024, description="One word for programs.")
    message: str = pydantic.Field(default="", max_length=32768, description="A sentence for people.")
    last_transition_time: str = pydantic.Field(
        description="When status last changed.", json_schema_extra={"format": "date-time"}
    )
    observed_generation: int = pydantic.Field(default=0, ge=0, description="Generation of the spec this is about.")


class NodeCounts(Model):
    """How many nodes are in which state under this profile."""

    matched: int = pydantic.Field(default=0, ge=0, description="Nodes that this profile governs.")
    applied: int = pydantic.Field(default=0, ge=0, description="Of these, nodes whose agent applied the newest plan.")
    degraded: int = pydantic.Field(default=0, ge=0, description="Of these, nodes whose agent reports a problem.")


class ProfileStatus(Model):
    """What the controller reports about a profile."""

    observed_generation: int = pydantic.Field(
        default=0, ge=0, description="Generation of the spec this status is about."
    )
    nodes: NodeCounts = pydantic.Field(default=NodeCounts(), description="Counts of nodes.")
    conditions: Annotated[list[Condition], pydantic.Field(max_length=16)] = pydantic.Field(
        default=[],
        description="Ready, Conflicted, Degraded.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    )


class ObjectMeta(pydantic.BaseModel):
    """metav1.ObjectMeta, as far as it is used; the rest of it is passed over."""

    model_config = pydantic.ConfigDict(alias_generator=alias_generators.to_camel, validate_by_name=True, frozen=True)

    name: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class NodeSwapProfile(pydantic.BaseModel):
    """The swap policy of a set of nodes."""

    model_config = pydantic.ConfigDict(
        alias_generator=alias_generators.to_camel, validate_by_name=True, frozen=True, extra="forbid"
    )

    api_version: Literal["swapwarden.dev/v1alpha1"] = "swapwarden.dev/v1alpha1"
    kind: Literal["NodeSwapProfile"] = "NodeSwapProfile"
    metadata: ObjectMeta = ObjectMeta()
    spec: ProfileSpec = pydantic.Field(description="What the administrator decides.")
    status: ProfileStatus = pydantic.Field(default=ProfileStatus(), description="What the controller reports.")
