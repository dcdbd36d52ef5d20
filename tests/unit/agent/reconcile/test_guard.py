"""The guard of memory.high on a node: it hears the kernel, samples, raises the file, and reports."""

from __future__ import annotations

import datetime

import msgspec
import pytest
from swapwarden.agent.desired import spec, throttle
from swapwarden.agent.reconcile import guard, queue, reconciler, schedule
from swapwarden.agent.report import collector
from swapwarden.api import names
from swapwarden.api import state as api
from swapwarden.api.violations import ViolationReason

from tests.unit.agent.agent_node import (
    Node,
    apply,
    compare,
    due,
    settle,
    snapshot,
    state,
    until,
    watched,
)
from tests.unit.agent.cgroup_tree import container_id, uid, write

MIB = 1 << 20
PLAN, LIMIT, STUCK = 60 * MIB, 100 * MIB, 75 * MIB


class Stuck:
    """A pod that stands still at its memory.high."""

    def __init__(self, node: Node, number: int = 1) -> None:
        self.node = node
        self.pod = node.tree.pod(number, memory_max=f"{LIMIT}\n", memory_current=f"{STUCK}\n")
        self.events = self.stalled = 0
        self.stall(0)

    def stall(self, seconds: float) -> None:
        """Let time go by for the kernel, which throttles each task of the pod all the time."""
        self.stalled += int(seconds * 1e6)
        self.events += seconds > 0
        totals = "".join(
            f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={self.stalled}\n" for kind in ("some", "full")
        )
        (self.pod / "memory.pressure").write_text(totals)
        (self.pod / "memory.events").write_text(f"low 0\nhigh {self.events}\nmax 0\noom 0\n")

    @property
    def high(self) -> str:
        return (self.pod / "memory.high").read_text().split()[0]

    def use(self, amount: int) -> None:
        (self.pod / "memory.current").write_text(f"{amount}\n")

    async def starts(self, **settings: object) -> reconciler.NodeReconciler:
        agent = self.node.start()
        entry = spec.PodEntry({"memory.high": spec.FileSetting(PLAN)}, {})
        asked = api.GuardSettings(**settings)  # type: ignore[arg-type]  # as they are given
        apply(agent, msgspec.structs.replace(state(), pods={uid(1): entry}, guard=asked))
        await until(lambda: self.high == str(PLAN) and not snapshot(agent).unseen)
        settle(agent)
        return agent

    async def stalls(self, agent: reconciler.NodeReconciler, seconds: float) -> None:
        """It is stuck for so long, and the guard samples whenever it wants to."""
        self.stall(1)
        await until(lambda: due(agent, queue.Task.GUARD, schedule.Why.DUE) is not None)
        for _ in range(int(seconds / throttle.SAMPLE_SECONDS)):
            self.stall(throttle.SAMPLE_SECONDS)
            self.pass_time(agent, throttle.SAMPLE_SECONDS)

    def pass_time(self, agent: reconciler.NodeReconciler, seconds: float) -> None:
        self.node.later += seconds
        agent.wake()
        settle(agent)


@pytest.fixture
def stuck(plain: Node) -> Stuck:
    return Stuck(plain)


async def test_a_stuck_pod_is_released_and_armed_again_when_it_uses_little(stuck: Stuck) -> None:
    before = guard.TRIPS.value("Stuck", "Released")
    agent = await stuck.starts()
    await stuck.stalls(agent, 8)
    assert stuck.high == str(PLAN)
    await stuck.stalls(agent, 6)
    assert stuck.high == "max"
    assert guard.TRIPS.value("Stuck", "Released") == before + 1
    (eased,) = snapshot(agent).violations
    assert (eased.reason, eased.setting, eased.observed) == (ViolationReason.THROTTLING_EASED, "memoryHigh", "max")
    stuck.use(PLAN // 2)
    for _ in range(60):
        stuck.pass_time(agent, throttle.CALM_SAMPLE_SECONDS)
    await until(lambda: stuck.high == str(PLAN))
    settle(agent)
    assert snapshot(agent).violations == []


def throttled(agent: reconciler.NodeReconciler) -> list[dict[str, object]]:
    """Return the throttled cgroups of the status, without the time at which the sums began."""
    listed: list[dict[str, object]] = [msgspec.to_builtins(each) for each in snapshot(agent).throttled]
    for each in listed:
        assert datetime.datetime.fromisoformat(str(each.pop("since"))).tzinfo is not None
    return listed


async def test_the_status_has_how_often_and_how_long_a_pod_was_throttled(stuck: Stuck) -> None:
    agent = await stuck.starts(window_seconds=600)
    assert throttled(agent) == []
    told = stuck.node.told
    await stuck.stalls(agent, 8)
    own = {"pod": uid(1), "high": str(PLAN)}
    assert throttled(agent) == [own | {"count": 5, "milliseconds": 8000}], (
        "the stall before the first sample is unknown"
    )
    assert stuck.node.told == told + 1, "counters that grow are no news"
    stuck.use(PLAN)
    stuck.pass_time(agent, 600)
    await stuck.stalls(agent, 4)
    assert throttled(agent) == [own | {"count": 8, "milliseconds": 12000}], "a pause between two is none"
    stuck.pass_time(agent, 600)
    assert throttled(agent) == [], "it was longer ago"


async def test_the_status_has_a_pod_for_as_long_as_it_is_released(stuck: Stuck) -> None:
    agent = await stuck.starts()
    await stuck.stalls(agent, 14)
    (one,) = throttled(agent)
    assert (one["trips"], one["guard"]) == (1, "Released")
    stuck.pass_time(agent, 1000)
    assert [each["guard"] for each in throttled(agent)] == ["Released"]
    apply(agent, state({1: 0}, generation=2))
    assert throttled(agent) == [], "nothing is planned any more"


async def test_sums_go_on_with_another_plan(stuck: Stuck) -> None:
    agent = await stuck.starts()
    await stuck.stalls(agent, 14)
    entry = spec.PodEntry({"memory.high": spec.FileSetting(PLAN + MIB)}, {})
    apply(agent, msgspec.structs.replace(state(generation=2), pods={uid(1): entry}))
    (one,) = throttled(agent)
    assert (one["trips"], one["high"], "guard" in one) == (1, str(PLAN + MIB), False)


async def test_a_released_pod_stays_so_when_its_file_is_written_and_compared(stuck: Stuck) -> None:
    agent = await stuck.starts()
    await stuck.stalls(agent, 14)
    agent.resync()
    settle(agent)
    assert stuck.high == "max"


async def test_another_plan_begins_again(stuck: Stuck) -> None:
    agent = await stuck.starts()
    await stuck.stalls(agent, 14)
    entry = spec.PodEntry({"memory.high": spec.FileSetting(PLAN + MIB)}, {})
    apply(agent, msgspec.structs.replace(state(generation=2), pods={uid(1): entry}))
    await until(lambda: stuck.high == str(PLAN + MIB))


async def test_a_guard_that_reports_writes_nothing(stuck: Stuck) -> None:
    before = guard.TRIPS.value("Stuck", "Reported")
    agent = await stuck.starts(action=names.GuardAction.REPORT)
    await stuck.stalls(agent, 14)
    assert stuck.high == str(PLAN)
    assert guard.TRIPS.value("Stuck", "Reported") == before + 1
    (violation,) = snapshot(agent).violations
    assert (violation.reason, violation.setting, violation.observed) == ("ThrottlingStuck", "memoryHigh", str(PLAN))
    assert violation.message.startswith("Stuck at memory.high: tasks stalled for 1")
    await stuck.stalls(agent, 400)
    assert [each.reason for each in snapshot(agent).violations] == ["ThrottlingStuck"], "it still stands still"
    assert guard.TRIPS.value("Stuck", "Reported") == before + 1
    for _ in range(2):
        stuck.pass_time(agent, throttle.CALM_SAMPLE_SECONDS)
    assert snapshot(agent).violations == []
    stuck.stall(1)
    await stuck.stalls(agent, 14)
    assert guard.TRIPS.value("Stuck", "Reported") == before + 2, "it is heard again"


async def test_many_pods_that_stand_still_at_once_are_a_storm(plain: Node) -> None:
    pods = [Stuck(plain, number) for number in range(1, 6)]
    agent = plain.start()
    entry = spec.PodEntry({"memory.high": spec.FileSetting(PLAN)}, {})
    apply(agent, msgspec.structs.replace(state(), pods={uid(number): entry for number in range(1, 6)}))
    await until(lambda: {each.high for each in pods} == {str(PLAN)})

    async def stall(*some: Stuck) -> None:
        known = len(snapshot(agent).throttled)
        for each in some:
            each.stall(1)
        await until(lambda: len(snapshot(agent).throttled) == known + len(some))
        for _ in range(7):
            for each in some:
                each.stall(throttle.SAMPLE_SECONDS)
            some[0].pass_time(agent, throttle.SAMPLE_SECONDS)

    await stall(*pods[:4])
    assert (len(snapshot(agent).throttled), snapshot(agent).recent.storm) == (4, False)
    await stall(pods[4])
    collected = snapshot(agent)
    assert (collected.recent.storm, collected.passing) == (True, True)
    plain.later += 600
    assert not snapshot(agent).recent.storm


async def test_a_longer_window_is_waited_for(stuck: Stuck) -> None:
    agent = await stuck.starts(window_seconds=60)
    await stuck.stalls(agent, 50)
    assert stuck.high == str(PLAN)


async def test_other_events_cause_no_samples(stuck: Stuck) -> None:
    agent = await stuck.starts()
    before = guard.TRIPS.value("Stuck", "Released")
    (stuck.pod / "memory.events").write_text("low 7\nhigh 0\nmax 9\noom 0\n")
    await until(lambda: due(agent, queue.Task.GUARD, schedule.Why.DUE) is not None)
    stuck.pass_time(agent, throttle.SAMPLE_SECONDS)
    assert due(agent, queue.Task.GUARD, schedule.Why.DUE) is None, "it listens again"
    await stuck.stalls(agent, 14)
    assert guard.TRIPS.value("Stuck", "Released") == before + 1


async def test_an_agent_that_ends_leaves_no_throttling_and_the_next_one_arms_again(stuck: Stuck) -> None:
    await stuck.starts()
    stuck.node.stop()
    assert stuck.high == "max"
    await stuck.starts()
    assert stuck.high == str(PLAN)


async def test_a_pod_that_is_gone_is_guarded_no_longer(stuck: Stuck) -> None:
    agent = await stuck.starts()
    await stuck.stalls(agent, 4)
    stuck.node.tree.remove(stuck.pod)
    await until(lambda: not agent.inventory.pods)
    stuck.pass_time(agent, throttle.SAMPLE_SECONDS)
    assert due(agent, queue.Task.GUARD, schedule.Why.DUE) is None


class Kubelets(Stuck):
    """A pod at whose memory.high, which the kubelet wrote, it stands still."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.write(PLAN)

    def write(self, value: int) -> None:
        write(self.pod, str(value), "memory.high")

    async def guarded(
        self,
        kubelet: names.KubeletGuard,
        mode: names.Mode = names.Mode.ENFORCE,
        generation: int = 1,
        settings: spec.FileSettings | None = None,
    ) -> reconciler.NodeReconciler:
        """The state has this guard, and asks for nothing else of the pod."""
        agent = self.node.agent or self.node.start()
        entry = spec.PodEntry(settings or {}, {})
        asked = api.GuardSettings(kubelet=kubelet)
        apply(
            agent, msgspec.structs.replace(state(mode=mode, generation=generation), pods={uid(1): entry}, guard=asked)
        )
        await until(lambda: len(agent.inventory.pods) == 1)
        settle(agent)
        return agent


@pytest.fixture
def kubelets(plain: Node) -> Kubelets:
    return Kubelets(plain)


async def test_a_value_of_the_kubelet_is_reported(kubelets: Kubelets) -> None:
    agent = await kubelets.guarded(names.KubeletGuard.REPORT)
    assert throttled(agent) == []
    await kubelets.stalls(agent, 14)
    assert kubelets.high == str(PLAN)
    (one,) = throttled(agent)
    assert (one["high"], one["foreign"], one["trips"], "guard" in one) == (str(PLAN), True, 1, False)
    (violation,) = snapshot(agent).violations
    assert (violation.reason, violation.desired, violation.observed) == ("ThrottlingStuck", "", str(PLAN))
    assert snapshot(agent).memory == collector.Memory(), "it is no file of the plan"


async def test_a_value_of_the_kubelet_is_replaced_where_the_profile_says_so(kubelets: Kubelets) -> None:
    agent = await kubelets.guarded(names.KubeletGuard.RELEASE)
    await kubelets.stalls(agent, 14)
    assert kubelets.high == "max"
    (one,) = throttled(agent)
    assert (one["high"], one["foreign"], one["guard"]) == (str(PLAN), True, "Latched")
    assert [each.reason for each in snapshot(agent).violations] == ["ThrottlingEased"]
    kubelets.use(MIB)
    kubelets.pass_time(agent, 4000)
    compare(agent)
    assert kubelets.high == "max", "it never gets it back"
    kubelets.write(PLAN)
    await until(lambda: kubelets.high == "max")
    kubelets.write(2 * PLAN)
    await until(lambda: snapshot(agent).violations == [])
    settle(agent)
    assert kubelets.high == str(2 * PLAN), "the container has changed"
    kubelets.use(3 * PLAN)
    await kubelets.stalls(agent, 14)
    assert kubelets.high == "max"
    await kubelets.guarded(names.KubeletGuard.REPORT, generation=2)
    await until(lambda: kubelets.high == str(2 * PLAN))


async def test_a_released_value_of_the_kubelet_is_restored_and_outlives_the_agent(kubelets: Kubelets) -> None:
    agent = await kubelets.guarded(names.KubeletGuard.RELEASE)
    await kubelets.stalls(agent, 14)
    kubelets.node.stop()
    assert kubelets.high == "max"
    agent = await kubelets.guarded(names.KubeletGuard.RELEASE, names.Mode.RESTORE)
    await until(lambda: kubelets.high == str(PLAN))
    settle(agent)
    assert snapshot(agent).violations == []


async def test_an_agent_that_ends_leaves_values_of_the_kubelet(kubelets: Kubelets) -> None:
    await kubelets.guarded(names.KubeletGuard.RELEASE)
    kubelets.node.stop()
    assert kubelets.high == str(PLAN)


async def test_audit_only_reports_values_of_the_kubelet(kubelets: Kubelets) -> None:
    agent = await kubelets.guarded(names.KubeletGuard.RELEASE, names.Mode.AUDIT)
    await kubelets.stalls(agent, 14)
    assert kubelets.high == str(PLAN)
    assert [each.reason for each in snapshot(agent).violations] == ["ThrottlingStuck"]


async def test_without_a_guard_values_of_the_kubelet_have_no_record(kubelets: Kubelets) -> None:
    agent = await kubelets.guarded(names.KubeletGuard.OFF)
    assert [file for file in agent.inventory.files() if not file.usage] == []
    before = watched(agent)
    await kubelets.guarded(names.KubeletGuard.REPORT, generation=2)
    assert watched(agent) == before + 2, "the value and the events"
    await kubelets.guarded(names.KubeletGuard.OFF, generation=3)
    assert watched(agent) == before
    assert [file for file in agent.inventory.files() if not file.usage] == []


async def test_a_value_of_the_kubelet_in_place_of_the_planned_one_is_guarded_too(kubelets: Kubelets) -> None:
    planned = {"memory.high": spec.FileSetting(PLAN + MIB)}
    agent = await kubelets.guarded(names.KubeletGuard.RELEASE, settings=planned)
    assert snapshot(agent).memory.foreign
    await kubelets.stalls(agent, 14)
    assert kubelets.high == "max"
    compare(agent)
    assert (kubelets.high, len(snapshot(agent).memory.foreign)) == ("max", 1), "the planned one would throttle as well"


async def test_a_value_that_a_runtime_writes_to_a_young_container_is_guarded(plain: Node) -> None:
    pod = Kubelets(plain)
    pod.write(1 << 40)
    agent = await pod.guarded(names.KubeletGuard.RELEASE)
    app = plain.tree.container(pod.pod, "app", memory_max=f"{LIMIT}\n", memory_current=f"{STUCK}\n")
    (app / "memory.pressure").write_text("some total=0\nfull total=0\n")
    (app / "memory.events").write_text("high 0\n")
    await until(lambda: len(plain.known(pod.pod).containers) == 1)
    settle(agent)
    write(app, str(PLAN), "memory.high")
    pod.pass_time(agent, 3)
    before = pod.pod
    pod.pod = app
    await pod.stalls(agent, 14)
    assert pod.high == "max"
    (one,) = throttled(agent)
    assert one["container"] == container_id("app")
    plain.tree.remove(app)
    await until(lambda: not throttled(agent))
    pod.pod = before


async def test_a_value_of_the_kubelet_beside_planned_ones_is_left_to_it_and_said_so(kubelets: Kubelets) -> None:
    agent = await kubelets.guarded(names.KubeletGuard.REPORT)
    other = spec.PodEntry({"memory.high": spec.FileSetting(PLAN)}, {})
    desired = msgspec.structs.replace(state(generation=2), pods={uid(1): spec.PodEntry({}, {}), uid(2): other})
    apply(agent, msgspec.structs.replace(desired, guard=api.GuardSettings(kubelet=names.KubeletGuard.REPORT)))
    assert snapshot(agent).memory.foreign == (f"/{kubelets.pod.relative_to(kubelets.node.tree.root)}/memory.high",)
