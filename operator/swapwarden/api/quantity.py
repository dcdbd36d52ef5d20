"""Quantities (512Mi, 1.5G, 1e9): one grammar for annotations, profiles and the API server's policies; bytes of them.

The grammar is that of k/k: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go, without a sign: no amount here
can be negative.
"""

from __future__ import annotations

import fractions
import functools
import math
import re
from typing import Final

MAX_LENGTH: Final = 64
"""Characters: even a nanobyte count of the largest quantity is shorter."""

SYNTAX: Final = r"(\d+[.]?\d*|[.]\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d{1,3})?"
"""A whole quantity: its number, and its suffix or exponent. For RE2 (CEL), and for Python with re.ASCII.

Short, because the API server's estimate of a rule grows with the text of a regular expression."""

LARGEST: Final = 2**63 - 1
"""The largest quantity: the API server also caps there."""

_SYNTAX: Final = re.compile(SYNTAX, re.ASCII)
_NANO: Final = fractions.Fraction(1, 10**9)
_DECIMAL: Final = {None: 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class QuantityError(ValueError):
    """The text is no quantity."""


def _rounded_up(text: str, unit: fractions.Fraction = fractions.Fraction(1)) -> int:
    """Return how many of `unit` the text means, rounded up and not bounded."""
    if unit == 1 and text.isascii() and text.isdecimal() and len(text) <= MAX_LENGTH:
        return int(text)
    match = _SYNTAX.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        shown = text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}..."
        raise QuantityError(f"{shown!r} is not a quantity: a number without a sign, with a unit such as Mi, Gi or M")
    number, suffix = match.groups()
    whole, _, decimals = number.partition(".")
    value = fractions.Fraction(int(f"0{whole}{decimals}"), 10 ** len(decimals))
    if suffix in _BINARY:
        value *= 2 ** _BINARY[suffix]
    else:
        power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
        scale: int = 10 ** abs(power)
        value = value * scale if power >= 0 else value / scale
    return math.ceil(value / unit)


def is_quantity(text: str) -> bool:
    """Return whether the text is a quantity, however large."""
    return len(text) <= MAX_LENGTH and _SYNTAX.fullmatch(text) is not None


@functools.lru_cache(maxsize=4096)
def capped(text: str) -> int:
    """Return bytes, rounded up, capped at LARGEST, as the API server stores them. QuantityError for no quantity."""
    return min(_rounded_up(text), LARGEST)


def nano(text: str) -> int:
    """Return billionths, rounded up and not bounded: quantities are no more exact. QuantityError for no quantity."""
    return _rounded_up(text, _NANO)


def percent_or_bytes(text: str, total: int) -> int:
    """Return the bytes of `text`: whole percents of `total` bytes, floored (10%), or a quantity, capped at LARGEST.

    QuantityError if it is neither.
    """
    if not text.endswith("%"):
        return capped(text)
    percents = text[:-1]
    if not (percents.isascii() and percents.isdecimal() and len(percents) <= 3 and int(percents) <= 100):
        raise QuantityError(f"{text[:MAX_LENGTH]!r} is not a share: whole percents from 0% to 100%")
    return total * int(percents) // 100
