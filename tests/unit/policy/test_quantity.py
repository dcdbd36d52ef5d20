from __future__ import annotations

import fractions
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import quantity

from tests.contract import quantities

FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
FACTORS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1", 1),
        ("007", 7),
        ("1.", 1),
        (".5Ki", 512),
        ("1.5Gi", 1610612736),
        ("512Mi", 536870912),
        ("1k", 1000),
        ("7E", 7 * 10**18),
        ("7Ei", 7 * 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("15e-1", 2),
        ("100m", 1),
        ("1000m", 1),
        ("1001m", 2),
        ("1u", 1),
        ("2000000001n", 3),
        ("0.1", 1),
        ("0.0", 0),
        ("1e-99", 1),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_bytes_rounded_up(text: str, value: int) -> None:
    assert quantity.capped(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "1 Mi",
            " 1",
            "1\n",
            "+1",
            "-1",
            "-0",
            ".",
            "Mi",
            "1K",
            "1mi",
            "1MI",
            "1.2.3",
            "1,5",
            "1e",
            "1e1000",
        ),
        *("1eK", "0x10", "1_000", "inf", "nan", "1MiB", "\u0661", "1" * 65),
    ],
)
def test_a_text_that_is_no_quantity_is_refused_and_quoted(text: str) -> None:
    assert not quantity.is_quantity(text)
    for reader in (quantity.capped, quantity.nano):
        with pytest.raises(quantity.QuantityError) as refused:
            reader(text)
        assert repr(text)[:60] in str(refused.value)


@pytest.mark.parametrize("text", ["9223372036854775808", "8Ei", "10E", "1e99"])
def test_too_much_is_capped(text: str) -> None:
    assert quantity.is_quantity(text)
    assert quantity.capped(text) == quantity.LARGEST
    assert quantity.percent_or_bytes(text, 100) == quantity.LARGEST


def test_errors_do_not_repeat_long_texts_in_full() -> None:
    with pytest.raises(quantity.QuantityError) as refused:
        quantity.capped("9" * 10_000)
    assert len(str(refused.value)) < 200


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(sorted(FACTORS)))
def test_arithmetic_is_exact(whole: int, thousandths: int, suffix: str) -> None:
    value = fractions.Fraction(whole * 1000 + thousandths, 1000) * FACTORS[suffix]
    text = f"{whole}.{thousandths:03d}{suffix}"
    assert quantity.capped(text) == min(math.ceil(value), quantity.LARGEST)
    assert quantity.nano(text) == math.ceil(value * 10**9)


@pytest.mark.parametrize(
    ("text", "value"), [("0.1", 10**8), ("100m", 10**8), ("1n", 1), ("1e-12", 1), ("2", 2 * 10**9)]
)
def test_billionths(text: str, value: int) -> None:
    assert quantity.nano(text) == value


@pytest.mark.parametrize(
    ("text", "total", "value"),
    [
        ("10%", 999, 99),
        ("0%", 999, 0),
        ("100%", 999, 999),
        ("33%", 2**60, 2**60 * 33 // 100),
        ("1Ki", 5, 1024),
        ("7", 0, 7),
    ],
)
def test_a_share_of_the_total_floors(text: str, total: int, value: int) -> None:
    assert quantity.percent_or_bytes(text, total) == value


@pytest.mark.parametrize("text", ["%", "101%", "-1%", "1.5%", "10 %", "10%%", "9999%"])
def test_a_text_that_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(quantity.QuantityError, match="from 0% to 100%"):
        quantity.percent_or_bytes(text, 100)


@pytest.mark.parametrize(("text", "is_one"), quantities.QUANTITIES.items())
def test_the_edges_of_the_grammar(text: str, is_one: bool) -> None:
    assert quantity.is_quantity(text) == is_one
