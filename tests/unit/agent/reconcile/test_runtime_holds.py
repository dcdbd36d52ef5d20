"""Running containers under the hold of the runtime: after their files, never as a cut, with a way back."""

from __future__ import annotations

import itertools
import pathlib
import shutil
import tempfile
from typing import Any

import msgspec
import pytest
from swapwarden.agent.desired import runtime_values, spec
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.ledger import ledger, runtime_records
from swapwarden.agent.reconcile import (
    container_reconciler,
    file_reconciler,
    queue,
    reconciler,
    runtime_holds,
    runtime_plugins,
)
from swapwarden.api import names
from swapwarden.api import runtime_link as protocol

from tests.unit.agent.agent_node import MIB, Node, apply, compare, settle, state, until
from tests.unit.agent.cgroup_tree import container_id, swap_max, uid, write
from tests.unit.agent.fake_plugin import PluginOf, item

YOUNG = container_reconciler.YOUNG_SECONDS


def updates(plugin: PluginOf) -> list[dict[str, str]]:
    return [each["values"] for each in plugin.of(protocol.FromAgent.UPDATE)]


async def answer(node: Node, plugin: PluginOf, *, makes: bool = True, **failed: str) -> None:
    """Answer the last request, as the runtime does when it has made all changes but those that failed.

    `makes`: whether it wrote them to the cgroups, and not to its records alone.
    """
    seq, values = plugin.of(protocol.FromAgent.UPDATE)[-1]["seq"], updates(plugin)[-1]
    for name in values.keys() - {container_id(each) for each in failed} if makes else ():
        for folder in node.tree.root.rglob(f"*{name}*"):
            write(folder, values[name])
    plugin.say(protocol.FromPlugin.UPDATED, seq=seq, failed={container_id(name): why for name, why in failed.items()})
    await plugin.heeded()


def value_of(node: Node, name: str) -> tuple[int, str | None]:
    record = node.ledger.runtime.get(container_id(name))
    assert record is not None
    return record.value, record.original


def later(node: Node, agent: reconciler.NodeReconciler, seconds: float) -> None:
    node.later += seconds
    agent.wake()
    settle(agent)


def to_restore(agent: reconciler.NodeReconciler) -> int:
    assert agent.tasks.runtime is not None
    return agent.tasks.runtime.holds.to_restore


def stored(folder: pathlib.Path) -> dict[str, runtime_records.RuntimeRecord]:
    """Return what the next run of the agent would know."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copy(folder / ledger.FILE, copy)
        book = ledger.Ledger(pathlib.Path(copy))
        book.close()
        return {record.id: record for record in book.runtime}


async def running(
    node: Node, desired: spec.NodeSpec, *items: dict[str, Any], names_: tuple[str, ...] = ("app",), **files: Any
) -> tuple[reconciler.NodeReconciler, PluginOf, pathlib.Path]:
    """A pod with containers that ran before the agent and the plugin came."""
    pod = node.tree.pod(1, **files)
    for name in names_:
        node.tree.container(pod, name, memory_swap_max=f"{8 * MIB}\n")
    agent = node.start(desired, nri=True)
    settle(agent)
    plugin = PluginOf(agent, *items)
    await plugin.heeded()
    return agent, plugin, pod


APP = item(1, "app", str(8 * MIB))


async def test_a_container_of_a_disabled_pod_gets_0_from_the_runtime_and_its_file_stays_closed(plain: Node) -> None:
    agent, plugin, pod = await running(plain, state({1: 0}), APP, item(1, "", None))
    assert updates(plugin) == [{container_id("app"): "0"}]
    (container,) = plain.known(pod).containers.values()
    assert container.files == []
    before = runtime_holds.CORRECTED.value()
    await answer(plain, plugin)
    assert runtime_holds.CORRECTED.value() == before + 1
    assert value_of(plain, "app") == (0, str(8 * MIB))
    compare(agent)
    assert len(updates(plugin)) == 1, "it was asked again"


async def test_the_earlier_number_is_on_record_before_the_runtime_is_asked(plain: Node) -> None:
    _, plugin, _ = await running(plain, state({1: 0}), APP)
    assert updates(plugin)
    record = stored(plain.folder)[container_id("app")]
    assert (record.value, record.asked, record.original) == (8 * MIB, 0, str(8 * MIB))


async def test_a_containers_own_number_is_held_once_its_file_has_it(plain: Node) -> None:
    wants = state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB)}})
    pod = plain.tree.pod(1)
    app = plain.tree.container(pod, "app", memory_swap_max=f"{8 * MIB}\n")
    agent = plain.start(state({1: cgroupfs.NO_LIMIT}), nri=True)
    plugin = PluginOf(agent, APP)
    await plugin.heeded()
    with pytest.MonkeyPatch.context() as patch:
        real = cgroupfs.Cgroups.write

        def refuse(fs: cgroupfs.Cgroups, name: str, value: int) -> None:
            if container_id("app") in name:
                raise cgroupfs.CgroupError(name)
            real(fs, name, value)

        patch.setattr(cgroupfs.Cgroups, "write", refuse)
        apply(agent, wants)
        await plugin.heeded()
        assert updates(plugin) == []
    later(plain, agent, queue.RETRY_SECONDS[1])
    await plugin.heeded()
    assert swap_max(app) == str(MIB)
    assert updates(plugin) == [{container_id("app"): str(MIB)}]


@pytest.mark.parametrize("memory", [1, 100])
async def test_a_pod_that_drains_is_asked_about_when_it_has_drained(plain: Node, memory: int) -> None:
    """Its file holds 0 at once if there is room for its pages."""
    full: dict[str, Any] = {
        "memory_swap_current": f"{64 * MIB}\n",
        "memory_current": f"{memory * MIB}\n",
        "memory_max": f"{100 * MIB}\n",
    }
    agent, plugin, pod = await running(plain, state({1: 0}), APP, **full)
    assert plain.known(pod).file.status.draining
    assert (updates(plugin), swap_max(pod) == "0") == ([], memory == 1)
    write(pod, "0", "memory.swap.current")
    later(plain, agent, file_reconciler.DRAIN_SECONDS[1])
    await plugin.heeded()
    assert updates(plugin) == [{container_id("app"): "0"}]


async def test_a_smaller_number_is_as_good_where_the_state_says_at_most(plain: Node) -> None:
    most = {1: {"app": spec.FileSetting(16 * MIB, at_most=True), "side": spec.FileSetting(MIB, at_most=True)}}
    desired = state({1: cgroupfs.NO_LIMIT}, containers=most)
    _, plugin, _ = await running(plain, desired, APP, item(1, "side", None), names_=("app", "side"))
    assert updates(plugin) == [{container_id("side"): str(MIB)}]


async def test_a_smaller_value_in_the_file_is_not_raised_by_a_ceiling(plain: Node) -> None:
    desired = state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(16 * MIB, at_most=True)}})
    _, plugin, pod = await running(plain, desired, item(1, "app", None))
    assert swap_max(plain.tree.container_path(pod, "app")) == str(8 * MIB)
    assert updates(plugin) == []


async def test_nothing_is_asked_for_a_container_that_the_state_does_not_know_by_its_id_yet(plain: Node) -> None:
    entry = spec.PodEntry({}, {}, None, {"app": {cgroupfs.SWAP_MAX: spec.FileSetting(MIB)}})
    agent, plugin, _ = await running(plain, msgspec.structs.replace(state({}), pods={uid(1): entry}), APP)
    compare(agent)
    assert updates(plugin) == []


async def test_a_container_that_has_just_started_is_left_to_the_runtime_for_a_moment(plain: Node) -> None:
    agent = plain.start(state({1: 0}), nri=True)
    pod = await plain.run(1, "app")
    plugin = PluginOf(agent, APP)
    await plugin.heeded()
    assert (updates(plugin), swap_max(pod)) == ([], "0")
    later(plain, agent, YOUNG)
    await plugin.heeded()
    assert updates(plugin) == [{container_id("app"): "0"}]


async def test_a_container_that_the_plugin_decided_about_needs_nothing_more(plain: Node) -> None:
    agent, plugin, pod = await running(plain, state({1: 0}), names_=())
    plugin.say(protocol.FromPlugin.CREATED, uid=uid(1), id=container_id("new"), name="new", value="0", original="77")
    plain.tree.container(pod, "new", memory_swap_max="0\n")
    await until(lambda: bool(plain.known(pod).containers))
    later(plain, agent, YOUNG)
    await plugin.heeded()
    assert updates(plugin) == []
    assert value_of(plain, "new") == (0, "77")
    plain.tree.remove(plain.tree.container_path(pod, "new"))
    await until(lambda: plain.ledger.runtime.get(container_id("new")) is None)


async def test_two_plugins_that_report_one_container_agree_in_either_order(plain: Node) -> None:
    first = {"uid": uid(1), "id": container_id("app"), "name": "app", "value": "0", "original": "77"}
    second = {**first, "value": None, "original": "0"}  # it saw the first one's value
    for order in ((first, second), (second, first)):
        _, plugin, _ = await running(plain, state({1: 0}))
        for each in order:
            plugin.say(protocol.FromPlugin.CREATED, **each)
        await plugin.heeded()
        assert value_of(plain, "app") == (0, "77")
        plugin.close()
        plain.stop()
        plain.tree.remove(plain.tree.pod_path(1))
        (plain.folder / ledger.FILE).unlink()


async def test_what_the_runtime_refuses_is_tried_again_later_and_the_others_are_held(plain: Node) -> None:
    items = (APP, item(1, "side", str(8 * MIB)))
    agent, plugin, _ = await running(plain, state({1: 0}), *items, names_=("app", "side"))
    assert len(updates(plugin)[0]) == 2
    await answer(plain, plugin, app="busy")
    assert value_of(plain, "side")[0] == 0
    assert value_of(plain, "app")[0] == 8 * MIB
    while len(updates(plugin)) == 1:  # the wait is random
        later(plain, agent, runtime_holds.ANSWER_SECONDS / 2)
        await plugin.heeded()
    assert updates(plugin)[1:] == [{container_id("app"): "0"}]


async def test_what_the_runtime_says_and_does_not_do_is_tried_again(plain: Node) -> None:
    """As for a container that it made, and starts a moment later with the value from before."""
    agent, plugin, _ = await running(plain, state({1: 0}), APP)
    await answer(plain, plugin, makes=False)
    assert value_of(plain, "app")[0] == 8 * MIB
    while len(updates(plugin)) == 1:  # the wait is random
        later(plain, agent, runtime_holds.ANSWER_SECONDS / 2)
        await plugin.heeded()
    await answer(plain, plugin)
    assert value_of(plain, "app") == (0, str(8 * MIB))


async def test_a_plugin_that_never_answers_is_dropped_and_the_next_one_asked(plain: Node) -> None:
    agent, plugin, _ = await running(plain, state({1: 0}), APP)
    assert updates(plugin)
    later(plain, agent, runtime_holds.ANSWER_SECONDS)
    await until(lambda: plugin.ended)
    other = PluginOf(agent, APP)
    await other.heeded()
    assert updates(other) == [{container_id("app"): "0"}]


async def test_a_long_list_is_recorded_in_parts(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "SLICE_SECONDS", 0.0)  # one key in a turn
    monkeypatch.setattr(runtime_plugins, "MERGED", 1)
    names_ = [f"c{number}" for number in range(100)]
    agent = plain.start(state({1: 0}), nri=True)
    plugin = PluginOf(agent, connected=False)
    plugin.say(protocol.FromPlugin.RUNTIME, connected=True)
    await plugin.heeded()
    sizes = [0]

    def recorded() -> int:
        return sum(plain.ledger.runtime.get(container_id(name)) is not None for name in names_)

    runtime = agent.tasks.runtime
    assert runtime is not None
    real = runtime.reconcile

    def reconcile() -> None:
        real()
        sizes.append(recorded())

    monkeypatch.setattr(runtime, "reconcile", reconcile)
    plugin.say(protocol.FromPlugin.CONTAINERS, items=[item(1, name, "0") for name in names_])
    plugin.say(protocol.FromPlugin.RESIZED, id=container_id(names_[-1]), value="4096")
    plugin.say(protocol.FromPlugin.REMOVED, id=container_id(names_[-2]))
    await until(lambda: recorded() == len(names_) - 1)
    assert max(now - then for then, now in itertools.pairwise(sizes)) <= 2  # and one of which there is news
    await plugin.heeded()
    assert value_of(plain, names_[-1])[0] == 4096
    assert plain.ledger.runtime.get(container_id(names_[-2])) is None


async def test_an_answer_to_another_request_changes_nothing(plain: Node) -> None:
    _, plugin, _ = await running(plain, state({1: 0}), APP)
    plugin.say(protocol.FromPlugin.UPDATED, seq=999, failed={})
    await plugin.heeded()
    assert value_of(plain, "app")[0] == 8 * MIB


@pytest.mark.parametrize("lists", ["0", str(8 * MIB), "55"])
async def test_a_next_agent_learns_from_the_list_whether_the_change_was_made(plain: Node, lists: str) -> None:
    """The first was killed after it had asked. 55 is the kubelet's, by a resize without a plugin."""
    _, plugin, _ = await running(plain, state({1: 0}), APP)
    assert updates(plugin)
    plugin.close()
    plain.stop()
    agent = plain.start(state({1: 0}), nri=True)
    corrected = runtime_holds.CORRECTED.value()
    other = PluginOf(agent, item(1, "app", lists))
    await other.heeded()
    if lists == "0":
        assert (updates(other), value_of(plain, "app")) == ([], (0, str(8 * MIB)))
    else:
        assert updates(other) == [{container_id("app"): "0"}]
        await answer(plain, other)
        assert value_of(plain, "app") == (0, lists)
    assert runtime_holds.CORRECTED.value() == corrected + 1


@pytest.mark.parametrize("mode", [names.Mode.RESTORE, names.Mode.AUDIT])
async def test_a_restore_ends_once_the_runtime_has_the_kubelets_numbers(plain: Node, mode: names.Mode) -> None:
    wants = state({1: 16 * MIB}, containers={1: {"app": spec.FileSetting(MIB)}})
    agent, plugin, pod = await running(plain, wants, APP)
    app = plain.tree.container_path(pod, "app")
    assert (updates(plugin), swap_max(app)) == ([{container_id("app"): str(MIB)}], str(MIB))
    await answer(plain, plugin)
    corrected = runtime_holds.CORRECTED.value()
    apply(agent, state({1: 16 * MIB}, mode=mode, generation=2))
    assert swap_max(app) == str(8 * MIB), "the file precedes the runtime"
    assert (to_restore(agent), agent.progress.to_restore) == (1, 1)
    await plugin.heeded()
    assert updates(plugin)[1:] == [{container_id("app"): str(8 * MIB)}]
    assert to_restore(agent) == 1
    await answer(plain, plugin)
    assert (to_restore(agent), value_of(plain, "app")) == (0, (8 * MIB, None))
    assert runtime_holds.CORRECTED.value() == corrected


async def test_a_container_without_a_number_before_is_restored_to_none(plain: Node) -> None:
    agent, plugin, _ = await running(plain, state({1: 0}), item(1, "app", None))
    await answer(plain, plugin)
    apply(agent, state({1: 0}, mode=names.Mode.RESTORE))
    await plugin.heeded()
    assert updates(plugin)[-1] == {container_id("app"): "max"}


async def test_a_pod_that_may_swap_again_has_its_containers_released(plain: Node) -> None:
    agent, plugin, pod = await running(plain, state({1: 0}), APP)
    await answer(plain, plugin)
    apply(agent, state({1: cgroupfs.NO_LIMIT}, generation=2))
    await plugin.heeded()
    assert swap_max(pod) == "max"
    assert updates(plugin)[1:] == [{container_id("app"): str(8 * MIB)}]


async def test_a_pod_that_leaves_the_state_is_held_until_it_is_gone(plain: Node) -> None:
    agent, plugin, _ = await running(plain, state({1: 0}), APP)
    await answer(plain, plugin)
    apply(agent, state({}, generation=2))
    plugin.say(protocol.FromPlugin.CONTAINERS, items=[item(1, "app", "0")])
    await plugin.heeded()
    assert len(updates(plugin)) == 1


async def test_a_restore_without_a_plugin_ends_and_a_later_plugin_is_asked(plain: Node) -> None:
    agent, plugin, _ = await running(plain, state({1: 0}), APP)
    await answer(plain, plugin)
    plugin.close()
    await until(lambda: plugin.ended)
    agent.catch_up()
    apply(agent, state({1: 0}, mode=names.Mode.RESTORE))
    assert to_restore(agent) == 1
    told = plain.told
    later(plain, agent, runtime_holds.ALONE_SECONDS)
    assert (to_restore(agent), plain.told > told) == (0, True)
    other = PluginOf(agent, item(1, "app", "0"))
    await other.heeded()
    assert updates(other) == [{container_id("app"): str(8 * MIB)}]


async def test_a_restore_that_the_runtime_refuses_ends(plain: Node) -> None:
    agent, plugin, _ = await running(plain, state({1: 0}), APP)
    await answer(plain, plugin)
    apply(agent, state({1: 0}, mode=names.Mode.RESTORE))
    await plugin.heeded()
    before = len(updates(plugin)) - 1
    for number in range(1, runtime_holds.GIVE_UP + 1):
        # The wait for the next try is random, and may be over already: a request must not wait for its answer too long.
        while len(updates(plugin)) < before + number:
            later(plain, agent, runtime_holds.ANSWER_SECONDS / 2)
            await plugin.heeded()
        assert to_restore(agent) == 1
        await answer(plain, plugin, app="never")
    assert to_restore(agent) == 0


async def test_a_container_that_is_gone_holds_up_no_restore(plain: Node) -> None:
    agent, plugin, pod = await running(plain, state({1: 0}), APP)
    await answer(plain, plugin)
    plugin.close()
    plain.stop()
    plain.tree.remove(plain.tree.container_path(pod, "app"))
    agent = plain.start(state({1: 0}), nri=True)
    apply(agent, state({1: 0}, mode=names.Mode.RESTORE))
    assert to_restore(agent) == 0


async def test_before_a_state_nothing_is_given_back(plain: Node) -> None:
    """The agent enforces the records of an earlier run until then."""
    _, plugin, _ = await running(plain, state({1: 0}), APP)
    await answer(plain, plugin)
    plugin.close()
    plain.stop()
    agent = plain.start(nri=True)
    other = PluginOf(agent, item(1, "app", "0"))
    await other.heeded()
    assert updates(other) == []


async def test_a_lower_number_of_the_runtimes_is_systemds_and_no_contention(plain: Node) -> None:
    """As of a container that the runtime holds at 0, and the state raised, while no plugin can be asked."""
    agent, plugin, pod = await running(plain, state({1: 0}), APP)
    await answer(plain, plugin)
    plugin.close()
    await until(lambda: plugin.ended)
    agent.catch_up()
    apply(agent, state({1: 16 * MIB}, containers={1: {"app": spec.FileSetting(MIB)}}, generation=2))
    app = plain.tree.container_path(pod, "app")
    (container,) = plain.known(pod).containers.values()
    (file,) = container.files
    assert (swap_max(app), file.systemd.value) == (str(MIB), 0)
    for _ in range(12):  # reloads
        write(app, "0")
        agent.catch_up()
        settle(agent)
        assert swap_max(app) == str(MIB)
    assert file.contention is None


async def test_the_kubelets_smaller_number_is_given_back_only_once_swap_in_use_has_drained(plain: Node) -> None:
    """The runtime had the larger number from the container's start: the agent never wrote it."""
    wants = state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(8 * MIB)}})
    agent, plugin, pod = await running(plain, wants, {**APP, "original": str(MIB + 1)})
    app = next(pod.glob("*" + container_id("app") + "*"))
    for name in ("memory.swap.current", "memory.max", "memory.current"):
        write(app, f"{4 * MIB}\n", name)
    apply(agent, state({1: cgroupfs.NO_LIMIT}))
    later(plain, agent, YOUNG)
    assert updates(plugin) == []
    assert int(swap_max(app)) >= 4 * MIB
    (container,) = plain.known(pod).containers.values()
    (file,) = container.files
    assert (file.status.draining, file.status.limit) == (True, MIB)
    write(app, "0\n", "memory.swap.current")
    later(plain, agent, 60.0)
    assert swap_max(app) == str(MIB)
    await plugin.heeded()
    assert updates(plugin) == [{container_id("app"): str(MIB + 1)}]


async def test_no_value_of_the_runtimes_is_lowered_below_the_swap_in_use(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the agent does not know that a file has a value of the runtime's."""
    monkeypatch.setattr(runtime_values, "lower_original", lambda *_: None)
    wants = state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(8 * MIB)}})
    agent, plugin, pod = await running(plain, wants, {**APP, "original": str(MIB)})
    app = next(pod.glob("*" + container_id("app") + "*"))
    write(app, f"{4 * MIB}\n", "memory.swap.current")
    apply(agent, state({1: cgroupfs.NO_LIMIT}))
    later(plain, agent, YOUNG)
    assert updates(plugin) == []
