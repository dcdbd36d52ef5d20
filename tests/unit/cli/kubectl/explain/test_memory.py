from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.cli.kubectl.explain import memory, model, screen
from swapwarden.policy.memory import protection, qos, settings
from swapwarden.policy.profile import compiled

from testbed.base import paths
from tests.unit.cli.kubectl.explained import GI, MI, container, planned, pod, profile, reported, seen
from tests.unit.objects import make_override

NOW = datetime.datetime(2026, 1, 1, 2, tzinfo=datetime.UTC)
SOFT = settings.MemoryQoS(reservation=names.ReservationPolicy.SOFT, throttling_percent=80)
REPORT = (container("app", "1Gi", "2Gi"), container("proxy", "64Mi", "64Mi"))
OFFERED = settings.MemoryQoS()
RESERVATION, THROTTLING = names.MEMORY_RESERVATION_ANNOTATION, names.MEMORY_THROTTLING_ANNOTATION


def explain(found: Any, governing: compiled.Profile) -> model.PodExplanation:
    return model.explain(seen(found, governing))


def files(told: model.PodExplanation) -> list[tuple[str, str, int | None, str]]:
    return [(line.of, line.file, line.value, line.reason) for line in told.memory]


def test_a_pod_without_memory_qos_has_no_section() -> None:
    told = explain(pod(*REPORT), profile())
    assert told.memory == []
    assert "MEMORY" not in screen.text(told, NOW)


def test_the_amounts_are_those_of_the_plan() -> None:
    found, governing = pod(container("app", "1Gi", "2Gi")), profile(memory_qos=SOFT)
    told = explain(found, governing)
    assert told.planned is not None
    swap = int(told.planned.swap_max or 0)
    (high,) = lines(told, "throttled")
    assert files(told) == [
        ("requested", "", GI, ""),
        ("protected", "memory.low", GI, "RequestProtected"),
        ("in effect", "", GI, "InEffect"),
        ("throttled", "memory.high", max(2 * GI - swap, GI + GI * 8 // 10 // 4096 * 4096), high.reason),
        ("so far", "", None, ""),
    ]
    shown = screen.text(told, NOW)
    for line in told.memory:
        assert line.text in shown
        assert memory.result(line) in shown


def test_files_that_are_left_to_the_kubelet_are_named() -> None:
    found, governing = pod(*REPORT), profile(memory_qos=SOFT)
    owned = state.Condition("MemoryQoS", "False", "KubeletOwned", message="memory.low is left to the kubelet")
    applied = state.Condition("MemoryQoS", "True", "AsSpecified", message="as specified")
    for condition, shown in ((owned, [(owned.message, owned.reason)]), (applied, [])):
        node_state = reported(planned(found, governing), conditions=(condition,))
        told = model.explain(seen(found, governing, state=node_state))
        assert [(line.text, line.reason) for line in told.memory if line.of == "node"] == shown


@pytest.mark.parametrize(("above", "words"), [("kubepods", "all pods"), ("burstable", "all Burstable pods")])
def test_an_ancestor_that_spoils_the_protection_is_named(above: str, words: str) -> None:
    found, governing = pod(container("app", "1Gi", "2Gi")), profile(memory_qos=SOFT)
    refused = state.Violation(above, "WriteFailed", setting="memoryLow", desired=str(GI), observed="4096")
    told = model.explain(seen(found, governing, state=reported(planned(found, governing), refused)))
    (line,) = (each for each in told.memory if each.of == "in effect")
    assert (line.value, line.reason) == (4096, "AncestorHasLess")
    assert words in line.text
    assert line.text in screen.text(told, NOW)


def test_a_cgroup_of_the_node_that_spoils_the_protection_is_named_as_the_agent_does() -> None:
    found, governing = pod(container("app", "1Gi", "2Gi")), profile(memory_qos=SOFT)
    message = "memory.low of the cgroup /kubelet.slice is 0"
    condition = state.Condition("ProtectionIneffective", "True", "AncestorTooLow", message=message)
    told = model.explain(seen(found, governing, state=reported(planned(found, governing), conditions=(condition,))))
    (line,) = lines(told, "in effect")
    assert (line.text, line.reason) == (message, "NodeHasLess")


@pytest.mark.parametrize("effect", list(protection.Effect))
@pytest.mark.parametrize("cgroup", ["", protection.ROOT, protection.BURSTABLE, protection.POD, "kubelet.slice"])
def test_each_effect_has_words(effect: protection.Effect, cgroup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached = protection.InEffect(effect, None, cgroup)
    monkeypatch.setattr(protection, "in_effect", lambda *_, **__: reached)
    (line,) = (each for each in explain(pod(*REPORT), profile(memory_qos=SOFT)).memory if each.of == "in effect")
    assert line.text
    assert not {"{", "}", "None"} & {*line.text.split(), *line.text}


def test_without_a_state_nothing_is_said_of_its_effect() -> None:
    found, governing = pod(*REPORT), profile(memory_qos=SOFT)
    told = model.explain(seen(found, governing, state=None))
    assert "protected" in {line.of for line in told.memory}
    assert "in effect" not in {line.of for line in told.memory}


def throttled(*listed: state.ThrottledCgroup, **fields: Any) -> model.PodExplanation:
    """A pod with two throttled containers, of whose cgroups an agent reports this."""
    found = pod(container("app", "1Gi", "2Gi"), container("proxy", "64Mi", "1Gi"))
    governing = profile(memory_qos=SOFT)
    return model.explain(
        seen(found, governing, state=reported(planned(found, governing), throttled=list(listed), **fields))
    )


def lines(told: model.PodExplanation, of: str) -> list[memory.MemoryLine]:
    return [line for line in told.memory if line.of.startswith(of)]


def test_how_often_and_how_long_it_was_throttled() -> None:
    since = "2026-01-01T00:10:00Z"
    told = throttled(state.ThrottledCgroup("uid-1", "id-proxy", count=42, milliseconds=4560, since=since))
    (line,) = lines(told, "so far")
    assert (line.of, line.count, line.milliseconds) == ("so far proxy", 42, 4560)
    for each in ("42", "4.6", since):
        assert each in line.text
    assert lines(told, "guard") == []


@pytest.mark.parametrize("phase", ["Stepped", "Released", "Latched", "Unheard"])
def test_the_guard_and_its_reason_are_named(phase: str) -> None:
    eased = state.Violation("uid-1", "ThrottlingEased", "id-app-in-full", "memoryHigh", message="Stuck for 9 s")
    told = throttled(
        state.ThrottledCgroup("uid-1", "id-app-in-full", count=7, trips=1, guard=phase),
        violations=[msgspec.structs.replace(eased, container="id-proxy", message="another"), eased],
    )
    (line,) = lines(told, "guard")
    assert (line.of, line.reason) == ("guard app", phase)
    assert line.text.endswith("Stuck for 9 s")


def test_other_pods_and_unlisted_ones_do_not_count() -> None:
    others = state.ThrottledCgroup("uid-2", count=9)
    (line,) = lines(throttled(others), "so far")
    assert line.count == 0
    assert lines(throttled(others, throttled_omitted=1), "so far") == []
    assert lines(throttled(observed_generation=0), "so far") == []


def test_each_of_several_containers_has_a_line() -> None:
    told = explain(pod(*REPORT), profile(memory_qos=SOFT))
    assert [line.of for line in told.memory] == [
        "requested",
        "protected",
        "in effect",
        "throttled",
        "throttled app",
        "throttled proxy",
        "so far",
    ]
    assert lines(told, "throttled proxy")[0].reason == names.ThrottlingReason.REQUEST_IS_LIMIT
    assert told.memory[0].value == GI + 64 * MI


def test_tiered_reservation_of_a_guaranteed_pod_is_hard() -> None:
    tiered = settings.MemoryQoS(reservation=names.ReservationPolicy.TIERED_RESERVATION)
    found = pod(container("app", "1Gi", "1Gi"), status={"qosClass": "Guaranteed"})
    assert ("protected", "memory.min", GI, "RequestProtected") in files(explain(found, profile(memory_qos=tiered)))


def test_whose_share_it_is() -> None:
    override = make_override("caches", memory_throttling=70)
    for own, overrides, share in (
        ({}, (), "80%"),
        ({}, (override,), "70%"),
        ({names.MEMORY_THROTTLING_ANNOTATION: "60%"}, (override,), "60%"),
    ):
        made = profile(names.Behavior.WORKLOAD_CONTROLLED, memory_qos=SOFT, overrides=overrides)
        limited = {**own, names.LIMIT_ANNOTATION: "4Gi"}
        told = explain(pod(container("app", "1Gi", "2Gi"), annotations=limited), made)
        (line,) = lines(told, "throttled")
        assert line.reason == names.ThrottlingReason.PERCENT
        assert share in line.text


def test_a_pod_that_refuses() -> None:
    told = explain(pod(container("app", "1Gi", "2Gi"), annotations={RESERVATION: "None"}), profile(memory_qos=OFFERED))
    assert [line.reason for line in told.memory] == ["", "PodRefuses", "ThrottlingNone"]
    assert all(line.value is None for line in told.memory[1:])


def test_the_remedy_of_a_profile_that_offers_nothing_is_to_set_memory_qos() -> None:
    found = pod(container("app", "1Gi", "2Gi"), annotations={RESERVATION: "Soft", THROTTLING: "50%"})
    told = explain(found, profile())
    assert [line.reason for line in told.memory] == ["", "NotOffered", "NotOffered"]
    assert all(line.value is None for line in told.memory[1:])
    assert all(f"set memoryQoS in {profile().name}" in line.text for line in told.memory[1:])
    remedied = explain(found, profile(memory_qos=OFFERED))
    assert "NotOffered" not in [line.reason for line in remedied.memory]
    assert remedied.memory[1].value == GI


def test_a_node_without_a_profile_offers_nothing() -> None:
    found = pod(container("app", "1Gi", "2Gi"), annotations={RESERVATION: "Soft"})
    told = explain(found, compiled.BUILT_IN)
    assert [line.reason for line in told.memory] == ["", "NotOffered", "NotOffered"]
    assert "no profile selects the node" in told.memory[1].text


def test_the_override_that_refuses_is_named() -> None:
    found = pod(container("app", "1Gi", "2Gi"), annotations={RESERVATION: "Soft", THROTTLING: "50%"})
    override = make_override("caches", memory_reservation=names.ReservationPolicy.NONE, memory_throttling=0)
    told = explain(found, profile(memory_qos=SOFT, overrides=(override,)))
    assert [line.reason for line in told.memory] == ["", "OverrideRefuses", "OverrideRefuses"]
    for line, field in zip(told.memory[1:], ("reservation", "throttling"), strict=True):
        assert f"remove memory.{field} from overrides[caches] of {profile().name}" in line.text


def decided(protection: names.ProtectionReason, reason: names.ThrottlingReason) -> qos.PodMemory:
    each = (qos.ContainerMemory(name, None, None, protection, reason) for name in ("app", "proxy"))
    return qos.PodMemory(None, None, None, protection, reason, tuple(each))


@pytest.mark.parametrize("reason", list(names.ThrottlingReason))
def test_each_reason_of_throttling_has_words(reason: names.ThrottlingReason, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qos, "decide", lambda *_: decided(names.ProtectionReason.REQUEST, reason))
    assert explain(pod(*REPORT), profile(memory_qos=SOFT)).memory[-1].text


@pytest.mark.parametrize("reason", list(names.ProtectionReason))
def test_each_reason_of_protection_has_words(reason: names.ProtectionReason, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qos, "decide", lambda *_: decided(reason, names.ThrottlingReason.NO_LIMIT))
    assert explain(pod(*REPORT), profile(memory_qos=SOFT)).memory[1].text


def test_the_page_shows_this_section() -> None:
    found, governing = pod(container("cache", "2Gi", "3Gi")), profile(memory_qos=SOFT)
    refused = state.Violation("burstable", "WriteFailed", setting="memoryLow", desired=str(2 * GI), observed="0")
    why = "Stuck at memory.high: tasks stalled for 9 s; now Released"
    eased = state.Violation("uid-1", "ThrottlingEased", setting="memoryHigh", observed="max", message=why)
    since = "2026-01-01T01:10:00Z"
    throttled = state.ThrottledCgroup("uid-1", count=412, milliseconds=11240, since=since, trips=1, guard="Released")
    node_state = reported(planned(found, governing), refused, eased, throttled=[throttled])
    shown = screen.text(model.explain(seen(found, governing, state=node_state)), NOW)
    (section,) = (each for each in shown.split("\n\n") if each.startswith("MEMORY"))
    assert f"```text\n{section.rstrip()}\n```\n" in (paths.DOCS / "memory-qos.md").read_text(encoding="utf-8"), section
