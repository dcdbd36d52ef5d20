from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import quantity, sizes


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (4096, "4Ki"),
        (384 << 20, "384Mi"),
        (1536 << 20, "1536Mi"),
        (69943296, "~66.7Mi"),
        (9999, "9999"),
        (536866816, "~512.0Mi"),
        (1 << 62, "4Ei"),
        (2**63 - 1, "~8.0Ei"),
    ],
)
def test_exact(number: int, text: str) -> None:
    assert sizes.exact(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1.5Ki"),
        (10188, "9.9Ki"),
        (10240, "10Ki"),
        (4 << 30, "4Gi"),
        (20 << 20, "20Mi"),
        (2**63, "8Ei"),
        (2**70, "1024Ei"),
    ],
)
def test_amounts(number: int, text: str) -> None:
    assert sizes.rounded(number) == text


@given(st.integers(0, 2**63 - 1))
def test_an_exact_size_without_a_tilde_is_exact(number: int) -> None:
    text = sizes.exact(number)
    if not text.startswith("~"):
        assert quantity.capped(text) == number
    else:
        assert abs(quantity.capped(text[1:]) - number) <= number // 20


def test_in_bytes() -> None:
    assert [sizes.with_bytes(value) for value in (None, "0", "max", "4096", "69943296")] == [
        "nothing", "0", "max", "4096", "69943296 (~66.7Mi)",
    ]  # fmt: skip
