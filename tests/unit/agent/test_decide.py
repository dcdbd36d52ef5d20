from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent import decide, limits, wanted
from swapwarden.api import names

PAGE = 4096
bytes_ = st.integers(0, 1 << 30).map(lambda number: number // PAGE * PAGE)
limit_ = st.one_of(bytes_, st.just(limits.NO_LIMIT))
usage_ = st.builds(decide.Usage, bytes_, bytes_, limit_)
usages_ = st.lists(usage_, max_size=4)


def settle(limit: int, found: int, swap: int, usages: list[decide.Usage]) -> tuple[int, decide.Action]:
    action = decide.decide(limit, found, swap, lambda: usages)
    return (found if action.write is None else action.write), action


@given(limit_, limit_, bytes_, usages_)
def test_never_above_what_is_wanted_or_in_use(limit: int, found: int, swap: int, usages: list[decide.Usage]) -> None:
    held, _ = settle(limit, found, swap, usages)
    assert held <= max(limit, swap)


@given(limit_, limit_, bytes_, usages_)
def test_settled_is_settled(limit: int, found: int, swap: int, usages: list[decide.Usage]) -> None:
    held, first = settle(limit, found, swap, usages)
    again = decide.decide(limit, held, swap, lambda: usages)
    assert again == decide.Action(None, first.draining)


@given(limit_, limit_, bytes_, usages_)
def test_swap_in_use_is_cut_only_where_everything_fits(
    limit: int, found: int, swap: int, usages: list[decide.Usage]
) -> None:
    held, _ = settle(limit, found, swap, usages)
    if held < found and held < swap:
        assert all((usage.memory + usage.swap) * 100 <= usage.ceiling * decide.FIT_PERCENT for usage in usages)


@given(limit_, limit_, bytes_, usages_)
def test_success_means_that_no_more_is_in_use(limit: int, found: int, swap: int, usages: list[decide.Usage]) -> None:
    held, action = settle(limit, found, swap, usages)
    if not action.draining:
        assert held == limit
        assert swap <= limit


@given(limit_, bytes_)
def test_memory_is_looked_at_only_where_swap_would_be_cut(limit: int, swap: int) -> None:
    def looked() -> list[decide.Usage]:
        raise AssertionError("looked")

    decide.decide(max(limit, swap), limits.NO_LIMIT, swap, looked)
    decide.decide(limit, limit, swap, looked)


def test_raising_is_at_once_even_where_more_is_in_use() -> None:
    assert decide.decide(2 * PAGE, PAGE, 9 * PAGE, list) == decide.Action(2 * PAGE, draining=True)


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
    assert decide.capped(8, 4, cap=True) == 4
    assert decide.capped(8, 9, cap=True) == 8
    assert decide.capped(8, 4, cap=False) == 8
