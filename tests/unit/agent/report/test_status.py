from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from swapwarden.agent.desired import spec
from swapwarden.agent.inventory import board, layout
from swapwarden.agent.node import diagnostics
from swapwarden.agent.report import collector, status
from swapwarden.api import names, state
from swapwarden.api.conditions import ConditionType

from testbed.base import paths

FACTS = state.Facts(cgroup_version=2, swap_controller=True, swap_bytes=1 << 30, memory_bytes=1 << 32)
SPEC = spec.NodeSpec("u", 4, names.Mode.ENFORCE, names.BeforePlan.NO_SWAP, None, {}, profile=("p", 2))
GOOD = collector.Snapshot(SPEC, 4, collector.Tree("kubepods.slice"), violations=[])
DRAINING = state.Violation("p", "Draining", desired="0", observed="4096", swap_bytes=4096)
FAILED = state.Violation("p", "WriteFailed", desired="0", observed="max", message="denied")
YIELDED = state.Violation("p", "Yielded", desired="4096", observed="0")
EXPOSED = state.ExposedPod("p", count=3, milliseconds=5)


def with_mode(mode: names.Mode) -> collector.Snapshot:
    return msgspec.structs.replace(GOOD, spec=msgspec.structs.replace(SPEC, mode=mode))


def lately(**recent: Any) -> collector.Snapshot:
    return msgspec.structs.replace(GOOD, recent=collector.Recent(**recent))


def without_tree(problem: layout.TreeError) -> collector.Snapshot:
    return msgspec.structs.replace(GOOD, tree=collector.Tree(None, problem))


def build(
    snapshot: collector.Snapshot,
    facts: state.Facts,
    previous: list[dict[str, Any]],
    now: str,
    diagnosed: Iterable[diagnostics.Diagnostic] = (),
) -> state.StateStatus:
    return status.build(snapshot, facts, status.verdicts(snapshot, facts, diagnosed), previous, now)


def verdicts(snapshot: collector.Snapshot, facts: state.Facts = FACTS) -> dict[str, tuple[str, str]]:
    built = build(snapshot, facts, [], "2026-01-01T00:00:00Z")
    return {condition.type: (condition.status, condition.reason) for condition in built.conditions}


def test_an_unreported_exposure_has_a_place_in_one_status() -> None:
    cause = [names.Cause.RELOAD]
    more = [
        state.ExposedPod(f"p{number:02}", swap_bytes=1, milliseconds=100 - number, causes=cause)
        for number in range(2 * state.MAX_EXPOSURES)
    ]

    def listed(*unreported: str) -> list[str]:
        snapshot = lately(unreported=frozenset(unreported), exposures=more)
        return [each.pod for each in build(snapshot, FACTS, [], "t").exposures]

    assert listed() == [each.pod for each in more[: state.MAX_EXPOSURES]], "the longest ones"
    assert listed("p40", "p60")[:2] == ["p40", "p60"]
    unexplained = [*more[:-1], msgspec.structs.replace(more[-1], causes=[])]
    snapshot = lately(unreported=frozenset({more[-1].pod}), exposures=unexplained)
    assert build(snapshot, FACTS, [], "t").exposures[0].pod == "p00", "no status reports it before its cause"


def test_all_is_well() -> None:
    assert verdicts(GOOD) == {
        "Ready": ("True", "AsSpecified"),
        "Compatible": ("True", "Compatible"),
        "Applied": ("True", "AsSpecified"),
        "Degraded": ("False", "AsExpected"),
        "Drifted": ("False", "Quiet"),
    }


def test_a_node_is_ready_where_all_is_applied_and_nothing_is_degraded() -> None:
    def ready(snapshot: collector.Snapshot) -> tuple[str, str]:
        return verdicts(snapshot)["Ready"]

    assert ready(msgspec.structs.replace(GOOD, violations=[DRAINING])) == ("False", "Draining")
    assert ready(msgspec.structs.replace(GOOD, spec=None)) == ("Unknown", "AwaitingState")
    assert ready(msgspec.structs.replace(GOOD, degraded="no watches")) == ("False", "Degraded")
    assert ready(lately(drifting=2)) == ("True", "AsSpecified"), "drift is repaired"


def test_applied() -> None:
    def applied(snapshot: collector.Snapshot = GOOD, **changes: Any) -> tuple[str, str]:
        return verdicts(msgspec.structs.replace(snapshot, **changes))["Applied"]

    restore = with_mode(names.Mode.RESTORE)
    assert applied(spec=None) == ("Unknown", "AwaitingState")
    assert applied(violations=[DRAINING]) == ("False", "Draining")
    assert applied(violations=[DRAINING, FAILED]) == ("False", "WriteFailed")
    assert applied(violations=[YIELDED]) == ("False", "Yielded")
    assert applied(lately(exposures=[EXPOSED])) == ("True", "AsSpecified")
    assert applied(restore, to_restore=1) == ("False", "Restoring")
    assert applied(restore) == ("True", "Restored")
    assert applied(restore, violations=[FAILED]) == ("False", "WriteFailed")
    assert applied(with_mode(names.Mode.AUDIT)) == ("True", "Audit")
    assert applied(without_tree(layout.TreeError("NoPodTree", "none"))) == ("False", "NoPodTree")


def test_compatible() -> None:
    old = state.Facts(cgroup_version=1, swap_controller=False, swap_bytes=0, memory_bytes=1)
    assert verdicts(GOOD, old)["Compatible"] == ("False", "NoCgroupV2")
    assert verdicts(GOOD, old)["Applied"] == ("False", "Incompatible")
    bare = without_tree(layout.TreeError("NoSwapController", "none"))
    assert verdicts(bare)["Compatible"] == ("False", "NoSwapController")
    lost = without_tree(layout.TreeError("AmbiguousTree", "two"))
    assert verdicts(lost)["Compatible"] == ("Unknown", "AmbiguousTree")


def test_degraded_and_drift() -> None:
    assert verdicts(msgspec.structs.replace(GOOD, refused="bad"))["Degraded"] == ("True", "StateRefused")
    assert verdicts(msgspec.structs.replace(GOOD, degraded="no watches"))["Degraded"] == ("True", "Polling")
    assert verdicts(msgspec.structs.replace(GOOD, violations=[FAILED]))["Degraded"] == ("True", "WriteFailed")
    assert verdicts(lately(drifting=2))["Drifted"] == ("True", "Rewritten")
    assert verdicts(lately(others="somebody"))["Drifted"] == ("True", "OtherWriter")
    assert verdicts(msgspec.structs.replace(lately(drifting=2, contested=1), violations=[YIELDED]))["Drifted"] == (
        "True",
        "Yielded",
    )
    told = build(lately(drifting=2, others="somebody writes 0"), FACTS, [], "t").conditions[4]
    assert told.reason == "OtherWriter"
    assert ("2 running pods" in told.message, "somebody writes 0" in told.message) == (True, True)


def test_the_runbook_of_the_alert_has_each_reason() -> None:
    page = (paths.ROOT / "docs/runbooks/SwapwardenAgentDegraded.md").read_text(encoding="utf-8")
    missing = board.SettingProblem("zswap.enabled", names.Problem.NOT_SUPPORTED, "no zswap")
    changes = [{"refused": "bad"}, {"degraded": "no watches"}, {"violations": [FAILED]}, {"settings": [missing]}]
    reasons = [verdicts(msgspec.structs.replace(GOOD, **change))["Degraded"] for change in changes]  # type: ignore[arg-type]  # mixed
    assert {status for status, _ in reasons} == {"True"}
    for _, reason in reasons:
        assert f"| `{reason}` |" in page


def test_what_ends_by_itself_has_to_be_looked_at() -> None:
    assert not GOOD.passing
    assert not msgspec.structs.replace(GOOD, violations=[DRAINING, YIELDED]).passing, "their end is noticed"
    assert lately(exposures=[EXPOSED]).passing
    for recent in ({"drifting": 1}, {"others": "somebody"}, {"lost": 1}):
        assert lately(**recent).passing


def test_the_time_of_transition_stays_while_the_status_does() -> None:
    first = msgspec.to_builtins(build(GOOD, FACTS, [], "2026-01-01T00:00:00Z"))
    second = msgspec.to_builtins(
        build(msgspec.structs.replace(GOOD, violations=[DRAINING]), FACTS, first["conditions"], "2026-02-02T00:00:00Z")
    )
    times = {condition["type"]: condition["lastTransitionTime"] for condition in second["conditions"]}
    assert times.pop("Applied") == times.pop("Ready") == "2026-02-02T00:00:00Z"
    assert set(times.values()) == {"2026-01-01T00:00:00Z"}


def test_violations_are_cut_and_the_worst_come_first() -> None:
    many = [state.Violation(f"p{n:03}", "AwaitingState") for n in range(40)]
    exposed = [state.ExposedPod(f"p{n:03}", milliseconds=n) for n in range(40)]
    built = build(
        msgspec.structs.replace(lately(exposures=exposed), violations=[*many, DRAINING, FAILED]), FACTS, [], "t"
    )
    assert len(built.violations) == state.MAX_VIOLATIONS
    assert built.violations_omitted == 42 - state.MAX_VIOLATIONS
    assert [violation.reason for violation in built.violations[:2]] == ["WriteFailed", "Draining"]
    assert (len(built.exposures), built.exposures_omitted, built.exposures[0].pod) == (32, 8, "p039")


def test_counters_alone_are_not_the_essence() -> None:
    def built(*exposures: state.ExposedPod, drifting: int = 1) -> dict[str, Any]:
        snapshot = lately(drifting=drifting, exposures=exposures)
        return status.essence(msgspec.to_builtins(build(snapshot, FACTS, [], "t")))

    more = state.ExposedPod("p", count=9, milliseconds=50, observed="max")
    other = state.ExposedPod("q", count=1)
    assert built(EXPOSED) == built(more, drifting=2)
    assert built(EXPOSED) != built(EXPOSED, other)
    took = [msgspec.structs.replace(EXPOSED, swap_bytes=size) for size in (4096, 8192)]
    assert built(EXPOSED) != built(took[0]), "an event waits for it"
    assert built(took[0]) == built(took[1])
    assert built(EXPOSED) != built()


def test_what_a_preview_takes_is_a_counter_but_for_the_pods() -> None:
    def told(pods: int, size: int) -> dict[str, Any]:
        cost = state.PreviewCost(state.ProfileRef("p", 2), pods, size)
        built: dict[str, Any] = msgspec.to_builtins(
            build(msgspec.structs.replace(GOOD, cost=cost), FACTS, [], "2026-01-01T00:00:00Z")
        )
        return built

    assert told(2, 10)["previewCost"] == {"profileRef": {"name": "p", "generation": 2}, "pods": 2, "bytes": 10}
    assert status.essence(told(2, 10)) == status.essence(told(2, 20))
    assert status.essence(told(2, 10)) != status.essence(told(0, 0))


def test_settings_of_the_node_are_reported_if_there_are_any() -> None:
    assert "SettingsApplied" not in verdicts(GOOD)
    assert verdicts(msgspec.structs.replace(GOOD, settings=()))["SettingsApplied"] == ("True", "AsSpecified")
    audit = board.SettingProblem("vm.swappiness", names.Problem.AUDIT, "10 would be written over 60")
    assert verdicts(msgspec.structs.replace(GOOD, settings=[audit]))["SettingsApplied"] == ("True", "Audit")
    assert verdicts(msgspec.structs.replace(GOOD, settings=[audit]))["Degraded"] == ("False", "AsExpected")
    none = board.SettingProblem("vm.page-cluster", names.Problem.NO_ACCESS, "set agent.kernel.vm")
    bad = board.SettingProblem("vm.min_free_kbytes", names.Problem.REFUSED, "too much")
    built = build(msgspec.structs.replace(GOOD, settings=[none, bad]), FACTS, [], "t")
    told = {condition.type: condition for condition in built.conditions}
    assert (told["SettingsApplied"].status, told["SettingsApplied"].reason) == ("False", "Refused")
    assert told["SettingsApplied"].message == "vm.min_free_kbytes: too much; vm.page-cluster: set agent.kernel.vm"
    assert (told["Degraded"].reason, told["Degraded"].message) == (
        "SettingsNotApplied",
        told["SettingsApplied"].message,
    )
    assert told["Applied"].status == "True"


def test_a_setting_without_effect_is_reported_and_no_failure() -> None:
    idle = board.SettingProblem("systemUnits.io.weight", names.Problem.NO_EFFECT, "the node has no swap")
    conditions = verdicts(msgspec.structs.replace(GOOD, settings=[idle]))
    assert (conditions["SettingsApplied"], conditions["Degraded"]) == (("True", "NoEffect"), ("False", "AsExpected"))


def test_findings_are_conditions_while_they_are_true() -> None:
    diagnostic = diagnostics.Diagnostic(ConditionType.SECRETS_ON_DISK, "NoTmpfsNoswap", "they can", "encrypt it")
    first = build(GOOD, FACTS, [], "2026-01-01T00:00:00Z", [diagnostic])
    condition = first.conditions[-1]
    assert (condition.type, condition.status, condition.reason) == ("SecretsOnDisk", "True", "NoTmpfsNoswap")
    assert (condition.message, condition.observed_generation) == ("they can; encrypt it", 0)
    before = msgspec.to_builtins(first)["conditions"]
    later = build(GOOD, FACTS, before, "2026-01-02T00:00:00Z", [diagnostic])
    assert later == first
    assert len(build(GOOD, FACTS, before, "2026-01-02T00:00:00Z").conditions) == 5


def test_a_unit_that_drains_or_is_missing_is_reported_and_stops_nothing() -> None:
    for reason in (names.Problem.NOT_FOUND, names.Problem.DRAINING, names.Problem.RELOAD_NEEDED):
        conditions = verdicts(
            msgspec.structs.replace(GOOD, settings=[board.SettingProblem("x.service", reason, "so it is")])
        )
        assert conditions["SettingsApplied"] == ("False", reason)
        assert conditions["Degraded"] == ("False", "AsExpected")
        assert conditions["Applied"] == ("True", "AsSpecified")


def test_a_setting_that_the_agent_does_not_know_is_reported_once_and_harms_nothing_else() -> None:
    unknown = collector.of_unsupported(spec.Unsupported("memoryHigh", "x", 3))
    assert (unknown.pod, unknown.setting, unknown.reason) == ("x", "memoryHigh", "NotSupported")
    conditions = verdicts(msgspec.structs.replace(GOOD, violations=[unknown]))
    assert conditions["Applied"] == ("False", "NotSupported")
    assert conditions["Degraded"] == ("False", "AsExpected"), "the rollout of a newer controller continues"


def test_throttled_cgroups_are_cut_and_those_that_the_guard_raised_come_first() -> None:
    many = [state.ThrottledCgroup(f"p{n:03}", milliseconds=n) for n in range(40)]
    tripped = state.ThrottledCgroup("t", trips=1)
    raised = state.ThrottledCgroup("r", trips=1, guard="Released")
    built = build(msgspec.structs.replace(GOOD, throttled=[*many, tripped, raised]), FACTS, [], "t")
    assert (len(built.throttled), built.throttled_omitted) == (32, 10)
    assert [each.pod for each in built.throttled[:3]] == ["r", "t", "p039"]
    assert msgspec.structs.replace(GOOD, throttled=many).passing


def test_throttling_is_written_at_once_only_where_the_guard_found_a_standstill() -> None:
    def built(**fields: Any) -> dict[str, Any]:
        snapshot = msgspec.structs.replace(GOOD, throttled=[state.ThrottledCgroup("p", **fields)])
        return status.essence(msgspec.to_builtins(build(snapshot, FACTS, [], "t")))

    none = status.essence(msgspec.to_builtins(build(GOOD, FACTS, [], "t")))
    assert none == built(count=1) == built(count=9, milliseconds=50)
    assert built(count=9, trips=1) != none
    assert built(trips=1, guard="Stepped") != built(trips=1, guard="Released") != built(trips=2, guard="Released")
    assert built(trips=1, milliseconds=7) == built(trips=1, milliseconds=9)
