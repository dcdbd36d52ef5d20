"""Sizes as people write them."""

from __future__ import annotations

from typing import Final

from swapwarden.api import names

_UNITS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def rounded(number: int) -> str:
    """Return bytes for tables, in the largest unit with a digit before the point: 1.5Gi, 20Mi, 0."""
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    text = f"{value:.1f}" if unit and value < 9.95 else f"{value:.0f}"
    return text.removesuffix(".0") + _UNITS[unit]


def exact(number: int) -> str:
    """Return bytes for arithmetic: in a unit in which they are whole if that takes few digits (1536Mi), else ~66.7Mi.

    Only sizes behind a tilde are rounded.
    """
    unit, value = 0, number
    while value and value % 1024 == 0 and unit < len(_UNITS) - 1:
        unit, value = unit + 1, value // 1024
    if value < 10_000:
        return f"{value}{_UNITS[unit]}"
    near = float(value)
    while near >= 1000 and unit < len(_UNITS) - 1:
        unit, near = unit + 1, near / 1024
    return f"~{near:.1f}{_UNITS[unit]}"


def with_bytes(swap_max: str | None) -> str:
    """Return a value of memory.swap.max with its size if that is easier to read: 402653184 (384Mi), 0, max."""
    if swap_max is None:
        return "nothing"
    if swap_max in {"0", names.MAX_SWAP} or int(swap_max) < 10_000:
        return swap_max
    return f"{swap_max} ({exact(int(swap_max))})"
