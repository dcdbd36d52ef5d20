"""The contract of verdicts: all surfaces that show a pod's verdict show the same status, reason and remedy.

The pairs of states and pods are generated. The condition of the pod, `kubectl swap explain`, `kubectl swap check`, the
events and the metric each go their own way from the same two objects.
"""

from __future__ import annotations

import collections
import datetime
import itertools
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from swapwarden.api import names, state
from swapwarden.api.notices import Notice
from swapwarden.cli.kubectl.check import problems
from swapwarden.cli.kubectl.check.catalogue import Check
from swapwarden.cli.kubectl.cluster import snapshot
from swapwarden.cli.kubectl.explain import model
from swapwarden.controller.pods import condition_publisher, verdicts
from swapwarden.policy.fleet.inventory import NodeInventory
from swapwarden.policy.observed import nodes, pods, states
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.verdict import pod as verdict
from swapwarden.policy.verdict import pod_events, words

from tests.unit.objects import raw
from tests.unit.policy.verdict.cases import CASES, NODE, Case, expected

AGENTS = "swapwarden-system"
AGENT_POD: dict[str, Any] = {
    "metadata": {"name": "agent", "namespace": AGENTS, "uid": "uid-agent", "labels": names.AGENT_LABELS},
    "spec": {"nodeName": NODE, "containers": [{"name": "agent"}]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}
NODE_ROW = nodes.NodeRow(NODE, "uid-node", {}, 2**30, 2**33)


class Pair(NamedTuple):
    """A state and a pod in the forms in which they are read."""

    case: Case
    pod: pods.PodRow
    row: states.StateRow | None

    @property
    def report(self) -> verdict.ReadState:
        return verdict.ReadState.of(self.row, has_agent=self.case.has_agent)

    @property
    def reason(self) -> str:
        """Return the reason of the plan in the state; empty if there is none."""
        return self.case.reason if self.row is not None and self.case.planned else ""


def read(case: Case) -> Pair:
    wire = msgspec.convert(case.pod(), WirePod)
    row = states.decode(msgspec.json.encode(case.state())) if case.has_state else None
    return Pair(case, pods.project(wire).on(NODE_ROW.uid), row)


# The surfaces


def judged_by_controller(pair: Pair) -> tuple[pods.PodRow, verdict.PodVerdict] | None:
    """Judge in the controller's own way; None if it does not judge the pod."""
    known = NodeInventory(agent_pods=AGENTS)
    known.put_node(NODE, NODE_ROW)
    known.put_pod(NODE, "default/web", pair.pod)
    if pair.case.has_agent:
        known.put_pod(NODE, "agent", pods.project(msgspec.convert(AGENT_POD, WirePod)))
    if pair.row is not None:
        known.put_state(NODE, pair.row)
    made = verdicts.PodVerdicts(known)
    found = next(iter(made.judge_node(NODE)), None)
    counted = {tuple(value for _, value in each.labels): each.value for each in verdicts.PODS.samples()}
    assert counted == ({} if found is None else {(found[1].status, found[1].reason): 1}), "the metric"
    made.close()
    assert not list(verdicts.PODS.samples())
    return found


def explained(pair: Pair) -> dict[str, Any]:
    """Return the part about the kernel of what `kubectl swap explain -o json` prints."""
    seen = model.Observed(
        msgspec.convert(pair.case.pod(), WirePod),
        node=NODE_ROW,
        state=None if pair.row is None else states.read(msgspec.convert(_wired(pair), states.WireState)),
        state_row=pair.row,
        has_agent=pair.case.has_agent,
    )
    shown = msgspec.to_builtins(model.explain(seen))["kernel"]
    assert isinstance(shown, dict)
    return shown


def _wired(pair: Pair) -> dict[str, Any]:
    document = pair.case.state()
    return {key: raw(value) if key in {"spec", "status"} else value for key, value in document.items()}


def checked(pair: Pair) -> dict[str, str]:
    """Return the remedies of the problems that `kubectl swap check` finds about the pod, by reason."""
    view = snapshot.ClusterSnapshot(nodes={NODE: NODE_ROW})
    view.add_pod(raw(pair.case.pod()))
    if pair.case.has_agent:
        view.add_pod(raw(AGENT_POD))
    else:
        # Else nobody would know that agents are pods.
        elsewhere = {**AGENT_POD, "spec": {**AGENT_POD["spec"], "nodeName": "another"}}
        view.add_pod(raw(elsewhere))
    if pair.row is not None:
        view.add_state(msgspec.convert(_wired(pair), states.WireState))
    kinds = {Check.POD_NOT_ENFORCED, Check.SWAP_AGAINST_POLICY}
    found = [each for each in problems.live(view) if each.object == "pod/default/web" and each.check in kinds]
    return {each.reason: each.remedy for each in found if each.reason != names.Policy.REQUIRED}


def posted(pair: Pair) -> Iterator[Notice]:
    """Yield the events about the pod: what its plan lacks, and what its node's agent reports."""
    if pair.row is None:
        return
    plan = states.spec(pair.row)
    assert isinstance(plan, state.StateSpec)
    yield from pod_events.notices_about([pair.pod], plan)
    quiet = msgspec.structs.replace(pair.row, violations=())
    yield from pod_events.violation_notices(quiet, pair.row, [pair.pod])


# The contract

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@settings(max_examples=700, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(CASES)
def test_every_surface_gives_the_same_verdict_reason_and_remedy(case: Case) -> None:
    pair, should = read(case), expected(case)
    judged = verdict.judge(pair.pod, pair.report, pair.pod.enforced)
    assert (judged.status, judged.reason) == (should.status, should.reason)

    shown = explained(pair)
    assert (shown["status"], shown["reason"], shown.get("remedy", "")) == (*should[1:], judged.remedy)

    known = judged_by_controller(pair)
    assert (known is None) == (case.policy is None)
    if known is not None:
        (condition,) = condition_publisher.condition_patch(*known, NOW)["status"]["conditions"]
        assert (condition["status"], condition["reason"]) == should[1:]
        assert judged.remedy in condition["message"]

    lacks = verdict.shortfall(pair.pod, pair.reason, "batch", audit=case.mode == "Audit")
    concerns = verdict.concerns(pair.pod, judged, pair.reason)
    if pair.row is not None and case.planned:
        reasons = {lacks.reason: lacks.remedy} if lacks else {}
        # Swap in use above a limit of 0 is also a problem of pods without a policy.
        if concerns or (judged.reason == "Draining" and case.swap_max == "0"):
            reasons[judged.reason] = judged.remedy
        assert checked(pair) == reasons

    due = {}
    if lacks is not None:
        due[lacks.reason] = words.sentence(lacks.message, lacks.remedy)
    elif pair.reason and case.mode == "Audit" and verdict.is_audited(pair.pod, pair.reason):
        text = words.ENFORCEMENT["Audit"].about(pair.pod, "batch")
        due["Audit"] = words.sentence(text.message, text.remedy)
        # As long as the agent has not reported that nothing can be limited there, the plan does not know it.
        assert should.reason in {"Audit", "NodeIncompatible"}
    if should.rule in case.listed and judged.event and should.rule != "Audit":
        due[judged.event] = judged.sentence
    assert {each.reason: each.message for each in posted(pair)} == due


@pytest.fixture(scope="module")
def corpus() -> list[Case]:
    """Return generated cases; the same ones each time."""
    found: list[Case] = []

    @settings(max_examples=2000, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(CASES)
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def test_the_pairs_reach_every_rule(corpus: list[Case]) -> None:
    counts = collections.Counter(expected(case).rule for case in corpus)
    sys.stdout.write("".join(f"{rule.name:>16} {counts[rule.name]:5} pairs\n" for rule in verdict.RULES))
    assert counts.keys() == {rule.name for rule in verdict.RULES}, "no rule is unreachable"


def test_the_documentation_has_the_rules_in_their_order() -> None:
    """Rows name reasons where the rule gives one."""
    page = (pathlib.Path(__file__).parents[4] / "docs/pod-condition.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", page, re.MULTILINE)
    reasons = [re.findall(r"`(\w+)`", reason) for _, reason in rows]
    assert [int(number) for number, _ in rows] == list(range(1, len(verdict.RULES) + 1))
    named = {"Mode": ["Audit", "Restore"], "NotPlanned": ["NotPlanned", "NoState"]}
    unnamed = {"AsReported", "Unrepaired", "Held"}
    assert reasons == [[] if one.name in unnamed else named.get(one.name, [one.name]) for one in verdict.RULES]


def test_no_two_rules_can_be_swapped(corpus: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    read_once = [(read(case), expected(case)) for case in corpus]

    def wrong() -> bool:
        return any(_verdict(pair) != (should.status, should.reason, should.rule) for pair, should in read_once)

    assert not wrong()
    rules = verdict.RULES
    for first, second in itertools.combinations(range(len(rules)), 2):
        swapped = list(rules)
        swapped[first], swapped[second] = rules[second], rules[first]
        monkeypatch.setattr(verdict, "RULES", tuple(swapped))
        assert wrong(), f"nothing shows whether {rules[first].name} comes before {rules[second].name}"


def _verdict(pair: Pair) -> tuple[str, str, str]:
    judged = verdict.judge(pair.pod, pair.report, pair.pod.enforced)
    return judged.status, judged.reason, judged.rule
