"""Evidence that systemd holds pods at 0, for guarantee Strict. The tests write to slices as systemd does."""

from __future__ import annotations

import math
import pathlib

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import board
from swapwarden.agent.ledger import ledger
from swapwarden.agent.report import collector, holds
from swapwarden.api import names

from tests.unit.agent.agent_node import (
    MIB,
    Node,
    all_writes_heard,
    apply,
    compare,
    reasons,
    snapshot,
    state,
    until,
)
from tests.unit.agent.cgroup_tree import FILES, swap_max, uid, write


def asked(entries: dict[int, int | None] | None = None, mode: names.Mode = names.Mode.ENFORCE) -> spec.NodeSpec:
    return msgspec.structs.replace(state(entries, mode=mode), guarantee=names.Guarantee.STRICT)


def born(node: Node, number: int, qos: str = "burstable", value: str = "0") -> pathlib.Path:
    """A pod's slice, in which systemd has written its value before anybody else looked."""
    return node.tree.pod(number, qos, memory_swap_max=f"{value}\n")


HELD = ("True", "HeldBySystemd")
NOT_ALL = ("Unknown", "NotAllPods")
NO_FILES = board.DropInStatus()
FILES_THERE = board.DropInStatus(visible=True, held=frozenset({"kubepods"}))
FILES_MISSING = board.DropInStatus(visible=True, missing=frozenset({"kubepods"}))


def verdict(node: Node, files: board.DropInStatus = NO_FILES) -> collector.ConditionVerdict | None:
    agent = node.agent
    assert agent is not None
    seen = holds.tally(agent.inventory, agent.progress, agent.evidence, node.ledger.runtime, math.inf)
    return holds.strict_verdict(agent.evidence, seen or holds.HeldPods(), files=files, runtime=agent.progress.runtime)


def told(node: Node, files: board.DropInStatus = NO_FILES) -> tuple[str, str] | None:
    condition = verdict(node, files)
    return None if condition is None else (condition.status, condition.reason)


def held(node: Node) -> set[str]:
    assert node.agent is not None
    return set(node.agent.evidence.held)


@pytest.mark.parametrize(
    ("root", "pod", "covered"),
    [
        ("kubepods.slice", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice", True),
        ("kubepods.slice", "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice", True),
        ("kubepods.slice", "kubepods.slice/kubepods-podx.slice", False),
        ("k.slice/k-kubepods.slice", "k.slice/k-kubepods.slice/k-kubepods-podx.slice", False),
        ("k.slice/k-kubepods.slice", "k.slice/k-kubepods.slice/b.slice/k-kubepods-burstable-podx.slice", True),
        ("k.slice/k-kubepods.slice", "k.slice/k-kubepods.slice/b.slice/kubepods-burstable-podx.slice", False),
        ("kubepods", "kubepods/burstable/podx", False),
        (None, "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice", False),
    ],
)
def test_which_pods_the_files_are_for(root: str | None, pod: str, covered: bool) -> None:
    assert systemd_zero.covers(root, pod) is covered


async def test_nothing_is_said_where_nobody_asked(node: Node) -> None:
    born(node, 1)
    apply(node.start(), state({1: 0}))
    assert told(node) is None


async def test_on_a_node_with_the_cgroupfs_driver_it_says_what_can_be_had(node: Node) -> None:
    born(node, 1)
    apply(node.start(), asked({1: 0}))
    driver = ("False", "CgroupfsDriver")
    assert told(node) == (driver if node.tree.naming == "cgroupfs" else HELD)


async def test_without_evidence_it_is_not_reported(plain: Node) -> None:
    agent = plain.start()
    apply(agent, asked())
    assert told(plain) == ("Unknown", "NoEvidence")
    assert told(plain, FILES_THERE) == ("Unknown", "AwaitingEvidence")
    assert told(plain, FILES_MISSING) == ("False", "NotInstalled")
    other = board.DropInStatus(visible=True, held=frozenset({"kubelet-kubepods"}))
    assert told(plain, other) == ("False", "NotInstalled")
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    # The agent wrote that itself.
    assert told(plain) == ("Unknown", "NoEvidence")
    message = verdict(plain)
    assert message is not None
    assert "/etc/systemd/system/kubepods-besteffort-.slice.d/50-swapwarden.conf" in message.message
    assert "--print-drop-ins=kubepods" in message.message


async def test_a_pod_that_is_born_at_0_is_evidence(plain: Node) -> None:
    apply(plain.start(), asked())
    born(plain, 1)
    await until(lambda: told(plain) == HELD)
    born(plain, 2, "guaranteed")
    plain.tree.pod(3, "guaranteed")
    assert told(plain) == HELD


async def test_a_pod_whose_files_come_late_is_looked_at_then(plain: Node) -> None:
    apply(plain.start(), asked({1: MIB}))
    path = plain.tree.pod_path(1)
    path.mkdir()
    agent = plain.agent
    assert agent is not None
    await until(lambda: bool(agent.inventory.pods))
    for name, text in FILES.items():
        (path / f".{name}").write_text("0\n" if name == "memory.swap.max" else text)
        (path / f".{name}").rename(path / name)
    await until(lambda: swap_max(path) == str(MIB))
    assert told(plain) == HELD


async def test_a_write_over_the_agents_own_0_is_evidence(plain: Node) -> None:
    agent = plain.start()
    apply(agent, asked())
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    await until(lambda: all_writes_heard(agent))
    write(pod, "0")
    await until(lambda: told(plain) == HELD)


async def test_without_the_files_systemd_writes_no_limit(plain: Node) -> None:
    agent = plain.start()
    apply(agent, asked())
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    await until(lambda: all_writes_heard(agent))
    write(pod, "max")
    await until(lambda: told(plain) == ("False", "NotInForce"))
    await until(lambda: swap_max(pod) == "0")
    assert told(plain) == ("False", "NotInForce")


async def test_a_pod_that_was_born_while_no_agent_ran_is_evidence(plain: Node) -> None:
    plain.start(asked())
    plain.stop()
    born(plain, 1)
    plain.start(asked())
    assert told(plain) == HELD


@pytest.mark.parametrize("strict_before", [True, False])
@pytest.mark.parametrize("loss", ["gone", "garbage", "full"])
async def test_a_0_that_may_be_the_agents_own_is_no_evidence_when_its_ledger_was_lost(
    plain: Node, loss: str, *, strict_before: bool
) -> None:
    file = plain.folder / ledger.FILE
    before = asked({1: 0}) if strict_before else state({1: 0})
    pod = plain.tree.pod(1)
    plain.start(before)
    assert swap_max(pod) == "0"
    plain.stop()
    if loss == "gone":
        file.unlink()
    elif loss == "garbage":
        file.write_bytes(b"\0garbage\n")
    else:
        file.write_bytes(b'{"version":1,"initialised":true}\n')
        file.with_suffix(".new").touch()
    plain.start(before, away=0.0)
    for _ in range(2):  # it is not forgotten with a restart
        assert plain.agent is not None
        apply(plain.agent, asked({1: 0}))
        assert told(plain) == ("Unknown", "NoEvidence")
        plain.stop()
        plain.start(before, away=0.0)
    agent = plain.agent
    assert agent is not None
    apply(agent, asked({1: 0}))
    write(pod, "0")  # as systemd does, if it holds that
    await until(lambda: told(plain) == HELD)
    write(pod, "max")
    await until(lambda: told(plain) == ("False", "NotInForce"))
    apply(agent, state(mode=names.Mode.RESTORE, generation=2))
    assert swap_max(pod) == "max"


async def test_a_birth_is_evidence_also_when_the_ledger_was_lost(plain: Node) -> None:
    plain.start(asked(), away=0.0)
    born(plain, 1)
    await until(lambda: told(plain) == HELD)


async def test_the_evidence_is_known_after_a_restart(plain: Node) -> None:
    pod, older = born(plain, 1), plain.tree.pod(2)
    for number, each in enumerate((pod, older)):
        plain.tree.container(each, f"app {number}")
    for _ in range(2):
        plain.start(asked({1: MIB, 2: MIB}))
        assert told(plain) == NOT_ALL
        assert held(plain) == {uid(1)}
        assert [swap_max(each) for each in (pod, older)] == [str(MIB)] * 2
        plain.stop()


async def test_unknown_pods_are_denied_after_a_restart_even_if_systemd_made_them_at_0(plain: Node) -> None:
    plain.start(asked())
    pod = born(plain, 1)
    await until(lambda: held(plain) == {uid(1)})
    plain.stop()
    write(pod, "max")
    plain.start(asked())
    assert swap_max(pod) == "0"


async def test_older_pods_are_counted_until_a_reload(plain: Node) -> None:
    older, raised = plain.tree.pod(1), plain.tree.pod(2)
    for number, each in enumerate((older, raised)):
        plain.tree.container(each, f"app {number}")
    agent = plain.start()
    apply(agent, asked({1: 0, 2: MIB}))
    plain.tree.container(born(plain, 3), "app")
    await until(lambda: held(plain) == {uid(3)})
    await until(lambda: len(agent.inventory.containers) == 3)
    assert told(plain) == NOT_ALL
    condition = verdict(plain, FILES_THERE)
    assert condition is not None
    assert (
        "of 3 pods with a limit systemd, by its drop-in files, holds 1; for 2 neither was observed" in condition.message
    )
    assert condition.message.endswith(f"the agent alone holds {', '.join(sorted([uid(1), uid(2)]))}")
    write(older, "max")  # as systemd does at a resize: it has not read the files for this one
    await until(lambda: swap_max(older) == "0")
    assert told(plain) == NOT_ALL
    await until(lambda: all_writes_heard(agent))
    for pod in (older, raised):
        write(pod, "0")
    await until(lambda: told(plain) == HELD)
    await until(lambda: swap_max(raised) == str(MIB))


async def test_younger_pods_without_a_limit_say_that_the_files_are_gone(plain: Node) -> None:
    apply(plain.start(), asked({1: MIB}))
    first = born(plain, 1)
    await until(lambda: told(plain) == HELD)
    await until(lambda: swap_max(first) == str(MIB))
    pod = plain.tree.pod(2)
    await until(lambda: swap_max(pod) == "0")
    write(pod, "max")
    await until(lambda: told(plain) == ("False", "NotInForce"))
    assert held(plain) == {uid(1)}
    plain.tree.container(pod, "app")
    born(plain, 3)
    await until(lambda: told(plain) == NOT_ALL)


async def test_a_reload_without_the_files_ends_it(plain: Node) -> None:
    agent = plain.start()
    apply(agent, asked({1: MIB}))
    pod = born(plain, 1)
    await until(lambda: swap_max(pod) == str(MIB))
    assert told(plain) == HELD
    await until(lambda: all_writes_heard(agent))
    write(pod, "max")
    await until(lambda: told(plain) == ("False", "NotInForce"))
    await until(lambda: swap_max(pod) == str(MIB))


async def test_a_raised_pod_that_falls_to_0_is_raised_again(plain: Node) -> None:
    agent = plain.start()
    apply(agent, asked({1: MIB}))
    pod = born(plain, 1)
    plain.tree.container(pod, "app")
    await until(lambda: swap_max(pod) == str(MIB))
    for _ in range(5):
        write(pod, "0")
        await until(lambda: swap_max(pod) == str(MIB))
    assert reasons(agent) == []  # below is no exposure


@pytest.mark.parametrize("limit", [0, MIB, cgroupfs.NO_LIMIT])
async def test_restore_gives_back_what_there_would_be_without_the_files(plain: Node, limit: int) -> None:
    agent = plain.start()
    apply(agent, asked({1: limit}))
    pod = born(plain, 1)
    await until(lambda: held(plain) == {uid(1)} and swap_max(pod) == cgroupfs.render(limit))
    write(pod, "0")
    await until(lambda: swap_max(pod) == cgroupfs.render(limit))
    apply(agent, state(mode=names.Mode.RESTORE, generation=2))
    assert swap_max(pod) == "max"
    assert snapshot(agent).to_restore == 0
    assert told(plain) == ("False", "ReloadNeeded")
    # The loaded drop-ins have effect until a reload, and the agent leaves that alone.
    write(pod, "0")
    plain.stop()
    plain.start(state(mode=names.Mode.RESTORE, generation=2))
    assert (swap_max(pod), told(plain)) == ("0", ("False", "ReloadNeeded"))
    write(pod, "max")
    await until(lambda: told(plain) is None)


async def test_a_profile_back_to_standard_names_the_slices_to_reload(plain: Node) -> None:
    agent = plain.start()
    apply(agent, asked(dict.fromkeys(range(12), MIB)))
    pods = [born(plain, number) for number in range(12)]
    await until(lambda: len(held(plain)) == 12)
    apply(agent, state(dict.fromkeys(range(12), MIB), generation=2))
    condition = verdict(plain, FILES_THERE)
    assert condition is not None
    assert condition.reason == "ReloadNeeded"
    assert condition.message.endswith("and 4 more")
    assert "12 pods' slices" in condition.message
    assert len(condition.message) < 1024
    write(pods[0], "0")
    await until(lambda: swap_max(pods[0]) == str(MIB))
    for pod in pods:
        write(pod, "max")
    await until(lambda: told(plain) is None)


@pytest.mark.parametrize("mode", [names.Mode.AUDIT, names.Mode.RESTORE])
async def test_files_of_the_installation_take_no_swap_where_nothing_is_enforced(plain: Node, mode: names.Mode) -> None:
    agent = plain.start(prefixes=["kubepods"])
    apply(agent, state({1: 0}, mode=mode))
    pod = born(plain, 1)
    await until(lambda: swap_max(pod) == "max")
    for _ in range(3):  # as systemd does at each reload
        await until(lambda: all_writes_heard(agent))
        write(pod, "0")
        await until(lambda: swap_max(pod) == "max")
    assert told(plain, FILES_THERE) == ("True", "NotAskedFor")
    plain.stop()
    write(pod, "0")
    agent = plain.start(state({1: 0}, mode=mode), prefixes=["kubepods"])
    assert swap_max(pod) == "max"
    assert snapshot(agent).to_restore == 0


async def test_files_of_the_installation_are_not_what_a_pod_had_before(plain: Node) -> None:
    born(plain, 1)
    agent = plain.start(prefixes=["kubepods"])
    apply(agent, state({1: MIB}))
    late = born(plain, 2)
    apply(agent, state({1: MIB, 2: 0}, generation=2))
    await until(lambda: swap_max(plain.tree.pod_path(1)) == str(MIB))
    assert told(plain, FILES_THERE) == ("True", "NotAskedFor")
    assert held(plain) == {uid(1), uid(2)}
    apply(agent, state(mode=names.Mode.RESTORE, generation=3))
    assert [swap_max(pod) for pod in (plain.tree.pod_path(1), late)] == ["max", "max"]
    assert snapshot(agent).to_restore == 0


async def test_once_the_files_are_removed_what_systemd_still_holds_is_named(plain: Node) -> None:
    agent = plain.start(prefixes=["kubepods"])
    apply(agent, state({1: MIB}))
    pod = born(plain, 1)
    await until(lambda: held(plain) == {uid(1)} and swap_max(pod) == str(MIB))
    plain.reports.drop_ins[board.PODS] = board.DropInStatus(visible=True)
    assert told(plain) == ("False", "ReloadNeeded")
    write(pod, "max")
    await until(lambda: told(plain) is None)


def at_most(number: int, limit: int, generation: int) -> spec.NodeSpec:
    """A state that lowers others' limits, and raises none."""
    entry = spec.PodEntry({cgroupfs.SWAP_MAX: spec.FileSetting(limit, at_most=True)}, {})
    return msgspec.structs.replace(state(generation=generation), pods={uid(number): entry})


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("visible", [True, False])
async def test_files_left_behind_take_the_swap_of_pods_without_a_limit_of_their_own(
    plain: Node, *, visible: bool, away: bool
) -> None:
    """Strict ends, the files stay, and systemd reads its units again: who holds 0 is known only where they are seen."""
    prefixes = ["kubepods"] if visible else []
    apply(plain.start(prefixes=prefixes), asked({1: MIB}))
    pod = born(plain, 1)
    await until(lambda: held(plain) == {uid(1)} and swap_max(pod) == str(MIB))
    assert plain.agent is not None
    apply(plain.agent, at_most(1, MIB, 2))
    await until(lambda: swap_max(pod) == str(MIB))
    if away:
        plain.stop()
        write(pod, "0")
        plain.start(at_most(1, MIB, 2), prefixes=prefixes)
    else:
        await until(lambda: plain.agent is not None and all_writes_heard(plain.agent))
        write(pod, "0")
    expected = str(MIB) if visible else "0"
    await until(lambda: plain.agent is not None and told(plain) is not None and swap_max(pod) == expected)
    compare(plain.agent)
    assert swap_max(pod) == expected
    assert told(plain) == (("True", "NotAskedFor") if visible else ("False", "ReloadNeeded"))
    # A limit of the pod's own is held in either case, and what there was before it is not forgotten.
    apply(plain.agent, state({1: 2 * MIB}, generation=3))
    await until(lambda: swap_max(pod) == str(2 * MIB))
    apply(plain.agent, state(mode=names.Mode.RESTORE, generation=4))
    assert swap_max(pod) == "max"


async def test_files_of_others_that_were_there_before_are_evidence_when_it_is_asked_for(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: MIB, 2: 0}))
    for number in (1, 2):
        born(plain, number)
    await until(lambda: swap_max(plain.tree.pod_path(1)) == str(MIB))
    apply(agent, asked({1: MIB, 2: 0}))
    assert held(plain) == {uid(1), uid(2)}


async def test_before_the_tree_exists_nothing_is_known(tmp_path: pathlib.Path) -> None:
    node = Node(tmp_path)
    node.tree.remove(node.tree.kubepods)
    node.start(asked())
    assert told(node) == ("Unknown", "NoPodTree")
    node.stop()
