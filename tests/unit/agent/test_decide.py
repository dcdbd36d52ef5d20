from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent import decide, limits, wanted
from swapwarden.api import names

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


def state(mode: names.Mode, unknown: names.UnknownPod) -> wanted.State:
    return wanted.State("u", 1, mode, unknown, None, {})


pod_ = st.one_of(st.none(), st.builds(wanted.Pod, st.one_of(st.none(), limit_), st.just({})))
origin_ = st.sampled_from(decide.Origin)
unknown_ = st.sampled_from(names.UnknownPod)


@given(pod_, origin_, st.one_of(st.none(), limit_), unknown_)
def test_only_enforce_writes(
    pod: wanted.Pod | None, origin: decide.Origin, last: int | None, unknown: names.UnknownPod
) -> None:
    for mode in (names.Mode.AUDIT, names.Mode.RESTORE):
        target = decide.pod_target(state(mode, unknown), pod, mode=mode, origin=origin, last=last)
        assert target is decide.Hold.PUT_BACK


def test_pod_target_in_enforce() -> None:
    def target(
        pod: wanted.Pod | None = None,
        *,
        origin: decide.Origin = decide.Origin.APPEARED,
        last: int | None = None,
        unknown: names.UnknownPod | None = names.UnknownPod.DENY,
    ) -> decide.Target:
        current = None if unknown is None else state(names.Mode.ENFORCE, unknown)
        return decide.pod_target(current, pod, mode=names.Mode.ENFORCE, origin=origin, last=last)

    assert target(wanted.Pod(5 * PAGE, {}), last=0) == 5 * PAGE
    assert target(wanted.Pod(None, {}), last=0) is decide.Hold.PUT_BACK
    assert target(last=7 * PAGE) == 7 * PAGE
    assert target(unknown=None) == 0
    assert target() == 0
    assert target(unknown=names.UnknownPod.ALLOW) is decide.Hold.PUT_BACK
    assert target(origin=decide.Origin.FOUND) is decide.Hold.LEAVE
    assert target(origin=decide.Origin.FOUND, unknown=None) is decide.Hold.LEAVE


def test_a_cap_leaves_smaller_values_alone() -> None:
    assert decide.decide(8 * PAGE, 4 * PAGE, 6 * PAGE, list, cap=True) == decide.Action(None, draining=False)
    assert decide.decide(8 * PAGE, 4 * PAGE, 9 * PAGE, list, cap=True) == decide.Action(None, draining=True)
    assert decide.decide(8 * PAGE, 9 * PAGE, 0, list, cap=True) == decide.Action(8 * PAGE, draining=False)
    assert decide.decide(8 * PAGE, 4 * PAGE, 0, list, cap=False) == decide.Action(8 * PAGE, draining=False)


def test_what_audit_would_write() -> None:
    assert decide.differs(8, 9, cap=True)
    assert not decide.differs(8, 4, cap=True)
    assert decide.differs(8, 4, cap=False)
    assert not decide.differs(8, 8, cap=False)
    assert not decide.differs(decide.Hold.PUT_BACK, 8, cap=False)
