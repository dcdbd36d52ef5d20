"""Who holds the limits of pods beside the agent, as the status reports it."""

from __future__ import annotations

import pathlib

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.report import holds, status
from swapwarden.api import names
from swapwarden.api import runtime_link as protocol
from swapwarden.api import state as api

from tests.unit.agent.agent_node import MIB, Node, apply, settle, state, until
from tests.unit.agent.cgroup_tree import container_id, uid, write
from tests.unit.agent.fake_plugin import PluginOf, item


def tally(node: Node, later: float = 0.0) -> holds.HeldPods | None:
    agent = node.agent
    assert agent is not None
    settle(agent)
    now = agent.work.clock() + later
    return holds.tally(agent.inventory, agent.progress, agent.evidence, node.ledger.runtime, now)


def observed(node: Node) -> api.Holds | None:
    assert node.agent is not None
    return holds.observed(tally(node), node.agent.progress, node.agent.evidence)


def running(node: Node, *numbers: int, value: str = "0") -> list[pathlib.Path]:
    """Pods with a sandbox and a container each."""
    pods = [node.tree.pod(number) for number in numbers]
    for number, pod in zip(numbers, pods, strict=True):
        node.tree.container(pod, f"sandbox {number}")
        node.tree.container(pod, f"app {number}", memory_swap_max=f"{value}\n")
    return pods


async def test_without_a_plugin_and_without_strict_nothing_is_reported(plain: Node) -> None:
    running(plain, 1)
    plain.start(state({1: 0}))
    assert observed(plain) is None


async def test_pods_with_a_limit_that_the_runtime_does_not_hold_are_listed(plain: Node) -> None:
    running(plain, 1, 2, 3)
    agent = plain.start(state({1: 0, 2: 0, 3: cgroupfs.NO_LIMIT}), nri=True)
    assert observed(plain) == api.Holds(agent_only=sorted([uid(1), uid(2)]))
    plugin = PluginOf(agent, item(1, "", None), item(1, "app 1", "0"), item(2, "", None), item(2, "app 2", str(MIB)))
    await plugin.heeded()
    assert observed(plain) == api.Holds(runtime=True, agent_only=[uid(2)])
    plugin.say(protocol.FromPlugin.UPDATED, seq=1, failed={})
    await plugin.heeded()
    assert observed(plain) == api.Holds(runtime=True)
    apply(agent, state({1: 0, 2: 0}, mode=names.Mode.AUDIT, generation=2))
    assert observed(plain) == api.Holds(runtime=True)


async def test_numbers_that_are_more_than_the_pods_limit_together_do_not_hold_it(plain: Node) -> None:
    running(plain, 1, value=str(MIB))
    wants = {1: {"app 1": spec.FileSetting(MIB)}}
    agent = plain.start(state({1: MIB}, containers=wants), nri=True)
    plugin = PluginOf(agent, item(1, "", None), item(1, "app 1", str(MIB)))
    await plugin.heeded()
    assert observed(plain) == api.Holds(runtime=True)
    apply(agent, state({1: MIB // 2}, containers=wants, generation=2))
    assert observed(plain) == api.Holds(runtime=True, agent_only=[uid(1)])


async def test_systemd_holds_what_it_was_observed_to_hold_at_0(plain: Node) -> None:
    strict = msgspec.structs.replace(state({1: 0, 2: 0}), guarantee=names.Guarantee.STRICT)
    (first, _) = running(plain, 1, 2)
    write(first, "0")  # by systemd, before the agent came
    plain.start(strict)
    found = observed(plain)
    assert found is not None
    assert (found.systemd, found.runtime, found.agent_only) == (True, False, [uid(2)])


async def test_a_list_has_a_bounded_length_and_the_number_left_out(plain: Node) -> None:
    numbers = range(api.MAX_AGENT_ONLY + 3)
    running(plain, *numbers)
    plain.start(state(dict.fromkeys(numbers, 0)), nri=True)
    found = observed(plain)
    assert found is not None
    assert (len(found.agent_only), found.agent_only_omitted) == (api.MAX_AGENT_ONLY, 3)


@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [
        ({"runtime": True}, {"runtime": True, "agentOnly": ["u"]}, True),
        ({"runtime": True, "agentOnlyOmitted": 1}, {"runtime": True, "agentOnlyOmitted": 2}, True),
        ({"runtime": True}, {}, False),
        ({"systemd": True}, {"runtime": True}, False),
    ],
)
def test_a_pod_that_starts_writes_no_status_of_its_own(
    before: dict[str, object], after: dict[str, object], *, waits: bool
) -> None:
    assert (status.essence({"holds": before}) == status.essence({"holds": after})) is waits


async def test_held_containers_are_a_metric(plain: Node) -> None:
    running(plain, 1, 2)
    agent = plain.start(state({1: 0, 2: cgroupfs.NO_LIMIT}), nri=True)
    items = [item(1, "", None), item(1, "app 1", "0"), item(2, "", None), item(2, "app 2", "0")]
    plugin = PluginOf(agent, *items)
    await plugin.heeded()
    holds.publish(tally(plain), agent.progress, plain.ledger.runtime, strict=True)
    assert (holds.HELD.value(), holds.AGENT_ONLY.value()) == (1, 0)
    assert [holds.STRICT.value(each) for each in ("both", "runtime", "systemd", "neither")] == [0, 1, 0, 0]
    holds.publish(tally(plain), agent.progress, plain.ledger.runtime, strict=False)
    assert holds.STRICT.value("runtime") == 0
    assert plain.ledger.runtime.get(container_id("app 2")) is not None


async def test_each_pod_counts_once_by_who_holds_it(plain: Node) -> None:
    first, _, third, _ = running(plain, 1, 2, 3, 4)
    for pod in (first, third):
        write(pod, "0")  # by systemd, before the agent came
    agent = plain.start(
        msgspec.structs.replace(state(dict.fromkeys((1, 2, 3, 4), 0)), guarantee=names.Guarantee.STRICT), nri=True
    )
    items = [item(number, name, value) for number in (1, 2) for name, value in (("", None), (f"app {number}", "0"))]
    await PluginOf(agent, *items).heeded()
    assert tally(plain) == holds.HeldPods(both=1, runtime=1, systemd=1, alone=(uid(4),))
    plain.tree.remove(plain.tree.pod_path(4))
    await until(lambda: tally(plain) == holds.HeldPods(both=1, runtime=1, systemd=1))


async def test_a_pod_that_starts_is_listed_apart_until_its_containers_are_known(plain: Node) -> None:
    agent = plain.start(state({1: 0, 2: 0}), nri=True)
    await PluginOf(agent).heeded()
    running(plain, 1)
    await until(lambda: tally(plain) == holds.HeldPods(starting=(uid(1),)))
    assert tally(plain, later=holds.SETTLING_SECONDS) == holds.HeldPods(alone=(uid(1),))
    assert observed(plain) == api.Holds(runtime=True, agent_only=[uid(1)])
