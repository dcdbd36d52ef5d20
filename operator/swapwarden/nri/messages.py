"""Requests and responses of the container runtime's protocol, NRI, and the few fields of them that are needed.

The fields have the numbers of containerd/nri: pkg/api/api.proto. All others are skipped: the arguments, environments
and mounts of containers are never decoded.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from swapwarden.api import names, runtime_link
from swapwarden.nri import protobuf

MAX_ID: Final = 128
"""Bytes of an identifier or a name that are kept: a runtime's have 64, Kubernetes' at most 63."""
MAX_PATH: Final = 4096
MAX_TEXT: Final = 512
"""Bytes of the runtime's name, of versions and of errors."""

EVENTS: Final = {
    "RunPodSandbox": 1,
    "RemovePodSandbox": 3,
    "CreateContainer": 4,
    "UpdateContainer": 8,
    "RemoveContainer": 11,
}
"""The events that the plugin subscribes to: methods since NRI 0.12, with their numbers in StateChange before."""
VALIDATION: Final = 14
"""The event ValidateContainerAdjustment, since NRI 0.10: earlier libraries refuse a plugin that subscribes to it."""
METHODS: Final = frozenset(EVENTS) | {
    "Configure", "Synchronize", "Shutdown", "StateChange", "ValidateContainerAdjustment"
}  # fmt: skip
"""The methods that a runtime calls if it has these events to report."""

_RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
_S: Final = tuple(protobuf.section(number) for number in range(12))
_I: Final = tuple(protobuf.integer(number) for number in range(12))
"""Tags by the number of the field: of texts and messages, and of integers."""


_REQUEST: Final = (_S[2], _S[3])


def read_request(data: protobuf.Data) -> tuple[str, protobuf.Data]:
    """Return the method and the payload of a request."""
    method = ""
    payload: protobuf.Data = b""
    for tag, start, end in protobuf.fields(data, 0, len(data), _REQUEST):
        if tag == _S[2]:
            method = protobuf.text(data, start, end, MAX_ID)
        else:
            payload = data[start:end]
    return method, payload


def request(method: str, payload: bytes, timeout: float) -> bytes:
    """Return a request to the runtime, which must answer in `timeout` seconds."""
    asked = protobuf.field(1, _RUNTIME_SERVICE) + protobuf.field(2, method) + protobuf.field(3, payload)
    return asked + protobuf.field(4, int(timeout * 1e9))


def response(payload: bytes) -> bytes:
    """Return a response that reports success. An empty one is valid for each method."""
    return protobuf.field(2, payload) if payload else b""


_RESPONSE: Final = (_S[1], _S[2])
_STATUS: Final = (_I[1], _S[2])


class CallOutcome(NamedTuple):
    """A response of the runtime."""

    error: str | None
    payload: protobuf.Data


def read_response(data: protobuf.Data) -> CallOutcome:
    """Return an error, or the payload of a response."""
    error = None
    payload: protobuf.Data = b""
    for tag, start, end in protobuf.fields(data, 0, len(data), _RESPONSE):
        if tag == _S[2]:
            payload = data[start:end]
            continue
        code, said = 0, ""
        for part, begin, stop in protobuf.fields(data, start, end, _STATUS):
            if part == _I[1]:
                code = begin
            else:
                said = protobuf.text(data, begin, stop, MAX_TEXT)
        if code:
            error = said or f"status {code}"
    return CallOutcome(error, payload)


# --- payloads of the runtime's requests ---


class Runtime(NamedTuple):
    """The runtime's description of itself."""

    name: str
    version: str
    nri: str
    """The version of NRI; empty before 0.12."""
    request_timeout_ms: int

    def validates(self) -> bool:
        """Return whether it has the event VALIDATION."""
        version = _VERSION.match(self.version)
        first = _FIRST_VALIDATING.get(self.name)
        return bool(self.nri) or (
            version is not None and first is not None and (int(version[1]), int(version[2])) >= first
        )


_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_FIRST_VALIDATING: Final = {"containerd": (2, 2), "cri-o": (1, 34)}
"""The first versions with NRI 0.10 or newer. From NRI 0.12 on a runtime reports its version of it."""
_CONFIGURE: Final = (_S[2], _S[3], _I[5], _S[6])


def read_configure(data: protobuf.Data) -> Runtime:
    """Decode a ConfigureRequest."""
    texts = {_S[2]: "", _S[3]: "", _S[6]: ""}
    timeout = 0
    for tag, start, end in protobuf.fields(data, 0, len(data), _CONFIGURE):
        if tag == _I[5]:
            timeout = min(start, 1 << 31)
        else:
            texts[tag] = protobuf.text(data, start, end, MAX_TEXT)
    return Runtime(texts[_S[2]], texts[_S[3]], texts[_S[6]], timeout)


class PodSandbox(NamedTuple):
    """A pod, as far as decisions need it."""

    id: str
    """The ID of the pod's sandbox."""
    uid: str
    """The UID in the names of its cgroups: of static pods, the hash of their configuration."""
    policy: str | None
    source: str | None
    """The value of the annotation about the policy's source."""
    cgroup: str


class RuntimeContainer(NamedTuple):
    """A container, as far as decisions need it."""

    id: str
    sandbox: str
    name: str
    value: str | None
    """The value of memory.swap.max; None if the runtime has none for the container."""
    original: str | None
    """The kubelet's value, if a plugin replaced it; empty if it had none."""


_POD: Final = (_S[1], _S[3], _S[6], _S[8])
_POD_ANNOTATIONS: Final = (names.POLICY_ANNOTATION.encode(), names.POLICY_SOURCE_ANNOTATION.encode())
_CGROUP_PARENT: Final = (_S[3],)


def _pod(data: protobuf.Data, start: int, end: int) -> PodSandbox:
    sandbox = uid = cgroup = ""
    annotations: dict[str, str] = {}
    for tag, begin, stop in protobuf.fields(data, start, end, _POD):
        if tag == _S[1]:
            sandbox = protobuf.text(data, begin, stop, MAX_ID)
        elif tag == _S[3]:
            uid = protobuf.text(data, begin, stop, MAX_ID)
        elif tag == _S[6]:
            if entry := protobuf.entry(data, begin, stop, _POD_ANNOTATIONS):
                annotations[entry[0]] = entry[1]
        else:
            for _, first, last in protobuf.fields(data, begin, stop, _CGROUP_PARENT):
                cgroup = protobuf.text(data, first, last, MAX_PATH)
    policy, source = (annotations.get(key) for key in (names.POLICY_ANNOTATION, names.POLICY_SOURCE_ANNOTATION))
    return PodSandbox(sandbox, uid, policy, source, cgroup)


_CONTAINER: Final = (_S[1], _S[2], _S[3], _S[6], _S[11])
_CONTAINER_ANNOTATIONS: Final = (runtime_link.ORIGINAL_ANNOTATION.encode(),)
_RESOURCES: Final = (_S[3],)
_UNIFIED: Final = (_S[6],)
_KEYS: Final = (runtime_link.SWAP_MAX.encode(),)


def _container(data: protobuf.Data, start: int, end: int) -> RuntimeContainer:
    texts = {_S[1]: "", _S[2]: "", _S[3]: ""}
    value = original = None
    for tag, begin, stop in protobuf.fields(data, start, end, _CONTAINER):
        if tag in texts:
            texts[tag] = protobuf.text(data, begin, stop, MAX_ID)
        elif tag == _S[6]:
            if entry := protobuf.entry(data, begin, stop, _CONTAINER_ANNOTATIONS):
                original = entry[1]
        else:
            for _, first, last in protobuf.fields(data, begin, stop, _RESOURCES):
                value = _swap_max(data, first, last, value)
    return RuntimeContainer(texts[_S[1]], texts[_S[2]], texts[_S[3]], value, original)


def _swap_max(data: protobuf.Data, start: int, end: int, before: str | None = None) -> str | None:
    value = before
    for _, begin, stop in protobuf.fields(data, start, end, _UNIFIED):
        if entry := protobuf.entry(data, begin, stop, _KEYS):
            value = entry[1]
    return value


NO_POD: Final = PodSandbox("", "", None, None, "")
NO_CONTAINER: Final = RuntimeContainer("", "", "", None, None)


class Event(NamedTuple):
    """A request about a pod, or about one of its containers."""

    pod: PodSandbox
    container: RuntimeContainer
    asked: str | None
    """The value of memory.swap.max that an update asks for; None if it asks for none."""


_EVENT: Final = (_S[1], _S[2], _S[3])


def read_event(data: protobuf.Data) -> Event:
    """Decode the request of a method in EVENTS: pod, container if it is about one, and what an update asks for."""
    pod, container, asked = NO_POD, NO_CONTAINER, None
    for tag, start, end in protobuf.fields(data, 0, len(data), _EVENT):
        if tag == _S[1]:
            pod = _pod(data, start, end)
        elif tag == _S[2]:
            container = _container(data, start, end)
        else:
            asked = _swap_max(data, start, end, asked)
    return Event(pod, container, asked)


class StateChange(NamedTuple):
    """An event in the form of NRI before 0.12."""

    event: int
    request: Event


_STATE_CHANGE: Final = (_I[1], _S[2], _S[3])


def read_state_change(data: protobuf.Data) -> StateChange:
    """Decode a StateChangeEvent."""
    event, pod, container = 0, NO_POD, NO_CONTAINER
    for tag, start, end in protobuf.fields(data, 0, len(data), _STATE_CHANGE):
        if tag == _I[1]:
            event = start
        elif tag == _S[2]:
            pod = _pod(data, start, end)
        else:
            container = _container(data, start, end)
    return StateChange(event, Event(pod, container, None))


class Synchronize(NamedTuple):
    """A part of all pods and containers."""

    pods: list[PodSandbox]
    containers: list[RuntimeContainer]
    more: bool


_SYNCHRONIZE: Final = (_S[1], _S[2], _I[3])


def read_synchronize(data: protobuf.Data) -> Synchronize:
    """Decode a SynchronizeRequest."""
    pods: list[PodSandbox] = []
    containers: list[RuntimeContainer] = []
    more = False
    for tag, start, end in protobuf.fields(data, 0, len(data), _SYNCHRONIZE):
        if tag == _S[1]:
            pods.append(_pod(data, start, end))
        elif tag == _S[2]:
            containers.append(_container(data, start, end))
        else:
            more = bool(start)
    return Synchronize(pods, containers, more)


# --- payloads that are sent ---


def register(name: str, index: str) -> bytes:
    """Encode a RegisterPluginRequest. The runtime's library ignores the version of a plugin before 0.12."""
    return protobuf.field(1, name) + protobuf.field(2, index) + protobuf.field(3, "v0.12.5")


def configured(events: Iterable[int], *, required: bool = False) -> bytes:
    """Encode a ConfigureResponse: the mask of events. No event would mean each.

    With `required` the runtime fails requests that the plugin does not answer; before 0.12.4 it ignores that.
    """
    mask = 0
    for event in events:
        mask |= 1 << event - 1
    return protobuf.field(2, mask) + (protobuf.field(3, protobuf.field(1, 1)) if required else b"")


def synchronized(*, more: bool) -> bytes:
    """Encode a SynchronizeResponse; `more` as in the request."""
    return protobuf.field(2, 1) if more else b""


_ORIGINAL_KEY: Final = protobuf.field(1, runtime_link.ORIGINAL_ANNOTATION)
_SWAP_MAX_KEY: Final = protobuf.field(1, runtime_link.SWAP_MAX)


def adjustment(value: str, original: str) -> bytes:
    """Encode a CreateContainerResponse: memory.swap.max, and an annotation with the value before."""
    annotation = protobuf.field(2, _ORIGINAL_KEY + protobuf.field(2, original))
    resources = protobuf.field(2, protobuf.field(6, _SWAP_MAX_KEY + protobuf.field(2, value)))
    return protobuf.field(1, annotation + protobuf.field(6, resources))


def updated(container: str, value: str) -> bytes:
    """Encode an UpdateContainerResponse: memory.swap.max of the container that is asked about."""
    memory = protobuf.field(6, _SWAP_MAX_KEY + protobuf.field(2, value))
    resources = protobuf.field(2, protobuf.field(1, memory))
    return protobuf.field(1, protobuf.field(1, container) + resources)


def updates(values: Sequence[tuple[str, str]]) -> bytes:
    """Encode an UpdateContainersRequest: the values of memory.swap.max by container."""
    return b"".join(itertools.starmap(updated, values))


_FAILED: Final = (_S[1],)
_ID: Final = (_S[1],)


def read_failed(data: protobuf.Data) -> list[str]:
    """Decode an UpdateContainersResponse: the containers that the runtime could not update."""
    failed: list[str] = []
    for _, start, end in protobuf.fields(data, 0, len(data), _FAILED):
        failed += [
            protobuf.text(data, begin, stop, MAX_ID) for _, begin, stop in protobuf.fields(data, start, end, _ID)
        ]
    return failed
