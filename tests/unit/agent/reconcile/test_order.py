"""No order of writes lets a pod use more, not even for a moment, than the old limits or the new ones allow.

Be swap in use or not: what cannot be cut keeps no more than it could use before.
"""

from __future__ import annotations

import asyncio
import pathlib
import tempfile

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.host import cgroupfs, inotify
from swapwarden.agent.ledger import runtime_records
from swapwarden.agent.reconcile import queue, reconciler
from swapwarden.api import names
from swapwarden.api import state as api
from swapwarden.api.violations import ViolationReason

from tests.unit.agent.agent_node import MIB, Node, apply, compare, lose_events, mark, state, swap, until, waits
from tests.unit.agent.cgroup_tree import PAGE, container_id, swap_max, uid, write

PODS = 2
CONTAINERS = ("a", "b")

some_limits = st.sampled_from([0, PAGE, 2 * PAGE, 3 * PAGE, 64 * MIB, cgroupfs.NO_LIMIT])
in_use = st.sampled_from([0, 0, PAGE, 40 * MIB])
"""Bytes of swap: cgroups that have some are at their memory limit."""
caps = st.booleans()
containers = st.builds(spec.FileSetting, some_limits, caps).map(lambda each: {cgroupfs.SWAP_MAX: each})
pods = st.builds(
    spec.PodEntry,
    st.just({}) | st.builds(swap, some_limits),
    st.dictionaries(st.sampled_from([container_id(name)[:13] for name in CONTAINERS]), containers),
    st.none() | st.builds(swap, some_limits),
)
states = st.builds(
    lambda kubepods, found, mode: msgspec.structs.replace(state(kubepods=kubepods, mode=mode), pods=found),
    st.none() | some_limits,
    st.fixed_dictionaries({}, optional={uid(number): pods for number in range(PODS)}),
    st.sampled_from([names.Mode.ENFORCE, names.Mode.ENFORCE, names.Mode.AUDIT]),
)


class Tree:
    """All files of a node, and what the cgroups below can use by them."""

    def __init__(self, node: Node) -> None:
        self._node = node.tree
        pods = [node.tree.pod(number) for number in range(PODS)]
        inner = [node.tree.container(pod, name) for pod in pods for name in CONTAINERS]
        self.files = [node.tree.kubepods, *pods, *inner]
        self.cgroups = [*pods, *inner]

    def usable(self, held: dict[pathlib.Path, int]) -> dict[pathlib.Path, int]:
        """The least of each cgroup's limit and of those above it."""
        return {path: min(held.get(each, cgroupfs.NO_LIMIT) for each in (path, *path.parents)) for path in self.cgroups}

    def planned(self, plan: spec.NodeSpec) -> dict[pathlib.Path, int]:
        """Return their values, at most those of a state that names them."""
        held = self.held()
        if plan.mode is not names.Mode.ENFORCE:
            return held
        named: dict[pathlib.Path, int | None] = {self.files[0]: plan.kubepods}
        for number in range(PODS):
            path, pod = self._node.pod_path(number), plan.pods.get(uid(number))
            if pod is not None:
                if cgroupfs.SWAP_MAX in pod.settings:
                    named[path] = pod.settings[cgroupfs.SWAP_MAX].value
                named |= {
                    self._node.container_path(path, name): pod.containers[container_id(name)[:13]][
                        "memory.swap.max"
                    ].value
                    for name in CONTAINERS
                    if container_id(name)[:13] in pod.containers
                }
        limited = {path: value for path, value in named.items() if value is not None}
        return {path: min(value, limited.get(path, value)) for path, value in held.items()}

    def held(self) -> dict[pathlib.Path, int]:
        return {path: cgroupfs.parse(swap_max(path), PAGE) for path in self.files}


async def play(folder: pathlib.Path, first: list[int], used: list[int], wished: list[spec.NodeSpec]) -> None:
    node = Node(folder)
    tree = Tree(node)
    for file, value in zip(tree.files, first, strict=True):
        write(file, cgroupfs.render(value))
    for file, value in zip(tree.cgroups, used, strict=True):
        write(file, str(value), "memory.swap.current")
        if value:
            write(file, str(PAGE), "memory.max")
            write(file, str(PAGE), "memory.current")
    agent = node.start()
    real = node.cgroups.write
    seen: list[dict[pathlib.Path, int]] = []

    def spy(name: str, value: int) -> None:
        real(name, value)
        seen.append(tree.usable(tree.held()))

    node.cgroups.write = spy  # type: ignore[method-assign] # to see each write
    for each in wished:
        before = tree.usable(tree.held())
        seen.clear()
        apply(agent, each)
        # Of what a cgroup keeps while it drains, those in it have what their own limits say.
        above, planned = tree.usable(tree.held()), tree.planned(each)
        after = {path: min(above[path], planned[path]) for path in tree.cgroups}
        for moment in seen:
            for path, usable in moment.items():
                assert usable <= max(before[path], after[path]), path
        held = tree.held()
        compare(agent)
        assert tree.held() == held, "nothing is left to be done"
    node.stop()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(some_limits, min_size=1 + PODS + PODS * len(CONTAINERS), max_size=1 + PODS + PODS * len(CONTAINERS)),
    st.lists(in_use, min_size=PODS + PODS * len(CONTAINERS), max_size=PODS + PODS * len(CONTAINERS)),
    st.lists(states, min_size=1, max_size=3),
)
@example(
    # All pods may have more, and one less: less than they all had.
    [PAGE, *[2 * PAGE] * (PODS + PODS * len(CONTAINERS))],
    [0] * (PODS + PODS * len(CONTAINERS)),
    [state({0: 0}, kubepods=cgroupfs.NO_LIMIT)],
)
@example(
    # A pod may have more, and its containers less than it had.
    [cgroupfs.NO_LIMIT, *[2 * PAGE] * PODS, *[cgroupfs.NO_LIMIT] * (PODS * len(CONTAINERS))],
    [0] * (PODS + PODS * len(CONTAINERS)),
    [state({0: cgroupfs.NO_LIMIT}, each=PAGE)],
)
@example(
    # The same, and all are full and have some in swap.
    [cgroupfs.NO_LIMIT, *[0] * PODS, *[cgroupfs.NO_LIMIT] * (PODS * len(CONTAINERS))],
    [40 * MIB] * (PODS + PODS * len(CONTAINERS)),
    [
        state(
            {0: cgroupfs.NO_LIMIT},
            containers={0: {name: spec.FileSetting(0, at_most=False) for name in CONTAINERS}},
        )
    ],
)
@example(
    # A file that drains is bound by the one above it, which gets a smaller value.
    [PAGE, PAGE, *[0] * (PODS - 1 + PODS * len(CONTAINERS))],
    [PAGE, *[0] * (PODS - 1 + PODS * len(CONTAINERS))],
    [state({0: 0}), state({0: 0}, kubepods=0)],
)
def test_no_order_of_writes_opens_a_gap(first: list[int], used: list[int], wished: list[spec.NodeSpec]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(pathlib.Path(folder), first, used, wished))


async def test_the_limit_of_all_is_raised_after_pods_that_a_comparison_lowers(plain: Node) -> None:
    """Others wrote to both, and no event reported that."""
    pod = plain.tree.pod(1)
    agent = plain.start()
    apply(agent, state({1: PAGE}, kubepods=64 * MIB))
    write(pod, "max")
    write(plain.tree.kubepods, "0")
    lose_events(agent)
    written: list[str] = []
    plain.cgroups.before = lambda name, _: written.append(name.split("/")[-2])
    compare(agent)
    assert written == [pod.name, plain.tree.kubepods.name]


async def test_a_stream_of_new_names_in_one_pod_holds_up_no_raise(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod's own raise waits only for earlier keys."""
    monkeypatch.setattr(reconciler, "SLICE_SECONDS", 0.0)
    pod = plain.tree.pod(1)
    agent = plain.start(state({1: 0}, kubepods=0))
    real = agent.inventory.observe

    def look(owner: inotify.Watched, name: str, origin: resolve.Origin, noticed: float) -> None:
        real(owner, name, origin, noticed)
        come()

    def come() -> None:
        mark(agent, queue.Child(plain.known(pod), "nothing"))
        mark(agent, queue.Child(plain.known(pod), "nothing else"))

    monkeypatch.setattr(agent.inventory, "observe", look)
    come()
    agent.set_desired(state({1: MIB}, kubepods=64 * MIB, generation=2))
    await until(lambda: (swap_max(pod), swap_max(plain.tree.kubepods)) == (str(MIB), str(64 * MIB)))


async def test_a_raise_waits_for_no_container_without_settings(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "SLICE_SECONDS", 0.0)
    pod = plain.tree.pod(1)
    for name in ("a", "b"):
        plain.tree.container(pod, name)
    agent = plain.start(state({1: 0}))
    agent.set_desired(state({1: MIB}, generation=2))
    agent.turn()
    assert swap_max(pod) == str(MIB)


@pytest.mark.parametrize("why", ["nothing", "file", "settings", "guard", "plugin", "record of the runtime", "failure"])
async def test_a_raise_waits_for_containers_that_something_may_concern(plain: Node, why: str) -> None:
    pod = plain.tree.pod(1)
    # Its file needs no write, so the ledger has no record of it.
    plain.tree.container(pod, "a", memory_swap_max="0\n")
    mine = {1: {"a": spec.FileSetting(0)}}
    agent = plain.start(state({1: 0}, containers=mine if why == "file" else None))
    (container,) = plain.known(pod).containers.values()
    assert bool(container.files) is (why == "file")
    new = state({1: MIB}, containers=mine if why == "settings" else None, generation=2)
    match why:
        case "guard":
            new = msgspec.structs.replace(new, guard=api.GuardSettings(kubelet=names.KubeletGuard.REPORT))
        case "failure":
            agent.work.failures.failed(container, ViolationReason.UNREADABLE, "no")
        case "plugin":
            plain.ledger.runtime.expected = True
        case "record of the runtime":
            plain.ledger.runtime.put(runtime_records.RuntimeRecord(container.id, uid(1), "a", 0, "max"))
    agent.set_desired(new)
    assert (container in waits(agent)) is (why != "nothing")


async def test_a_raise_that_waited_precedes_the_arrivals_of_other_pods(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "SLICE_SECONDS", 60.0)
    pods = [plain.tree.pod(number) for number in (1, 2)]
    inner = [plain.tree.container(pod, "a") for pod in pods]
    agent = plain.start()

    def wish(pod: int, container: int) -> spec.NodeSpec:
        return state({1: pod, 2: pod}, containers={key: {"a": spec.FileSetting(container)} for key in (1, 2)})

    apply(agent, wish(MIB, MIB))
    written: list[pathlib.Path] = []
    plain.cgroups.before = lambda name, _: written.append(plain.tree.root / name.rpartition("/")[0])
    apply(agent, wish(2 * MIB, PAGE))
    assert sorted(written) == sorted([*pods, *inner])
    assert [written[1], written[3]] == [written[0].parent, written[2].parent]
