from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import throttling


@given(st.integers(1, 99))
def test_percents_are_read_as_they_are_written(percent: int) -> None:
    text = throttling.written(percent)
    assert throttling.is_throttling(text)
    assert throttling.percent(text) == percent


def test_disabled_is_a_value_without_percents() -> None:
    assert throttling.is_throttling(throttling.DISABLED)
    assert throttling.percent(throttling.DISABLED) == throttling.NEVER
    assert throttling.written(throttling.NEVER) == throttling.DISABLED


@pytest.mark.parametrize(
    "text", ["", "0%", "00%", "09%", "100%", "90", "9.5%", "-5%", "90% ", "90%\n", "\u0669%", "disabled"]
)
def test_everything_else_is_invalid_and_counts_as_disabled(text: str) -> None:
    assert not throttling.is_throttling(text)
    assert throttling.percent(text) == throttling.NEVER
