"""Plugins of the container runtime: the decisions that they get, and the pods that start."""

from __future__ import annotations

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import board
from swapwarden.agent.ledger import runtime_records
from swapwarden.agent.reconcile import reconciler, runtime_plugins
from swapwarden.api import names
from swapwarden.api import runtime_link as protocol

from tests.unit.agent.agent_node import MIB, Node, apply, settle, state, unheard, until
from tests.unit.agent.cgroup_tree import swap_max, uid, write
from tests.unit.agent.fake_plugin import PluginOf, item

NOTHING: dict[str, object] = {"decided": True, "default": None, "containers": {}}


def decided(value: str, *, at_most: bool = False) -> dict[str, object]:
    return {"decided": True, "default": {"value": value, "atMost": at_most}, "containers": {}}


def status(agent: reconciler.NodeReconciler) -> board.RuntimeStatus:
    runtime = agent.progress.runtime
    assert runtime is not None
    return runtime


async def test_a_plugin_gets_the_mode_first_and_then_all_decisions(plain: Node) -> None:
    containers = {3: {"app": spec.FileSetting(MIB), "side": spec.FileSetting(2 * MIB, at_most=True)}}
    agent = plain.start(state({1: 0, 2: cgroupfs.NO_LIMIT, 3: 3 * MIB}, containers=containers), nri=True)
    plugin = PluginOf(agent)
    await plugin.hears(protocol.FromAgent.READY)
    kinds = [each["kind"] for each in plugin.heard]
    assert kinds == ["mode", "reset", "pods", "ready"]
    assert plugin.heard[0] == {"kind": "mode", "mode": "Enforce"}
    named = {"app": {"value": str(MIB), "atMost": False}, "side": {"value": str(2 * MIB), "atMost": True}}
    assert plugin.heard[2]["pods"] == {
        uid(1): decided("0"),
        uid(2): NOTHING,
        uid(3): {"decided": True, "default": None, "containers": named},
    }


async def test_what_each_container_gets_is_the_default_and_a_pods_own_0_overrules_all(plain: Node) -> None:
    containers = {1: {"app": spec.FileSetting(MIB)}, 2: {"app": spec.FileSetting(MIB)}}
    agent = plain.start(state({1: 0, 2: 2 * MIB}, containers=containers, each=MIB), nri=True)
    pods = (await PluginOf(agent).hears(protocol.FromAgent.PODS))["pods"]
    assert pods == {uid(1): decided("0"), uid(2): decided(str(MIB))}


async def test_without_a_state_there_is_no_mode_and_no_decision(plain: Node) -> None:
    agent = plain.start(nri=True)
    plugin = PluginOf(agent)
    await plugin.hears(protocol.FromAgent.READY)
    assert [each["kind"] for each in plugin.heard] == ["mode", "reset", "ready"]
    assert plugin.heard[0]["mode"] == ""
    assert (plain.folder / protocol.MODE_FILE).read_text() == "\n"


async def test_a_new_state_sends_its_differences_only(plain: Node) -> None:
    agent = plain.start(state({1: 0, 2: MIB, 3: 0}, each=MIB), nri=True)
    plugin = PluginOf(agent)
    await plugin.hears(protocol.FromAgent.READY)
    plugin.heard.clear()
    apply(agent, state({1: 0, 2: 2 * MIB, 4: 0}, each=MIB, generation=2))  # 2: its containers' values stay
    assert plugin.listen() == [
        {"kind": "pods", "pods": {uid(4): decided("0")}},
        {"kind": "gone", "uids": [uid(3)]},
    ]
    plugin.heard.clear()
    apply(agent, state({1: 0, 2: 2 * MIB, 4: 0}, each=MIB, mode=names.Mode.AUDIT, generation=3))
    assert plugin.listen() == [{"kind": "mode", "mode": "Audit"}]
    assert (plain.folder / protocol.MODE_FILE).read_text() == "Audit\n"


async def test_a_container_that_gets_its_id_is_no_difference(plain: Node) -> None:
    def parsed(identity: str) -> spec.NodeSpec:
        app = {"swapMax": str(MIB)} | ({"id": identity} if identity else {})
        pods = {uid(1): {"swapMax": "max", "containers": {"app": app}}}
        raw = msgspec.Raw(msgspec.json.encode({"profileRef": {"name": "p"}, "pods": pods}))
        return spec.parse(spec.ReceivedState(spec=raw), 4096)

    agent = plain.start(parsed(""), nri=True)
    plugin = PluginOf(agent)
    pods = (await plugin.hears(protocol.FromAgent.PODS))["pods"]
    assert pods[uid(1)]["containers"] == {"app": {"value": str(MIB), "atMost": False}}
    plugin.heard.clear()
    apply(agent, parsed("0123456789abc"))
    assert plugin.listen() == []


async def test_a_push_of_many_pods_is_split_into_packets_that_fit(plain: Node) -> None:
    numbers = range(2000)
    agent = plain.start(state(dict.fromkeys(numbers, 0)), nri=True)
    plugin = PluginOf(agent)
    await plugin.hears(protocol.FromAgent.READY)
    got = [key for each in plugin.of(protocol.FromAgent.PODS) for key in each["pods"]]
    assert sorted(got) == sorted(map(uid, numbers))


@pytest.mark.parametrize("heard", [True, False])
async def test_a_pods_slice_has_its_value_before_its_start_continues(node: Node, *, heard: bool) -> None:
    """As the first look at the pod, and where systemd wrote over the value since."""
    agent = node.start(state(), nri=True)
    plugin = PluginOf(agent)
    await plugin.heeded()
    if heard:
        pod = await node.run(1)
    with unheard(agent):
        if heard:
            write(pod, "max")
        else:
            pod = node.tree.pod(1)
        answers = len(plugin.of(protocol.FromAgent.SANDBOX))
        path = f"/{pod.relative_to(node.tree.root)}"
        plugin.say(protocol.FromPlugin.SANDBOX, seq=7, uid=uid(1), id="s", cgroup=path)
        assert (await plugin.hears(protocol.FromAgent.SANDBOX, answers + 1))["seq"] == 7
        assert swap_max(pod) == "0"


async def test_a_start_waits_until_the_file_can_be_written(plain: Node) -> None:
    agent = plain.start(state(), nri=True)
    plugin = PluginOf(agent)
    await plugin.heeded()
    pod = plain.tree.pod(1)
    limit = pod / cgroupfs.SWAP_MAX
    with unheard(agent):
        limit.rename(pod / "aside")  # a cgroup that has just been made
        answers = len(plugin.of(protocol.FromAgent.SANDBOX))
        path = f"/{pod.relative_to(plain.tree.root)}"
        plugin.say(protocol.FromPlugin.SANDBOX, seq=7, uid=uid(1), id="s", cgroup=path)
        await until(lambda: bool(agent.inventory.pods))
        settle(agent)
        assert len(plugin.of(protocol.FromAgent.SANDBOX)) == answers
        (pod / "aside").rename(limit)
        await plugin.hears(protocol.FromAgent.SANDBOX, answers + 1)
        assert swap_max(pod) == "0"


@pytest.mark.parametrize(
    "cgroup",
    [
        "",
        "/",
        "kubepods.slice",
        "/kubepods.slice/../../system.slice",
        "/system.slice/ssh.service",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid(9).replace('-', '_')}.slice",
        f"/kubepods.slice/../pod{uid(9)}/..",
    ],
)
async def test_a_cgroup_that_is_not_there_is_answered_at_once_and_nothing_is_made(plain: Node, cgroup: str) -> None:
    agent = plain.start(state(), nri=True)
    before = sorted(plain.tree.root.rglob("*"))
    plugin = PluginOf(agent)
    plugin.say(protocol.FromPlugin.SANDBOX, seq=1, uid=uid(9), id="s", cgroup=cgroup)
    await plugin.hears(protocol.FromAgent.SANDBOX)
    assert sorted(plain.tree.root.rglob("*")) == before
    assert agent.inventory.pods == {}


async def test_more_starts_than_can_wait_are_answered_at_once(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_plugins, "MOST_SANDBOXES", 0)
    agent = plain.start(state(), nri=True)
    plugin = PluginOf(agent)
    await plugin.heeded()
    with unheard(agent):
        pod = plain.tree.pod(1)
        path = f"/{pod.relative_to(plain.tree.root)}"
        answers = len(plugin.of(protocol.FromAgent.SANDBOX))
        plugin.say(protocol.FromPlugin.SANDBOX, seq=7, uid=uid(1), id="s", cgroup=path)
        await plugin.hears(protocol.FromAgent.SANDBOX, answers + 1)


async def test_a_plugin_that_is_away_is_reported_once_that_lasts(plain: Node) -> None:
    agent = plain.start(state(), nri=True)
    assert status(agent) == board.RuntimeStatus(connected=False)
    plain.later += runtime_plugins.AWAY_SECONDS
    agent.wake()
    assert status(agent).reason == runtime_plugins.PLUGIN_AWAY
    plugin = PluginOf(agent)
    await plugin.heeded()
    assert status(agent) == board.RuntimeStatus(connected=True)
    plugin.close()
    await until(lambda: plugin.ended)
    agent.catch_up()
    assert status(agent) == board.RuntimeStatus(connected=False)
    told = plain.told
    plain.later += runtime_plugins.AWAY_SECONDS
    agent.wake()
    assert status(agent).reason == runtime_plugins.PLUGIN_AWAY
    assert plain.told > told, "nothing has the status written"


async def test_a_plugin_that_does_not_read_is_reported_until_it_does(plain: Node) -> None:
    """As one whose process is stopped: the kernel keeps its connections."""
    agent = plain.start(state({1: 0}), nri=True)
    plugin = PluginOf(agent)
    await plugin.heeded()

    def passes(seconds: float, looks: int = 1) -> None:
        for _ in range(looks):
            plain.later += seconds
            agent.wake()

    passes(runtime_plugins.LOOK_SECONDS, runtime_plugins.LOOKS)
    assert status(agent) == board.RuntimeStatus(connected=True), "it has read all"
    apply(agent, state({1: 0, 2: 0}))
    passes(runtime_plugins.LOOK_SECONDS, runtime_plugins.LOOKS - 1)
    assert status(agent) == board.RuntimeStatus(connected=True), "it may be about to"
    passes(runtime_plugins.LOOK_SECONDS)
    assert runtime_plugins.CONNECTED.value() == 0
    told = plain.told
    passes(runtime_plugins.AWAY_SECONDS)
    assert status(agent).reason == runtime_plugins.UNRESPONSIVE
    assert plain.told > told, "nothing has the status written"
    plugin.listen()
    passes(runtime_plugins.LOOK_SECONDS)
    assert status(agent) == board.RuntimeStatus(connected=True)


@pytest.mark.parametrize(
    ("mode", "later", "stays"),
    [
        (names.Mode.RESTORE, protocol.GONE_SECONDS, False),
        (names.Mode.RESTORE, 0.0, True),
        (names.Mode.AUDIT, protocol.GONE_SECONDS, True),
        (names.Mode.ENFORCE, protocol.GONE_SECONDS, True),
    ],
)
async def test_an_agent_that_is_uninstalled_after_the_plugin_takes_the_mode_away(
    plain: Node, mode: names.Mode, later: float, *, stays: bool
) -> None:
    agent = plain.start(state(mode=mode), nri=True)
    plugin = PluginOf(agent)
    await plugin.heeded()
    plugin.close()
    await until(lambda: plugin.ended)
    agent.catch_up()
    plain.later += later
    plain.stop()
    assert (plain.folder / protocol.MODE_FILE).exists() is stays, "a plugin that starts without an agent reads it"


async def test_an_agent_that_ends_before_the_plugin_leaves_the_mode(plain: Node) -> None:
    agent = plain.start(state(mode=names.Mode.RESTORE), nri=True)
    await PluginOf(agent, connected=False).heeded()
    plain.later += protocol.GONE_SECONDS
    plain.stop()
    assert (plain.folder / protocol.MODE_FILE).read_text() == "Restore\n"


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        ("NoSocket", "NoSocket", ""),
        ("Refused: permission denied", "Refused", "permission denied"),
        ("Lost", "Lost", ""),
        ("odd: text", "Refused", "odd: text"),
        ("", "Refused", ""),
    ],
)
async def test_a_plugin_without_the_runtime_says_why(plain: Node, error: str, reason: str, message: str) -> None:
    agent = plain.start(state(), nri=True)
    plugin = PluginOf(agent, connected=False)
    plugin.say(protocol.FromPlugin.RUNTIME, connected=False, error=error)
    await plugin.heeded()
    plain.later += runtime_plugins.AWAY_SECONDS
    agent.wake()
    runtime = status(agent)
    assert (runtime.connected, runtime.reason, runtime.message) == (False, reason, message)


async def test_late_answers_are_reported_for_a_while_and_counts_are_metrics(plain: Node) -> None:
    agent = plain.start(state(), nri=True)
    counted = (runtime_plugins.REQUESTS, runtime_plugins.ADJUSTED, runtime_plugins.LATE, runtime_plugins.LOST)
    before = [each.value() for each in counted]
    plugin = PluginOf(agent, reported={})
    plugin.say(protocol.FromPlugin.COUNTS, requests=5, adjusted=3, late=0, lost=1)
    await plugin.heeded()
    assert status(agent).reason == ""
    plugin.say(protocol.FromPlugin.COUNTS, requests=7, adjusted=3, late=2, lost=1, omitted=0)
    await plugin.heeded()
    assert [now.value() - then for now, then in zip(counted, before, strict=True)] == [7, 3, 2, 1]
    assert status(agent).reason == runtime_plugins.SLOW
    plain.later += runtime_plugins.SLOW_SECONDS
    assert status(agent).reason == ""


async def test_a_connection_that_the_runtime_gave_up_is_reported_for_a_while(plain: Node) -> None:
    agent = plain.start(state(), nri=True)
    before = runtime_plugins.DROPS.value()
    plugin = PluginOf(agent)
    plugin.say(protocol.FromPlugin.COUNTS, late=0, lost=1, dropped=0)
    plugin.say(protocol.FromPlugin.COUNTS, late=1, lost=1, dropped=0)
    await plugin.heeded()
    assert status(agent).reason == runtime_plugins.SLOW
    told = plain.told
    plugin.say(protocol.FromPlugin.COUNTS, late=1, lost=2, dropped=1)
    await plugin.heeded()
    assert status(agent) == board.RuntimeStatus(connected=True, reason=runtime_plugins.DROPPED)
    assert runtime_plugins.DROPS.value() == before + 1
    assert plain.told > told, "nothing has the status written"
    plain.later += runtime_plugins.SLOW_SECONDS
    assert status(agent).reason == ""


@pytest.mark.parametrize("reported", [None, {"late": 2, "lost": 3, "dropped": 1}, {"lost": 1}])
async def test_what_a_plugin_counted_before_it_connected_is_no_report(
    plain: Node, reported: dict[str, int] | None
) -> None:
    """As after a restart of the agent, weeks after a pod's start was late."""
    agent = plain.start(state(), nri=True)
    plugin = PluginOf(agent, reported=reported)
    await plugin.heeded()
    await plugin.heeded()
    told = plain.told
    plugin.say(protocol.FromPlugin.COUNTS, late=2, lost=3, dropped=1)
    await plugin.heeded()
    assert status(agent) == board.RuntimeStatus(connected=True)
    assert plain.told == told


async def test_nothing_counts_twice_or_is_lost_when_a_plugin_connects_again(plain: Node) -> None:
    agent = plain.start(state(), nri=True)
    before = [runtime_plugins.REQUESTS.value(), runtime_plugins.ADJUSTED.value()]

    async def counted(requests: int, adjusted: int, reported: dict[str, int] | None = None) -> list[float]:
        plugin = PluginOf(agent, reported=reported)
        plugin.say(protocol.FromPlugin.COUNTS, requests=requests, adjusted=adjusted)
        await plugin.heeded()
        plugin.close()
        after = [runtime_plugins.REQUESTS.value(), runtime_plugins.ADJUSTED.value()]
        return [now - then for now, then in zip(after, before, strict=True)]

    assert await counted(5, 3, reported={"requests": 0, "adjusted": 0}) == [5, 3]
    assert await counted(5, 3, reported={"requests": 5, "adjusted": 3}) == [5, 3]
    # Two requests came while no agent was connected.
    assert await counted(7, 4, reported={"requests": 5, "adjusted": 3}) == [7, 4]
    # A new process of the plugin counts from 0; an older one does not say what an agent has had.
    assert await counted(1, 1, reported={}) == [8, 5]
    assert await counted(9, 9) == [8, 5]


async def test_a_plugin_that_lists_too_many_containers_is_dropped(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_records, "MOST", 3)
    agent = plain.start(state(), nri=True)
    plugin = PluginOf(agent, connected=False)
    plugin.say(protocol.FromPlugin.CONTAINERS, items=[item(1, str(each), "0") for each in range(4)], more=True)
    await until(lambda: plugin.ended)
    assert len(plain.ledger.runtime) == 0


async def test_an_agent_without_the_flag_has_no_link(plain: Node) -> None:
    agent = plain.start(state())
    assert agent.progress.runtime is None
    assert not (plain.folder / protocol.SOCKET).exists()


async def test_a_dropped_plugin_is_forgotten(plain: Node) -> None:
    agent = plain.start(state(), nri=True)
    plugin = PluginOf(agent)
    await plugin.heeded()
    plugin.send(b"wrong")
    await until(lambda: not status(agent).connected)
    assert agent.tasks.runtime is not None
    assert agent.tasks.runtime.link.peers == {}
