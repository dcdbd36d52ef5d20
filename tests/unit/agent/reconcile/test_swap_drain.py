from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.reconcile import swap_drain

PAGE = 4096
MIB = 1 << 20
bytes_ = st.integers(0, 1 << 30).map(lambda number: number // PAGE * PAGE)
limit_ = st.one_of(bytes_, st.just(cgroupfs.NO_LIMIT))
usage_ = st.builds(swap_drain.DrainUsage, bytes_, bytes_, limit_)
usages_ = st.lists(usage_, max_size=4)
held_ = st.none() | limit_


def settle(
    limit: int, found: int, swap: int, usages: list[swap_drain.DrainUsage], *, held: int | None, units: bool = False
) -> tuple[int, swap_drain.Action]:
    action = swap_drain.next_write(limit, found, swap, lambda: usages, held=held, units=units, page=PAGE)
    return (found if action.write is None else action.write), action


@given(limit_, limit_, bytes_, usages_, held_)
def test_never_above_the_limit_or_the_use_with_room(
    limit: int, found: int, swap: int, usages: list[swap_drain.DrainUsage], held: int | None
) -> None:
    after, action = settle(limit, found, swap, usages, held=held)
    assert after <= max(limit, swap + max(swap // swap_drain.ROOM_SHARE, swap_drain.ROOM_BYTES))
    assert action.write is None or action.write == limit or action.write < found


@given(limit_, limit_, bytes_, usages_, held_, st.booleans())
def test_settled_is_settled(
    limit: int,
    found: int,
    swap: int,
    usages: list[swap_drain.DrainUsage],
    held: int | None,
    units: bool,
) -> None:
    after, first = settle(limit, found, swap, usages, held=held, units=units)
    _, again = settle(limit, after, swap, usages, held=held, units=units)
    assert again == swap_drain.Action(None, first.draining)


@given(limit_, limit_, bytes_, usages_, held_)
def test_swap_in_use_is_cut_only_where_everything_fits(
    limit: int, found: int, swap: int, usages: list[swap_drain.DrainUsage], held: int | None
) -> None:
    after, _ = settle(limit, found, swap, usages, held=held)
    if after < found and after < swap:
        assert all((usage.memory + usage.back) * 100 <= usage.ceiling * swap_drain.FIT_PERCENT for usage in usages)


@given(limit_, limit_, bytes_, usages_)
def test_a_pod_at_its_memory_limit_keeps_room_to_swap_in(
    limit: int, found: int, swap: int, usages: list[swap_drain.DrainUsage]
) -> None:
    full = [*usages, swap_drain.DrainUsage(100 * PAGE, swap or PAGE, 100 * PAGE)]
    after, _ = settle(limit, found, swap, full, held=None)
    if after < found:
        assert after >= swap + swap // swap_drain.EASE_SHARE


@given(limit_, limit_, bytes_, usages_, held_)
def test_success_means_that_the_limit_is_set_and_no_more_is_in_use(
    limit: int, found: int, swap: int, usages: list[swap_drain.DrainUsage], held: int | None
) -> None:
    after, action = settle(limit, found, swap, usages, held=held)
    assert action.draining == (after != limit or swap > limit)


@given(limit_, bytes_)
def test_memory_is_looked_at_only_where_swap_would_be_cut(limit: int, swap: int) -> None:
    def looked() -> list[swap_drain.DrainUsage]:
        raise AssertionError("looked")

    swap_drain.next_write(max(limit, swap * 2), cgroupfs.NO_LIMIT, swap, looked)
    swap_drain.next_write(max(limit, swap), cgroupfs.NO_LIMIT, swap, looked, held=max(limit, swap))
    swap_drain.next_write(limit, limit, swap, looked)


def test_raising_is_at_once_even_where_more_is_in_use() -> None:
    assert swap_drain.next_write(2 * PAGE, PAGE, 9 * PAGE, list) == swap_drain.Action(2 * PAGE, draining=True)


FULL = swap_drain.DrainUsage(64 * MIB, 40 * MIB, 64 * MIB)


def test_a_change_of_policy_leaves_room_for_peaks() -> None:
    assert swap_drain.next_write(0, cgroupfs.NO_LIMIT, 40 * MIB, lambda: [FULL]) == swap_drain.Action(
        56 * MIB, draining=True
    )
    assert swap_drain.next_write(0, cgroupfs.NO_LIMIT, 80 * MIB, lambda: [FULL]) == swap_drain.Action(
        100 * MIB, draining=True
    )
    assert swap_drain.next_write(42 * MIB, cgroupfs.NO_LIMIT, 40 * MIB, lambda: [FULL]).write == 56 * MIB
    assert swap_drain.next_write(45 * MIB, cgroupfs.NO_LIMIT, 40 * MIB, lambda: [FULL]).write == 45 * MIB


def test_a_repair_leaves_room_only_for_swap_taken_meanwhile() -> None:
    def repair(limit: int, swap: int) -> int | None:
        return swap_drain.next_write(limit, cgroupfs.NO_LIMIT, swap, lambda: [FULL], held=limit).write

    assert repair(40 * MIB, 40 * MIB) == 40 * MIB
    assert repair(40 * MIB, 48 * MIB) == 50 * MIB
    assert repair(0, 4 * PAGE) == 5 * PAGE


def test_a_repair_during_a_drain_leaves_the_earlier_limit_or_swap_taken_meanwhile() -> None:
    def repair(swap: int) -> int | None:
        return swap_drain.next_write(0, cgroupfs.NO_LIMIT, swap, lambda: [FULL], held=56 * MIB).write

    assert repair(56 * MIB) == repair(48 * MIB) == 56 * MIB
    assert repair(20 * MIB) == 36 * MIB, "it is lowered all the same"
    assert repair(64 * MIB) == 66 * MIB


def test_what_systemd_takes_from_what_drains_it_gets_back_unless_it_needs_it_no_more() -> None:
    def after(found: int, swap: int, *usages: swap_drain.DrainUsage, limit: int = 0, cap: bool = False) -> int | None:
        return swap_drain.next_write(
            limit, found, swap, lambda: usages or [FULL], held=56 * MIB, units=True, cap=cap, page=PAGE
        ).write

    assert after(0, 40 * MIB) == after(8 * MIB, 40 * MIB) == 56 * MIB
    assert after(0, 20 * MIB) == 36 * MIB, "it is lowered all the same"
    assert after(0, 64 * MIB) == 66 * MIB
    assert after(0, 40 * MIB, swap_drain.DrainUsage(0, 40 * MIB, 64 * MIB)) is None
    assert after(8 * MIB, 40 * MIB, swap_drain.DrainUsage(0, 40 * MIB, 64 * MIB)) == 0
    assert after(0, 40 * MIB, cap=True) is None
    assert after(0, 40 * MIB, limit=64 * MIB) == 64 * MIB, "it has never held more than that"
    assert after(0, 40 * MIB, limit=48 * MIB) == 48 * MIB, "no more is in use"
    assert swap_drain.next_write(0, 0, 40 * MIB, lambda: [FULL], held=56 * MIB) == swap_drain.Action(
        None, draining=True
    )


@given(limit_, bytes_, bytes_, st.lists(bytes_, max_size=5))
def test_rewrites_do_not_raise_the_limit_of_a_pod_that_uses_all_it_may(
    limit: int, held: int, swap: int, taken: list[int]
) -> None:
    """Only what it takes while it is exposed does, with a quarter of that."""
    for more in taken:
        after, _ = settle(limit, cgroupfs.NO_LIMIT, swap + more, [FULL], held=held)
        known = max(limit, held)
        excess = max(0, swap + more - known)
        assert after <= known + excess + excess // swap_drain.ROOM_SHARE
        held, swap = after, min(after, swap + more)


def test_usage_fits_at_the_bound_and_not_above() -> None:
    assert swap_drain.DrainUsage(80, 10, 100).fits
    assert not swap_drain.DrainUsage(80, 11, 100).fits


def test_a_cap_leaves_smaller_values_alone() -> None:
    assert swap_drain.next_write(8 * PAGE, 4 * PAGE, 6 * PAGE, list, cap=True) == swap_drain.Action(
        None, draining=False
    )
    assert swap_drain.next_write(8 * PAGE, 4 * PAGE, 9 * PAGE, list, cap=True) == swap_drain.Action(None, draining=True)
    assert swap_drain.next_write(8 * PAGE, 9 * PAGE, 0, list, cap=True) == swap_drain.Action(8 * PAGE, draining=False)
    assert swap_drain.next_write(8 * PAGE, 4 * PAGE, 0, list, cap=False) == swap_drain.Action(8 * PAGE, draining=False)


def test_a_cut_to_the_limit_of_the_cgroup_above_needs_no_room() -> None:
    def cut(limit: int, above: int) -> swap_drain.Action:
        return swap_drain.next_write(limit, cgroupfs.NO_LIMIT, 40 * MIB, lambda: [FULL], above=lambda: above)

    assert cut(0, above=0) == swap_drain.Action(0, draining=True)
    assert cut(8 * MIB, above=MIB) == swap_drain.Action(8 * MIB, draining=True)
    assert cut(0, above=48 * MIB) == swap_drain.Action(48 * MIB, draining=True)
    assert cut(0, above=80 * MIB) == swap_drain.Action(56 * MIB, draining=True)
