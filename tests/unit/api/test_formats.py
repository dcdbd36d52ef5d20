from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import formats

json_ = st.recursive(
    st.one_of(st.integers(0, 3), st.lists(st.integers(0, 2), max_size=2)),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
object_ = st.dictionaries(st.sampled_from("abc"), json_, max_size=3)


def apply(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply(result.get(key), value)
    return result


@given(object_, object_)
def test_the_patch_leads_from_one_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = formats.merge_patch(old, new)
    assert apply(old, patch) == new
    assert (patch == {}) == (old == new)


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
    assert formats.rfc3339(seconds, timespec) == text  # type: ignore[arg-type]  # one of the literals
