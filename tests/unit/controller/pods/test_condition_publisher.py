from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.api.conditions import ConditionType
from swapwarden.controller import supervise
from swapwarden.controller.pods import condition_publisher, verdicts
from swapwarden.controller.term import Term
from swapwarden.controller.writers.fenced import Fenced
from swapwarden.kube import backoff, client, errors, ratelimit
from swapwarden.policy.observed import nodes, pods, states
from swapwarden.policy.verdict.pod import PodVerdict, ReadState, judge

from tests.unit.controller.known import Known, Led, term
from tests.unit.kube.scripted import until
from tests.unit.objects import container, pod

X = pod(container(), key="x", name="pod-x", node="n", policy="Disabled")
PLANNED = {"x": state.PodSettings(reason=names.Reason.POLICY_DISABLED, swap_max="0")}
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
OBSERVED = 3
NODE = nodes.NodeRow(name="n", uid="node-uid", labels={}, swap_bytes=2**30, memory_bytes=2**32)


def told(*violations: dict[str, Any], omitted: int = 0, observed: int = OBSERVED, **spec: Any) -> states.StateRow:
    """The state of node n in generation 3, which its agent has observed."""
    body = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "generation": OBSERVED},
        "spec": {"profileRef": {"name": "p"}, "pods": PLANNED, **spec},
        "status": {"observedGeneration": observed, "violations": violations, "violationsOmitted": omitted},
    }
    return states.decode(msgspec.json.encode(body))


def verdict_on(row: states.StateRow) -> PodVerdict:
    return judge(X, ReadState.of(row))


def violation(reason: str, pod: str = "x", **more: Any) -> dict[str, Any]:
    return {"pod": pod, "reason": reason, **more}


@pytest.mark.parametrize(
    ("holds", "holder"),
    [
        (None, names.Holder.AGENT),
        (state.Holds(runtime=True), names.Holder.RUNTIME),
        (state.Holds(systemd=True), names.Holder.SYSTEMD),
        (state.Holds(runtime=True, systemd=True), names.Holder.RUNTIME_OR_SYSTEMD),
        (state.Holds(runtime=True, agent_only=["y"]), names.Holder.RUNTIME),
        (state.Holds(runtime=True, agent_only=["y", "x"]), names.Holder.AGENT),
        (state.Holds(agent_only=["x"]), names.Holder.AGENT),
    ],
)
def test_the_message_ends_with_the_observed_holder(holds: state.Holds | None, holder: str) -> None:
    verdict = verdict_on(msgspec.structs.replace(told(), holds=holds))
    [condition] = condition_publisher.condition_patch(X, verdict, NOW)["status"]["conditions"]
    assert (verdict.holder, condition["message"].endswith(pods.held_by(holder))) == (holder, True)


@pytest.mark.parametrize(
    ("holds", "reason", "holder"),
    [
        (state.Holds(), "NoSocket", names.Holder.AGENT),
        (state.Holds(), "PluginAway", ""),
        (state.Holds(runtime=True, agent_only=["y"], agent_only_omitted=1), "Slow", ""),
    ],
)
async def test_a_plugin_that_is_away_changes_nothing_about_running_pods(
    bench: Bench, holds: state.Holds, reason: str, holder: str
) -> None:
    away = state.Condition(ConditionType.NRI_UNAVAILABLE, "True", reason)
    row = msgspec.structs.replace(told(), holds=holds, conditions=(away,))
    verdict = verdict_on(row)
    assert (verdict.status, verdict.holder) == ("True", holder)
    held = msgspec.structs.replace(
        with_enforced("True"), enforced=pods.Enforced("True", "PolicyDisabled", names.Holder.RUNTIME)
    )
    bench.has(row, held)
    assert bool(await bench.writes()) is (holder != "")


@pytest.mark.parametrize("limit", ["", names.MAX_SWAP])
def test_no_limit_has_no_holder(limit: str) -> None:
    assert pods.holder_of("x", limit, state.Holds(runtime=True)) == ""


def test_a_limit_above_0_is_not_held_by_drop_in_files() -> None:
    both = state.Holds(runtime=True, systemd=True)
    assert pods.holder_of("x", "4096", both) == names.Holder.RUNTIME
    assert pods.holder_of("x", "0", both) == names.Holder.RUNTIME_OR_SYSTEMD


async def test_another_holder_is_written(bench: Bench) -> None:
    bench.has(told(), with_enforced("True"))
    assert await bench.writes() == []
    bench.has(newer(told(), version=2, holds=state.Holds(runtime=True)))
    assert await bench.writes() == [(PATH, "True", "PolicyDisabled")]


class Api:
    """Takes patches of pods' status; `refuse` is what it answers the next one with."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, str, str]] = []
        self.hang: set[str] = set()
        self._flowing = asyncio.Event()
        self.refuse: list[Exception] = []
        self.on_write: Callable[[], object] = lambda: None

    def go_on(self) -> None:
        self.hang.clear()
        self._flowing.set()

    async def request(self, method: str, path: str, *, body: bytes, content_type: str, **_: Any) -> bytes:
        self.on_write()
        if path in self.hang:
            await self._flowing.wait()
        if self.refuse:
            raise self.refuse.pop()
        [condition] = json.loads(body)["status"]["conditions"]
        assert (method, content_type) == ("PATCH", client.STRATEGIC_MERGE_PATCH)
        assert condition["type"] == ConditionType.SWAP_POLICY_ENFORCED
        self.patches.append((path, condition["status"], condition["reason"]))
        return b"{}"


class Bench:
    """Pod conditions at work on one node, for which nothing is waited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = Api()
        self.known = Known()
        self.known.node_changed("n", None, NODE)
        self.begins(term())
        self.waits: list[float] = []
        made = backoff.Backoff

        def waits(first: float, longest: float) -> backoff.Backoff:
            assert first > 0
            self.waits.append(longest)
            return made(0.0, 0.0)

        monkeypatch.setattr("swapwarden.controller.workqueue.backoff.Backoff", waits)

    def begins(self, term: Term) -> None:
        """From now on it is this term."""
        limit = ratelimit.Throttle(1000.0, lambda: 0.0)
        writes = Fenced(cast("client.Client", self.api), term, limit)
        self.publisher = condition_publisher.ConditionPublisher(self.known.inventory, writes)
        self.made = verdicts.PodVerdicts(self.known.inventory, self.publisher.publish, gather=0.0)

    def judges(self) -> None:
        """Judge the node at once."""
        self.publisher.publish("n", self.made.judge_node("n"))

    def has(self, row: states.StateRow | None, *found: pods.PodRow) -> None:
        self.known.state_changed("n", self.known.inventory.state_of("n"), row)
        for each in found:
            self.known.pod_changed(f"{each.namespace}/{each.name}", None, each)

    async def writes(self) -> list[tuple[str, str, str]]:
        """The writes once all work is done."""
        self.api.patches.clear()
        self.made.request_sync("n")
        async with self.running():
            for _ in range(30):
                await asyncio.sleep(0)
        return list(self.api.patches)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(each.run()) for each in (self.made, self.publisher)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


PATH = "/api/v1/namespaces/default/pods/pod-x/status"


def with_enforced(status: str | None, reason: str = "PolicyDisabled", **more: Any) -> pods.PodRow:
    holder = names.Holder.AGENT if status == "True" else ""
    enforced = None if status is None else pods.Enforced(status, reason, holder)
    return msgspec.structs.replace(X, enforced=enforced, uid="x", **more)


def newer(row: states.StateRow, **changes: Any) -> states.StateRow:
    return msgspec.structs.replace(row, **changes)


async def test_it_is_written_once(bench: Bench) -> None:
    bench.has(told(), with_enforced(None))
    assert await bench.writes() == [(PATH, "True", "PolicyDisabled")]
    bench.has(None, with_enforced("True"))
    bench.has(newer(told(), version=9))
    assert await bench.writes() == []


@pytest.mark.parametrize(
    "other",
    [{"policy": None}, {"terminal": True}, {"key": "hash"}],
    ids=["without policy", "ended", "mirror of a static pod"],
)
async def test_others_have_none(bench: Bench, other: dict[str, Any]) -> None:
    bench.has(told(), with_enforced(None, **other))
    assert await bench.writes() == []


async def test_a_true_condition_stays_true_while_nothing_is_known(bench: Bench) -> None:
    bench.has(told(observed=OBSERVED - 1), with_enforced("True"))
    assert await bench.writes() == []
    bench.has(newer(told(violation("WriteFailed")), version=2))
    assert await bench.writes() == [(PATH, "False", "WriteFailed")]


@pytest.mark.parametrize(
    ("row", "before", "wanted"),
    [
        (
            told(pods={"x": {"reason": "KubeletDecides", "swapMax": "max"}}),
            ("True", "PolicyDisabled"),
            "KubeletDecides",
        ),
        (told(violation("WriteFailed")), ("False", "Draining"), "WriteFailed"),
        (told(violation("Draining", pod="y"), omitted=1), ("Unknown", "AwaitingAgent"), "NotListed"),
        (told(pods={"x": {"reason": "PolicyDisabled", "swapMax": "4096"}}), ("True", "PolicyDisabled"), None),
    ],
    ids=["plan", "violation", "unknown", "number"],
)
async def test_another_reason_is_written_and_another_number_is_not(
    bench: Bench, row: states.StateRow, before: tuple[str, str], wanted: str | None
) -> None:
    bench.has(row, with_enforced(*before))
    assert [reason for _, _, reason in await bench.writes()] == ([wanted] if wanted else [])


def test_the_time_of_a_transition_is_that_of_the_status() -> None:
    verdict, now = PodVerdict("False", "WriteFailed", "why"), datetime.datetime.now(datetime.UTC)
    for before, is_new in ((None, True), ("True", True), ("False", False)):
        [condition] = condition_publisher.condition_patch(with_enforced(before, "Draining"), verdict, now)["status"][
            "conditions"
        ]
        assert ("lastTransitionTime" in condition) == is_new


async def test_a_change_of_the_plan_keeps_the_condition_until_the_agent_reports(bench: Bench) -> None:
    bench.has(told(), with_enforced(None))
    await bench.writes()
    changed = {"x": state.PodSettings(reason=names.Reason.POLICY_DISABLED, swap_max="max")}
    bench.has(newer(told(pods=changed), version=2, generation=5), with_enforced("True"))
    assert await bench.writes() == [], "the kernel keeps a reported limit"
    bench.has(newer(told(violation("WriteFailed"), pods=changed), version=3, generation=5, observed=5))
    assert await bench.writes() == [(PATH, "False", "WriteFailed")]


async def test_who_does_not_lead_writes_nothing_and_begins_again_with_all(bench: Bench) -> None:
    bench.begins(term(1, Led(0.0)))
    bench.has(told(), with_enforced(None))
    assert await bench.writes() == []
    bench.begins(term())
    assert await bench.writes() == [(PATH, "True", "PolicyDisabled")]


@pytest.mark.parametrize(
    "error", [errors.Unreachable("cut"), errors.ApiError(500, "", "broken")], ids=["unreachable", "broken"]
)
async def test_what_fails_is_tried_again_after_a_while(bench: Bench, error: Exception) -> None:
    bench.has(told(), with_enforced(None))
    bench.api.refuse = [error]
    assert await bench.writes() == [(PATH, "True", "PolicyDisabled")]
    assert bench.waits == [60.0]


async def test_what_one_pod_is_refused_keeps_no_other_waiting(bench: Bench) -> None:
    other = msgspec.structs.replace(X, key="y", uid="y", name="pod-y")
    bench.has(told(pods={**PLANNED, "y": PLANNED["x"]}), with_enforced(None), other)
    bench.api.refuse = [errors.ApiError(403, "", "denied by somebody's policy")]
    written = await bench.writes()
    assert written[0][0] == "/api/v1/namespaces/default/pods/pod-y/status"
    assert (PATH, "True", "PolicyDisabled") in written
    assert bench.waits == [60.0]


async def test_a_write_that_hangs_keeps_no_other_waiting(bench: Bench) -> None:
    others = [msgspec.structs.replace(X, key=f"y{n}", uid=f"y{n}", name=f"pod-y{n}") for n in range(3)]
    planned = {**PLANNED, **{each.key: PLANNED["x"] for each in others}}
    bench.has(told(pods=planned), with_enforced(None), *others)
    bench.api.hang = {PATH}
    written = await bench.writes()
    assert sorted(path.split("/")[-2] for path, _, _ in written) == ["pod-y0", "pod-y1", "pod-y2"]
    # A new pod of the same node while the write hangs, and another verdict on the first one.
    late = msgspec.structs.replace(X, key="z", uid="z", name="pod-z")
    bench.has(newer(told(pods={**planned, "z": PLANNED["x"]}), version=9), late)
    async with bench.running():
        bench.made.request_sync("n")
        await until(lambda: any("pod-z" in path for path, _, _ in bench.api.patches))
        bench.has(newer(told(violation("WriteFailed"), pods=planned), version=10))
        bench.made.request_sync("n")
        await until(lambda: not bench.made.nodes)
        bench.api.go_on()
        await until(lambda: (PATH, "False", "WriteFailed") in bench.api.patches)
    assert [each for each in bench.api.patches if each[0] == PATH] == [
        (PATH, "True", "PolicyDisabled"),
        (PATH, "False", "WriteFailed"),
    ], "one after the other"


async def test_what_fails_is_not_written_late_where_the_pod_needs_it_no_more(bench: Bench) -> None:
    bench.has(told(violation("WriteFailed")), with_enforced("True"))
    bench.api.refuse = [errors.ApiError(403, "", "denied by somebody's policy")]

    def recovers() -> None:
        bench.has(newer(told(), version=9))
        bench.judges()

    bench.api.on_write = recovers
    assert await bench.writes() == []


async def test_of_what_failed_and_is_needed_no_more_nothing_is_kept(bench: Bench) -> None:
    bench.has(told(violation("WriteFailed")), with_enforced("True"))
    bench.api.refuse = [errors.ApiError(403, "", "denied by somebody's policy", retry_after=0.2)]
    async with bench.running():
        bench.made.request_sync("n")
        await until(lambda: bench.publisher.queue.backoffs)
        bench.has(newer(told(), version=9))
        bench.made.request_sync("n")
        await until(lambda: not bench.publisher.queue.backoffs)
    assert bench.api.patches == []
    assert not bench.publisher.desired


async def test_nothing_is_written_in_a_term_that_is_over(bench: Bench) -> None:
    led = Led()
    bench.begins(term(1, led))
    bench.has(told(), with_enforced(None))
    bench.judges()
    led.seconds = 0.0
    assert await bench.writes() == []
    bench.begins(term(2))
    assert await bench.writes() == [(PATH, "True", "PolicyDisabled")], "decided anew"


async def test_a_write_that_is_cut_off_is_repeated_where_the_term_was_renewed(bench: Bench) -> None:
    led = Led(0.01)
    bench.begins(term(1, led))
    bench.has(told(), with_enforced(None))
    bench.api.hang = {PATH}
    bench.api.on_write = lambda: setattr(led, "seconds", 10.0)  # the Lease is renewed while it is on its way
    async with bench.running():
        bench.made.request_sync("n")
        await until(lambda: bench.waits == [60.0])
        bench.api.go_on()
        await until(lambda: bench.api.patches == [(PATH, "True", "PolicyDisabled")])


async def test_a_node_that_cannot_be_judged_is_counted_and_keeps_no_other_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = supervise.FAULTS.value(verdicts.PART)
    real = bench.known.inventory.pods_on

    def pods_on(node: str) -> Any:
        if node == "broken":
            raise ZeroDivisionError
        return real(node)

    monkeypatch.setattr(bench.known.inventory, "pods_on", pods_on)
    bench.has(told(), with_enforced(None))
    bench.made.request_sync("broken")
    assert await bench.writes() == [(PATH, "True", "PolicyDisabled")]
    assert supervise.FAULTS.value(verdicts.PART) == faults + 1


@pytest.mark.parametrize("status", [404, 409])
async def test_a_pod_that_is_gone_is_no_failure(bench: Bench, status: int) -> None:
    bench.has(told(), with_enforced(None))
    bench.api.refuse = [errors.ApiError(status, "", "gone")]
    assert await bench.writes() == []
    assert bench.waits == []


def test_the_patch_names_the_pod_for_which_it_is() -> None:
    verdict = PodVerdict("True", "PolicyDisabled", "it holds")
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert condition_publisher.condition_patch(with_enforced(None), verdict, when) == {
        "metadata": {"uid": "x"},
        "status": {
            "conditions": [
                {
                    "type": "swapwarden.dev/SwapPolicyEnforced",
                    "status": "True",
                    "reason": "PolicyDisabled",
                    "message": "it holds",
                    "lastTransitionTime": "2026-01-02T03:04:05Z",
                }
            ]
        },
    }


async def test_the_metric_counts_pods_by_verdict_until_they_are_gone(bench: Bench) -> None:
    def counted() -> dict[str, float]:
        return {dict(each.labels)["reason"]: each.value for each in verdicts.PODS.samples()}

    second = msgspec.structs.replace(X, key="y", uid="y", name="pod-y")
    bench.has(told(violation("Draining", pod="y"), pods={**PLANNED, "y": PLANNED["x"]}), with_enforced(None), second)
    bench.judges()
    assert counted() == {"PolicyDisabled": 1, "Draining": 1}
    bench.known.pod_changed("default/pod-y", second, None)
    bench.judges()
    assert counted() == {"PolicyDisabled": 1}
    bench.made.close()
    assert counted() == {}


async def test_a_condition_stays_true_while_the_state_is_created_again(bench: Bench) -> None:
    bench.has(told(), with_enforced(None))
    assert await bench.writes() == [(PATH, "True", "PolicyDisabled")]
    bench.has(None, with_enforced("True"))
    bench.judges()
    bench.has(newer(told(observed=0), version=5, uid="again", generation=1))
    assert await bench.writes() == []


def test_a_pod_that_a_state_left_out_for_a_time_keeps_its_last_verdict(bench: Bench) -> None:
    bench.has(told(), with_enforced(None))
    for row, expected in (
        (told(), ("True", "PolicyDisabled")),
        (newer(told(pods={}), version=2), ("Unknown", "NotPlanned")),
        (newer(told(observed=OBSERVED - 1), version=3, generation=9), ("True", "PolicyDisabled")),
    ):
        bench.has(row)
        [(_, judged)] = bench.made.judge_node("n")
        assert (judged.status, judged.reason) == expected
    bench.made.close()


def test_later_generations_are_about_other_pods(bench: Bench) -> None:
    """On a busy node, the state is always newer than the report."""
    bench.has(told(observed=OBSERVED - 1), with_enforced(None))
    [(_, judged)] = bench.made.judge_node("n")
    assert judged.reason == "AwaitingAgent"
    bench.has(newer(told(), version=2, generation=OBSERVED + 1))
    [(_, judged)] = bench.made.judge_node("n")
    assert (judged.status, judged.reason) == ("True", "PolicyDisabled")
    bench.made.close()
