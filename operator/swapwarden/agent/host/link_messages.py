"""The messages of `swapwarden nri`: decoded and bounded. Unknown kinds and fields, from a newer one, are ignored."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from swapwarden.api.runtime_link import FromPlugin

Sequence = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
LongText = Annotated[str, msgspec.Meta(max_length=1024)]
Identity = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
ContainerName = Annotated[str, msgspec.Meta(max_length=253)]
LimitText = Annotated[str, msgspec.Meta(max_length=64)]
"""A value of memory.swap.max, as the runtime has it: another plugin may have put any text there."""


_KIND: Final = "kind"
"""The field that distinguishes messages."""


class Counts(msgspec.Struct, frozen=True):
    """How often something happened since the plugin's start."""

    requests: Sequence = 0
    """Requests that the runtime made."""
    adjusted: Sequence = 0
    """Containers for which it set a value."""
    kept: Sequence = 0
    """Resizes at which it kept its value."""
    errors: Sequence = 0
    """Requests that it answered without a decision, by an error."""
    late: Sequence = 0
    """Pods whose start did not wait longer for the agent."""
    lost: Sequence = 0
    """Connections to the runtime that ended."""
    dropped: Sequence = 0
    """Connections that the runtime ended, and still listened: an answer was too late."""


class PluginHello(msgspec.Struct, frozen=True, tag_field=_KIND, tag=FromPlugin.HELLO.value):
    """The first message."""

    version: Annotated[str, msgspec.Meta(max_length=128)] = ""
    reported: Counts | None = None
    """Counts that an agent has had; None: the plugin does not know them, as an older one."""


class RuntimeReport(msgspec.Struct, frozen=True, rename="camel", tag_field=_KIND, tag=FromPlugin.RUNTIME.value):
    """How the plugin stands to the container runtime."""

    connected: bool
    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    version: Annotated[str, msgspec.Meta(max_length=128)] = ""
    error: LongText = ""
    """Why the plugin is not connected to the runtime."""


class ReportedContainer(msgspec.Struct, frozen=True):
    """A container as it stands in the runtime's specification; without a name, a pod's sandbox."""

    uid: Identity
    id: Identity
    name: ContainerName = ""
    value: LimitText | None = None
    """Value of memory.swap.max in the specification; None: it has none."""
    original: LimitText | None = None
    """The kubelet's value, if the plugin set another one when the container was made; empty: the kubelet had none."""


class ContainerList(msgspec.Struct, frozen=True, tag_field=_KIND, tag=FromPlugin.CONTAINERS.value):
    """A part of all containers that the runtime has."""

    items: list[ReportedContainer]
    more: bool = False
    """Whether another part follows."""


class SandboxStarted(msgspec.Struct, frozen=True, tag_field=_KIND, tag=FromPlugin.SANDBOX.value):
    """A pod's sandbox was started. The runtime makes no container of the pod before the answer."""

    seq: Sequence
    uid: Identity
    id: Identity
    cgroup: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """The pod's cgroup, as the runtime names it."""


class ContainerCreated(msgspec.Struct, frozen=True, tag_field=_KIND, tag=FromPlugin.CREATED.value):
    """A container was made."""

    uid: Identity
    id: Identity
    name: ContainerName
    value: LimitText | None = None
    """The plugin's value; None: it set none."""
    original: LimitText | None = None
    """The kubelet's value; None: it had none."""


class ContainerResized(msgspec.Struct, frozen=True, tag_field=_KIND, tag=FromPlugin.RESIZED.value):
    """A container's resources were changed."""

    id: Identity
    value: LimitText | None = None
    """Value of memory.swap.max in the specification from now on; None: it has none."""


class UpdateResult(msgspec.Struct, frozen=True, tag_field=_KIND, tag=FromPlugin.UPDATED.value):
    """The answer to an update."""

    seq: Sequence
    failed: dict[Identity, LongText] = {}
    """Reasons of failed updates by container id."""


class ContainerRemoved(msgspec.Struct, frozen=True, tag_field=_KIND, tag=FromPlugin.REMOVED.value):
    """A container is gone."""

    id: Identity


class PluginCounts(Counts, frozen=True, tag_field=_KIND, tag=FromPlugin.COUNTS.value):
    """The counts at this moment."""


PluginMessage = (
    PluginHello
    | RuntimeReport
    | ContainerList
    | SandboxStarted
    | ContainerCreated
    | ContainerResized
    | UpdateResult
    | ContainerRemoved
    | PluginCounts
)


class _AnyMessage(msgspec.Struct, frozen=True):
    kind: str


_KINDS: Final = frozenset(FromPlugin)
_any: Final = msgspec.json.Decoder(_AnyMessage)
_known: Final[msgspec.json.Decoder[PluginMessage]] = msgspec.json.Decoder(PluginMessage)


def decode(packet: bytes) -> PluginMessage | None:
    """Return the message in a packet; None if this version does not know its kind. ValueError if it is wrong."""
    try:
        return _known.decode(packet) if _any.decode(packet).kind in _KINDS else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
