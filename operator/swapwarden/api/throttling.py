"""Where a pod's memory.high lies, as people write it: Disabled, or a share of the way from its request to its limit."""

from __future__ import annotations

import re
from typing import Final

DISABLED: Final = "Disabled"
"""No memory.high."""

SYNTAX: Final = r"Disabled|[1-9][0-9]?%"
"""A whole value, for RE2 (CEL) and for Python. Neither 0% nor 100%: these are the request and the limit themselves."""

EXAMPLE: Final = "90%"

NEVER: Final = 0
"""The percents of DISABLED, and of an invalid value."""

_SYNTAX: Final = re.compile(SYNTAX)


def is_throttling(text: str) -> bool:
    """Return whether the text is such a value."""
    return _SYNTAX.fullmatch(text) is not None


def written(share: int) -> str:
    """Return the text that means these percents."""
    return f"{share}%" if share else DISABLED


def percent(text: str) -> int:
    """Return whole percents from 1 to 99; NEVER for Disabled and for invalid values."""
    return int(text[:-1]) if text != DISABLED and is_throttling(text) else NEVER
