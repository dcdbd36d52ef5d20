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

QUANTITY_PATTERN = r"(\d+[.]?\d*|[.]\d+)([KMGTPE]i|[kMGTPEm]|[eE][+-]?\d{1,2})?"
"""Kubernetes quantities without a sign (k/k: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go).

Short, because the API server's estimate of a rule grows with its text. For Python: re.ASCII."""

QUANTITY_REFUSAL = "must be a quantity without a sign, such as 512Mi, 2G or 1073741824"
QUANTITY_OR_PERCENT_PATTERN = QUANTITY_PATTERN + r"|(100|\d\d?)%"
QUANTITY_OR_PERCENT_REFUSAL = "must be a quantity without a sign, such as 512Mi or 2G, or percents from 0% to 100%"
QUANTITY_LENGTH = 32
LABEL_KEY_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
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
    """What makes a field a quantity, in the model and in the CRD. YAML reads `maxPerPod: 1024` as a number.

    `least` is the smallest such number; the pattern says the same of text. `listed`: one of many.
    """

    def checked(value: object) -> str:
        text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
        if len(text) > QUANTITY_LENGTH or not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(refusal)
        return text

    schema: dict[str, object] = {"x-kubernetes-int-or-string": True, "maxLength": QUANTITY_LENGTH}
    if listed:
        # Before Kubernetes 1.34 the estimate of a rule takes text that may be a number, too, for as long as a request
        # can be: in a list that is more than an API server allows.
        schema |= {"pattern": f"^({pattern})$", "minimum": least}
    else:
        # A rule instead of `pattern`, whose message would be the pattern.
        rule = (
            f"type(self) == int ? self >= {least} : size(self) <= {QUANTITY_LENGTH} && self.matches(r'^({pattern})$')"
        )
        schema["x-kubernetes-validations"] = [{"rule": rule, "message": refusal}]
    return pydantic.BeforeValidator(checked), pydantic.WithJsonSchema(schema)


Quantity = Annotated[str, *_quantity(QUANTITY_PATTERN, QUANTITY_REFUSAL)]
"""Bytes as a Kubernetes quantity: 512Mi, 2G, 1073741824."""

ListedQuantity = Annotated[str, *_quantity(QUANTITY_PATTERN, QUANTITY_REFUSAL, listed=True)]
"""The same, as one of many."""

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


def _label(pattern: str, length: int, refusal: str) -> tuple[pydantic.AfterValidator, pydantic.WithJsonSchema]:
    """What makes a string a part of a label, in the model and in the CRD."""

    def checked(text: str) -> str:
        if len(text) > length or not re.fullmatch(pattern, text):
            raise ValueError(refusal)
        return text

    # A rule instead of `pattern`, as above.
    rules = [{"rule": f"self.matches(r'{pattern}')", "message": refusal}]
    return pydantic.AfterValidator(checked), pydantic.WithJsonSchema(
        {"type": "string", "maxLength": length, "x-kubernetes-validations": rules}
    )


LabelKey = Annotated[str, *_label(LABEL_KEY_PATTERN, 317, LABEL_KEY_REFUSAL)]
LabelValue = Annotated[str, *_label(LABEL_VALUE_PATTERN, 63, LABEL_VALUE_REFUSAL)]
ListedLabelValue = Annotated[str, pydantic.Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]
"""One of many: for lists in lists, where a rule would cost the API server more than it allows."""


BOUNDS_REFUSAL = (
    "workloadControlled has no effect unless behavior is WorkloadControlled: set the behavior or remove the bounds"
)

EXTENDED_RESOURCE_REFUSAL = (
    "extendedResource needs swap.behavior WorkloadControlled: with another one the scheduler would count limits that"
    " give no swap"
)


MAX_REVISIONS = 5
MAX_REVISION_LENGTH = 1_500_000
"""Characters: as many as any profile can need. What bounds them together is the size of the whole object."""


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
    values: Annotated[list[ListedLabelValue], pydantic.Field(max_length=64)] = pydantic.Field(
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
    """A label selector, as metav1.LabelSelector: all parts must match; an empty one matches everything."""

    match_labels: Annotated[dict[str, LabelValue], pydantic.Field(max_length=64)] = pydantic.Field(
        default={},
        description="Labels that must be there, with exactly these values.",
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


REQUIRE_REFUSAL = (
    "require asks for nothing: set encrypted, tmpfsNoswap or dedicatedDevice to true, or list backing; or remove it"
)
MAX_BACKINGS = 7
RequiredBacking = Literal["nvme", "ssd", "hdd", "virtual", "network", "zram", "file"]
"""Those of names.Backing that somebody may want: not what the agent cannot tell."""


class Require(Model):
    """What a node must have before its pods get swap. What is not known counts as not there."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "self.?encrypted.orValue(false) || self.?tmpfsNoswap.orValue(false)"
                    " || self.?dedicatedDevice.orValue(false) || has(self.backing)",
                    "message": REQUIRE_REFUSAL,
                }
            ]
        }
    )

    encrypted: bool = pydantic.Field(
        default=False,
        description="All swap devices encrypt what is written to them (dm-crypt), or are memory (zram).",
    )
    tmpfs_noswap: bool = pydantic.Field(
        default=False,
        description=(
            "The kubelet keeps its tmpfs volumes, Secrets among them, out of swap: Linux 6.4 or newer, or seen in the"
            " agent's mounts."
        ),
    )
    backing: Annotated[list[RequiredBacking], pydantic.Field(min_length=1, max_length=MAX_BACKINGS)] | None = (
        pydantic.Field(default=None, description="All swap devices are of one of these kinds; see docs/labels.md.")
    )
    dedicated_device: bool = pydantic.Field(
        default=False,
        description="No disk under a swap device holds the file systems of the kubelet or of the agent's state, too.",
    )

    @pydantic.model_validator(mode="after")
    def _asks_for_something(self) -> Require:
        if not (self.encrypted or self.tmpfs_noswap or self.dedicated_device or self.backing):
            raise ValueError(REQUIRE_REFUSAL)
        return self


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
    require: Require | None = pydantic.Field(
        default=None,
        description=(
            "What a node must have before its pods get swap. Where something is missing, or not known, they get none;"
            " the condition RequirementsMet says what. Absent: nothing."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _bounds_fit_behavior(self) -> Swap:
        if self.workload_controlled and self.behavior != names.Behavior.WORKLOAD_CONTROLLED:
            raise ValueError(BOUNDS_REFUSAL)
        return self


class Scheduling(Model):
    """What the scheduler is told of these nodes, beyond their labels."""

    taint_effect: Annotated[names.TaintEffect, pydantic.Field()] | None = pydantic.Field(
        default=None,
        description=(
            "Nodes whose pods get swap carry the taint node.swapwarden.dev/swap=true with this effect, once they have"
            " applied the profile. Pods with the policy Required or Preferred tolerate it. Absent: no taint."
        ),
    )
    extended_resource: bool = pydantic.Field(
        default=False,
        description=(
            "Nodes offer the extended resource swapwarden.dev/swap, in bytes, once they have applied the profile: what"
            " the limits of their pods may add up to. The scheduler counts what containers ask of it, which is their"
            " swap limit. Only with behavior WorkloadControlled, and a controller that may write the status of nodes"
            " (extendedResource in the chart)."
        ),
    )


class Rollout(Model):
    """How a change of the profile reaches its nodes."""

    max_unavailable: NodesOrPercent = pydantic.Field(
        default="25%",
        description=(
            "How many of the profile's nodes may be under way to a new generation at once: a number, or percents, which"
            " are rounded down but never to 0. While a node that has it does worse than before, no other gets it."
            " 100%: all at once, whatever becomes of them."
        ),
    )
    on_swap_in_use: Literal["Proceed", "Hold"] = pydantic.Field(
        default="Proceed",
        description=(
            "What becomes of a node where the change would take swap from pods that use it now; status.swapInUse says"
            " how much. Proceed: it gets the change in its turn. Hold: it keeps what it has until they use less."
        ),
    )


class Zswap(Model):
    """The compressed cache in front of swap, of kernels that are built with it (CONFIG_ZSWAP)."""

    enabled: bool | None = pydantic.Field(default=None, description="Whether it is on. Absent: as it is.")
    compressor: Literal["lzo", "lzo-rle", "lz4", "lz4hc", "zstd", "deflate", "842"] | None = pydantic.Field(
        default=None,
        description="Name of the kernel's compression algorithm, which must be built in or loaded. Absent: as it is.",
    )
    max_pool_percent: Annotated[int, pydantic.Field(ge=1, le=50)] | None = pydantic.Field(
        default=None, description="How much of the node's memory it may take, in percent. Absent: as it is."
    )


class Kernel(Model):
    """Settings of the node's kernel. What is absent stays as it is, or becomes again what it was."""

    swappiness: Annotated[int, pydantic.Field(ge=0, le=200)] | None = pydantic.Field(
        default=None,
        description=(
            "vm.swappiness: how readily the kernel swaps rather than drops file pages. More than 100 only where swap is"
            " faster than the disk (zram, zswap)."
        ),
    )
    min_free_kbytes: Annotated[int, pydantic.Field(ge=1024, le=16_777_216)] | None = pydantic.Field(
        default=None,
        description=(
            "vm.min_free_kbytes: memory in KiB that the kernel keeps free. A node that this is more than 5 % of the"
            " memory of does not get it, and says so."
        ),
    )
    watermark_scale_factor: Annotated[int, pydantic.Field(ge=1, le=1000)] | None = pydantic.Field(
        default=None,
        description=(
            "vm.watermark_scale_factor, in 1/10000 of memory: how far apart the marks are at which the kernel begins"
            " to reclaim, and ends. 100 is 1 %."
        ),
    )
    page_cluster: Annotated[int, pydantic.Field(ge=0, le=8)] | None = pydantic.Field(
        default=None,
        description="vm.page-cluster: 2 to this power pages are read from swap at once. 0 for SSD, zram and zswap.",
    )
    zswap: Zswap | None = pydantic.Field(
        default=None, description="The compressed cache in front of swap. Absent: as it is."
    )


MAX_UNITS = 16
UNIT_LENGTH = 128
SLICE_PATTERN = r"^[A-Za-z0-9_:.\\]+(-[A-Za-z0-9_:.\\]+)*[.]slice$"
SLICE_REFUSAL = "must be the name of a systemd slice, such as system.slice: without a path, and not -.slice"
SERVICE_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_:.@\\-]*[.]service$"
SERVICE_REFUSAL = "must be the name of a systemd service, such as kubelet.service, without a path"
PODS_REFUSAL = "must not be a slice of pods: swap.behavior says what these get"
SYSTEM_LACKS_REFUSAL = (
    "disableSwap, ioLatencyTarget and ioWeight need slices or services: name those that are meant (slices:"
    " [system.slice])"
)
SYSTEM_IDLE_REFUSAL = (
    "slices and services have no effect without disableSwap: true, ioLatencyTarget or ioWeight: say what is to be so of"
    " them, or remove them"
)
LATENCY_PATTERN = r"([1-9][0-9]{0,3}|10000)ms|([1-9]|10)s"
LATENCY_REFUSAL = "must be whole milliseconds or seconds, from 1ms to 10s (25ms)"


def _unit(pattern: str, refusal: str) -> tuple[pydantic.AfterValidator, pydantic.WithJsonSchema]:
    """What makes a string the name of a unit, in the model and in the CRD."""

    def checked(text: str) -> str:
        if len(text) > UNIT_LENGTH or not re.fullmatch(pattern, text):
            raise ValueError(refusal)
        if "kubepods" in text:
            raise ValueError(PODS_REFUSAL)
        return text

    rules = [
        {"rule": f"self.matches(r'{pattern}')", "message": refusal},
        {"rule": "!self.contains('kubepods')", "message": PODS_REFUSAL},
    ]
    return pydantic.AfterValidator(checked), pydantic.WithJsonSchema(
        {"type": "string", "maxLength": UNIT_LENGTH, "x-kubernetes-validations": rules}
    )


def _latency(text: str) -> str:
    if not re.fullmatch(LATENCY_PATTERN, text):
        raise ValueError(LATENCY_REFUSAL)
    return text


Latency = Annotated[
    str,
    pydantic.AfterValidator(_latency),
    pydantic.WithJsonSchema(
        {
            "type": "string",
            "maxLength": 7,
            # A rule instead of `pattern`, as above.
            "x-kubernetes-validations": [
                {"rule": f"self.matches('^({LATENCY_PATTERN})$')", "message": LATENCY_REFUSAL}
            ],
        }
    ),
]
"""A time that an I/O may take: 25ms."""
Slice = Annotated[str, *_unit(SLICE_PATTERN, SLICE_REFUSAL)]
Service = Annotated[str, *_unit(SERVICE_PATTERN, SERVICE_REFUSAL)]


_ASKS = "self.?disableSwap.orValue(false) || has(self.ioLatencyTarget) || has(self.ioWeight)"


class System(Model):
    """What of the node, besides pods, may swap, and how its I/O fares on the disk that is swapped to."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": f"!({_ASKS}) || size(self.?slices.orValue([])) + size(self.?services.orValue([])) > 0",
                    "message": SYSTEM_LACKS_REFUSAL,
                },
                {
                    "rule": f"{_ASKS} || size(self.?slices.orValue([])) + size(self.?services.orValue([])) == 0",
                    "message": SYSTEM_IDLE_REFUSAL,
                },
            ]
        }
    )

    disable_swap: bool = pydantic.Field(
        default=False, description="No swap (memory.swap.max 0) for the slices and services that are named."
    )
    io_latency_target: Latency | None = pydantic.Field(
        default=None,
        description=(
            "What an I/O of the slices and services that are named should take at most on the disks that the node swaps"
            " to, from 1ms to 10s: where it takes longer, the kernel holds back the I/O of others beside them"
            " (io.latency). Absent: as it is."
        ),
    )
    io_weight: Annotated[int, pydantic.Field(ge=1, le=10_000)] | None = pydantic.Field(
        default=None,
        description=(
            "Their share of these disks' time, to the 100 that others beside them have (io.weight); only where the"
            " node's administrator has turned on iocost for the disk. Absent: as it is."
        ),
    )
    slices: Annotated[list[Slice], pydantic.Field(max_length=MAX_UNITS)] = pydantic.Field(
        default=[],
        description=(
            "systemd slices by name (system.slice), with all that is in them. One that pods are in is refused on the"
            " node."
        ),
    )
    services: Annotated[list[Service], pydantic.Field(max_length=MAX_UNITS)] = pydantic.Field(
        default=[],
        description=(
            "systemd services by name (kubelet.service, containerd.service), of system.slice or another slice. None of"
            " them is needed if its slice is named."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _says_what(self) -> System:
        asks = self.disable_swap or self.io_latency_target is not None or self.io_weight is not None
        if asks != bool(self.slices or self.services):
            raise ValueError(SYSTEM_LACKS_REFUSAL if asks else SYSTEM_IDLE_REFUSAL)
        return self


MAX_OVERRIDES = 32
OVERRIDE_SELECTS_REFUSAL = "an override needs a namespaceSelector or a podSelector; podSelector: {} selects all pods"
OVERRIDE_SAYS_REFUSAL = "an override needs a policy or a swapLimit: without both it changes nothing"
OVERRIDE_CONTRADICTION = "policy Disabled leaves no swap to limit: remove the swapLimit, or the policy"
ZEROS = tuple(f"0{suffix}" for suffix in ("", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"))
"""Limits that say no more than the policy does. A list, because comparing costs an API server less than a pattern."""


class Override(Model):
    """A policy or a limit for pods whose owners cannot annotate them."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "has(self.namespaceSelector) || has(self.podSelector)",
                    "message": OVERRIDE_SELECTS_REFUSAL,
                },
                {"rule": "has(self.policy) || has(self.swapLimit)", "message": OVERRIDE_SAYS_REFUSAL},
                {
                    "rule": "!has(self.policy) || self.policy != 'Disabled' || !has(self.swapLimit) ||"
                    f" (type(self.swapLimit) == int ? self.swapLimit == 0 : self.swapLimit in {list(ZEROS)})",
                    "message": OVERRIDE_CONTRADICTION,
                },
            ]
        }
    )

    namespace_selector: LabelSelector | None = pydantic.Field(
        default=None, description="Over the labels of a pod's Namespace. Absent: pods of all namespaces."
    )
    pod_selector: LabelSelector | None = pydantic.Field(
        default=None, description="Over the labels of a pod. Absent: all pods of the namespaces."
    )
    policy: Literal["Disabled", "NoPreference"] | None = pydantic.Field(
        default=None,
        description=(
            "Disabled: no swap, whatever the pod says. NoPreference: what this profile gives, where only the"
            " namespace's default says Disabled. Other policies place pods, and so must be there when one is created."
        ),
    )
    swap_limit: ListedQuantity | None = pydantic.Field(
        default=None,
        description="The pod's swap limit, unless its own annotations name a smaller one.",
    )

    @pydantic.model_validator(mode="after")
    def _says_something(self) -> Override:
        if self.namespace_selector is None and self.pod_selector is None:
            raise ValueError(OVERRIDE_SELECTS_REFUSAL)
        if self.policy is None and self.swap_limit is None:
            raise ValueError(OVERRIDE_SAYS_REFUSAL)
        if self.policy == "Disabled" and self.swap_limit and self.swap_limit not in ZEROS:
            raise ValueError(OVERRIDE_CONTRADICTION)
        return self


class ProfileSpec(Model):
    """What an administrator decides for a set of nodes."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "!self.?scheduling.extendedResource.orValue(false)"
                    " || self.swap.behavior == 'WorkloadControlled'",
                    "message": EXTENDED_RESOURCE_REFUSAL,
                    "fieldPath": ".scheduling.extendedResource",
                }
            ]
        }
    )

    node_selector: LabelSelector = pydantic.Field(description="Which nodes the profile governs. {} selects every node.")
    priority: Annotated[int, pydantic.Field(ge=-1_000_000, le=1_000_000)] = pydantic.Field(
        default=100, description="Where several profiles select a node, the highest wins; at a tie the oldest does."
    )
    mode: Literal["Enforce", "Audit"] = pydantic.Field(
        default="Enforce", description="Enforce: write and repair. Audit: compute and report, write nothing."
    )
    guarantee: Literal["Standard", "Strict"] = pydantic.Field(
        default="Standard",
        description=(
            "Standard: the agent watches pods' limits, and repairs what systemd and others write. Strict: besides,"
            " systemd itself makes Burstable and BestEffort pods without swap, agent or not, by drop-in files that the"
            " node needs; with the agent down a pod that swaps can be OOM-killed (docs/strict.md)."
        ),
    )
    on_unknown_pod: Literal["Deny", "Allow"] = pydantic.Field(
        default="Deny",
        description=(
            "What a pod cgroup gets that appears before the controller has planned it. Deny: no swap. Allow: it is left"
            " as the kubelet made it, so that a pod with policy Disabled may swap for a moment."
        ),
    )
    swap: Swap = pydantic.Field(default=Swap(), description="How pods on these nodes get swap.")
    system: System = pydantic.Field(
        default=System(), description="What of these nodes, besides pods, may swap. Absent: as it is."
    )
    kernel: Kernel = pydantic.Field(
        default=Kernel(),
        description=(
            "Settings of the nodes' kernels. Agents write them where the chart lets them (agent.kernel.vm,"
            " agent.kernel.zswap)."
        ),
    )
    scheduling: Scheduling = pydantic.Field(default=Scheduling(), description="How these nodes show in scheduling.")
    rollout: Rollout = pydantic.Field(default=Rollout(), description="How a change reaches these nodes.")
    overrides: Annotated[list[Override], pydantic.Field(max_length=MAX_OVERRIDES)] = pydantic.Field(
        default=[],
        description=(
            "For pods on these nodes that nobody can annotate. The first that selects a pod counts. A pod's own"
            " annotations win where they are stricter."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _resource_fits_behavior(self) -> ProfileSpec:
        if self.scheduling.extended_resource and self.swap.behavior != names.Behavior.WORKLOAD_CONTROLLED:
            raise ValueError(EXTENDED_RESOURCE_REFUSAL)
        return self


class Condition(Model):
    """A condition in the form of metav1.Condition."""

    type: str = pydantic.Field(
        max_length=316, description="Ready, Progressing, Conflicted, Degraded or RequirementsMet."
    )
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
    updated: int = pydantic.Field(default=0, ge=0, description="Of these, nodes whose plan is by this generation.")
    applied: int = pydantic.Field(default=0, ge=0, description="Of these, nodes whose agent applied the newest plan.")
    pending: int = pydantic.Field(default=0, ge=0, description="Of these, nodes whose agent has yet to apply it.")
    incompatible: int = pydantic.Field(
        default=0, ge=0, description="Of these, nodes without cgroup v2 or its swap controller: nothing is enforced."
    )
    without_agent: int = pydantic.Field(
        default=0, ge=0, description="Of these, nodes without a Ready agent, whatever an earlier one reported."
    )
    degraded: int = pydantic.Field(
        default=0, ge=0, description="Of all of these, nodes whose agent reports a problem; they count elsewhere, too."
    )
    requirements_unmet: int = pydantic.Field(
        default=0,
        ge=0,
        description="Of all of these, nodes with swap that lack what swap.require asks for; they count elsewhere, too.",
    )


class SwapInUse(Model):
    """Swap that pods use above what the newest generation gives them, on nodes that do not have it yet."""

    nodes: int = pydantic.Field(default=0, ge=0, description="Nodes with such pods.")
    pods: int = pydantic.Field(default=0, ge=0, description="Pods.")
    bytes: int = pydantic.Field(default=0, ge=0, description="Bytes.")


class Revision(Model):
    """What the profile said in a generation that nodes still follow, or may have to go on with."""

    generation: int = pydantic.Field(ge=0, description="metadata.generation.")
    spec: str = pydantic.Field(
        max_length=MAX_REVISION_LENGTH,
        description=(
            "The spec as JSON; one of more than 16 KiB is compressed (zlib, base64). Empty where the profile leaves no"
            " room for it: see the condition Degraded."
        ),
    )


class ProfileStatus(Model):
    """What the controller reports about a profile."""

    observed_generation: int = pydantic.Field(
        default=0, ge=0, description="Generation of the spec this status is about."
    )
    applied_generation: int = pydantic.Field(
        default=0, ge=0, description="Newest generation of the spec that all nodes had applied at some moment."
    )
    swap_in_use: SwapInUse = pydantic.Field(
        default=SwapInUse(), description="What the newest generation is yet to take from pods that use it now."
    )
    revisions: Annotated[list[Revision], pydantic.Field(max_length=MAX_REVISIONS)] = pydantic.Field(
        default=[],
        description=(
            "The generation in force, those in use on nodes, so that nodes whose turn has not come go on with theirs,"
            " and the one before, for a controller that does not understand the newest."
        ),
    )
    nodes: NodeCounts = pydantic.Field(
        default=NodeCounts(),
        description="Counts of nodes: each is applied, pending, incompatible or without an agent.",
    )
    conditions: Annotated[list[Condition], pydantic.Field(max_length=16)] = pydantic.Field(
        default=[],
        description="Ready, Progressing, Conflicted, Degraded; RequirementsMet where swap.require is set.",
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
