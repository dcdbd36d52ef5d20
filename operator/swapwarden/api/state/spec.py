"""NodeSwapState.spec: the plan of one node."""

from __future__ import annotations

from typing import Annotated

import msgspec

from swapwarden.api import names

SwapMax = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(max|0|[1-9][0-9]{0,18})$",
        description="As the kernel file memory.swap.max takes it: max, 0, or bytes floored to the page.",
    ),
]
"""A value of memory.swap.max, as text."""


Setting = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z-]{1,32}$")]
"""A value of one of the kernel's settings, as its file takes it."""

POD_KEY = r"[0-9a-fA-F][0-9a-fA-F-]{6,126}[0-9a-fA-F]"
"""A UID as the names of pods' cgroups have it: agents find no other form."""

MAX_SETTINGS = 16
MAX_UNITS = 32
MAX_PODS = 2048
MAX_CONTAINERS = 128
ID_LENGTH = 13
"""Characters of a container's id that a state has: as many as crictl shows."""
MAX_PODS_BYTES = 768 * 1024
"""Bytes of JSON that pods may take, with their part of a preview. The whole object, with what a profile and an agent
add at most, must stay well below what etcd takes (1.5 MiB) and what an API server sends it (2 MiB)."""
MAX_REASON = 64
"""Characters of a condition's reason that are compared with what it is later."""


class CgroupSettings(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one cgroup by name. The agent does not write the files of absent ones."""

    swap_max: Annotated[SwapMax | None, msgspec.Meta(description="Value of memory.swap.max. Absent: not written.")] = (
        None
    )


class ContainerDefault(CgroupSettings, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of a container's cgroup."""

    swap_at_most: Annotated[
        SwapMax | None,
        msgspec.Meta(
            description="As swapMax, but a smaller value that the file holds is left alone. Never beside swapMax."
        ),
    ] = None


class ContainerSettings(ContainerDefault, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one named container's cgroup."""

    id: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_.-]{1,13}$")] | None,
        msgspec.Meta(
            description="First 13 characters of the running container's id, as crictl shows it, without the runtime's"
            " prefix. Absent while it does not run."
        ),
    ] = None


class PodSettings(CgroupSettings, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one pod's cgroups."""

    reason: Annotated[
        names.Reason | None,
        msgspec.Meta(description="The rule that gave swapMax; see docs/semantics.md. Absent: defaultReason."),
    ] = None
    container_default: Annotated[
        ContainerDefault | None,
        msgspec.Meta(
            description="For each container that containers does not name, also before it starts: no write is needed"
            " when it does."
        ),
    ] = None
    containers: Annotated[
        dict[str, ContainerSettings],
        msgspec.Meta(
            max_length=MAX_CONTAINERS,
            description="By container name; only where containers need different values.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {"rule": "self.all(key, key.size() <= 63)", "message": "keys are names of containers"}
                ]
            },
        ),
    ] = {}


class ProfileRef(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The profile that a plan was made from."""

    name: Annotated[
        str,
        msgspec.Meta(max_length=253, description="Name of the NodeSwapProfile; (built-in) if none selects it."),
    ]
    generation: Annotated[int, msgspec.Meta(ge=0, description="metadata.generation of that profile.")] = 0


class UnitSettings(CgroupSettings, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one of the node's own units. Absent ones are not written, or restored."""

    io_latency_microseconds: Annotated[
        Annotated[int, msgspec.Meta(ge=1000, le=10_000_000)] | None,
        msgspec.Meta(description="Target in io.latency, for each disk that the node swaps to."),
    ] = None
    io_weight: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None,
        msgspec.Meta(description="io.weight, for each disk that the node swaps to."),
    ] = None


class ProfilePreview(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The limits of a profile once it is in force on this node. None of them is enforced."""

    profile_ref: Annotated[ProfileRef, msgspec.Meta(description="The next profile.")]
    pods: Annotated[
        dict[str, SwapMax],
        msgspec.Meta(max_length=MAX_PODS, description="Pods that will get less than now, by UID as in pods."),
    ] = {}


class StateSpec(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Written by the leading controller only."""

    profile_ref: Annotated[ProfileRef, msgspec.Meta(description="The profile in force.")]
    mode: Annotated[
        names.Mode,
        msgspec.Meta(description="Enforce: write and repair. Audit: report only. Restore: write back earlier values."),
    ] = names.Mode.ENFORCE
    guarantee: Annotated[
        names.Guarantee,
        msgspec.Meta(
            description="Strict: the agent installs systemd's drop-in files if it may, and reports those that it"
            " observes. Standard: it removes those that it installed."
        ),
    ] = names.Guarantee.STANDARD
    before_plan: Annotated[
        names.BeforePlan,
        msgspec.Meta(
            description="For pods without an entry in pods yet. NoSwap: their cgroups get 0. Unmanaged: no write."
        ),
    ] = names.BeforePlan.NO_SWAP
    epoch: Annotated[
        int,
        msgspec.Meta(ge=0, description="The writer's leadership term. A write with a smaller one is refused."),
    ] = 0
    default_reason: Annotated[
        names.Reason | None,
        msgspec.Meta(description="The reason of pods without their own. It does not change any limit."),
    ] = None
    kubepods: Annotated[
        CgroupSettings | None,
        msgspec.Meta(
            description="For the cgroup above all pods: the node's swap less the profile's swap.reserved. Absent: not"
            " written, or restored."
        ),
    ] = None
    pods: Annotated[
        dict[str, PodSettings],
        msgspec.Meta(
            max_length=MAX_PODS,
            description="By the UID in the name of the pod's cgroup (for static pods the kubelet's config hash). A map,"
            " so that a write for one pod is small.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {
                        "rule": f"self.all(key, key.size() <= 128 && key.matches('^{POD_KEY}$'))",
                        "message": "keys are UIDs: 8 to 128 hexadecimal digits and dashes",
                    }
                ]
            },
        ),
    ] = {}
    units: Annotated[
        dict[str, UnitSettings],
        msgspec.Meta(
            max_length=MAX_UNITS,
            description="The node's own systemd slices and services, by name. A removed one is restored.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {"rule": "self.all(key, key.size() <= 128)", "message": "keys are names of slices and services"}
                ]
            },
        ),
    ] = {}
    kernel_settings: Annotated[
        dict[str, Setting],
        msgspec.Meta(
            max_length=MAX_SETTINGS,
            description="Settings of the kernel by name (vm.swappiness, zswap.enabled), as their files take them.",
        ),
    ] = {}
    preview: Annotated[
        ProfilePreview | None,
        msgspec.Meta(description="The next profile; see status.previewCost."),
    ] = None
    degraded_before: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=MAX_REASON)]],
        msgspec.Meta(
            max_length=3,
            description="Problems of the node before it got this generation of the profile: the reason of the condition"
            " Degraded, SettingsRefused, and NoAnswer if the agent did not answer. They stop no rollout.",
        ),
    ] = []


def reason_of(spec: StateSpec, pod: PodSettings) -> names.Reason | None:
    """Return the rule that gave a pod of `spec` its swapMax; None where a controller of another version left it out."""
    return pod.reason or spec.default_reason
