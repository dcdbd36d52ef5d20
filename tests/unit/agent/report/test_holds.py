"""Who holds the limits of pods beside the agent, as the status reports it."""

from __future__ import annotations

import pathlib

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import board
from swapwarden.agent.report import collector, holds, status
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
    reported = observed(plain)
    assert reported is not None
    assert (reported.systemd, reported.runtime, reported.agent_only) == (True, False, [uid(2)])


async def test_a_list_has_a_bounded_length_and_the_number_left_out(plain: Node) -> None:
    numbers = range(api.MAX_AGENT_ONLY + 3)
    running(plain, *numbers)
    plain.start(state(dict.fromkeys(numbers, 0)), nri=True)
    reported = observed(plain)
    assert reported is not None
    assert (len(reported.agent_only), reported.agent_only_omitted) == (api.MAX_AGENT_ONLY, 3)


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


NONE = board.DropInStatus()
FILES = board.DropInStatus(visible=True, held=frozenset({"kubepods"}))
MISSING = board.DropInStatus(visible=True, missing=frozenset({"kubepods"}))
HERE = board.RuntimeStatus(connected=True)
CONNECTING = board.RuntimeStatus(connected=False)
AWAY = board.RuntimeStatus(connected=False, reason="PluginAway")
NO_NRI = board.RuntimeStatus(connected=False, reason="NoSocket")
LATE = board.RuntimeStatus(connected=True, reason="Dropped")
ALONE = tuple(uid(number) for number in range(3))


def view(
    *, proved: bool = False, refuted: bool = False, root: str | None = "kubepods.slice"
) -> systemd_zero.ZeroEvidence:
    return systemd_zero.ZeroEvidence(True, False, root, proved, refuted, ())


def verdict(
    seen: holds.HeldPods,
    runtime: board.RuntimeStatus | None = None,
    files: board.DropInStatus = NONE,
    *,
    proved: bool = False,
    refuted: bool = False,
    root: str | None = "kubepods.slice",
) -> collector.ConditionVerdict:
    condition = holds.strict_verdict(
        view(proved=proved, refuted=refuted, root=root), seen, files=files, runtime=runtime
    )
    assert condition is not None
    return condition


@pytest.mark.parametrize(
    ("seen", "runtime", "proved", "expected"),
    [
        (holds.HeldPods(both=2), HERE, True, ("True", "HeldByBoth")),
        (holds.HeldPods(runtime=1, systemd=1), HERE, True, ("True", "HeldByBoth")),
        (holds.HeldPods(runtime=2), HERE, False, ("True", "HeldByRuntime")),
        (holds.HeldPods(runtime=2), LATE, False, ("True", "HeldByRuntime")),
        (holds.HeldPods(systemd=2), None, True, ("True", "HeldBySystemd")),
        (holds.HeldPods(both=2), AWAY, True, ("True", "HeldBySystemd")),
        (holds.HeldPods(both=2), HERE, False, ("True", "HeldByRuntime")),
        # Nothing runs that has a limit.
        (holds.HeldPods(), HERE, True, ("True", "HeldBySystemd")),
        (holds.HeldPods(), HERE, False, ("Unknown", "AwaitingEvidence")),
        (holds.HeldPods(starting=ALONE), HERE, False, ("Unknown", "AwaitingEvidence")),
        (holds.HeldPods(runtime=1, starting=ALONE), HERE, False, ("True", "HeldByRuntime")),
        # Some are not held, or by somebody who does not hold those that start.
        (holds.HeldPods(both=9, alone=ALONE), HERE, True, ("Unknown", "NotAllPods")),
        (holds.HeldPods(alone=ALONE), HERE, False, ("Unknown", "NotAllPods")),
        (holds.HeldPods(both=1, runtime=1), AWAY, True, ("Unknown", "NotAllPods")),
        (holds.HeldPods(both=1, systemd=1), HERE, False, ("Unknown", "NotAllPods")),
        # Nobody holds those that start.
        (holds.HeldPods(runtime=9), AWAY, False, ("False", "NriUnavailable")),
        (holds.HeldPods(runtime=9), CONNECTING, False, ("Unknown", "AwaitingEvidence")),
        (holds.HeldPods(alone=ALONE), NO_NRI, False, ("Unknown", "NoEvidence")),
        (holds.HeldPods(alone=ALONE), None, False, ("Unknown", "NoEvidence")),
    ],
)
def test_it_is_true_if_each_pod_is_held_by_somebody_who_also_holds_those_that_start(
    seen: holds.HeldPods, runtime: board.RuntimeStatus | None, expected: tuple[str, str], *, proved: bool
) -> None:
    assert msgspec.structs.astuple(verdict(seen, runtime, proved=proved))[:2] == expected


@pytest.mark.parametrize(
    ("runtime", "files", "refuted", "root", "expected"),
    [
        (AWAY, NONE, True, "kubepods.slice", ("False", "NriUnavailable")),
        (NO_NRI, NONE, True, "kubepods.slice", ("False", "NotInForce")),
        (None, NONE, True, "kubepods.slice", ("False", "NotInForce")),
        (AWAY, FILES, True, "kubepods.slice", ("False", "NotInForce")),
        (AWAY, FILES, False, "kubepods.slice", ("Unknown", "AwaitingEvidence")),
        (AWAY, MISSING, False, "kubepods.slice", ("False", "NotInstalled")),
        (CONNECTING, MISSING, False, "kubepods.slice", ("Unknown", "AwaitingEvidence")),
        (None, NONE, False, "kubepods", ("False", "CgroupfsDriver")),
        (AWAY, NONE, False, "kubepods", ("False", "NriUnavailable")),
        (HERE, NONE, False, None, ("Unknown", "NoPodTree")),
    ],
)
def test_where_nobody_holds_pods_the_reason_is_what_can_be_repaired(
    runtime: board.RuntimeStatus | None,
    files: board.DropInStatus,
    root: str | None,
    expected: tuple[str, str],
    *,
    refuted: bool,
) -> None:
    assert (
        msgspec.structs.astuple(verdict(holds.HeldPods(), runtime, files, refuted=refuted, root=root))[:2] == expected
    )


def test_under_the_cgroupfs_driver_the_runtime_can_hold_pods() -> None:
    assert msgspec.structs.astuple(verdict(holds.HeldPods(runtime=1), HERE, root="kubepods"))[:2] == (
        "True",
        "HeldByRuntime",
    )


def test_it_counts_the_pods_of_each() -> None:
    message = verdict(holds.HeldPods(both=3, runtime=2, systemd=1), HERE, proved=True).message
    assert message == (
        "of 6 pods with a limit the container runtime holds 5 and systemd, by its drop-in files, holds 4"
    )


def test_pods_that_start_are_counted_apart() -> None:
    message = verdict(holds.HeldPods(runtime=2, starting=ALONE), HERE).message
    assert message.startswith("of 2 pods with a limit the container runtime holds 2; 3 more began,")


def test_it_names_some_of_the_pods_that_the_agent_holds_alone() -> None:
    many = tuple(uid(number) for number in range(250))
    message = verdict(holds.HeldPods(runtime=1, alone=many), HERE).message
    assert "for 250 neither was observed" in message
    assert "agent.dropIns.mount" in message
    assert message.endswith(f"the agent alone holds {', '.join(many[:8])} and 242 more")


def test_what_the_runtime_held_before_its_plugin_went_is_not_claimed() -> None:
    away = verdict(holds.HeldPods(both=1, runtime=2), AWAY, proved=True).message
    assert "systemd, by its drop-in files, holds 1; for 2 neither was observed (the runtime held 2 of them" in away
    assert "NriUnavailable (PluginAway)" in away
    dead = verdict(holds.HeldPods(runtime=7), AWAY).message
    assert "running pods that it held when its plugin was last connected: 7" in dead
    assert "NriUnavailable (PluginAway)" in dead


def test_missing_files_are_reported_also_where_the_runtime_holds_all_pods() -> None:
    assert "agent.dropIns.prefix" in verdict(holds.HeldPods(runtime=1), HERE, MISSING).message
    assert "agent.dropIns.prefix" in verdict(holds.HeldPods(runtime=1, alone=ALONE), HERE, MISSING).message
    assert "agent.dropIns" not in verdict(holds.HeldPods(runtime=1), HERE).message


@pytest.mark.parametrize("runtime", [HERE, AWAY, NO_NRI, CONNECTING, None])
@pytest.mark.parametrize("files", [NONE, FILES, MISSING])
@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize("refuted", [True, False])
def test_a_message_ends_with_its_names_whatever_is_the_case(
    runtime: board.RuntimeStatus | None, files: board.DropInStatus, *, proved: bool, refuted: bool
) -> None:
    """A condition has at most 1,024 characters."""
    many = tuple(uid(number) for number in range(250))
    seen = holds.HeldPods(250, 250, 250, many, many)
    condition = verdict(seen, runtime, files, proved=proved, refuted=refuted)
    assert len(condition.message) <= 1024
    assert condition.status != "True"
