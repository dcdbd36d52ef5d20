"""The order of a renewal: the next step in each state."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.controller.certificates.rotation import OVERLAP, CertificateStatus, RotationStep, Validity, decide

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
SECOND = datetime.timedelta(seconds=1)
FRESH = Validity(NOW - DAY, NOW + 89 * DAY)
DUE = Validity(NOW - 60 * DAY, NOW + 30 * DAY)
NEVER = None
LONG = OVERLAP


@pytest.mark.parametrize(
    ("current", "coming", "published", "step"),
    [
        (None, None, NEVER, RotationStep.ISSUE),
        (None, None, LONG, RotationStep.ISSUE),
        (None, FRESH, NEVER, RotationStep.PUBLISH),
        (None, FRESH, 0 * SECOND, RotationStep.PROMOTE),
        (FRESH, None, NEVER, RotationStep.PUBLISH),
        (FRESH, None, LONG, RotationStep.NOTHING),
        (DUE, None, LONG, RotationStep.ISSUE),
        (DUE, None, NEVER, RotationStep.ISSUE),
        (DUE, FRESH, NEVER, RotationStep.PUBLISH),
        (DUE, FRESH, 0 * SECOND, RotationStep.NOTHING),
        (DUE, FRESH, LONG - SECOND, RotationStep.NOTHING),
        (DUE, FRESH, LONG, RotationStep.PROMOTE),
    ],
)
def test_steps(
    current: Validity | None, coming: Validity | None, published: datetime.timedelta | None, step: RotationStep
) -> None:
    assert decide(CertificateStatus(current, coming, published), NOW) is step


def test_a_certificate_is_due_after_two_thirds_of_its_life() -> None:
    assert DUE.renewal == NOW
    assert decide(CertificateStatus(DUE, None, LONG), NOW - SECOND) is RotationStep.NOTHING


def test_validity_ends_with_its_last_moment() -> None:
    assert FRESH.covers(FRESH.not_before)
    assert not FRESH.covers(FRESH.not_before - SECOND)
    assert not FRESH.covers(FRESH.not_after)


@given(
    outages=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 29)), max_size=6),
    slow=st.integers(0, 3),
)
def test_a_valid_and_trusted_certificate_is_served_at_all_times(outages: list[tuple[int, int]], slow: int) -> None:
    """A model: day by day for a year, with controllers that are down for up to 24 of any 35 days.

    Registrations are written at once, replicas of the webhook see a new pair up to SLOW days late. A certificate that
    is due has 30 days; in this model one day passes between its publication and its promotion.
    """
    down: set[int] = set()
    for day in sorted({start + day for start, length in outages for day in range(length)}):
        if len(down & set(range(day - 34, day))) < 24:
            down.add(day)
    current = coming = None
    trusted: list[Validity] = []
    registered: list[Validity] = []
    since = NOW
    served: list[tuple[datetime.datetime, Validity]] = []
    for day in range(366):
        now = NOW + day * DAY
        if day not in down or day == 0:
            for _ in range(4):
                current = current if current and current.covers(now) else None
                wanted = [each for each in trusted if each.covers(now)]
                view = CertificateStatus(current, coming, now - since if registered == wanted else None)
                step = decide(view, now)
                if step is RotationStep.ISSUE:
                    coming = Validity(now, now + 90 * DAY)
                    trusted.append(coming)
                elif step is RotationStep.PUBLISH:
                    registered, since = wanted, now
                elif step is RotationStep.PROMOTE:
                    current, coming = coming, None
                    assert current
                    served.append((now, current))
                else:
                    break
            else:
                pytest.fail("steps without end")
        seen = [pair for moment, pair in served if moment + slow * DAY <= now] or [served[0][1]]
        for pair in (seen[-1], served[-1][1]):
            assert pair.covers(now)
            assert pair in registered
