"""Lists of required plugins as pods may have them, for the webhook and for the policies that stand in for it."""

from __future__ import annotations

from typing import Final

from swapwarden.policy.admission import required_plugins

OURS: Final = required_plugins.VALUE

CASES: Final[dict[str, str]] = {
    # Without ours.
    "[]": OURS,
    " [ \n] ": OURS,
    '["a"]': '["swapwarden", "a"]',
    "[ a , b ]": '["swapwarden",  a , b ]',
    "[a,]": '["swapwarden", a,]',
    "[\na,\nb\n]\n": '["swapwarden", \na,\nb\n]\n',
    '["swapwarden2"]': '["swapwarden", "swapwarden2"]',
    "[my-swapwarden]": '["swapwarden", my-swapwarden]',
    # With ours.
    OURS: OURS,
    "[swapwarden]": "[swapwarden]",
    "['swapwarden' ]": "['swapwarden' ]",
    '["a", "swapwarden"]': '["a", "swapwarden"]',
    "[a,swapwarden,b]": "[a,swapwarden,b]",
    "[a,\nswapwarden\n]": "[a,\nswapwarden\n]",
    # No list in brackets: left as it is.
    "": "",
    "a": "a",
    "- a\n- b": "- a\n- b",
    "[a": "[a",
    "a]": "a]",
    "]a[": "]a[",
}
"""The list after admission by the list before."""
