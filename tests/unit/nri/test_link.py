"""Packets of the link, and the agent's socket."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as some
from swapwarden.api import runtime_link
from swapwarden.api.runtime_link import FromAgent, FromPlugin
from swapwarden.nri import decide, inventory, link

ZERO = {"value": "0", "atMost": False}
UID = "3f1c2d3e-0000-4000-8000-000000000001"

VALID: list[tuple[dict[str, object], link.FromAgentMessage | None]] = [
    ({"kind": "mode", "mode": "Audit"}, link.ModeChange("Audit")),
    ({"kind": "mode", "mode": "", "more": 1}, link.ModeChange("")),
    ({"kind": "reset"}, link.Reset()),
    ({"kind": "ready"}, link.Ready()),
    ({"kind": "pods", "pods": {}}, link.Pods({})),
    (
        {"kind": "pods", "pods": {UID: {"default": ZERO, "containers": {"app": {"value": "max", "atMost": True}}}}},
        link.Pods({UID: decide.PodHolds(decide.Hold("0", False), {"app": decide.Hold("max", True)}, decided=True)}),
    ),
    (
        {"kind": "pods", "pods": {UID: {"default": None, "containers": {}, "decided": False}}},
        link.Pods({UID: decide.PodHolds(None, {}, decided=False)}),
    ),
    ({"kind": "gone", "uids": [UID]}, link.Gone([UID])),
    ({"kind": "sandbox", "seq": 7}, link.SandboxDone(7)),
    ({"kind": "update", "seq": 1, "values": {"c1": "18446744073709551"}}, link.Update(1, {"c1": "18446744073709551"})),
    ({"kind": "later", "seq": 1}, None),
    ({}, None),
    ({"kind": ["mode"]}, None),
]


@pytest.mark.parametrize(("said", "meant"), VALID)
def test_messages_of_the_agent(said: dict[str, object], meant: link.FromAgentMessage | None) -> None:
    assert link.decode(json.dumps(said).encode()) == meant


def test_each_kind_is_understood() -> None:
    assert {said["kind"] for said, meant in VALID if meant is not None} == set(FromAgent)


INVALID = [
    b"",
    b"\xff",
    b"[]",
    b"[" * 30_000,
    b'{"kind": "mode", "mode": "audit"}',
    b'{"kind": "mode"}',
    b'{"kind": "mode", "mode": {}}',
    b'{"kind": "pods"}',
    b'{"kind": "pods", "pods": []}',
    b'{"kind": "pods", "pods": {"../x": {}}}',
    b'{"kind": "pods", "pods": {"a": null}}',
    b'{"kind": "pods", "pods": {"a": {"default": {}}}}',
    b'{"kind": "pods", "pods": {"a": {"default": {"value": 0}}}}',
    b'{"kind": "pods", "pods": {"a": {"default": {"value": "-1"}}}}',
    b'{"kind": "pods", "pods": {"a": {"default": {"value": "1\\n"}}}}',
    b'{"kind": "pods", "pods": {"a": {"containers": {"": {"value": "0"}}}}}',
    b'{"kind": "gone"}',
    b'{"kind": "gone", "uids": [1]}',
    b'{"kind": "sandbox", "seq": true}',
    b'{"kind": "sandbox", "seq": -1}',
    b'{"kind": "sandbox", "seq": 1e400}',
    b'{"kind": "sandbox", "seq": ' + b"9" * 5000 + b"}",
    b'{"kind": "update", "seq": 1, "values": {"c1": "0x0"}}',
    b'{"kind": "update", "seq": 1, "values": {"c 1": "0"}}',
    json.dumps({"kind": "update", "seq": 1, "values": {f"c{each}": "0" for each in range(1025)}}).encode(),
    json.dumps({"kind": "pods", "pods": {"a": {"containers": {f"c{each}": ZERO for each in range(1025)}}}}).encode(),
    b'{"kind": "ready"' + b" " * runtime_link.MAX_PACKET + b"}",
]


@pytest.mark.parametrize("packet", INVALID)
def test_malformed_messages_are_refused(packet: bytes) -> None:
    with pytest.raises(link.LinkError):
        link.decode(packet)


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text() | some.sampled_from([*FromAgent]),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(
            some.sampled_from(["kind", "mode", "pods", "uids", "seq", "values", "default", "containers", "a"]), inner
        )
    ),
    max_leaves=12,
)


@given(
    some.binary(max_size=200)
    | JSON.map(lambda value: json.dumps(value).encode())
    | some.tuples(
        some.sampled_from([*FromAgent]), some.dictionaries(some.sampled_from(["pods", "seq", "values"]), JSON)
    ).map(lambda both: json.dumps({**both[1], "kind": both[0]}).encode())
)
def test_noise_raises_nothing_else(packet: bytes) -> None:
    with contextlib.suppress(link.LinkError):
        link.decode(packet)


def item(number: int) -> tuple[str, str, inventory.Item]:
    return f"uid-{number}", "ä" * 128, inventory.Item(f"id-{number}", "\x7f" * 256, "\u2028" * 256)


@pytest.mark.parametrize("count", [0, 1, 20, 1000])
def test_a_list_of_any_length_fits_the_packets(count: int) -> None:
    packets = list(link.listed(map(item, range(count))))
    assert max(map(len, packets)) <= runtime_link.MAX_PACKET
    said = [json.loads(each) for each in packets]
    assert [each["more"] for each in said] == [True] * (len(said) - 1) + [False]
    found = [one for each in said for one in each["items"]]
    assert [(one["uid"], one["name"], one["id"], one["value"], one["original"]) for one in found] == [
        (uid, name, *one) for uid, name, one in map(item, range(count))
    ]


def test_the_outcome_of_the_largest_update_fits_a_packet() -> None:
    ids = [f"{number:064}" for number in range(900)]
    assert len(json.dumps({"kind": "update", "seq": 9, "values": dict.fromkeys(ids, "0")})) > 60_000
    packet = link.outcome(9, dict.fromkeys(ids, "x" * 64))
    assert len(packet) <= runtime_link.MAX_PACKET
    assert json.loads(packet) == {"kind": FromPlugin.UPDATED, "seq": 9, "failed": dict.fromkeys(ids, "")}
    assert json.loads(link.outcome(9, {"a": "why"}))["failed"] == {"a": "why"}


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> Iterator[tuple[link.AgentSocket, socket.socket]]:
    """Yield the plugin's end and the agent's."""
    path = str(tmp_path / runtime_link.SOCKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        made = link.AgentSocket(path)
        accepted, _ = listening.accept()
        with accepted:
            yield made, accepted
        made.close()


def test_packets_arrive_as_they_were_sent(pair: tuple[link.AgentSocket, socket.socket]) -> None:
    ours, theirs = pair
    assert ours.receive() is None
    ours.send(b"one")
    ours.send(b"x" * runtime_link.MAX_PACKET)
    assert theirs.recv(1 << 17) == b"one"
    assert theirs.recv(1 << 17) == b"x" * runtime_link.MAX_PACKET
    theirs.send(b"answer")
    assert ours.receive() == b"answer"


def test_packets_wait_for_an_agent_that_reads_later(pair: tuple[link.AgentSocket, socket.socket]) -> None:
    ours, theirs = pair
    packets = [f"{number}".encode() * 8000 for number in range(100)]
    for each in packets:
        ours.send(each)
    assert ours.waits
    received: list[bytes] = []
    while len(received) < len(packets):
        received.append(theirs.recv(1 << 17))
        ours.flush()
    assert received == packets
    assert not ours.waits


def test_an_agent_that_does_not_read_is_given_up(pair: tuple[link.AgentSocket, socket.socket]) -> None:
    ours, _ = pair
    packet = b"x" * runtime_link.MAX_PACKET
    with pytest.raises(OSError, match="read"):  # noqa: PT012 it is the last of many that fails
        for _ in range(2 * link.MAX_QUEUED // len(packet)):
            ours.send(packet)


def test_the_end_of_the_agent_is_an_error(pair: tuple[link.AgentSocket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(OSError, match="ended"):
        ours.receive()
    with pytest.raises(OSError, match="pipe"):
        ours.send(b"x")


def test_nobody_listens(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        link.AgentSocket(str(tmp_path / runtime_link.SOCKET))
