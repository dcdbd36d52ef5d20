import asyncio
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from swapwarden.controller import workqueue
from swapwarden.kube import backoff, errors

from tests.unit.kube.scripted import until


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


async def taken(queue: workqueue.WorkQueue) -> str | None:
    """The name that a worker would get at this very moment."""
    task = asyncio.ensure_future(queue.get())
    for _ in range(5):
        await asyncio.sleep(0)
    if task.done():
        return task.result()
    task.cancel()
    return None


async def test_a_name_waits_for_its_delay() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    queue.add("a", 0.05)
    assert await taken(queue) is None
    clock.time += 0.05
    assert await taken(queue) == "a"


async def test_many_changes_are_one_piece_of_work() -> None:
    queue = workqueue.WorkQueue("test", Clock())
    for _ in range(100):
        queue.add("a")
    assert len(queue) == 1
    assert await taken(queue) == "a"
    queue.done("a")
    assert await taken(queue) is None


async def test_an_urgent_change_overtakes_a_waiting_one() -> None:
    queue = workqueue.WorkQueue("test", Clock())
    queue.add("a", 0.5)
    queue.add("a", 0.0)
    assert await taken(queue) == "a"
    queue.done("a")
    assert await taken(queue) is None


async def test_a_later_delay_does_not_put_off_a_due_name() -> None:
    queue = workqueue.WorkQueue("test", Clock())
    queue.add("a", 0.0)
    queue.add("a", 5.0)
    assert await taken(queue) == "a"


async def test_a_change_during_the_work_is_not_missed_and_does_not_overlap() -> None:
    queue = workqueue.WorkQueue("test", Clock())
    queue.add("a")
    assert await taken(queue) == "a"
    queue.add("a")
    assert await taken(queue) is None
    queue.done("a")
    assert await taken(queue) == "a"


async def test_names_come_in_the_order_in_which_they_are_due() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    queue.add("late", 2.0)
    queue.add("soon", 1.0)
    clock.time += 3
    assert [await taken(queue), await taken(queue)] == ["soon", "late"]


async def test_all_sleeping_workers_are_woken() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    workers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for name in ("a", "b", "c"):
        queue.add(name)
    assert sorted(await asyncio.gather(*workers)) == ["a", "b", "c"]


async def test_names_that_are_made_due_earlier_again_and_again_leave_nothing_behind() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    queue.add("other", 900.0)
    for _ in range(1000):
        queue.add("a", 600.0)  # as a label that waits to be taken away
        queue.add("a", 0.0)  # as a change of a pod
        assert await taken(queue) == "a"
        queue.done("a")
    assert queue.entries < 2 * workqueue.SLACK
    clock.time += 900
    assert await taken(queue) == "other"


async def test_urgent_names_come_first_even_when_many_others_are_due() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    for number in range(1000):
        queue.add(f"other-{number}")
    clock.time += 60
    queue.add("first", urgent=True)
    clock.time += 1
    queue.add("second", urgent=True)
    assert [await taken(queue) for _ in range(3)] == ["first", "second", "other-0"]


async def test_urgent_names_that_never_end_keep_no_other_waiting_for_ever() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    for number in range(5):
        queue.add(f"other-{number}")
    got = []
    for number in range(20):
        clock.time += 1
        queue.add("urgent", urgent=True)
        queue.add(f"urgent-{number}", urgent=True)
        name = await taken(queue)
        assert name is not None
        got.append(name)
        queue.done(name)
    assert [name for name in got if name.startswith("other")] == [f"other-{number}" for number in range(5)]
    assert got.count("urgent") <= len(got) // 2


async def test_a_name_that_becomes_urgent_is_taken_once() -> None:
    queue = workqueue.WorkQueue("test", Clock())
    names = [f"n{number}" for number in range(12)]
    for name in names:
        queue.add(name)
    for name in names[::-1]:
        queue.add(name, urgent=True)
    assert sorted([await taken(queue) or "" for _ in names]) == sorted(names)
    assert await taken(queue) is None


async def test_a_name_that_waits_its_turn_can_become_urgent() -> None:
    queue = workqueue.WorkQueue("test", Clock())
    for name in ("a", "b", "c"):
        queue.add(name)
    queue.add("c", urgent=True)
    queue.add("c", 3.0)
    assert [await taken(queue) for _ in range(4)] == ["c", "a", "b", None]


async def test_an_urgent_name_that_is_not_due_keeps_no_other_waiting() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    queue.add("urgent", 1.0, urgent=True)
    queue.add("other", 0.5)
    clock.time += 0.5
    assert [await taken(queue), await taken(queue)] == ["other", None]
    queue.add("third", 0.25)
    clock.time += 0.5
    assert [await taken(queue), await taken(queue)] == ["urgent", "third"]


async def test_what_became_urgent_during_the_work_is_urgent_after_it() -> None:
    queue = workqueue.WorkQueue("test", Clock())
    queue.add("a")
    assert await taken(queue) == "a"
    queue.add("b")
    queue.add("a", urgent=True)
    queue.done("a")
    assert [await taken(queue), await taken(queue)] == ["a", "b"]


async def test_a_failed_name_returns_as_urgent_as_it_was() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    queue.add("a", urgent=True)
    assert await taken(queue) == "a"
    queue.retry("a", 2.0)
    queue.done("a")
    queue.add("b")
    clock.time += 2
    assert [await taken(queue), await taken(queue)] == ["a", "b"]
    queue.done("a")
    queue.add("a")
    assert await taken(queue) == "a"


async def test_a_change_brings_back_what_failed_but_not_before_the_api_server_allows_it() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    queue.add("a")
    assert await taken(queue) == "a"
    queue.add("a", 0.1)
    queue.retry("a", 60.0, at_least=5.0)
    queue.done("a")
    queue.add("a", urgent=True)
    clock.time += 4.9
    assert await taken(queue) is None
    clock.time += 0.1
    assert await taken(queue) == "a"
    queue.done("a")
    queue.add("a")
    assert await taken(queue) == "a", "that is over"


async def test_while_nothing_is_given_out_urgent_names_can_still_come_to_the_front() -> None:
    clock = Clock()
    until = clock.time + 1
    queue = workqueue.WorkQueue("test", clock, hold=lambda: max(0.0, until - clock.time))
    queue.add("a")
    assert await taken(queue) is None
    queue.add("b", urgent=True)
    clock.time += 1
    assert [await taken(queue), await taken(queue)] == ["b", "a"]


async def test_a_worker_that_waits_for_the_end_of_the_hold_wakes_then() -> None:
    left = [0.01, 0.0]
    queue = workqueue.WorkQueue("test", hold=lambda: left.pop(0))
    queue.add("a")
    async with asyncio.timeout(5):
        assert await queue.get() == "a"
    assert left == []


async def several(queue: workqueue.WorkQueue, count: int) -> list[str]:
    """Names that are taken and done with at once, in their order."""
    found = []
    for _ in range(count):
        name = await taken(queue)
        assert name is not None
        queue.done(name)
        found.append(name)
    return found


@pytest.mark.parametrize("urgent", [True, False])
async def test_one_owners_many_names_keep_anothers_waiting_for_a_few_turns_only(urgent: bool) -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    for number in range(3000):
        queue.add(f"crowd-{number:04}", urgent=urgent, owner="crowd")
    await several(queue, 10)
    clock.time += 1
    for owner in ("a", "b", "c"):
        queue.add(f"first-{owner}", urgent=urgent, owner=owner)
        queue.add(f"second-{owner}", urgent=urgent, owner=owner)
    # Four owners, and of four turns one for the longest due.
    got = await several(queue, 6)
    assert {name for name in got if name.startswith("first")} == {"first-a", "first-b", "first-c"}
    got += await several(queue, 6)
    assert {name for name in got if name.startswith("second")} == {"second-a", "second-b", "second-c"}
    crowd = [name for name in got if name.startswith("crowd")]
    assert crowd == [f"crowd-{number:04}" for number in range(10, 16)]


async def test_urgent_names_of_one_owner_keep_the_other_names_of_another_waiting_for_a_few_turns_only() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    for number in range(1000):
        queue.add(f"crowd-{number}", owner="crowd")
    clock.time += 1
    queue.add("plain", owner="a")
    got = []
    for number in range(24):
        queue.add(f"urgent-{number}", urgent=True, owner="crowd")
        got += await several(queue, 1)
    assert "plain" in got[: 4 * workqueue.OF_ALL]
    assert sum(name.startswith("urgent") for name in got) == 18


async def test_a_crowd_of_new_owners_ahead_does_not_push_back_who_waits() -> None:
    queue = workqueue.WorkQueue("test", Clock())
    queue.add("first", urgent=True, owner="patient")
    for number in range(100):
        queue.add(f"n{number}", urgent=True, owner=f"new-{number}")
    assert await several(queue, 1) == ["first"]


async def test_a_name_of_several_owners_is_taken_once_in_the_first_ones_turn() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    for number in range(100):
        queue.add(f"crowd-{number}", urgent=True, owner="crowd")
    queue.add("crowd-99", urgent=True, owner="a")
    queue.add("crowd-98", owner="b")
    clock.time += 1
    assert "crowd-99" in await several(queue, 3)
    assert len(set(await several(queue, 97))) == 97
    assert await taken(queue) is None


async def test_a_retried_name_keeps_its_owner() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    queue.add("mine", urgent=True, owner="a")
    assert await taken(queue) == "mine"
    queue.retry("mine", 2.0)
    queue.done("mine")
    for number in range(100):
        queue.add(f"crowd-{number}", urgent=True)
    clock.time += 2
    assert "mine" in await several(queue, 3)


QUEUED = st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.0, 0.5, 1.0]), st.booleans(), st.sampled_from("xyz"))


STEPS = st.one_of(QUEUED, st.sampled_from(["take", "done", "fail", "wait"]))


@hypothesis.example(steps=[("a", 0.0, False, "x"), "take", "fail"])
@hypothesis.given(steps=st.lists(STEPS, max_size=60))
def test_whatever_is_added_is_taken_and_nothing_is_left_behind(steps: list[Any]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[Any]) -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    wanted, busy = set[str](), list[str]()
    for step in [*steps, *["wait", *["take"] * 6, *["done"] * 6] * 3]:
        if step == "wait":
            clock.time += 1.0
        elif step == "done" and busy:
            queue.done(busy.pop())
        elif step == "fail" and busy:
            queue.retry(busy[-1], 1.0, at_least=0.5)
            wanted.add(busy[-1])
            queue.done(busy.pop())
        elif step == "take":
            name = await taken(queue)
            if name is not None:
                assert name in wanted
                assert name not in busy
                wanted.discard(name)
                busy.append(name)
        elif step not in {"done", "fail"}:
            name, delay, urgent, owner = step
            queue.add(name, delay, urgent=urgent, owner=owner)
            wanted.add(name)
    assert (wanted, busy, len(queue), queue.entries) == (set(), [], 0, 0)


@pytest.mark.parametrize(
    ("patient", "error", "expected"),
    [
        (False, ValueError("once"), ["a", "b", "a"]),
        (True, ValueError("once"), ["a", "b"]),
        (False, errors.ApiError(429, "", "later", retry_after=60.0), ["a", "b"]),
    ],
    ids=["changed", "patient", "as the API server asks"],
)
async def test_only_a_change_has_failed_work_repeated_earlier(
    patient: bool, error: Exception, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "between", lambda _, most: most)
    queue = workqueue.WorkQueue("test", waits=(60.0, 60.0), patient=patient)
    done: list[str] = []

    async def work(name: str) -> None:
        done.append(name)
        if done == ["a"]:
            raise error

    def failed(name: str, raised: Exception, wait: float) -> None:
        assert (name, raised, wait) == ("a", error, 60.0)
        queue.add("a")
        queue.add("b", urgent=True)

    queue.add("a")
    serving = asyncio.ensure_future(queue.serve(1, work, failed))
    await until(lambda: len(done) >= len(expected) and not queue.busy)
    assert await taken(queue) is None
    serving.cancel()
    await asyncio.wait([serving])
    assert done == expected
    assert queue.backoffs.keys() == ({"a"} if len(expected) == 2 else set())
