"""Limits of running containers: resizes that the kubelet asks for, and updates that the agent asks for."""

from __future__ import annotations

import pathlib
import socket
import threading

from swapwarden.api import names
from swapwarden.api.runtime_link import ORIGINAL_ANNOTATION, SWAP_MAX, FromPlugin
from swapwarden.nri import frames, messages

from testbed.standin.runtime import Container, Outcome, Pod, Runtime
from tests.integration.nri.conftest import StartPlugin
from tests.integration.nri.fake_agent import FakeAgent, decision, value

DISABLED = {names.POLICY_ANNOTATION: names.Policy.DISABLED.value}
KUBELET, RESIZED = "69943296", "139886592"


def held_at(runtime: Runtime) -> dict[str, str]:
    """Return the value of each container in the runtime's specs."""
    return {name: spec["unified"].get(SWAP_MAX) for name, spec in runtime.specs().items()}


def test_a_resize_leaves_a_value_of_ours_in_place(runtime: Runtime, start_plugin: StartPlugin) -> None:
    start_plugin(runtime)
    runtime.populate([Pod("sandbox-1", "uid-1", DISABLED)], [])
    runtime.create(Container("container-1", "sandbox-1", unified={SWAP_MAX: KUBELET}))
    resized = runtime.update("container-1", memory_swap_max=RESIZED, memory_high="1000000")
    assert resized.error == ""
    # Another key of the same update passes.
    assert resized.unified == {SWAP_MAX: "0", "memory.high": "1000000"}
    # The kubelet's resize of the CPU alone.
    assert runtime.update("container-1").unified[SWAP_MAX] == "0"


def test_a_resize_holds_the_agents_value(runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path) -> None:
    with FakeAgent(folder / "link", {"uid-1": decision(value("4096"))}) as agent:
        start_plugin(runtime)
        agent.wait_connected()
        runtime.populate([Pod("sandbox-1", "uid-1")], [])
        runtime.create(Container("container-1", "sandbox-1", unified={SWAP_MAX: KUBELET}))
        assert runtime.update("container-1", memory_swap_max=RESIZED).unified[SWAP_MAX] == "4096"
        assert agent.wait_for(FromPlugin.RESIZED, id="container-1")["value"] == "4096"
        # The agent has another value now, which the container does not have: nothing here may lower it.
        agent.decide({"uid-1": decision(value("0"))})
        assert runtime.update("container-1", memory_swap_max=RESIZED).unified[SWAP_MAX] == RESIZED
        assert agent.wait_for(FromPlugin.RESIZED, 2, id="container-1")["value"] == RESIZED


def test_a_resize_lowers_no_container_that_was_made_without_it(runtime: Runtime, start_plugin: StartPlugin) -> None:
    runtime.populate(
        [Pod("sandbox-1", "uid-1", DISABLED)], [Container("container-1", "sandbox-1", unified={SWAP_MAX: KUBELET})]
    )
    start_plugin(runtime)
    resized = runtime.update("container-1", memory_swap_max=RESIZED)
    assert (resized.error, resized.unified[SWAP_MAX]) == ("", RESIZED)


def test_a_resize_without_a_decision_passes(newest: Runtime, start_plugin: StartPlugin) -> None:
    start_plugin(newest)
    newest.populate([Pod("sandbox-1", "uid-1")], [])
    newest.create(Container("container-1", "sandbox-1", unified={SWAP_MAX: KUBELET}))
    assert newest.update("container-1", memory_swap_max=RESIZED).unified[SWAP_MAX] == RESIZED


def test_the_agent_brings_running_containers_under_the_hold_and_gives_them_back(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    running = [Container(f"container-{at}", "sandbox-1", f"app-{at}", {SWAP_MAX: KUBELET}) for at in range(3)]
    runtime.populate([Pod("sandbox-1", "uid-1", DISABLED)], running)
    with FakeAgent(folder / "link") as agent:
        start_plugin(runtime)
        agent.wait_connected()
        assert agent.update({"container-0": "0", "container-1": "max"})["failed"] == {}
        assert held_at(runtime) == {"container-0": "0", "container-1": "max", "container-2": KUBELET}
        # From now on a resize leaves it in place.
        assert runtime.update("container-0", memory_swap_max=RESIZED).unified[SWAP_MAX] == "0"
        assert agent.update({"container-0": KUBELET})["failed"] == {}
        assert held_at(runtime)["container-0"] == KUBELET


def test_an_update_names_the_containers_that_the_runtime_could_not_update(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    running = [Container(f"container-{at}", "sandbox-1", f"app-{at}", fails=at == 2) for at in range(5)]
    runtime.populate([Pod("sandbox-1", "uid-1")], running)
    with FakeAgent(folder / "link") as agent:
        start_plugin(runtime)
        agent.wait_connected()
        answer = agent.update({each.id: "0" for each in running} | {"gone": "0"})
        assert [each for each in answer["failed"] if each != "gone"] == ["container-2"]
        assert held_at(runtime) == {each.id: None if each.fails else "0" for each in running}


def test_an_update_of_many_containers_arrives_whole(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    running = [Container(f"{at:064x}", "sandbox-1", f"app-{at}") for at in range(600)]
    runtime.populate([Pod("sandbox-1", "uid-1")], running)
    with FakeAgent(folder / "link") as agent:
        start_plugin(runtime)
        agent.wait_connected()
        assert agent.update({each.id: str(4096 * at) for at, each in enumerate(running)})["failed"] == {}
        assert held_at(runtime) == {each.id: str(4096 * at) for at, each in enumerate(running)}


def test_the_library_reads_a_long_message_in_our_frames(runtime: Runtime, folder: pathlib.Path) -> None:
    """It reads a frame into 4096 bytes, and ends the connection if one is longer."""
    running = [Container(f"{at:064x}", "sandbox-1", f"app-{at}") for at in range(400)]
    runtime.populate([Pod("sandbox-1", "uid-1")], running)
    answers = {
        "Configure": messages.configured(messages.EVENTS.values()),
        "Synchronize": messages.updates([(each.id, "4096") for each in running]),
    }
    assert len(answers["Synchronize"]) > 8 * frames.MAX_FRAME_SENT
    register = messages.request("RegisterPlugin", messages.register("long", "50"), 5)
    reader = frames.FrameReader()
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.settimeout(20)
        plugin.connect(str(folder / "nri.sock"))
        plugin.sendall(frames.framed(frames.TtrpcMessage(frames.RUNTIME, 1, frames.REQUEST, register)))
        while answers:
            for asked in reader.feed(memoryview(plugin.recv(65536))):
                if asked.kind == frames.REQUEST:
                    body = messages.response(answers.pop(messages.read_request(asked.payload)[0]))
                    answer = frames.TtrpcMessage(frames.PLUGIN, asked.stream, frames.RESPONSE, body)
                    plugin.sendall(frames.framed(answer))
        runtime.wait_for("synchronized", updates=len(running), error="")
        runtime.connected("50-long")
    assert set(held_at(runtime).values()) == {"4096"}


def test_updates_during_requests_stop_neither(version: str, start_plugin: StartPlugin, folder: pathlib.Path) -> None:
    """Before NRI 0.12.1 an update that meets a request can stop the runtime for good.

    The library takes its lock before the runtime's for one, and after it for the other (containerd/containerd, issue
    13733).
    """
    running = [Container(f"container-{number}", "sandbox-1", f"app-{number}") for number in range(8)]
    made: list[Outcome] = []
    done = threading.Event()

    def create() -> None:
        while not done.is_set():
            made.append(runtime.create(Container(f"new-{len(made)}", "sandbox-1", "new", unified={SWAP_MAX: KUBELET})))

    with Runtime(folder, version, work=0.002) as runtime, FakeAgent(folder / "link") as agent:
        runtime.start().populate([Pod("sandbox-1", "uid-1", DISABLED)], running)
        start_plugin(runtime)
        agent.wait_connected()
        creating = threading.Thread(target=create)
        creating.start()
        try:
            answers = [agent.update({each.id: str(4096 * at) for each in running}, timeout=5) for at in range(40)]
        finally:
            done.set()
            creating.join(5)
        assert not creating.is_alive()
        assert [each["failed"] for each in answers] == [{}] * len(answers)
        assert {each.unified[SWAP_MAX] for each in made} == {"0"}
        assert all(spec == str(4096 * 39) for name, spec in held_at(runtime).items() if name.startswith("container"))


def test_the_next_connection_reports_an_original_that_the_runtime_kept(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    first = start_plugin(runtime)
    runtime.populate([Pod("sandbox-1", "uid-1", DISABLED)], [])
    made = runtime.create(Container("container-1", "sandbox-1", unified={SWAP_MAX: KUBELET}))
    assert made.annotations == {ORIGINAL_ANNOTATION: KUBELET}
    first.kill()
    with FakeAgent(folder / "link") as agent:
        start_plugin(runtime)
        items = {each["id"]: each for each in agent.wait_for(FromPlugin.CONTAINERS, more=False)["items"]}
        held = items["container-1"]
        assert (held["uid"], held["name"], held["value"], held["original"]) == ("uid-1", "app", "0", KUBELET)
        assert (items["sandbox-1"]["uid"], items["sandbox-1"]["name"]) == ("uid-1", "")
