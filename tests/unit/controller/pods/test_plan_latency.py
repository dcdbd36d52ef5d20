"""How long a pod waits is reported once, when the agent answered, and pods that nobody will answer for are dropped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from swapwarden.controller.pods import plan_latency
from swapwarden.policy.observed import pods

from tests.unit.objects import container, pod, state_row

NODE = "node-1"


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.waits = plan_latency.PlanLatency(lambda: self.now)
        self.before = plan_latency.ENFORCED.count()

    def comes(self, uid: str, *, bound: bool = True) -> pods.PodRow:
        row = pod(container(), uid=uid, node=NODE if bound else "")
        self.waits.pod_changed(None, row)
        return row

    def plans(self, *named: str, generation: int = 2) -> None:
        """A state that names these pods is written, or was already."""
        self.waits.planned(NODE, state_row(generation=generation), named, self.now)

    def answers(self, observed: int, generation: int = 9) -> None:
        self.waits.observed(NODE, state_row(generation=generation, observed=observed))

    @property
    def told(self) -> int:
        return plan_latency.ENFORCED.count() - self.before

    @property
    def awaiting(self) -> float:
        return plan_latency.AWAITING.value()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.waits.clear()


def total() -> float:
    """All seconds that were observed so far."""
    return next(each.value for each in plan_latency.ENFORCED.samples() if each.name.endswith("_sum"))


def test_from_the_pod_on_its_node_to_the_agents_answer(bench: Bench) -> None:
    row = bench.comes("a", bound=False)
    assert bench.awaiting == 0
    bench.waits.pod_changed(row, pod(container(), uid="a", node=NODE))
    assert bench.awaiting == 1
    bench.now += 1
    bench.plans("a", generation=2)
    assert bench.awaiting == 0
    bench.answers(1)
    assert bench.told == 0
    bench.now += 2
    bench.answers(1)
    bench.answers(3)
    bench.answers(4)
    assert bench.told == 1
    assert total() >= 3


def test_a_later_plan_does_not_put_off_the_answer(bench: Bench) -> None:
    bench.comes("a")
    bench.plans("a", generation=2)
    bench.plans("a", generation=3)
    bench.answers(2)
    assert bench.told == 1


def test_a_pod_that_came_during_the_write_waits_for_the_next(bench: Bench) -> None:
    bench.comes("a")
    planned = bench.now
    bench.now += 1
    bench.comes("b")
    bench.waits.planned(NODE, state_row(generation=2), {"a"}, planned)
    assert bench.awaiting == 1
    bench.answers(2)
    assert bench.told == 1
    bench.plans("a", "b", generation=3)
    bench.answers(3)
    assert (bench.told, bench.awaiting) == (2, 0)


def test_a_pod_that_no_state_names_is_not_reported(bench: Bench) -> None:
    bench.comes("a")
    bench.plans()
    assert bench.awaiting == 0
    bench.answers(9)
    assert bench.told == 0


def test_deleted_objects_are_awaited_no_more(bench: Bench) -> None:
    first, second = bench.comes("a"), bench.comes("b")
    bench.waits.pod_changed(first, None)
    bench.waits.pod_changed(second, pod(container(), uid="b", terminal=True))
    assert bench.awaiting == 0
    bench.comes("c")
    bench.waits.node_went(NODE)
    assert bench.awaiting == 0
    bench.comes("d")
    bench.waits.clear()
    assert bench.awaiting == 0
    bench.plans("a", "b", "c", "d")
    bench.answers(9)
    assert bench.told == 0


def test_two_pods_that_name_one_cgroup_are_awaited_once(bench: Bench) -> None:
    bench.comes("a")
    forged = bench.comes("a")
    assert bench.awaiting == 1
    bench.waits.pod_changed(forged, None)
    assert bench.awaiting == 0


def test_another_state_of_the_name_answers_nothing(bench: Bench) -> None:
    bench.comes("a")
    bench.plans("a", generation=2)
    bench.waits.observed(NODE, state_row(uid="another", observed=9))
    bench.answers(9)
    bench.comes("b")
    bench.plans("b", generation=2)
    bench.waits.observed(NODE, None)
    bench.answers(9)
    assert bench.told == 0


def test_a_pod_that_is_changed_where_it_is_waits_on(bench: Bench) -> None:
    row = bench.comes("a")
    bench.now += 5
    bench.waits.pod_changed(row, pod(container(), uid="a", started="2026-01-01T00:00:00Z"))
    bench.plans("a")
    before = total() if plan_latency.ENFORCED.count() else 0.0
    bench.answers(2)
    assert total() - before == 5
