"""Both connections on real sockets: made, lost and made again, with the test's clock."""

from __future__ import annotations

import json
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from swapwarden.api import names, runtime_link
from swapwarden.api.runtime_link import Away, FromPlugin
from swapwarden.nri import agent_side, knowledge, link, messages, orders, retry, runtime_side, session

from tests.unit.nri import fake_runtime as runtime
from tests.unit.nri.driven import create, value_set

DISABLED = {runtime.POLICY: "Disabled"}
CREATE = create(runtime.pod(annotations=DISABLED), runtime.container(value="4096"))


class World:
    """A plugin, and the places where its runtime and its agent may listen."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.now = 1000.0
        self.folder = folder
        self.known = knowledge.Knowledge(adjusts=True)
        self.agent = agent_side.AgentSide(self.known, str(folder), self.clock)
        self.runtime = runtime_side.RuntimeSide(
            self.known, ("swapwarden", "90"), str(folder), clock=self.clock, notify=self.agent.notify
        )
        self.agent.runtime = self.runtime
        self.peers: list[socket.socket] = []

    def clock(self) -> float:
        return self.now

    def listen(self, name: str, kind: socket.SocketKind) -> socket.socket:
        (self.folder / name).unlink(missing_ok=True)
        made = socket.socket(socket.AF_UNIX, kind)
        self.peers.append(made)
        made.bind(str(self.folder / name))
        made.listen()
        made.settimeout(10)
        return made

    def accept(self, listening: socket.socket) -> socket.socket:
        made, _ = listening.accept()
        made.settimeout(10)
        self.peers.append(made)
        return made

    def with_runtime(self) -> socket.socket:
        """Return the runtime's end of a registered connection."""
        peer = self.with_silent_runtime()
        assert runtime.messages(peer.recv(1 << 16))
        self.ask(peer, "Configure", runtime.configure())
        self.ask(peer, "Synchronize", b"")
        return peer

    def with_silent_runtime(self) -> socket.socket:
        listening = self.listen(runtime_side.SOCKET, socket.SOCK_STREAM)
        self.now = self.runtime.due() or self.now
        self.runtime.tick()
        return self.accept(listening)

    def with_agent(self) -> socket.socket:
        """Return the agent's end of a connection."""
        listening = self.listen(runtime_link.SOCKET, socket.SOCK_SEQPACKET)
        self.now = self.agent.due() or self.now
        self.agent.tick()
        return self.accept(listening)

    def ask(self, peer: socket.socket, method: str, payload: bytes) -> bytes:
        peer.sendall(runtime.request(7, method, payload))
        self.runtime.readable()
        ((_, stream, _, body),) = runtime.messages(peer.recv(1 << 16))
        assert stream == 7
        return runtime.one(body, 2) if body else b""

    def say(self, peer: socket.socket, **fields: object) -> None:
        peer.send(json.dumps(fields).encode())
        self.agent.readable()


def read(peer: socket.socket) -> list[dict[str, Any]]:
    """Return the packets that wait."""
    peer.setblocking(False)
    found: list[dict[str, Any]] = []
    while True:
        try:
            packet = peer.recv(1 << 17)
        except BlockingIOError:
            return found
        if not packet:
            return found
        found.append(json.loads(packet))


@pytest.fixture
def world(tmp_path: pathlib.Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.runtime.close()
    made.agent.close()
    for each in made.peers:
        each.close()


# --- the runtime ---


def test_without_a_socket_it_is_tried_again_less_and_less_often(world: World) -> None:
    waits = []
    for _ in range(200):
        world.runtime.tick()
        due = world.runtime.due()
        assert due is not None
        waits.append(due - world.now)
        world.now = due
    assert world.known.away == Away.NO_SOCKET
    assert max(waits[:30]) <= retry.SOON
    assert max(waits) <= retry.LONGEST
    assert min(waits[-20:]) >= retry.LONGEST / 2
    assert len({round(each, 6) for each in waits[-20:]}) > 10  # all nodes at different moments


def test_a_socket_that_nobody_serves(world: World) -> None:
    world.listen(runtime_side.SOCKET, socket.SOCK_STREAM).close()
    world.runtime.tick()
    assert world.known.away == Away.REFUSED


def test_a_folder_that_may_not_be_entered_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refused)
    world.runtime.tick()
    assert world.known.away == "Permission denied"


def test_the_plugin_is_back_after_the_runtime_made_its_socket_again(world: World) -> None:
    peer = world.with_runtime()
    assert value_set(world.ask(peer, "CreateContainer", CREATE)) == "0"
    world.now += 3600
    peer.close()
    world.runtime.readable()
    assert (world.known.runtime, world.known.away, world.known.counts["lost"]) == (None, Away.LOST, 1)
    assert world.runtime.socket is None
    due = world.runtime.due()
    assert due is not None
    assert due <= world.now + retry.FIRST
    assert value_set(world.ask(world.with_runtime(), "CreateContainer", CREATE)) == "0"
    assert (world.known.away, world.known.counts["lost"], world.known.counts["dropped"]) == ("", 1, 0)


def test_a_runtime_that_gave_the_plugin_up_and_runs_on_is_counted(world: World) -> None:
    listening = world.listen(runtime_side.SOCKET, socket.SOCK_STREAM)
    for dropped in range(3):
        world.now = world.runtime.due() or world.now
        world.runtime.tick()
        assert world.known.counts["dropped"] == dropped
        peer = world.accept(listening)
        assert runtime.messages(peer.recv(1 << 16))
        world.ask(peer, "Configure", runtime.configure())
        peer.close()
        world.runtime.readable()


def test_a_runtime_that_accepts_no_registration_did_not_give_the_plugin_up(world: World) -> None:
    listening = world.listen(runtime_side.SOCKET, socket.SOCK_STREAM)
    for _ in range(2):
        world.now = world.runtime.due() or world.now
        world.runtime.tick()
        world.accept(listening).close()
        world.runtime.readable()
    assert (world.known.counts["lost"], world.known.counts["dropped"]) == (2, 0)


def test_a_runtime_that_hangs_up_each_time_is_tried_less_and_less_often(world: World) -> None:
    waits = []
    for _ in range(300):
        peer = world.with_silent_runtime()
        peer.close()
        world.runtime.readable()
        waits.append((world.runtime.due() or 0) - world.now)
    assert min(waits[-20:]) >= retry.LONGEST / 2


def test_a_refused_registration_is_reported_with_the_runtimes_words(world: World) -> None:
    peer = world.with_silent_runtime()
    peer.sendall(runtime.response(1, error="invalid plugin index"))
    world.runtime.readable()
    assert (world.known.away, world.runtime.socket) == ("invalid plugin index", None)


def test_a_silent_runtime_is_given_up(world: World) -> None:
    world.with_silent_runtime()
    world.now = world.runtime.due() or 0
    world.runtime.tick()
    assert world.runtime.socket is None
    assert world.known.away


@pytest.mark.parametrize("data", [b"\xff" * 8, runtime.message(1, 1, 1, b"")[:8] + b"\xff" * 10])
def test_bytes_that_are_of_no_use_end_the_connection(world: World, data: bytes) -> None:
    peer = world.with_runtime()
    peer.sendall(data)
    world.runtime.readable()
    assert (world.runtime.socket, world.known.away) == (None, Away.LOST)


def test_a_defect_ends_the_connection_and_not_the_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: object) -> None:
        raise RuntimeError

    peer = world.with_runtime()
    monkeypatch.setattr(session.RuntimeSession, "receive", defect)
    peer.sendall(b"x")
    world.runtime.readable()
    assert (world.runtime.socket, world.known.counts["errors"]) == (None, 1)


# --- the agent ---


def test_an_agent_that_connects_later_gets_everything(world: World) -> None:
    peer = world.with_runtime()
    world.ask(peer, "CreateContainer", CREATE)
    hello, counts, described, containers, *rest = read(world.with_agent())
    assert (hello["kind"], counts["kind"]) == (FromPlugin.HELLO, FromPlugin.COUNTS)
    assert (described["kind"], described["connected"]) == (FromPlugin.RUNTIME, True)
    assert [each["id"] for each in containers["items"]] == ["container-1"]
    assert rest == []


def test_an_agent_without_a_runtime_learns_why_once(world: World) -> None:
    world.runtime.tick()
    agent = world.with_agent()
    for _ in range(3):
        world.now += 60
        world.runtime.tick()
    described = [each for each in read(agent) if each["kind"] == FromPlugin.RUNTIME]
    assert [(each["connected"], each["error"]) for each in described] == [(False, Away.NO_SOCKET)]
    world.listen(runtime_side.SOCKET, socket.SOCK_STREAM).close()
    for _ in range(3):
        world.now += 60
        world.runtime.tick()
    assert [each["error"] for each in read(agent)] == [Away.REFUSED]


def test_an_agents_decisions_hold_after_it_left(world: World) -> None:
    agent, peer = world.with_agent(), world.with_runtime()
    pods = {"uid-1": {"default": {"value": "8192", "atMost": False}, "containers": {}, "decided": True}}
    for said in (
        {"kind": "mode", "mode": "Enforce"},
        {"kind": "reset"},
        {"kind": "pods", "pods": pods},
        {"kind": "ready"},
    ):
        world.say(agent, **said)
    request = create(runtime.pod(), runtime.container(value="max"))
    assert value_set(world.ask(peer, "CreateContainer", request)) == "8192"
    agent.close()
    world.agent.readable()
    assert world.agent.socket is None
    assert value_set(world.ask(peer, "CreateContainer", request)) == "8192"
    world.say(world.with_agent(), kind="gone", uids=["uid-1"])
    assert world.ask(peer, "CreateContainer", request) == b""


def test_an_agent_that_leaves_while_it_sends_its_decisions_takes_none_away(world: World) -> None:
    agent = world.with_agent()
    zero = {"default": {"value": "0"}}
    world.say(agent, kind="pods", pods={"a": zero, "b": zero})
    world.say(agent, kind="reset")
    world.say(agent, kind="pods", pods={"a": {"default": {"value": "1"}}})
    agent.close()
    world.agent.readable()
    world.say(world.with_agent(), kind="ready")
    held = [world.known.decisions.of(uid) for uid in "ab"]
    assert [each and each.default and each.default.value for each in held] == ["1", "0"]


def test_the_agents_mode_counts_and_its_file_while_it_is_away(world: World) -> None:
    agent = world.with_agent()
    world.say(agent, kind="mode", mode="Restore")
    assert world.known.mode == names.Mode.RESTORE
    (world.folder / runtime_link.MODE_FILE).write_text("Audit\n")
    agent.close()
    world.agent.readable()
    (world.folder / runtime_link.SOCKET).unlink()
    for text, mode in (("Audit\n", "Audit"), ("nonsense", ""), ("x" * 9999, ""), ("", ""), ("Restore", "Restore")):
        (world.folder / runtime_link.MODE_FILE).write_text(text)
        world.now += 60
        world.agent.tick()
        assert world.known.mode == mode
    (world.folder / runtime_link.MODE_FILE).unlink()
    world.now += 60
    world.agent.tick()
    assert world.known.mode == names.Mode.ENFORCE


def test_the_start_of_a_pod_continues_when_the_agent_answers_or_leaves(world: World) -> None:
    peer, agent = world.with_runtime(), world.with_agent()
    for answered in (True, False):
        peer.sendall(runtime.request(9, "RunPodSandbox", runtime.field(1, runtime.pod())))
        world.runtime.readable()
        (seq,) = (each["seq"] for each in read(agent) if each["kind"] == FromPlugin.SANDBOX)
        if answered:
            world.say(agent, kind="sandbox", seq=seq)
        else:
            agent.close()
            world.agent.readable()
        assert runtime.messages(peer.recv(1 << 16)) == [(runtime.PLUGIN, 9, runtime.RESPONSE, b"")]


def test_orders_are_passed_on_and_fail_without_a_runtime(world: World) -> None:
    agent = world.with_agent()
    world.say(agent, kind="update", seq=1, values={"c1": "0"})
    assert read(agent)[-1] == {"kind": FromPlugin.UPDATED, "seq": 1, "failed": {"c1": orders.GONE}}
    peer = world.with_runtime()
    world.say(agent, kind="update", seq=2, values={"c1": "0"})
    ((_, stream, _, _),) = runtime.messages(peer.recv(1 << 16))
    peer.sendall(runtime.response(stream))
    world.runtime.readable()
    assert read(agent)[-1] == {"kind": FromPlugin.UPDATED, "seq": 2, "failed": {}}
    world.say(agent, kind="update", seq=3, values={"c1": "0"})
    peer.close()
    world.runtime.readable()
    assert {"kind": FromPlugin.UPDATED, "seq": 3, "failed": {"c1": orders.GONE}} in read(agent)


def test_a_defect_of_a_connection_is_logged_by_type_and_place_only(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def defect(*_: object) -> None:
        raise RuntimeError("hunter2")

    listening = world.listen(runtime_side.SOCKET, socket.SOCK_STREAM)
    world.runtime.tick()
    peer, agent = world.accept(listening), world.with_agent()
    assert peer.recv(1 << 16)
    world.ask(peer, "Configure", runtime.configure(nri=""))
    world.say(agent, kind="update", seq=1, values={"c1": "0"})
    lane = world.runtime.courier.lanes[0]
    lane.tick()
    with monkeypatch.context() as patch:
        patch.setattr(messages, "read_request", defect)
        world.accept(listening).sendall(runtime.request(1, "Synchronize", b""))
        lane.readable()
    with monkeypatch.context() as patch:
        patch.setattr(session.RuntimeSession, "receive", defect)
        peer.sendall(runtime.request(7, "Synchronize", b""))
        world.runtime.readable()
    assert (lane.socket, world.runtime.socket) == (None, None)
    assert world.known.counts["errors"] == 1
    logged = capsys.readouterr().err
    assert logged.count("RuntimeError in defect:") == 3
    assert "hunter2" not in logged


def test_a_connection_that_brings_updates_is_not_the_required_plugin(world: World) -> None:
    """A runtime's validator would count it as asked while the plugin itself is away."""
    agent = world.with_agent()
    listening = world.listen(runtime_side.SOCKET, socket.SOCK_STREAM)
    world.runtime.tick()
    peer = world.accept(listening)
    ((_, _, _, first),) = runtime.messages(peer.recv(1 << 16))
    world.ask(peer, "Configure", runtime.configure(nri=""))
    world.say(agent, kind="update", seq=1, values={"c1": "0"})
    world.runtime.courier.lanes[0].tick()
    ((_, _, _, second),) = runtime.messages(world.accept(listening).recv(1 << 16))
    world.runtime.close()
    names_ = [runtime.one(each, 3, 1) for each in (first, second)]
    assert names_ == [runtime_link.PLUGIN.encode(), b"swapwarden-updates"]


def test_a_malformed_packet_ends_only_the_agents_connection(world: World) -> None:
    peer, agent = world.with_runtime(), world.with_agent()
    world.say(agent, kind="mode", mode="nonsense")
    assert world.agent.socket is None
    due = world.agent.due()
    assert due is not None
    assert due > world.now
    assert value_set(world.ask(peer, "CreateContainer", CREATE)) == "0"


def test_more_decisions_than_a_node_can_have_end_the_agents_connection(world: World) -> None:
    agent = world.with_agent()
    many = {f"c{number}": {"value": "0"} for number in range(1024)}
    for number in range(20):
        if world.agent.socket is None:
            break
        world.say(agent, kind="pods", pods={f"uid-{number}": {"containers": many}})
    assert world.agent.socket is None
    assert number > 10


def test_the_counts_are_reported_when_they_change_and_not_more_often(world: World) -> None:
    agent, peer = world.with_agent(), world.with_runtime()
    world.agent.tick()
    first, second = (each for each in read(agent) if each["kind"] == FromPlugin.COUNTS)
    assert (first["requests"], second["requests"]) == (0, 2)
    assert world.agent.due() is None
    world.ask(peer, "CreateContainer", CREATE)
    read(agent)
    world.agent.tick()
    assert read(agent) == []
    due = world.agent.due()
    assert due is not None
    assert due - world.now == pytest.approx(agent_side.COUNTS_SECONDS)
    world.now = due
    world.agent.tick()
    (counts,) = read(agent)
    assert (counts["kind"], counts["requests"], counts["adjusted"]) == (FromPlugin.COUNTS, 3, 1)
    assert world.agent.due() is None


def test_each_connection_begins_with_what_an_agent_has_had_and_the_counts_of_now(world: World) -> None:
    def counted(agent: socket.socket) -> tuple[int, int]:
        hello, counts, *_ = read(agent)
        assert (hello["kind"], counts["kind"]) == (FromPlugin.HELLO, FromPlugin.COUNTS)
        return hello["reported"]["requests"], counts["requests"]

    peer = world.with_runtime()
    agent = world.with_agent()
    assert counted(agent) == (0, 2)
    agent.close()
    world.ask(peer, "CreateContainer", CREATE)  # its report meets the end
    assert world.agent.socket is None
    assert counted(world.with_agent()) == (2, 3)


def test_an_agent_that_does_not_read_delays_nothing(world: World) -> None:
    agent, peer = world.with_agent(), world.with_runtime()
    for number in range(2000):
        request = create(runtime.pod(annotations=DISABLED), runtime.container(f"id-{number}", value="1"))
        assert value_set(world.ask(peer, "CreateContainer", request)) == "0"
    assert world.agent.waits
    total = 0
    while world.agent.waits:
        total += len(read(agent))
        world.agent.writable()
    total += len(read(agent))
    assert total >= 2000


def test_few_packets_are_read_in_one_turn(world: World) -> None:
    agent = world.with_agent()
    for number in range(agent_side.PACKETS + 1):
        agent.send(
            json.dumps({"kind": "mode", "mode": "Audit" if number == agent_side.PACKETS else "Restore"}).encode()
        )
    world.agent.readable()
    assert world.known.mode == names.Mode.RESTORE
    world.agent.readable()
    assert world.known.mode == names.Mode.AUDIT


def test_a_link_message_has_no_more_bytes_than_both_sides_accept() -> None:
    pod = messages.PodSandbox(
        "\x01" * messages.MAX_ID, "\x01" * messages.MAX_ID, None, None, "\x01" * messages.MAX_PATH
    )
    packet = link.encode(FromPlugin.SANDBOX, seq=1 << 52, uid=pod.uid, id=pod.id, cgroup=pod.cgroup)
    assert len(packet) <= runtime_link.MAX_PACKET
