from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import quantity
from swapwarden.cli.kubectl.output import sizes

NOW = datetime.datetime(2026, 1, 10, tzinfo=datetime.UTC)


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
        (None, "<unknown>"),
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
def test_amounts(number: int | None, text: str) -> None:
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


@pytest.mark.parametrize(
    ("since", "text"),
    [
        ("2026-01-09T23:59:18Z", "42s"),
        ("2026-01-09T23:54:55Z", "5m5s"),
        ("2026-01-09T23:30:05Z", "29m"),
        ("2026-01-09T21:55:00Z", "2h5m"),
        ("2026-01-09T04:55:00Z", "19h"),
        ("2026-01-07T20:00:00Z", "2d4h"),
        ("2025-12-20T20:00:00Z", "20d"),
        ("2026-01-11T00:00:00Z", "0s"),
        ("2026-01-09T23:59:18", ""),
        ("soon", ""),
        ("", ""),
    ],
)
def test_age(since: str, text: str) -> None:
    assert sizes.age(since, NOW) == text
