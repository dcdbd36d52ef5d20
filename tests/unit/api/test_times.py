from __future__ import annotations

import pytest
from swapwarden.api import times


@pytest.mark.parametrize(
    ("seconds", "timespec", "text"),
    [
        (0.0, "seconds", "1970-01-01T00:00:00Z"),
        (1763920800.999999, "seconds", "2025-11-23T18:00:00Z"),
        (1763920800.25, "milliseconds", "2025-11-23T18:00:00.250Z"),
        (1763920800.25, "microseconds", "2025-11-23T18:00:00.250000Z"),
    ],
)
def test_a_time_is_written_in_utc_and_cut_never_rounded_up(seconds: float, timespec: str, text: str) -> None:
    assert times.rfc3339(seconds, timespec) == text  # type: ignore[arg-type]  # one of the literals
