"""Signals come on and go off as recorded runs of a real kernel need it, and never because of a broken file or clock."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.pressure.signals import (
    NEAR_SECONDS,
    RARE_SECONDS,
    MemoryReading,
    PressureSignals,
    StallTotals,
    Verdict,
)
from swapwarden.api import state
from swapwarden.api.names import PressureScope, PressureSignal

MIB = 1 << 20
FOR = 5.0
OVER = 10.0
SETTINGS = state.PressureSettings(
    state.HeadroomThresholds(below_bytes=48 * MIB, clear_bytes=96 * MIB, for_milliseconds=5000),
    state.StallThresholds(full_permille=400, over_milliseconds=10_000),
)
"""5 % and 10 % of 960 MiB; 40 % over 10 s."""
NODE, PODS = PressureScope.NODE, PressureScope.PODS
HEADROOM = PressureSignal.HEADROOM
STALL = PressureSignal.STALL
MUCH = 900
"""MiB."""


def look(
    at: float, node: int = MUCH, pods: int | None = None, stalls: dict[PressureScope, StallTotals] | None = None
) -> MemoryReading:
    """Headroom in MiB."""
    sizes = {NODE: node * MIB} | ({} if pods is None else {PODS: pods * MIB})
    return MemoryReading(at, sizes, sizes, stalls or {})


def stalling(
    seconds: int, share: float, scope: PressureScope = NODE, shortages: int | None = 0, out: int = 0, back: int = 0
) -> Iterator[MemoryReading]:
    """A look each second while this share of the time is stalled, with so many signs of a shortage a second.

    So many pages a second are reclaimed, and needed again.
    """
    for second in range(seconds):
        signs = None if shortages is None else shortages * second
        totals = StallTotals(50 + share * second, signs, out * second, back * second)
        yield look(second, stalls={scope: totals})


def run(looks: Iterable[MemoryReading], signals: PressureSignals | None = None) -> list[Verdict]:
    asked = signals or PressureSignals(SETTINGS)
    return [asked.step(each) for each in looks]


def on_at(verdicts: Sequence[Verdict]) -> int | None:
    return next((number for number, each in enumerate(verdicts) if each.signal is not None), None)


# Headroom


def test_the_recorded_oom_kill_is_announced() -> None:
    """The headroom of a run of which tests/unit/agent/node/test_headroom_reader.py has the sizes; killed at 68.5 s."""
    recorded = {0: 1366, 30: 566, 48: 348, 54: 192, 56: 100, 57: 54, 58: 19, 59: 19, 60: 18, 63: 15, 64: 12, 66: 10}
    verdicts = run(look(at, size) for at, size in recorded.items())
    on = [at for at, verdict in zip(recorded, verdicts, strict=True) if verdict.signal is HEADROOM]
    assert on == [57, 58, 59, 60, 63, 64, 66], "at 46 MiB a second nothing is left in five seconds"
    assert verdicts[-1] == Verdict(
        HEADROOM, NODE, 10 * MIB, since=57, on=frozenset({(HEADROOM, NODE)}), stalls={}, near=True
    )


UNSWAPPED = {
    0: 795,
    26: 509,
    44: 306,
    60: 190,
    67: 129,
    70.5: 99,
    72.4: 88,
    73.8: 71,
    75.2: 50,
    76.8: 38,
    78.2: 25,
    79.6: 30,
    80.9: 29,
    82.9: 19,
    84.7: 9,
}
"""MiB by seconds while a pod without swap grew on a real kernel, which reclaimed at 76 s and killed at 85.5 s."""


def unswapped(at: float) -> int:
    begin, end = next(pair for pair in itertools.pairwise(UNSWAPPED) if at <= pair[1])
    share = (at - begin) / (end - begin)
    return int(UNSWAPPED[begin] + share * (UNSWAPPED[end] - UNSWAPPED[begin]))


@pytest.mark.parametrize("first", range(int(RARE_SECONDS)))
def test_the_recorded_growth_of_a_pod_without_swap_is_announced_before_the_kernel_reclaims(first: int) -> None:
    """Whenever the agent happens to look; once the kernel reclaims, the agent itself may wait."""
    signals, at = PressureSignals(SETTINGS), float(first)
    while run([look(at, unswapped(at))], signals)[0].signal is None:
        at += signals.pause
    assert at < 76


def test_low_headroom_for_less_than_its_time_is_no_signal() -> None:
    looks = [look(0, 20), look(4, 20), look(5, 60), look(15, 47), look(19, 40), look(20, 40)]
    assert on_at(run(looks)) == 5


@pytest.mark.parametrize(
    ("before", "now", "hurries"),
    [
        (96, 47, True),
        (60, 47, True),
        (54, 47, False),
        (47, 47, False),
        (116, 96, True),
        (114, 96, False),
        (200, 97, False),
    ],
)
def test_headroom_that_ends_before_its_time_is_a_signal_at_once(before: int, now: int, *, hurries: bool) -> None:
    assert (run([look(0, before), look(1, now)])[-1].signal is HEADROOM) is hurries


def test_headroom_that_ends_soon_after_a_signal_waits() -> None:
    looks = [look(0, 96), look(1, 40), look(2, 97), look(3, 40), look(7, 40), look(8, 40)]
    assert [each.signal for each in run(looks)] == [None, HEADROOM, None, None, None, HEADROOM]


def test_between_below_and_clear_the_signal_stays_as_it_is() -> None:
    looks = [
        look(0, 70),
        look(10, 70),
        look(11, 65),
        look(30, 45),
        look(35, 45),
        look(37, 70),
        look(60, 96),
        look(61, 97),
    ]
    assert [each.signal for each in run(looks)] == [None, None, None, None, HEADROOM, HEADROOM, HEADROOM, None]


@pytest.mark.parametrize(("node", "pods", "scope"), [(40, 20, PODS), (20, 40, NODE), (MUCH, 20, PODS)])
def test_the_scope_is_the_one_with_less_headroom(node: int, pods: int, scope: PressureScope) -> None:
    verdict = run([look(0, node, pods), look(5, node, pods)])[-1]
    assert (verdict.signal, verdict.scope, verdict.headroom) == (HEADROOM, scope, 20 * MIB)


def test_without_a_readable_headroom_there_is_no_signal() -> None:
    gone = MemoryReading(6, {}, {}, {})
    verdicts = run([look(0, 20), look(5, 20), gone, look(7, 20)])
    assert [each.signal for each in verdicts] == [None, HEADROOM, None, None]


# Stall


def test_a_stall_while_the_kernel_reclaims_is_the_nodes() -> None:
    verdicts = run(stalling(30, 0.44, shortages=2000))
    assert on_at(verdicts) == OVER
    assert verdicts[-1].on == {(STALL, NODE)}
    assert (verdicts[-1].stall, verdicts[-1].since, verdicts[-1].of_a_pod) == (440, OVER, False)


def test_a_stall_at_the_limit_of_all_pods_is_theirs() -> None:
    assert run(stalling(30, 0.44, PODS, shortages=3))[-1].on == {(STALL, PODS)}


@pytest.mark.parametrize("scope", PressureScope)
def test_a_pod_at_its_own_limit_is_no_signal(scope: PressureScope) -> None:
    """Seen: 44 % with 480 MiB free, no page scanned for want of memory."""
    verdicts = run(stalling(60, 0.44, scope))
    assert not any(each.on for each in verdicts)
    assert verdicts[-1].of_a_pod
    assert not verdicts[5].of_a_pod, "too early to be known"


def test_a_pod_at_its_own_limit_is_not_blamed_while_memory_is_short() -> None:
    verdict = run(stalling(30, 0.44, shortages=2000))[-1]
    assert not verdict.of_a_pod


@pytest.mark.parametrize("scope", PressureScope)
@pytest.mark.parametrize(("back", "on"), [(0, None), (249, None), (250, OVER), (4000, OVER)])
def test_a_stall_counts_if_part_of_the_reclaimed_pages_is_needed_again(
    scope: PressureScope, back: int, on: float | None
) -> None:
    """Without that, one task grows, and waits for a slow disk while others are swapped out."""
    verdicts = run(stalling(30, 0.9, scope, shortages=2000, out=2000, back=back))
    assert on_at(verdicts) == on
    assert not verdicts[-1].of_a_pod


def test_a_stall_ends_when_nothing_is_needed_again() -> None:
    signals = PressureSignals(SETTINGS)
    assert run(stalling(20, 0.5, shortages=10, out=100, back=100), signals)[-1].signal is STALL
    after = (StallTotals(50 + 0.5 * second, 10 * second, 1000 * second, 1900) for second in range(20, 40))
    assert run((look(20 + at, stalls={NODE: each}) for at, each in enumerate(after)), signals)[-1].signal is None


def test_a_stall_without_evidence_is_no_signal() -> None:
    assert on_at(run(stalling(30, 0.9, shortages=None))) is None


def test_a_stall_ends_below_half_of_its_share() -> None:
    signals = PressureSignals(SETTINGS)
    assert run(stalling(30, 0.44, shortages=10), signals)[-1].signal is STALL
    full, scanned = 50 + 0.44 * 29, 290
    after = [
        signals.step(look(29 + second, stalls={NODE: StallTotals(full + 0.1 * second, scanned + second)}))
        for second in range(1, 12)
    ]
    shares = [each.stall for each in after if each.signal is STALL]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) == 7
    assert shares[-1] >= 200


def test_a_stall_ends_as_one_of_the_node_when_the_kernel_reclaims_no_more() -> None:
    signals = PressureSignals(SETTINGS)
    last = run(stalling(30, 0.44, shortages=10), signals)[-1]
    assert last.signal is STALL
    scanned = 290
    after = [
        signals.step(look(30 + second, stalls={NODE: StallTotals(50 + 0.44 * (30 + second), scanned)}))
        for second in range(20)
    ]
    assert on_at(after) == 0, "some of the time was before"
    assert [each.signal for each in after[10:]] == [None] * 10
    assert after[-1].of_a_pod


def test_a_short_stall_is_no_signal() -> None:
    """As in a reclaim of some seconds: 2.5 % over the whole time, all of it within one second."""
    totals = [StallTotals(0, 0)] * 5 + [StallTotals(1, 5000)] * 30
    assert on_at(run(look(at, stalls={NODE: each}) for at, each in enumerate(totals))) is None


def test_headroom_precedes_stall() -> None:
    looks = [
        msgspec.structs.replace(each, cheap={NODE: MIB}, headroom={NODE: MIB})
        for each in stalling(30, 0.44, shortages=10)
    ]
    verdict = run(looks)[-1]
    assert (verdict.signal, verdict.since) == (HEADROOM, 5)
    assert verdict.on == {(HEADROOM, NODE), (STALL, NODE)}


# When to look


def test_a_quiet_node_is_looked_at_rarely() -> None:
    signals = PressureSignals(SETTINGS)
    pauses = []
    for at, size in [(0, 900), (1, 899), (16, 905), (31, 880)]:
        signals.step(look(at, size))
        pauses.append(signals.pause)
    assert pauses == [NEAR_SECONDS, RARE_SECONDS, RARE_SECONDS, RARE_SECONDS]


def test_headroom_that_falls_fast_is_looked_at_more_often() -> None:
    """30 MiB a second, as in the recorded runs: the look before the signal must not be missed."""
    signals, at, size = PressureSignals(SETTINGS), 0.0, 900.0
    signals.step(look(0))
    while size > 96:
        passed = signals.pause
        at, size = at + passed, size - 30 * passed
        signals.step(look(at, int(size)))
    assert size > 96 - 30 * 1.5, "at most a second and a half late"


@pytest.mark.parametrize(("size", "pause"), [(900, RARE_SECONDS), (480, 8), (240, 3), (120, NEAR_SECONDS)])
def test_less_headroom_is_looked_at_sooner(size: int, pause: float) -> None:
    """At `below` a second, 48 MiB, it is then at `clear`."""
    signals = PressureSignals(SETTINGS)
    run([look(0, size), look(1, size)], signals)
    assert signals.pause == pause


def test_a_large_node_is_looked_at_rarely_with_a_fifth_of_its_memory_left() -> None:
    gib = 1024 * MIB
    thresholds = state.HeadroomThresholds(below_bytes=3 * gib, clear_bytes=6 * gib, for_milliseconds=5000)
    signals = PressureSignals(state.PressureSettings(thresholds, SETTINGS.stall))
    run([look(0, 13 * 1024), look(1, 13 * 1024)], signals)
    assert signals.pause == RARE_SECONDS


@given(st.integers(100, 2000), st.floats(0, 1), st.floats(0.02, 0.99))
def test_a_growth_is_announced_while_something_is_left(size: int, begins: float, share: float) -> None:
    """It begins at any moment of a calm pause, and takes any rate of less than `below` a second."""
    signals, rate = PressureSignals(SETTINGS), share * 48 * MIB
    run([look(0, size), look(1, size)], signals)
    start, at, left = 1 + begins * signals.pause, 1.0, size * MIB
    verdict = Verdict()
    while left > 0 and verdict.signal is None:
        at += signals.pause
        left = size * MIB - int(rate * max(0.0, at - start))
        sizes = {NODE: max(0, left)}
        verdict = signals.step(MemoryReading(at, sizes, sizes, {}))
    assert verdict.signal is HEADROOM
    assert left > 0


@pytest.mark.parametrize("near", [look(1, 96), next(stalling(1, 1)), look(1, 30)])
def test_a_signal_that_may_be_near_is_looked_at_each_second(near: MemoryReading) -> None:
    signals = PressureSignals(SETTINGS)
    signals.step(look(0, stalls={NODE: StallTotals(49.7, 0)}))
    verdict = signals.step(msgspec.structs.replace(near, at=1))
    assert verdict.near
    assert signals.pause == NEAR_SECONDS


# Whatever files and clocks say

TOTALS = st.one_of(
    st.none(),
    st.builds(
        StallTotals,
        st.floats(0, 1e9),
        st.one_of(st.none(), st.integers(0, 1 << 62)),
        st.integers(0, 1 << 62),
        st.integers(0, 1 << 62),
    ),
)
SIZES = st.one_of(st.none(), st.integers(0, 200 * MIB))
LOOKS = st.lists(
    st.tuples(st.floats(-50, 50), SIZES, SIZES, TOTALS, TOTALS).map(
        lambda each: (
            each[0],
            {scope: size for scope, size in zip(PressureScope, each[1:3], strict=True) if size is not None},
            {scope: totals for scope, totals in zip(PressureScope, each[3:], strict=True) if totals is not None},
        )
    ),
    min_size=1,
    max_size=20,
)


@given(LOOKS)
def test_any_look_has_a_verdict(
    steps: list[tuple[float, dict[PressureScope, int], dict[PressureScope, StallTotals]]],
) -> None:
    """Also if the clock or totals go back, and files are missing."""
    signals, at = PressureSignals(SETTINGS), 0.0
    for passed, sizes, stalls in steps:
        at += passed
        verdict = signals.step(MemoryReading(at, sizes, sizes, stalls))
        assert all(0 <= stall <= 1000 for stall in verdict.stalls.values())
        assert NEAR_SECONDS <= signals.pause <= RARE_SECONDS
        assert (verdict.signal is None) == (not verdict.on)
        assert verdict.signal is None or verdict.near
        assert verdict.signal is not HEADROOM or (verdict.headroom is not None and verdict.headroom <= 96 * MIB)


@given(st.lists(st.tuples(st.floats(0.1, 3), st.integers(0, 200 * MIB)), min_size=1, max_size=60))
def test_headroom_never_flaps_within_its_time(steps: list[tuple[float, int]]) -> None:
    """It begins sooner only if at the rate of its fall nothing would be left."""
    signals, at, went, last = PressureSignals(SETTINGS), 0.0, -FOR, 0
    low: float | None = None
    before = False
    for passed, size in steps:
        at += passed
        verdict = signals.step(MemoryReading(at, {NODE: size}, {NODE: size}, {}))
        low = None if size >= 48 * MIB else at if low is None else low
        if verdict.signal and not before:
            assert size <= 96 * MIB
            lasted = low is not None and at - low >= FOR
            assert lasted or size * passed <= (last - size) * FOR * 1.001
            assert at - went >= FOR
        if before and not verdict.signal:
            went = at
        before, last = verdict.signal is not None, size


@given(st.lists(st.tuples(st.floats(0.5, 3), st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=60))
def test_a_stall_never_flaps_within_its_time(steps: list[tuple[float, float, int]]) -> None:
    signals, at, full, scanned = PressureSignals(SETTINGS), 0.0, 0.0, 0
    changes = [-OVER]
    before = False
    for passed, share, pages in steps:
        at, full, scanned = at + passed, full + share * passed, scanned + pages
        now = signals.step(look(at, stalls={NODE: StallTotals(full, scanned)})).signal is not None
        if now and not before:
            assert at - changes[-1] >= OVER
        if now != before:
            changes.append(at)
        before = now


@given(st.floats(0, 1e9), st.integers(1, 29))
def test_totals_that_restart_are_no_stall(full: float, when: int) -> None:
    """As those of a recreated cgroup: no stall counts across that."""
    looks = [
        look(at, stalls={PODS: StallTotals(full if at < when else 0.0, 1000 + at if at < when else 0)})
        for at in range(30)
    ]
    assert on_at(run(looks)) is None


@pytest.mark.parametrize("pages", [(0, 9000), (9000, 0)])
def test_pages_that_count_back_restart_the_window(pages: tuple[int, int]) -> None:
    before = list(stalling(8, 0.5, shortages=10, out=1, back=1))
    after = [
        look(each.at, stalls={NODE: msgspec.structs.replace(each.stalls[NODE], reclaimed=pages[0], refaulted=pages[1])})
        for each in stalling(30, 0.5, shortages=10)
    ][9:]
    higher = [
        look(each.at, stalls={NODE: msgspec.structs.replace(each.stalls[NODE], reclaimed=500, refaulted=500)})
        for each in before
    ]
    assert on_at(run([*higher, *after])) == len(higher) + OVER


@pytest.mark.parametrize("jump", [-1e6, -30.0])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_clock_that_jumps_back_restarts_all(jump: float, share: float) -> None:
    looks = list(stalling(12, share, shortages=10))
    moved = [
        msgspec.structs.replace(each, at=each.at + jump) for each in stalling(40, 0.5, shortages=10) if each.at >= 12
    ]
    verdicts = run(itertools.chain(looks, moved))
    assert verdicts[11].signal is (STALL if share else None)
    assert [each.signal for each in verdicts[12:22]] == [None] * 10
    assert verdicts[-1].signal is STALL


def test_a_clock_that_jumps_back_restarts_the_time_of_the_headroom() -> None:
    looks = [look(1000, 40), look(1004, 40), look(10, 40), look(14, 40), look(15, 40)]
    assert on_at(run(looks)) == 4
