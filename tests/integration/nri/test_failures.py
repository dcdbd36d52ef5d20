"""`swapwarden nri` that is slow, stopped, killed or talked nonsense to: no container fails to start for it."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import struct
import threading
import time

import pytest
from swapwarden.api import names, runtime_link
from swapwarden.api.runtime_link import SWAP_MAX, Away, FromAgent, FromPlugin

from testbed.standin.runtime import NEWEST, REQUEST_TIMEOUT, Container, Outcome, Pod, Runtime
from tests.integration.nri.conftest import StartPlugin
from tests.integration.nri.fake_agent import FakeAgent, decision, value
from tests.integration.nri.plugin_process import PLUGIN, Plugin

DISABLED = {
    names.POLICY_ANNOTATION: names.Policy.DISABLED.value,
    runtime_link.REQUIRED_ANNOTATION: json.dumps([runtime_link.PLUGIN]),
}
KUBELET = "69943296"


def create(runtime: Runtime, uid: str) -> Outcome:
    """Create a container of a Disabled pod whose sandbox runs."""
    runtime.populate([Pod(f"sandbox-{uid}", uid, DISABLED)], [])
    return runtime.create(Container(f"container-{uid}", f"sandbox-{uid}", unified={SWAP_MAX: KUBELET}))


def test_a_stopped_plugin_costs_one_request_its_timeout_and_no_start(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    with FakeAgent(folder / "link") as agent:
        stopped = start_plugin(runtime)
        agent.wait_connected()
        _cost_one_request(runtime, stopped)
        assert agent.wait_for(FromPlugin.COUNTS, dropped=1)["lost"] == 1


def _cost_one_request(runtime: Runtime, stopped: Plugin) -> None:
    stopped.pause()
    late = create(runtime, "uid-1")
    assert (late.error, late.unified[SWAP_MAX]) == ("", KUBELET)
    assert REQUEST_TIMEOUT <= late.seconds < REQUEST_TIMEOUT + 2
    # The runtime has dropped it.
    assert create(runtime, "uid-2").seconds < REQUEST_TIMEOUT / 2
    stopped.resume()
    runtime.connected(PLUGIN, 2)
    assert create(runtime, "uid-3").unified[SWAP_MAX] == "0"


def test_a_plugin_that_is_killed_during_a_request_lets_it_go_on_at_once(
    runtime: Runtime, start_plugin: StartPlugin
) -> None:
    doomed = start_plugin(runtime)
    doomed.pause()
    runtime.populate([Pod("sandbox-1", "uid-1", DISABLED)], [])
    wanted = Container("container-1", "sandbox-1", unified={SWAP_MAX: KUBELET})
    answer = runtime.begin("create", container=wanted.to_json())
    doomed.kill()
    made = answer.result(10)
    assert "error" not in made
    assert made["unified"] == {SWAP_MAX: KUBELET}
    assert made["seconds"] < REQUEST_TIMEOUT


def test_a_required_plugin_that_is_late_is_a_refusal_once(runtime: Runtime, start_plugin: StartPlugin) -> None:
    """Then the next plugin answers, or without one the runtime's validator."""
    stopped = start_plugin(runtime, "--required")
    assert create(runtime, "uid-1").unified[SWAP_MAX] == "0"
    stopped.pause()
    assert PLUGIN in create(runtime, "uid-2").error
    stopped.kill()
    assert create(runtime, "uid-2").error == ""


def test_a_required_plugin_that_is_killed_during_a_request_is_a_refusal_once(
    runtime: Runtime, start_plugin: StartPlugin
) -> None:
    errors = (_killed_when_asked(runtime, start_plugin(runtime, "--required"), f"uid-{turn}") for turn in range(10))
    if runtime.version == NEWEST:
        # On a busy host, the runtime may ask after the plugin's death: then it asks nobody.
        assert any(PLUGIN in error for error in errors)
    else:
        assert PLUGIN in next(errors)
    assert create(runtime, "uid-13").error == ""


def _killed_when_asked(runtime: Runtime, doomed: Plugin, uid: str) -> str:
    doomed.pause()
    runtime.populate([Pod(f"sandbox-{uid}", uid, DISABLED)], [])
    wanted = Container(f"container-{uid}", f"sandbox-{uid}", unified={SWAP_MAX: KUBELET})
    answer = runtime.begin("create", container=wanted.to_json())
    doomed.kill()
    error: str = answer.result(10).get("error", "")
    return error


def test_a_plugin_that_is_killed_again_and_again_fails_no_start(
    oldest_and_newest: Runtime, start_plugin: StartPlugin
) -> None:
    made = _starts_during_kills(oldest_and_newest, start_plugin)
    assert [each.error for each in made if each.error] == []
    assert max(each.seconds for each in made) < REQUEST_TIMEOUT


def test_no_container_starts_above_0_while_a_required_plugin_is_killed_again_and_again(
    folder: pathlib.Path, version: str, start_plugin: StartPlugin
) -> None:
    with Runtime(folder, version, validator=True) as runtime:
        made = _starts_during_kills(runtime.start(), start_plugin, "--required")
        started = [each.unified[SWAP_MAX] for each in made if not each.error]
        assert set(started) == {"0"}
        assert len(started) < len(made)


def _starts_during_kills(runtime: Runtime, start_plugin: StartPlugin, *options: str) -> list[Outcome]:
    kills, done = 4, threading.Event()
    made: list[Outcome] = []

    def start_pods() -> None:
        while not done.is_set():
            made.append(create(runtime, f"uid-{len(made)}"))
            done.wait(0.002)

    starting = threading.Thread(target=start_pods)
    starting.start()
    try:
        for _ in range(kills):
            doomed, before = start_plugin(runtime, *options), len(made)
            while len(made) < before + 2:  # the second was asked of it
                assert starting.is_alive()
                time.sleep(0.001)
            doomed.kill()
    finally:
        done.set()
        starting.join()
    return made


def test_it_returns_to_a_runtime_that_is_started_again(
    folder: pathlib.Path, version: str, start_plugin: StartPlugin
) -> None:
    with Runtime(folder, version) as first:
        first.start()
        lasting = start_plugin(first)
        first.kill()
    with Runtime(folder, version) as second:
        second.populate([Pod("sandbox-1", "uid-1")], [Container("container-1", "sandbox-1")])
        second.start()
        second.connected(PLUGIN, timeout=10)
        assert lasting.poll() is None
        assert create(second, "uid-2").unified[SWAP_MAX] == "0"


def test_it_waits_for_a_runtime_that_starts_later(folder: pathlib.Path, start_plugin: StartPlugin) -> None:
    with FakeAgent(folder / "link") as agent:
        start_plugin()
        agent.wait_for(FromPlugin.RUNTIME, connected=False, error=Away.NO_SOCKET)
        with Runtime(folder, NEWEST) as runtime:
            runtime.start().connected(PLUGIN, timeout=10)
            told = agent.wait_for(FromPlugin.RUNTIME, connected=True)
            assert told["nri"].startswith("v0.12")
            runtime.kill()
            agent.wait_for(FromPlugin.RUNTIME, connected=False, error=Away.LOST)


def test_a_sandbox_waits_for_the_agent(newest: Runtime, start_plugin: StartPlugin, folder: pathlib.Path) -> None:
    with FakeAgent(folder / "link", answers_sandboxes=False) as agent:
        start_plugin(newest)
        agent.wait_connected()
        starting = newest.begin("sandbox", pod=Pod("sandbox-1", "uid-1").to_json())
        asked = agent.wait_for(FromPlugin.SANDBOX, uid="uid-1")
        assert not starting.done()
        agent.send(FromAgent.SANDBOX, seq=asked["seq"])
        assert starting.result(10)["seconds"] < runtime_link.SANDBOX_SECONDS


def test_a_slow_agent_holds_a_sandbox_up_for_half_a_second_at_most(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    with FakeAgent(folder / "link", {"uid-1": decision(value("4096"))}, answers_sandboxes=False) as agent:
        start_plugin(runtime)
        agent.wait_connected()
        took = runtime.sandbox(Pod("sandbox-1", "uid-1"))
        assert runtime_link.SANDBOX_SECONDS <= took < runtime_link.SANDBOX_SECONDS + 0.5
        # A late or an invented answer changes nothing, and containers do not wait.
        agent.send(FromAgent.SANDBOX, seq=agent.wait_for(FromPlugin.SANDBOX)["seq"])
        agent.send(FromAgent.SANDBOX, seq=10**12)
        agent.settle()
        made = runtime.create(Container("container-1", "sandbox-1"))
        assert (made.unified[SWAP_MAX], made.seconds < runtime_link.SANDBOX_SECONDS) == ("4096", True)


def test_sandboxes_that_did_not_wait_longer_are_counted(
    newest: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    with FakeAgent(folder / "link", answers_sandboxes=False) as agent:
        start_plugin(newest)
        agent.wait_connected()
        newest.sandbox(Pod("sandbox-1", "uid-1"))
        counted = agent.wait_for(FromPlugin.COUNTS, late=1)
        assert (counted["errors"], counted["lost"]) == (0, 0)


def test_without_an_agent_a_sandbox_does_not_wait(newest: Runtime, start_plugin: StartPlugin) -> None:
    start_plugin(newest)
    assert newest.sandbox(Pod("sandbox-1", "uid-1")) < runtime_link.SANDBOX_SECONDS / 2


def test_an_agent_that_ends_during_a_sandbox_ends_the_wait(
    newest: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    with FakeAgent(folder / "link", answers_sandboxes=False) as agent:
        start_plugin(newest)
        agent.wait_connected()
        starting = newest.begin("sandbox", pod=Pod("sandbox-1", "uid-1").to_json())
        agent.wait_for(FromPlugin.SANDBOX, uid="uid-1")
    assert starting.result(10)["seconds"] < runtime_link.SANDBOX_SECONDS


NONSENSE = {
    "no JSON": b"\xff\x00{",
    "no object": b"[1, 2]",
    "no kind": b"{}",
    "an unknown kind": b'{"kind": "surprise", "x": 1}',
    "pods that are none": b'{"kind": "pods", "pods": [1]}',
    "a pod that is none": b'{"kind": "pods", "pods": {"uid-1": 7}}',
    "a value that is none": b'{"kind": "pods", "pods": {"uid-1": {"default": {"value": "1k"}, "containers": {}}}}',
    "a value that is a number": b'{"kind": "pods", "pods": {"uid-1": {"default": {"value": 0}, "containers": {}}}}',
    "deeply nested": b'{"kind": "pods", "pods": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "a huge number": b'{"kind": "sandbox", "seq": ' + b"9" * 5_000 + b"}",
    "an update of nonsense": b'{"kind": "update", "seq": "x", "values": {"a": {"b": 1}}}',
    "a packet that is too large": b'{"kind": "gone", "uids": ["' + b"x" * (runtime_link.MAX_PACKET + 1) + b'"]}',
}


@pytest.mark.parametrize("packet", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_from_the_agent_ends_at_most_its_own_connection(
    newest: Runtime, start_plugin: StartPlugin, folder: pathlib.Path, packet: bytes
) -> None:
    with FakeAgent(folder / "link", {"uid-2": decision(value("4096"))}) as agent:
        running = start_plugin(newest)
        agent.wait_connected()
        agent.send_raw(packet)
        assert create(newest, "uid-1").unified[SWAP_MAX] == "0"
        # It has connected again, or never left.
        agent.wait_connected()
        newest.populate([Pod("sandbox-uid-2", "uid-2")], [])
        assert newest.create(Container("container-2", "sandbox-uid-2")).unified[SWAP_MAX] == "4096"
        assert running.poll() is None
        assert len(newest.seen("connected")) == 1


def test_an_agent_that_floods_the_link_delays_no_container(
    newest: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    packets = [
        json.dumps(
            {"kind": FromAgent.PODS, "pods": {f"uid-{at}-{number}": decision(value("4096")) for number in range(400)}}
        )
        for at in range(64)
    ]
    stop = threading.Event()
    with FakeAgent(folder / "link") as agent:
        running = start_plugin(newest)
        agent.wait_connected()

        def flood() -> None:
            while not stop.is_set():
                for each in packets:
                    agent.send_raw(each.encode())

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            made = [create(newest, f"mine-{number}") for number in range(50)]
        finally:
            stop.set()
            flooding.join()
        assert {each.unified[SWAP_MAX] for each in made} == {"0"}
        assert max(each.seconds for each in made) < REQUEST_TIMEOUT / 4
        # 25,600 pods are more than any node has; it must not keep all that one sends.
        assert running.peak < 64 << 20


def connections_of_a_fake_runtime(listener: socket.socket, greetings: list[bytes]) -> int:
    """Accept as many connections as there are greetings, send each of them one; return how many came."""
    accepted = 0
    for each in greetings:
        listener.settimeout(20)
        connection, _ = listener.accept()
        with connection:
            accepted += 1
            connection.sendall(each)
            connection.settimeout(0.3)
            try:
                while connection.recv(4096):
                    pass
            except OSError:
                pass
    return accepted


def test_a_runtime_that_talks_nonsense_is_left_and_tried_again(folder: pathlib.Path) -> None:
    greetings = [
        os.urandom(4096),
        struct.pack(">II", 1, 0xFFFF_FFFF),
        struct.pack(">II", 1, 10) + struct.pack(">IIBB", 0xFFFF_FFFF, 1, 1, 0),
        struct.pack(">II", 1, 15) + struct.pack(">IIBB", 5, 1, 1, 0) + b"\x0a\xff\xff\xff\xff",
    ]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "nri.sock"))
        listener.listen()
        with Plugin(folder) as running:
            assert connections_of_a_fake_runtime(listener, greetings) == len(greetings)
            assert running.poll() is None
    (folder / "nri.sock").unlink()


def test_it_ends_at_once_when_it_is_asked_to(newest: Runtime, start_plugin: StartPlugin) -> None:
    running = start_plugin(newest)
    begun = time.monotonic()
    assert running.stop() == 0
    assert time.monotonic() - begun < 2
    newest.wait_for("disconnected", plugin=PLUGIN)
    assert create(newest, "uid-1").error == ""
