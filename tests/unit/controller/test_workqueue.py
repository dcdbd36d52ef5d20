import asyncio

from swapwarden.controller import workqueue


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


async def taken(queue: workqueue.WorkQueue) -> str | None:
    """What a worker would get at this very moment."""
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


async def test_a_later_delay_does_not_put_off_what_is_due() -> None:
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


async def test_what_is_made_due_earlier_again_and_again_leaves_nothing_behind() -> None:
    clock = Clock()
    queue = workqueue.WorkQueue("test", clock)
    queue.add("other", 900.0)
    for _ in range(1000):
        queue.add("a", 600.0)  # as a label that waits to be taken away
        queue.add("a", 0.0)  # as a change of a pod
        assert await taken(queue) == "a"
        queue.done("a")
    assert len(queue._heap) < 2 * workqueue.SLACK
    clock.time += 900
    assert await taken(queue) == "other"
