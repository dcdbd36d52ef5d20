"""Who keeps lowering a value wins after a while; who keeps raising one never does."""

from __future__ import annotations

import pathlib

import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.drift import attribution, repairs
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.reconcile import schedule
from swapwarden.api import names

from tests.unit.agent.agent_node import MIB, Node, apply, compare, due, reasons, snapshot, state, until
from tests.unit.agent.cgroup_tree import swap_max, write


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "MOMENT_SECONDS", 0.01)


async def started(node: Node, limit: int = 64 * MIB) -> pathlib.Path:
    """A pod at its limit."""
    apply(node.start(), state({1: limit}))
    pod = await node.run(1, "app")
    await until(lambda: swap_max(pod) == cgroupfs.render(limit))
    return pod


async def attack(pod: pathlib.Path, value: str, desired: str, times: int = repairs.ROUNDS) -> None:
    """Write a value so often; each but the last has been repaired when this is over."""
    for count in range(times):
        if count:
            await until(lambda: swap_max(pod) == desired)
        write(pod, value)


async def test_a_value_that_is_lowered_all_the_time_is_left(plain: Node, caplog: pytest.LogCaptureFixture) -> None:
    pod = await started(plain)
    agent = plain.agent
    assert agent is not None
    before = repairs.YIELDS.value("pod")
    desired = str(64 * MIB)
    await attack(pod, "4096", desired)
    await until(lambda: swap_max(pod) == desired)
    write(pod, "4096")
    await until(lambda: reasons(agent) == ["Yielded"])
    compare(agent)
    assert swap_max(pod) == "4096"
    assert repairs.YIELDS.value("pod") == before + 1
    assert len([each for each in caplog.records if "keeps lowering" in each.message]) == 1
    # More than is desired is not left, not even now.
    write(pod, "max")
    await until(lambda: swap_max(pod) == desired)
    write(pod, "8192")
    await until(lambda: [each.observed for each in snapshot(agent).violations if each.reason == "Yielded"] == ["8192"])
    # After an hour there is another try.
    plain.later += repairs.YIELD_SECONDS
    compare(agent)
    assert swap_max(pod) == desired
    assert "Yielded" not in reasons(agent)


async def test_it_is_raised_again_by_itself(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs, "YIELD_SECONDS", 0.5)
    pod = await started(plain)
    desired = str(64 * MIB)
    await attack(pod, "4096", desired, repairs.ROUNDS + 1)
    assert swap_max(pod) == "4096"
    await until(lambda: swap_max(pod) == desired)


async def test_another_wish_of_the_state_is_tried(plain: Node) -> None:
    pod = await started(plain)
    agent = plain.agent
    assert agent is not None
    await attack(pod, "4096", str(64 * MIB), repairs.ROUNDS + 1)
    await until(lambda: reasons(agent) == ["Yielded"])
    apply(agent, state({1: 64 * MIB}, generation=2))
    assert swap_max(pod) == "4096"
    apply(agent, state({1: 32 * MIB}, generation=3))
    assert swap_max(pod) == str(32 * MIB)
    apply(agent, state({1: 32 * MIB}, mode=names.Mode.RESTORE, generation=4))
    # 4096 is what another writer last gave it.
    assert (swap_max(pod), snapshot(agent).to_restore) == ("4096", 0)


async def test_who_raises_is_never_left_alone(node: Node) -> None:
    pod = await started(node, 0)
    agent = node.agent
    assert agent is not None
    await attack(pod, "4096", "0", 10 * repairs.ROUNDS)
    await until(lambda: swap_max(pod) == "0")
    assert reasons(agent) == ["Exposed"]


async def test_a_unit_that_systemd_holds_at_0_is_no_fight(plain: Node) -> None:
    """systemd means nothing by it: it writes what it has, at each reload."""
    pod = await started(plain)
    plain.known(pod).file.systemd.zero = True
    await attack(pod, "0", str(64 * MIB), 5 * repairs.ROUNDS)
    await until(lambda: swap_max(pod) == str(64 * MIB))


async def test_what_happens_now_and_then_is_no_fight(plain: Node) -> None:
    pod = await started(plain)
    for _ in range(3):
        await attack(pod, "4096", str(64 * MIB), repairs.ROUNDS - 1)
        await until(lambda: swap_max(pod) == str(64 * MIB))
        plain.later += repairs.WINDOW_SECONDS + 1


async def test_where_less_is_as_good_there_is_nothing_to_fight_about(plain: Node) -> None:
    agent = plain.start()
    limit = 64 * MIB
    apply(agent, state({1: limit}, containers={1: {"app": spec.FileSetting(limit, at_most=False)}}))
    container = plain.tree.container(plain.tree.pod(1), "app")
    await until(lambda: swap_max(container) == str(limit))
    await attack(container, "4096", str(limit), repairs.ROUNDS + 1)
    await until(lambda: "Yielded" in reasons(agent))
    apply(agent, state({1: limit}, containers={1: {"app": spec.FileSetting(limit, at_most=True)}}, generation=2))
    assert "Yielded" not in reasons(agent)
    plain.later += repairs.YIELD_SECONDS
    compare(agent)
    [known] = plain.known(container.parent).containers.values()
    assert [due(agent, file, schedule.Why.RETRY) for file in known.files] == [None]
    assert swap_max(container) == "4096"


async def test_the_limit_of_all_pods_can_be_fought_over_too(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state(kubepods=512 * MIB))
    await attack(plain.tree.kubepods, "4096", str(512 * MIB), repairs.ROUNDS + 1)
    await until(lambda: reasons(agent) == ["Yielded"])
    assert [each.pod for each in snapshot(agent).violations] == ["kubepods"]


async def test_the_other_writer_is_named(plain: Node) -> None:
    pod = await started(plain)
    agent = plain.agent
    assert agent is not None
    assert snapshot(agent).recent.others == ""
    write(pod, "4096")
    await until(lambda: snapshot(agent).recent.others == "another writer gives a number of bytes to pods")
