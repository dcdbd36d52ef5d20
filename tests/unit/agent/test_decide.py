from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent import decide, limits

PAGE = 4096
MIB = 1 << 20
bytes_ = st.integers(0, 1 << 30).map(lambda number: number // PAGE * PAGE)
limit_ = st.one_of(bytes_, st.just(limits.NO_LIMIT))
usage_ = st.builds(decide.Usage, bytes_, bytes_, limit_)
usages_ = st.lists(usage_, max_size=4)


def settle(limit: int, found: int, swap: int, usages: list[decide.Usage], *, held: bool) -> tuple[int, decide.Action]:
    action = decide.decide(limit, found, swap, lambda: usages, held=held, page=PAGE)
    return (found if action.write is None else action.write), action


@given(limit_, limit_, bytes_, usages_, st.booleans())
def test_never_above_what_is_wanted_or_in_use_with_room(
    limit: int, found: int, swap: int, usages: list[decide.Usage], held: bool
) -> None:
    after, action = settle(limit, found, swap, usages, held=held)
    assert after <= max(limit, swap + max(swap // decide.ROOM_SHARE, decide.ROOM_BYTES))
    assert action.write is None or action.write == limit or action.write < found


@given(limit_, limit_, bytes_, usages_, st.booleans())
def test_settled_is_settled(limit: int, found: int, swap: int, usages: list[decide.Usage], held: bool) -> None:
    after, first = settle(limit, found, swap, usages, held=held)
    again = decide.decide(limit, after, swap, lambda: usages, held=held, page=PAGE)
    assert again == decide.Action(None, first.draining)


@given(limit_, limit_, bytes_, usages_, st.booleans())
def test_swap_in_use_is_cut_only_where_everything_fits(
    limit: int, found: int, swap: int, usages: list[decide.Usage], held: bool
) -> None:
    after, _ = settle(limit, found, swap, usages, held=held)
    if after < found and after < swap:
        assert all((usage.memory + usage.back) * 100 <= usage.ceiling * decide.FIT_PERCENT for usage in usages)


@given(limit_, limit_, bytes_, usages_)
def test_a_pod_at_its_memory_limit_keeps_room_to_swap_in(
    limit: int, found: int, swap: int, usages: list[decide.Usage]
) -> None:
    full = [*usages, decide.Usage(100 * PAGE, swap or PAGE, 100 * PAGE)]
    after, _ = settle(limit, found, swap, full, held=False)
    if after < found:
        assert after >= swap + swap // decide.EASE_SHARE


@given(limit_, limit_, bytes_, usages_, st.booleans())
def test_success_means_the_limit_is_there_and_no_more_is_in_use(
    limit: int, found: int, swap: int, usages: list[decide.Usage], held: bool
) -> None:
    after, action = settle(limit, found, swap, usages, held=held)
    assert action.draining == (after != limit or swap > limit)


@given(limit_, bytes_)
def test_memory_is_looked_at_only_where_swap_would_be_cut(limit: int, swap: int) -> None:
    def looked() -> list[decide.Usage]:
        raise AssertionError("looked")

    decide.decide(max(limit, swap * 2), limits.NO_LIMIT, swap, looked)
    decide.decide(max(limit, swap), limits.NO_LIMIT, swap, looked, held=True)
    decide.decide(limit, limit, swap, looked)


def test_raising_is_at_once_even_where_more_is_in_use() -> None:
    assert decide.decide(2 * PAGE, PAGE, 9 * PAGE, list) == decide.Action(2 * PAGE, draining=True)


FULL = decide.Usage(64 * MIB, 40 * MIB, 64 * MIB)


def test_a_change_of_policy_leaves_room_for_peaks() -> None:
    assert decide.decide(0, limits.NO_LIMIT, 40 * MIB, lambda: [FULL]) == decide.Action(56 * MIB, draining=True)
    assert decide.decide(0, limits.NO_LIMIT, 80 * MIB, lambda: [FULL]) == decide.Action(100 * MIB, draining=True)
    assert decide.decide(42 * MIB, limits.NO_LIMIT, 40 * MIB, lambda: [FULL]).write == 56 * MIB
    assert decide.decide(45 * MIB, limits.NO_LIMIT, 40 * MIB, lambda: [FULL]).write == 45 * MIB


def test_a_repair_leaves_room_only_for_what_was_taken_meanwhile() -> None:
    def repair(limit: int, swap: int) -> int | None:
        return decide.decide(limit, limits.NO_LIMIT, swap, lambda: [FULL], held=True).write

    assert repair(40 * MIB, 40 * MIB) == 40 * MIB
    assert repair(40 * MIB, 48 * MIB) == 50 * MIB
    assert repair(0, 4 * PAGE) == 5 * PAGE


def test_usage_fits_at_the_bound_and_not_above() -> None:
    assert decide.Usage(80, 10, 100).fits
    assert not decide.Usage(80, 11, 100).fits


def test_a_cap_leaves_smaller_values_alone() -> None:
    assert decide.decide(8 * PAGE, 4 * PAGE, 6 * PAGE, list, cap=True) == decide.Action(None, draining=False)
    assert decide.decide(8 * PAGE, 4 * PAGE, 9 * PAGE, list, cap=True) == decide.Action(None, draining=True)
    assert decide.decide(8 * PAGE, 9 * PAGE, 0, list, cap=True) == decide.Action(8 * PAGE, draining=False)
    assert decide.decide(8 * PAGE, 4 * PAGE, 0, list, cap=False) == decide.Action(8 * PAGE, draining=False)
