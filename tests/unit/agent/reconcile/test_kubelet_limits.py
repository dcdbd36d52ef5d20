"""The kubelet also limits pods: what it or systemd last wrote stays, and a pod's own limit only lowers it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import AsyncIterator, Callable
from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swapwarden.agent.desired import spec
from swapwarden.agent.drift import attribution, repairs
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.ledger import ledger
from swapwarden.agent.reconcile import cgroup_reconciler
from swapwarden.api import names
from swapwarden.api import state as api
from swapwarden.policy import plan
from swapwarden.policy.profile import compiled

from tests.unit import objects
from tests.unit.agent.agent_node import MIB, Node, all_writes_heard, apply, compare, reasons, settle, snapshot, until
from tests.unit.agent.cgroup_tree import PAGE, swap_max, uid, write

FACTS = objects.facts(page_size=PAGE)
WriteFirst = Callable[[pathlib.Path, int], None]

LESS, LIMIT, MORE = 8 * MIB, 64 * MIB, 256 * MIB
ENFORCED = cgroup_reconciler.ENFORCED_SECONDS


def planned(
    limit: int | None = None,
    *,
    policy: str | None = None,
    mode: names.Mode = names.Mode.ENFORCE,
    generation: int = 1,
    named: bool = True,
) -> spec.NodeSpec:
    """A controller's plan for pod 1 on a node without a profile, as an agent reads it."""
    row = objects.pod(uid=uid(1), policy=policy, swap_limit=None if limit is None else str(limit))
    made = msgspec.structs.replace(plan.plan_node(compiled.BUILT_IN, FACTS, [row] if named else []), mode=mode)
    return parsed(made, generation)


def parsed(made: api.StateSpec, generation: int = 1) -> spec.NodeSpec:
    return spec.parse(
        spec.ReceivedState(api.ObjectMeta(uid="u", generation=generation), msgspec.Raw(msgspec.json.encode(made))), PAGE
    )


def exact(limit: str) -> spec.NodeSpec:
    """A state that says what the pod's file holds, whatever the kubelet gives it."""
    made = plan.plan_node(compiled.BUILT_IN, FACTS, [])
    return parsed(msgspec.structs.replace(made, pods={uid(1): api.PodSettings(swap_max=limit)}))


def hear(node: Node) -> None:
    """Have the agent reconcile all that happened until now, and read the events of its own writes."""
    assert node.agent is not None
    while True:
        node.agent.catch_up()
        settle(node.agent)
        if all_writes_heard(node.agent):
            return


async def born(node: Node, value: str = "max") -> pathlib.Path:
    """A pod whose slice the kubelet made with this limit; the agent has seen it."""
    assert node.agent is not None
    pod = node.tree.pod(1, memory_swap_max=f"{value}\n")
    await until(lambda: node.agent is not None and len(node.agent.inventory.pods) == 1)
    hear(node)
    return pod


def kubelet_writes(node: Node, pod: pathlib.Path, value: int | str) -> None:
    write(pod, str(value))
    hear(node)


def resize(node: Node, pod: pathlib.Path, value: int | str) -> None:
    (pod / "memory.max").write_text(f"{value}\n")
    kubelet_writes(node, pod, value)


async def test_a_limit_before_the_first_0_is_restored_by_the_state(node: Node) -> None:
    agent = node.start()
    pod = await born(node, str(LIMIT))
    assert swap_max(pod) == "0"
    apply(agent, planned())
    assert swap_max(pod) == str(LIMIT)
    assert reasons(agent) == []


async def test_a_limit_between_the_first_0_and_the_state_is_restored_by_the_state(node: Node) -> None:
    agent = node.start()
    pod = await born(node)
    kubelet_writes(node, pod, LIMIT)
    assert swap_max(pod) == "0"
    apply(agent, planned())
    assert swap_max(pod) == str(LIMIT)


async def test_a_limit_after_the_state_stays_and_is_no_drift(node: Node) -> None:
    agent = node.start()
    pod = await born(node)
    apply(agent, planned())
    before = repairs.REPAIRS.value("pod", "below"), repairs.REPAIRS.value("pod", "above")
    node.tree.container(pod, "app")
    kubelet_writes(node, pod, LIMIT)
    assert swap_max(pod) == str(LIMIT)
    resize(node, pod, MORE)
    assert swap_max(pod) == str(MORE)
    resize(node, pod, LESS)
    compare(agent)
    assert swap_max(pod) == str(LESS)
    assert (repairs.REPAIRS.value("pod", "below"), repairs.REPAIRS.value("pod", "above")) == before
    assert (reasons(agent), snapshot(agent).unseen) == ([], 0)


@pytest.fixture
def write_first(monkeypatch: pytest.MonkeyPatch) -> WriteFirst:
    """Have the kubelet write to a pod's file once, just before the agent does."""
    record = ledger.LimitRecords.record

    def arrange(pod: pathlib.Path, limit: int) -> None:
        def recorded(self: ledger.LimitRecords, key: ledger.Key, observed: int, value: int, **options: bool) -> None:
            record(self, key, observed, value, **options)
            monkeypatch.setattr(ledger.LimitRecords, "record", record)
            write(pod, str(limit))

        monkeypatch.setattr(ledger.LimitRecords, "record", recorded)

    return arrange


@pytest.mark.parametrize("limit", [0, LESS], ids=["none", "less"])
async def test_a_limit_just_before_the_agents_write_stays(node: Node, write_first: WriteFirst, limit: int) -> None:
    """Past systemd, the kubelet writes its number after systemd's `max`, which the agent answers."""
    agent = node.start()
    pod = await born(node)
    apply(agent, planned(LIMIT))
    write_first(pod, limit)
    kubelet_writes(node, pod, "max")
    assert swap_max(pod) == str(limit)
    assert reasons(agent) == []
    apply(agent, planned(generation=2))
    assert swap_max(pod) == str(limit)


async def test_a_limit_just_before_the_first_0_is_restored_by_the_state(node: Node, write_first: WriteFirst) -> None:
    agent = node.start()
    write_first(node.tree.pod_path(1), LESS)
    pod = await born(node)
    assert swap_max(pod) == "0"
    apply(agent, planned())
    assert swap_max(pod) == str(LESS)


@pytest.mark.parametrize("limit", [0, LESS], ids=["none", "less"])
async def test_a_limit_just_before_the_first_0_is_repaired_is_restored_by_the_state(
    node: Node, write_first: WriteFirst, limit: int
) -> None:
    agent = node.start()
    pod = await born(node)
    write_first(pod, limit)
    kubelet_writes(node, pod, "max")
    assert swap_max(pod) == "0"
    apply(agent, planned())
    assert swap_max(pod) == str(limit)


async def test_a_limit_as_the_agent_wrote_before_is_the_kubelets_if_it_was_just_written(
    node: Node, write_first: WriteFirst
) -> None:
    agent = node.start()
    pod = await born(node)
    apply(agent, planned(LIMIT))
    write(pod, "max")
    write_first(pod, LIMIT)
    apply(agent, planned(LESS, generation=2))
    assert swap_max(pod) == str(LESS)
    hear(node)
    apply(agent, planned(generation=3))
    assert swap_max(pod) == str(LIMIT)


async def test_a_limit_just_before_a_restore_stays(node: Node, write_first: WriteFirst) -> None:
    agent = node.start()
    pod = await born(node)
    kubelet_writes(node, pod, MORE)
    apply(agent, planned(LIMIT))
    write_first(pod, LESS)
    apply(agent, planned(generation=2))
    assert swap_max(pod) == str(LESS)


async def test_what_another_writer_ends_just_before_the_agent_was_an_exposure_all_the_same(
    node: Node, write_first: WriteFirst
) -> None:
    agent = node.start()
    pod = await born(node)
    node.tree.container(pod, "app")
    apply(agent, planned(LIMIT))
    await until(lambda: len(node.known(pod).containers) == 1)
    tally = node.known(pod).tally
    before = tally.count
    write_first(pod, LESS)
    kubelet_writes(node, pod, "max")
    assert swap_max(pod) == str(LESS)
    assert tally.count == before + 1
    kubelet_writes(node, pod, "max")
    assert tally.count == before + 2


async def test_a_reload_has_the_last_word_without_a_limit_of_the_pod(plain: Node) -> None:
    """systemd writes what it holds: the kubelet's number, or `max` if the kubelet wrote past systemd."""
    agent = plain.start()
    pod = await born(plain)
    kubelet_writes(plain, pod, LIMIT)
    kubelet_writes(plain, pod, "max")
    apply(agent, planned())
    assert swap_max(pod) == "max"
    kubelet_writes(plain, pod, LIMIT)
    kubelet_writes(plain, pod, "max")
    assert swap_max(pod) == "max"


async def test_a_pod_from_before_the_agent_keeps_the_kubelets_limit(node: Node) -> None:
    pod = node.tree.pod(1, memory_swap_max=f"{LIMIT}\n")
    agent = node.start()
    assert swap_max(pod) == str(LIMIT)
    apply(agent, planned())
    assert swap_max(pod) == str(LIMIT)


async def test_without_a_first_0_the_kubelets_limit_stays(node: Node) -> None:
    agent = node.start()
    allow = msgspec.structs.replace(planned(named=False), before_plan=names.BeforePlan.UNMANAGED)
    apply(agent, allow)
    pod = await born(node, str(LIMIT))
    assert swap_max(pod) == str(LIMIT)
    apply(agent, msgspec.structs.replace(planned(), before_plan=names.BeforePlan.UNMANAGED))
    assert swap_max(pod) == str(LIMIT)


async def test_a_0_of_the_kubelets_over_the_agents_0_stays(node: Node) -> None:
    """Such as that of a pod which is not eligible for swap: the file looks the same before and after."""
    agent = node.start()
    pod = await born(node)
    assert swap_max(pod) == "0"
    kubelet_writes(node, pod, 0)
    apply(agent, planned())
    assert swap_max(pod) == "0"
    apply(agent, planned(LIMIT))
    assert swap_max(pod) == "0"
    kubelet_writes(node, pod, LESS)
    assert swap_max(pod) == str(LESS)


async def test_a_0_of_the_kubelets_under_a_limit_is_not_taken_for_the_agents_first_one(node: Node) -> None:
    agent = node.start()
    pod = await born(node)
    apply(agent, planned(LIMIT))
    assert swap_max(pod) == str(LIMIT)
    resize(node, pod, 0)
    assert swap_max(pod) == "0"
    apply(agent, planned(mode=names.Mode.RESTORE, generation=2))
    assert swap_max(pod) == "0"


@pytest.mark.parametrize("late", [False, True])
async def test_a_limit_of_the_pod_lowers_the_kubelets_and_never_raises_it(node: Node, *, late: bool) -> None:
    agent = node.start()
    pod = await born(node, "max" if late else str(LESS))
    if late:
        kubelet_writes(node, pod, LESS)
    apply(agent, planned(LIMIT))
    assert swap_max(pod) == str(LESS)
    resize(node, pod, MORE)
    assert swap_max(pod) == str(LIMIT)
    resize(node, pod, LESS)
    assert (swap_max(pod), reasons(agent)) == (str(LESS), [])
    resize(node, pod, "max")
    assert swap_max(pod) == str(LIMIT)
    apply(agent, planned(LIMIT, mode=names.Mode.RESTORE, generation=2))
    assert swap_max(pod) == "max"


async def test_more_than_the_pods_limit_is_an_exposure_after_a_smaller_value(node: Node) -> None:
    agent = node.start()
    pod = await born(node, str(LESS))
    apply(agent, planned(LIMIT))
    node.tree.container(pod, "app")
    hear(node)
    kubelet_writes(node, pod, MORE)
    assert (swap_max(pod), reasons(agent)) == (str(LIMIT), ["Exposed"])


async def test_a_limit_that_is_lifted_gives_the_pod_what_the_kubelet_gave_it(node: Node) -> None:
    agent = node.start()
    pod = await born(node, str(MORE))
    apply(agent, planned(LIMIT))
    assert swap_max(pod) == str(LIMIT)
    apply(agent, planned(2 * LIMIT, generation=2))
    assert swap_max(pod) == str(2 * LIMIT)
    apply(agent, planned(2 * MORE, generation=3))
    assert swap_max(pod) == str(MORE)
    apply(agent, planned(policy=names.Policy.DISABLED, generation=4))
    assert swap_max(pod) == "0"
    resize(node, pod, LESS)
    assert swap_max(pod) == "0"
    apply(agent, planned(generation=5))
    assert swap_max(pod) == str(LESS)


async def test_a_pod_that_left_the_state_keeps_its_limit_and_the_kubelets(node: Node) -> None:
    agent = node.start()
    pod = await born(node, str(MORE))
    apply(agent, planned(LIMIT))
    apply(agent, planned(named=False, generation=2))
    assert swap_max(pod) == str(LIMIT)
    resize(node, pod, LESS)
    assert swap_max(pod) == str(LESS)
    resize(node, pod, MORE)
    assert swap_max(pod) == str(LIMIT)


async def test_max_in_a_state_of_an_earlier_controller_is_no_limit(node: Node) -> None:
    agent = node.start()
    pod = await born(node, str(LESS))
    apply(agent, exact(names.MAX_SWAP))
    assert swap_max(pod) == str(LESS)
    resize(node, pod, LIMIT)
    assert swap_max(pod) == str(LIMIT)


@pytest.mark.parametrize("limit", [None, LIMIT])
async def test_an_agent_that_is_restarted_knows_the_kubelets_limit(node: Node, limit: int | None) -> None:
    node.start()
    pod = await born(node, str(LESS))
    node.stop()
    agent = node.start()
    assert swap_max(pod) == "0"
    apply(agent, planned(limit))
    assert swap_max(pod) == str(LESS)
    node.stop()
    write(pod, str(MORE))
    agent = node.start(planned(limit))
    hear(node)
    assert swap_max(pod) == str(MORE if limit is None else limit)
    assert snapshot(agent).to_restore == 0


async def test_without_its_ledger_an_agent_takes_a_0_for_its_own(node: Node) -> None:
    node.start()
    pod = await born(node)
    assert swap_max(pod) == "0"
    node.stop()
    (node.folder / ledger.FILE).unlink()
    agent = node.start(away=0.0)
    apply(agent, planned())
    assert swap_max(pod) == "max"


async def test_a_limit_in_use_is_not_raised_over_one_that_the_kubelet_cut(plain: Node) -> None:
    """Its own cut below the swap in use is the kubelet's decision; the pod drains as by any limit."""
    agent = plain.start()
    pod = await born(plain, str(MORE))
    apply(agent, planned(LIMIT))
    (pod / cgroupfs.SWAP_CURRENT).write_text(f"{LIMIT // 2}\n")
    resize(plain, pod, LESS)
    assert (swap_max(pod), reasons(agent)) == (str(LESS), [])


async def test_the_time_until_a_pod_has_its_limit_is_measured_where_the_kubelet_decides(node: Node) -> None:
    agent = node.start()
    before = ENFORCED.count()
    await born(node, str(LESS))
    assert ENFORCED.count() == before
    apply(agent, planned())
    assert ENFORCED.count() == before + 1


async def test_the_kubelets_number_is_what_a_pods_unit_holds(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a reload that writes it is no other writer, and no contention where a state gives the pod more."""
    monkeypatch.setattr(attribution, "MOMENT_SECONDS", 0.0)
    agent = plain.start()
    pod = await born(plain)
    file = plain.known(pod).file
    kubelet_writes(plain, pod, LESS)
    await until(lambda: file.is_systemds(LESS))
    assert file.is_systemds(cgroupfs.NO_LIMIT)
    apply(agent, exact(str(LIMIT)))
    plain.tree.container(pod, "app")
    hear(plain)
    plain.later += 3600
    for _ in range(20):
        kubelet_writes(plain, pod, LESS)
    assert (swap_max(pod), reasons(agent)) == (str(LIMIT), [])
    plain.stop()
    plain.start(exact(str(LIMIT)))
    assert plain.known(pod).file.is_systemds(LESS)


@pytest.mark.parametrize("limit", [None, LIMIT])
async def test_under_strict_the_kubelets_limit_is_what_systemds_0_is_replaced_with(
    plain: Node, limit: int | None
) -> None:
    """systemd's 0 at each reload is the agent's, by its drop-ins."""
    agent = plain.start()
    strict = msgspec.structs.replace(planned(limit), guarantee=names.Guarantee.STRICT)
    apply(agent, msgspec.structs.replace(strict, pods={}))
    pod = await born(plain, "0")
    kubelet_writes(plain, pod, LESS)
    apply(agent, strict)
    for value in (LESS, 2 * LESS, MORE):
        resize(plain, pod, value)
        for _ in range(2):
            kubelet_writes(plain, pod, 0)
            assert swap_max(pod) == str(min(value, limit or value))
    plain.stop()
    write(pod, "0")
    plain.start(strict)
    hear(plain)
    assert swap_max(pod) == str(min(MORE, limit or MORE))


VALUES = (0, LESS, LIMIT, MORE, cgroupfs.NO_LIMIT)
value_ = st.sampled_from(VALUES)


@dataclasses.dataclass(frozen=True)
class Kubelet:
    """It writes a limit, through systemd or past it."""

    value: int
    past: bool


@dataclasses.dataclass(frozen=True)
class State:
    """A state arrives, with such a limit of the pod."""

    kind: Literal["none", "most", "exact", "restore", "audit", "unnamed"]
    value: int = 0


STEPS = st.one_of(
    st.builds(Kubelet, value_, st.booleans()),
    st.builds(Kubelet, value_, st.booleans()),
    st.builds(State, st.sampled_from(["none", "most", "exact", "restore", "audit"]), value_),
    st.sampled_from(["reload", "hear", "restart", "compare"]),
)


class Model:
    """The value that a pod's file must hold."""

    def __init__(self, node: Node, value: int) -> None:
        self.node = node
        self.unit = self.owners = value
        self.ours: list[int] = [0]
        """Values that the agent may have recorded as its own."""
        self.state: spec.NodeSpec | None = None
        self.kind = State("unnamed")
        self.generation = 0

    @property
    def desired(self) -> int:
        match self.kind.kind:
            case "unnamed":
                return 0
            case "exact":
                return self.kind.value if self.kind.value < cgroupfs.NO_LIMIT else self.owners
            case "most":
                return min(self.kind.value, self.owners)
        return self.owners

    def takes(self, step: State) -> spec.NodeSpec:
        self.kind, self.generation = step, self.generation + 1
        modes = {"restore": names.Mode.RESTORE, "audit": names.Mode.AUDIT}
        settings = api.PodSettings()
        if step.kind == "most":
            settings = api.PodSettings(swap_at_most=cgroupfs.render(step.value))
        elif step.kind == "exact":
            settings = api.PodSettings(swap_max=cgroupfs.render(step.value))
        self.state = parsed(
            api.StateSpec(
                api.ProfileRef("(built-in)"),
                mode=modes.get(step.kind, names.Mode.ENFORCE),
                pods={uid(1): settings},
            ),
            self.generation,
        )
        return self.state


@contextlib.asynccontextmanager
async def model(value: int) -> AsyncIterator[tuple[Model, pathlib.Path]]:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(pathlib.Path(folder))
        node.start()
        try:
            pod = node.tree.pod(1, memory_swap_max=f"{cgroupfs.render(value)}\n")
            node.tree.container(pod, "app")
            hear(node)
            yield Model(node, value), pod
        finally:
            node.stop()


async def _steps(first: int, steps: list[Kubelet | State | str]) -> None:
    async with model(first) as (machine, pod):
        node = machine.node
        for step in [*steps, State("restore")]:
            match step:
                case Kubelet() | "reload":
                    if isinstance(step, Kubelet):
                        value = step.value
                        machine.unit = machine.unit if step.past else value
                    else:
                        value = machine.unit
                    if swap_max(pod) == cgroupfs.render(value):
                        hear(node)  # an event of the same value is merged with an unread one of the agent's
                    if swap_max(pod) != cgroupfs.render(value) or step != "reload":
                        write(pod, cgroupfs.render(value))
                        machine.owners = value
                case State():
                    assert node.agent is not None
                    apply(node.agent, machine.takes(step))
                    hear(node)
                case "restart":
                    hear(node)
                    node.stop()
                    node.start(machine.state)
                    hear(node)
                case "compare":
                    assert node.agent is not None
                    compare(node.agent)
                    hear(node)
                case _:
                    hear(node)
            if not isinstance(step, Kubelet):
                hear(node)
                assert swap_max(pod) == cgroupfs.render(machine.desired), step
        assert node.agent is not None
        assert snapshot(node.agent).to_restore == 0


@settings(max_examples=150)
@given(value_, st.lists(STEPS, max_size=12))
def test_in_any_order_a_pod_ends_at_the_kubelets_value_and_never_holds_more_than_both(
    first: int, steps: list[Kubelet | State | str]
) -> None:
    asyncio.run(_steps(first, steps))
