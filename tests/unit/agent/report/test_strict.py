"""The condition StrictInEffect, by the evidence."""

from __future__ import annotations

import msgspec
import pytest
from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.inventory import board
from swapwarden.agent.report import collector, holds, strict

from tests.unit.agent.cgroup_tree import uid

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
    found = strict.verdict(view(proved=proved, refuted=refuted, root=root), seen, files=files, runtime=runtime)
    assert found is not None
    return found


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
    found = verdict(seen, runtime, files, proved=proved, refuted=refuted)
    assert len(found.message) <= 1024
    assert found.status != "True"
