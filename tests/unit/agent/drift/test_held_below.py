"""Exposures of pods whose containers the container runtime holds: what counts is the least limit in effect."""

from __future__ import annotations

import pathlib
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from swapwarden.agent.desired import resolve, runtime_values, spec
from swapwarden.agent.drift import repairs
from swapwarden.agent.host import cgroupfs, inotify, link_messages
from swapwarden.agent.inventory import records
from swapwarden.agent.ledger import runtime_records
from swapwarden.agent.reconcile import cgroup_reconciler
from swapwarden.api import runtime_link as protocol

from tests.unit.agent.agent_node import MIB, Node, hear, settle, state, unheard, until
from tests.unit.agent.cgroup_tree import container_id, uid, write
from tests.unit.agent.fake_plugin import PluginOf, item

MAX = cgroupfs.NO_LIMIT


def exposed(node: Node, pod: pathlib.Path) -> tuple[int, int]:
    """How often a pod was exposed, and the bytes that it took."""
    tally = node.known(pod).tally
    return tally.count, tally.grown


async def reload(node: Node, pod: pathlib.Path, value: str = "max") -> None:
    """Have systemd write its value, which the agent repairs."""
    assert node.agent is not None
    limit = (pod / cgroupfs.SWAP_MAX).read_text()
    write(pod, value)
    await until(lambda: (pod / cgroupfs.SWAP_MAX).read_text() == limit)
    settle(node.agent)


async def held(node: Node, desired: spec.NodeSpec, *containers: str, value: int = 0) -> pathlib.Path:
    """A pod with containers that the plugin set to `value`, and its sandbox at max."""
    agent = node.start(desired, nri=True)
    plugin = PluginOf(agent)
    pod = await node.run(1, "sandbox 1")
    plugin.say(protocol.FromPlugin.SANDBOX, seq=1, uid=uid(1), id=container_id("sandbox 1"), cgroup="")
    for name in containers:
        made = {"uid": uid(1), "id": container_id(name), "name": name, "value": str(value), "original": None}
        plugin.say(protocol.FromPlugin.CREATED, **made)
        node.tree.container(pod, name, memory_swap_max=f"{value}\n")
    await until(lambda: len(node.known(pod).containers) == len(containers) + 1)
    await plugin.heeded()
    return pod


async def test_a_reload_over_containers_that_systemd_holds_at_0_is_no_exposure(plain: Node) -> None:
    pod = await held(plain, state({1: 0}), "app", "side")
    await reload(plain, pod)
    assert exposed(plain, pod) == (0, 0)
    assert plain.known(pod).tally.rewritten == float("-inf"), "it counts as drift"


async def test_a_reload_before_the_first_container_exposes_the_pause_process_only(plain: Node) -> None:
    pod = await held(plain, state({1: 0}))
    await reload(plain, pod)
    assert exposed(plain, pod) == (0, 0)


async def test_one_container_that_nothing_holds_is_an_exposure_of_the_pod(plain: Node) -> None:
    pod = await held(plain, state({1: 0}), "app")
    plain.tree.container(pod, "other")
    await until(lambda: len(plain.known(pod).containers) == 3)
    await reload(plain, pod)
    assert exposed(plain, pod)[0] == 1


async def test_a_container_that_no_event_has_reported_yet_counts(plain: Node) -> None:
    pod = await held(plain, state({1: 0}), "app")
    agent = plain.agent
    assert agent is not None
    with unheard(agent):
        plain.tree.container(pod, "other")
        file = plain.known(pod).file
        write(pod, "max")
        hear(agent, (file, inotify.InotifyEvent(0, inotify.MODIFY, "")))
    assert exposed(plain, pod)[0] == 1


async def test_a_value_of_the_runtimes_that_the_file_does_not_hold_is_no_hold(plain: Node) -> None:
    pod = await held(plain, state({1: 0}), "app")
    write(plain.tree.container_path(pod, "app"), str(MIB))  # by a resize while no plugin was there
    await reload(plain, pod)
    assert exposed(plain, pod)[0] == 1


async def test_swap_that_was_taken_is_never_hidden(plain: Node) -> None:
    pod = await held(plain, state({1: 0}), "app")
    write(pod, "4096", "memory.swap.current")
    await reload(plain, pod)
    assert exposed(plain, pod) == (1, 4096)


@pytest.mark.parametrize(("limit", "count"), [(16, 0), (15, 1)])
async def test_numbers_above_0_count_together(plain: Node, limit: int, count: int) -> None:
    pod = await held(plain, state({1: limit * MIB}), "app", "side", value=8 * MIB)
    await reload(plain, pod)
    assert exposed(plain, pod)[0] == count


@pytest.mark.parametrize("appears", [False, True])
async def test_an_agent_that_was_dead_knows_the_holds_of_that_time(plain: Node, *, appears: bool) -> None:
    pod = await held(plain, state({1: 0}), "app")
    plain.stop()
    write(pod, "max")
    if appears:
        plain.tree.container(pod, "new", memory_swap_max="0\n")  # nobody knows who holds this one
    plain.start(state({1: 0}), nri=True, away=0.0)
    await until(lambda: (pod / cgroupfs.SWAP_MAX).read_text().startswith("0"))
    assert exposed(plain, pod)[0] == appears


async def test_a_container_that_nothing_held_and_that_ended_while_no_agent_ran_is_an_exposure(plain: Node) -> None:
    pod = await held(plain, state({1: 0}))
    other = plain.tree.container(pod, "other")  # no plugin reported it
    await until(lambda: plain.ledger.runtime.get(container_id("other")) is not None)
    plain.stop()
    write(pod, "max")
    plain.tree.remove(other)
    plain.start(state({1: 0}), nri=True, away=0.0)
    await until(lambda: (pod / cgroupfs.SWAP_MAX).read_text().startswith("0"))
    assert exposed(plain, pod)[0] == 1


async def test_an_update_of_a_running_container_counts_from_its_success_on(plain: Node) -> None:
    pod = plain.tree.pod(1)
    plain.tree.container(pod, "app", memory_swap_max=f"{MIB}\n")
    agent = plain.start(state({1: 0}), nri=True)
    settle(agent)
    plugin = PluginOf(agent, item(1, "app", str(MIB)))
    await plugin.hears(protocol.FromAgent.UPDATE)
    before = exposed(plain, pod)[0]
    await reload(plain, pod)
    assert exposed(plain, pod)[0] == before + 1
    write(plain.tree.container_path(pod, "app"), "0")
    plugin.say(protocol.FromPlugin.UPDATED, seq=1, failed={})
    await plugin.heeded()
    await reload(plain, pod)
    assert exposed(plain, pod)[0] == before + 1


async def test_a_container_that_ended_meanwhile_counts_since_its_file_is_gone(plain: Node) -> None:
    pod = await held(plain, state({1: 0}), "app")
    agent = plain.agent
    assert agent is not None
    other = plain.tree.container(pod, "other")
    await until(lambda: len(plain.known(pod).containers) == 3)
    begun = agent.work.clock()
    plain.tree.remove(other)
    await until(lambda: len(plain.known(pod).containers) == 2)
    reads = plain.cgroups, plain.ledger.runtime, plain.known(pod), 0
    assert not repairs.holds_below(*reads, begun, watched=True)
    assert repairs.holds_below(*reads, agent.work.clock() + 1, watched=True)


async def test_the_process_of_cri_o_beside_a_container_is_not_the_pods_and_any_other_cgroup_is(plain: Node) -> None:
    pod = await held(plain, state({1: 0}), "app")
    plain.tree.group(pod / f"crio-conmon-{container_id('app')}.scope")
    await reload(plain, pod)
    assert exposed(plain, pod)[0] == 0
    plain.tree.group(pod / "odd")
    await reload(plain, pod)
    assert exposed(plain, pod)[0] == 1


# All orders of events


class World:
    """One pod at 0, its containers, and an agent."""

    def __init__(self) -> None:
        self.now = 100.0
        self.disk: dict[str, int] = {}
        """Values in the files of running containers."""
        self.runtime = runtime_records.RuntimeRecords(lambda _: None)
        self.runtime.expected = True
        self.pod = new_pod()
        self.asked: set[str] = set()
        self.unseen: set[str] = set()
        """Containers of which nobody has reported anything yet."""
        self.hidden = self.exceeded = False
        """Whether an unseen one ended; whether the containers could use swap."""

    # For holds_below

    def children(self, path: str, *, most: int) -> list[str]:
        assert (path, most) == ("pod", repairs.MOST)
        return list(map(container_id, self.disk))

    def number(self, path: str, file: str) -> int | None:
        for name, value in self.disk.items():
            if (path, file) == (f"pod/{container_id(name)}", cgroupfs.SWAP_MAX):
                return value
        return None

    # Events

    def step(self, what: str, name: str, *, heard: bool) -> None:
        self.now += 1
        getattr(self, what)(name, heard=heard)
        self.look()

    def look(self) -> None:
        self.exceeded = self.exceeded or any(self.disk.values())

    def create(self, name: str, *, heard: bool) -> None:
        """By the plugin's decision, or without a plugin."""
        name = f"{name} {self.now}"
        self.disk[name] = 0 if heard else MAX
        self.unseen.add(name)
        if heard:
            self.reports_creation(name)

    def reports_creation(self, name: str) -> None:
        made = link_messages.ContainerCreated(uid="uid", id=container_id(name), name=name, value="0")
        self.runtime.put(runtime_values.created(None, made))
        self.unseen.discard(name)

    def remove(self, name: str, *, heard: bool) -> None:
        for each in self.of(name):
            self.hidden = self.hidden or each in self.unseen
            del self.disk[each]
            if heard:
                self.notice(name, heard=True)

    def resize(self, name: str, *, heard: bool) -> None:
        """Without a plugin that answers: the kubelet's number is in force from then on."""
        for each in self.of(name):
            if each not in self.asked:
                self.disk[each] = MIB
                seen = self.runtime.get(container_id(each))
                if heard and seen is not None:
                    self.runtime.put(runtime_values.resized(seen, str(MIB), self.now))

    def ask(self, name: str, *, heard: bool) -> None:
        for each in self.of(name):
            seen = self.runtime.get(container_id(each))
            if heard and seen is not None and seen.value:
                self.runtime.put(runtime_values.asked(seen, 0))
                self.asked.add(each)

    def answer(self, name: str, *, heard: bool) -> None:
        for each in self.asked & set(self.of(name)):
            self.asked.discard(each)
            self.disk[each] = 0
            seen = self.runtime.get(container_id(each))
            if heard and seen is not None:
                self.runtime.put(runtime_values.answered(seen, self.now, done=True))

    def all_listed(self, _: str, *, heard: bool) -> None:
        for name, value in self.disk.items() if heard else ():
            entry = link_messages.ReportedContainer("uid", container_id(name), name, cgroupfs.render(value))
            known = self.runtime.get(container_id(name))
            self.runtime.put(runtime_values.listed(known, entry, self.now))
            self.unseen.discard(name)

    def notice(self, _: str, *, heard: bool) -> None:
        """The agent reads its events."""
        if not heard:
            return
        there = set(map(container_id, self.disk))
        for each in there:
            self.pod.containers.setdefault(each, records.Container(f"pod/{each}", self.pod, each, self.now))
            self.runtime.see(each, "uid", self.now)
        for gone in self.pod.containers.keys() - there:
            cgroup_reconciler.end(self.pod.containers.pop(gone), self.runtime, self.now)
        self.unseen.clear()

    def of(self, name: str) -> list[str]:
        return [each for each in self.disk if each.startswith(name)]


def new_pod() -> records.Pod:
    return records.Pod("pod", "uid", 1, resolve.Origin.APPEARED, 0.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "create", "remove", "resize", "ask", "answer", "all_listed", "notice"]),
        st.sampled_from("ab"),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=1500)
@example([("create", "a", False), ("all_listed", "a", True), ("ask", "a", True)], [("answer", "a", True)], "late")
@given(before=STEPS, during=STEPS, case=st.sampled_from(["repaired", "late", "dead"]))
def test_what_could_use_swap_is_always_an_exposure(
    before: list[tuple[str, str, bool]], during: list[tuple[str, str, bool]], case: str
) -> None:
    """The pod's file is at max from `since` on: for a moment, found late, or while no agent ran."""
    world = World()
    for what, name, heard in before:
        world.step(what, name, heard=heard)
    if case == "repaired":  # all events until then were read
        world.notice("", heard=True)
    world.now += 1
    since, world.exceeded, world.hidden = world.now, False, False
    world.look()
    for what, name, heard in during:
        world.step(what, name, heard=heard and case == "late")
    if case == "dead":
        world.pod = new_pod()
        world.notice("", heard=True)
    seen = cast("cgroupfs.Cgroups", world)
    bound = repairs.holds_below(seen, world.runtime, world.pod, 0, since, watched=case == "repaired")
    assert not (bound and world.exceeded and not world.hidden)
