"""A container runtime as the plugin sees it: encodes requests, decodes answers; by hand, without the product."""

from __future__ import annotations

import struct

PLUGIN, RUNTIME = 1, 2
REQUEST, RESPONSE = 1, 2
SWAP_MAX = "memory.swap.max"
POLICY = "swapwarden.dev/swap-policy"
SOURCE = "swapwarden.dev/policy-source"
ORIGINAL = "swapwarden.dev/original-swap-max"


def varint(number: int) -> bytes:
    made = b""
    while number > 127:
        made += bytes([number % 128 + 128])
        number //= 128
    return made + bytes([number])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number * 8) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number * 8 + 2) + varint(len(content)) + content


def mapping(number: int, entries: dict[str, str] | None) -> bytes:
    return b"".join(field(number, field(1, key) + field(2, value)) for key, value in (entries or {}).items())


def resources(value: str | None) -> bytes:
    """LinuxResources: with a memory limit, a CPU quota, and the value of memory.swap.max."""
    memory = field(1, field(1, field(1, 100 << 20)))
    cpu = field(2, field(2, field(1, 50000)))
    return memory + cpu + mapping(6, {"memory.oom.group": "1"} | ({} if value is None else {SWAP_MAX: value}))


def pod(uid: str = "uid-1", sandbox: str = "sandbox-1", annotations: dict[str, str] | None = None) -> bytes:
    parent = f"/kubepods.slice/kubepods-pod{uid}.slice"
    return (
        field(1, sandbox)
        + field(2, "web-0")
        + field(3, uid)
        + field(4, "default")
        + mapping(5, {"app": "web"})
        + mapping(6, {"kubernetes.io/config.source": "api"} | (annotations or {}))
        + field(7, "runc")
        + field(8, field(2, resources(None)) + field(3, parent) + field(4, "/cgroup"))
        + field(9, 4711)
        + field(10, "10.0.0.1")
    )


def container(
    container_id: str = "container-1",
    name: str = "app",
    *,
    value: str | None = None,
    annotations: dict[str, str] | None = None,
    sandbox: str = "sandbox-1",
    env: int = 3,
) -> bytes:
    mount = field(1, "/etc/hosts") + field(2, "bind") + field(3, "/var/lib/kubelet/x") + field(4, "rbind")
    return (
        field(1, container_id)
        + field(2, sandbox)
        + field(3, name)
        + field(4, 3)
        + mapping(5, {"io.kubernetes.container.name": name})
        + mapping(6, annotations)
        + field(7, "sleep")
        + b"".join(field(8, f"SECRET_{number}=hunter2") for number in range(env))
        + b"".join(field(9, mount) for _ in range(env))
        + field(11, field(1, field(1, "pid")) + field(3, resources(value)) + field(5, "kubepods:cri:x"))
        + field(14, 1700000000)
    )


def message(connection: int, stream: int, kind: int, payload: bytes, *, frame: int = 4 << 20) -> bytes:
    body = struct.pack(">IIBB", len(payload), stream, kind, 0) + payload
    parts = [body[at : at + frame] for at in range(0, len(body), frame)]
    return b"".join(struct.pack(">II", connection, len(part)) + part for part in parts)


def request(stream: int, method: str, payload: bytes, *, frame: int = 4 << 20) -> bytes:
    body = field(1, "nri.pkg.api.v1alpha1.Plugin") + field(2, method) + field(3, payload) + field(4, 2 * 10**9)
    return message(PLUGIN, stream, REQUEST, body, frame=frame)


def response(stream: int, payload: bytes = b"", error: str | None = None) -> bytes:
    status = b"" if error is None else field(1, field(1, 2) + field(2, error))
    return message(RUNTIME, stream, RESPONSE, status + (field(2, payload) if payload else b""))


def messages(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Cut sent bytes into messages: connection, stream, kind, payload. Frames must be as the library takes them."""
    streams = {PLUGIN: b"", RUNTIME: b""}
    found = []
    while data:
        connection, size = struct.unpack(">II", data[:8])
        assert 8 + size <= 4096
        assert len(data) >= 8 + size
        streams[connection] += data[8 : 8 + size]
        data = data[8 + size :]
        while len(streams[connection]) >= 10:
            length, stream, kind, flags = struct.unpack(">IIBB", streams[connection][:10])
            if len(streams[connection]) < 10 + length:
                break
            assert flags == 0
            found.append((connection, stream, kind, streams[connection][10 : 10 + length]))
            streams[connection] = streams[connection][10 + length :]
    assert not any(streams.values())
    return found


def decoded(data: bytes) -> dict[int, list[bytes | int]]:
    """Return the fields of a message by number."""
    found: dict[int, list[bytes | int]] = {}
    while data:
        tag, data = _varint(data)
        value: bytes | int
        if tag % 8 == 0:
            value, data = _varint(data)
        else:
            assert tag % 8 == 2
            size, data = _varint(data)
            assert len(data) >= size
            value, data = data[:size], data[size:]
        found.setdefault(tag // 8, []).append(value)
    return found


def _varint(data: bytes) -> tuple[int, bytes]:
    value = 0
    for at, byte in enumerate(data):
        value += byte % 128 << 7 * at
        if byte < 128:
            return value, data[at + 1 :]
    raise AssertionError(data)


def one(data: bytes, *path: int) -> bytes:
    """Return the one field at a path of numbers."""
    for number in path:
        (value,) = decoded(data)[number]
        assert isinstance(value, bytes)
        data = value
    return data


def entries(data: bytes, *path: int) -> dict[str, str]:
    """Return the map at a path of numbers."""
    *outer, number = path
    found = decoded(one(data, *outer)).get(number, [])
    made = {}
    for each in found:
        assert isinstance(each, bytes)
        made[one(each, 1).decode()] = one(each, 2).decode()
    return made


EVENTS = {"RunPodSandbox": 1, "RemovePodSandbox": 3, "RemoveContainer": 11}


def event(method: str, pod_: bytes, container_: bytes = b"", *, as_event: bool) -> tuple[str, bytes]:
    """Return method and payload: since NRI 0.12, or in the form of before."""
    if as_event:
        return "StateChange", field(1, EVENTS[method]) + field(2, pod_) + (field(3, container_) if container_ else b"")
    return method, field(1, pod_) + (field(2, container_) if container_ else b"")


def configure(nri: str = "v0.12.3", *, name: str = "containerd", version: str = "v2.4.2") -> bytes:
    return field(2, name) + field(3, version) + field(4, 5000) + field(5, 2000) + field(6, nri)
