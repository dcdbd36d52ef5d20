"""Values of memory.swap.max as numbers, so that they can be compared."""

from __future__ import annotations

from typing import Final

NO_LIMIT: Final = 1 << 63
"""The value of "max": above every number of bytes."""


def parse(text: str, page: int) -> int:
    """Return bytes, floored to `page` as the kernel does on a write; NO_LIMIT for "max". ValueError otherwise.

    The kernel counts pages in a signed long and shows a larger count as "max"
    (mm/page_counter.c: PAGE_COUNTER_MAX).
    """
    if text == "max":
        return NO_LIMIT
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text[:64]!r} is neither max nor a number of bytes")
    pages = int(text) // page
    return NO_LIMIT if pages >= (NO_LIMIT - 1) // page else pages * page


def render(limit: int) -> str:
    """Return the value as the kernel's file takes and shows it."""
    return "max" if limit >= NO_LIMIT else str(limit)
