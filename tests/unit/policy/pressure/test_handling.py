from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import state
from swapwarden.policy.pressure import handling, ranking, words
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.policy.pressure.handling import (
    OBSERVE,
    Adopt,
    Announce,
    Answers,
    Ask,
    Attempt,
    Clear,
    Conclude,
    Evict,
    EvictionAnswer,
    LookAtPod,
    NodePressure,
    PodLife,
    Read,
    Record,
    Rest,
    Situation,
    next_step,
)
from swapwarden.policy.pressure.limits import HoldReason, Limited
from swapwarden.policy.pressure.thresholds import Eviction

from tests.unit.objects import GI
from tests.unit.policy.pressure.samples import CANDIDATES, NODE, REPORTS, candidate, report

NOW = 1000.0
REPORT = report(a=(900,), b=(800,))
A, B = RANKED = ranking.rank([candidate("a"), candidate("b")], REPORT, NODE)
VICTIM, OTHER = (state.EvictedPod(name, "a", name, 1) for name in "ab")
REQUEST = Evict(A, REPORT)
GONE_LONG, RECENT = NOW - handling.PATIENCE_SECONDS, NOW - 1
ENFORCED: dict[str, Any] = {"enforce": True, "now": NOW, "report": REPORT}
RECORDED: dict[str, Any] = {**ENFORCED, "victim": VICTIM}


def of(turn: Answers | None = None, **fields: Any) -> NodePressure:
    """A node with a fresh report, and answers to it."""
    return NodePressure(**{"seq": 1, "fresh": True, "arrived": NOW, "turn": turn or Answers(), **fields})


def attempt(
    life: PodLife | None = None, turn: Answers | None = None, since: float = NOW, **fields: Any
) -> NodePressure:
    """Return a node whose recorded pod has this life."""
    turn = msgspec.structs.replace(turn or Answers(), life=life)
    return of(turn, attempt=Attempt(VICTIM, since, **fields))


READ, ALLOWED = Answers(ranked=RANKED), Answers(ranked=RANKED, allowed="a")
CANCEL, ALIVE = Clear("Cancelled", counts=False), PodLife.ALIVE


@pytest.mark.parametrize(
    ("node", "seen", "step"),
    [
        # The record, the pod in it, and the pressure.
        (of(), RECORDED, Adopt(VICTIM)),
        (attempt(), ENFORCED, Adopt(None)),
        (attempt(), RECORDED | {"victim": OTHER}, Adopt(OTHER)),
        (attempt(), RECORDED, LookAtPod(VICTIM)),
        (attempt(refused=True), RECORDED, Clear(None, counts=False)),
        (attempt(refused=True, unsure=True), RECORDED, Clear(None, counts=True)),
        (attempt(PodLife.ENDING, request=REQUEST), RECORDED, Announce(REQUEST)),
        (attempt(PodLife.GONE, request=REQUEST), RECORDED, Announce(REQUEST)),
        (attempt(PodLife.GONE, request=REQUEST, announced=True), RECORDED, Clear(None, counts=True)),
        (attempt(PodLife.GONE), RECORDED, Clear("Gone", counts=True)),
        (attempt(PodLife.ENDING), RECORDED, Conclude(HoldReason.SETTLING)),
        (attempt(ALIVE), RECORDED, Read()),
        (attempt(ALIVE, READ), RECORDED, REQUEST),
        (attempt(ALIVE, Answers(ranked=(B,))), RECORDED, CANCEL),
        (attempt(ALIVE, Answers(ranked=ranking.rank([candidate("a", request=GI)], REPORT, NODE))), RECORDED, CANCEL),
        (attempt(ALIVE), RECORDED | {"report": None}, CANCEL),
        (attempt(ALIVE, unsure=True), RECORDED | {"report": None}, Clear("Cancelled", counts=True)),
        (attempt(ALIVE), RECORDED | {"enforce": False}, CANCEL),
        (attempt(ALIVE), RECORDED | {"kubelet": True}, CANCEL),
        (attempt(ALIVE), RECORDED | {"wide": True}, CANCEL),
        (attempt(ALIVE, since=RECENT), RECORDED | {"current": False}, Conclude(HoldReason.STALE)),
        (attempt(ALIVE, since=GONE_LONG), RECORDED | {"current": False}, CANCEL),
        # A pod that was recorded a moment ago was chosen by this report.
        (attempt(ALIVE, Answers(ranked=RANKED, recorded=True)), RECORDED | {"wide": True, "current": False}, REQUEST),
        (attempt(ALIVE, Answers(ranked=RANKED, recorded=True)), RECORDED | {"kubelet": True}, CANCEL),
        (attempt(PodLife.ENDING, Answers(recorded=True)), RECORDED, Conclude(None)),
        # The report.
        (of(), ENFORCED | {"report": None}, Rest()),
        (NodePressure(), ENFORCED, Rest()),
        (of(decided=True), ENFORCED, Rest()),
        (of(decided=True), ENFORCED | {"enforce": False}, Read()),
        (of(), ENFORCED | {"untainted": True}, Rest(handling.TAINT_SECONDS / 4)),
        (of(), ENFORCED | {"untainted": True, "now": NOW + handling.TAINT_SECONDS}, Read()),
        (of(), ENFORCED | {"untainted": True, "enforce": False}, Read()),
        (of(fresh=False), ENFORCED | {"kubelet": True}, Conclude(HoldReason.STALE)),
        (of(), ENFORCED | {"current": False}, Conclude(HoldReason.STALE)),
        (of(), ENFORCED | {"now": NOW + handling.STALE_SECONDS}, Read()),
        (of(), ENFORCED | {"now": NOW + handling.STALE_SECONDS + 1}, Conclude(HoldReason.STALE)),
        (of(), ENFORCED | {"now": NOW + handling.STALE_SECONDS + 1, "enforce": False}, Read()),
        (of(), ENFORCED | {"settling": True, "kubelet": True}, Conclude(HoldReason.SETTLING)),
        (of(), ENFORCED | {"kubelet": True, "wide": True}, Conclude(HoldReason.KUBELET_EVICTING)),
        (of(), ENFORCED | {"wide": True, "limited": HoldReason.NODE_LIMIT}, Conclude(HoldReason.WIDESPREAD)),
        (of(), ENFORCED | {"limited": HoldReason.NODE_LIMIT}, Conclude(HoldReason.NODE_LIMIT)),
        # Mode Observe knows no evictions.
        (of(READ), ENFORCED | {"enforce": False, "settling": True, "limited": HoldReason.RATE_LIMIT}, Ask(A)),
        (of(), ENFORCED, Read()),
        (of(Answers(ranked=())), ENFORCED, Conclude(HoldReason.NO_CANDIDATE)),
        (of(READ), ENFORCED | {"asks": False, "enforce": False}, Conclude(OBSERVE, A)),
        (of(READ), ENFORCED, Ask(A)),
        (of(READ, blocked={"a": NOW}), ENFORCED, Ask(B)),
        (of(READ, blocked={"a": NOW, "b": NOW}), ENFORCED, Conclude(HoldReason.BLOCKED)),
        (of(Answers(ranked=RANKED, asked=handling.MAX_ASKED)), ENFORCED, Conclude(HoldReason.BLOCKED)),
        (of(Answers(ranked=RANKED, asked=handling.MAX_ASKED, allowed="a")), ENFORCED, Record(VICTIM)),
        (of(ALLOWED), ENFORCED | {"enforce": False}, Conclude(OBSERVE, A, allowed=True)),
        (of(ALLOWED), ENFORCED, Record(VICTIM)),
        (of(ALLOWED), ENFORCED | {"limited": HoldReason.RATE_LIMIT}, Conclude(HoldReason.RATE_LIMIT)),
        (of(ALLOWED), ENFORCED | {"now": NOW + handling.STALE_SECONDS + 1}, Conclude(HoldReason.STALE)),
    ],
)
def test_the_next_step(node: NodePressure, seen: dict[str, Any], step: handling.Step) -> None:
    assert next_step(node, Situation(**seen)) == step


def test_a_pod_that_ends_is_waited_for_as_long_as_an_eviction_may_take() -> None:
    ranked = ranking.rank([candidate("a", ending=True), candidate("b")], REPORT, NODE)
    node, bounds = of(), Eviction(grace=30, settle=15)
    waits = Conclude(HoldReason.POD_TERMINATING)
    for now, step in ((0, waits), (45, waits), (46, Ask(B))):
        node.reported(1, NOW + now, fresh=True)
        node.answered(Read(), ranked, NOW + now)
        assert next_step(node, Situation(**ENFORCED | {"now": NOW + now}, bounds=bounds)) == step
    node.answered(Read(), RANKED, NOW + 50)
    assert node.ending_since is None


def test_a_pod_that_ends_and_frees_nothing_holds_nothing() -> None:
    """One that a finalizer keeps has no cgroup any more."""
    pods = [candidate("a", ending=True), candidate("b"), candidate("c", ending=True)]
    assert not handling.is_one_ending(ranking.rank(pods, report(a=(1,), b=(900,)), NODE))


FLAGS = st.fixed_dictionaries(
    {name: st.booleans() for name in ("enforce", "asks", "current", "untainted", "wide", "settling", "kubelet")}
)
LIMITED: list[Limited | None] = [None, HoldReason.NODE_LIMIT, HoldReason.RATE_LIMIT]
BOUNDS = st.builds(Eviction, daemon_sets=st.booleans(), unmanaged=st.booleans())


@given(st.data(), CANDIDATES, REPORTS, BOUNDS)
def test_any_turn_ends_and_no_pod_is_chosen_that_must_stay(
    data: st.DataObject, candidates: list[Candidate], reported: state.PressureReport, bounds: Eviction
) -> None:
    """Whatever is observed between the steps, and however each one is answered."""
    ranked = ranking.rank(candidates, reported, NODE, bounds)
    record = data.draw(st.sampled_from([None, VICTIM]))
    node = of(fresh=data.draw(st.booleans()), blocked={"p0": NOW})
    for _ in range(60):
        flags, limited = data.draw(FLAGS), data.draw(st.sampled_from(LIMITED))
        seen = Situation(now=NOW, report=reported, victim=record, limited=limited, bounds=bounds, **flags)
        step, answer = next_step(node, seen), cast("handling.Answer", None)
        match step:
            case Rest():
                return
            case Conclude(hold):
                assert hold in {None, OBSERVE, *words.WHY_HELD}
                return
            case Record(record):
                assert flags["enforce"]
                assert flags["current"]
                assert not any((seen.settling, seen.kubelet, seen.wide, seen.limited))
            case Clear():
                record = None
            case LookAtPod():
                answer = data.draw(st.sampled_from(PodLife))
            case Read():
                answer = ranked
            case Ask(victim) | Evict(victim):
                assert may_leave(victim, bounds)
                answer = data.draw(st.sampled_from(EvictionAnswer))
        node.answered(step, answer, NOW)
    pytest.fail("the turn does not end")


def may_leave(one: ranking.Ranked, bounds: Eviction) -> bool:
    pod = one.pod
    spared = {
        "within": one.usage <= pod.request + pod.swap,
        "unmanaged": not (pod.controller or bounds.unmanaged),
        "daemon": pod.controller == "DaemonSet" and not bounds.daemon_sets,
        "idle": not pod.running,
        "system": pod.namespace == "kube-system",
    }
    return not any((*spared.values(), pod.static, pod.critical, pod.kept, pod.ending))
