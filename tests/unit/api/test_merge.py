from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import merge

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
    patch = merge.merge_patch(old, new)
    assert apply(old, patch) == new
    assert (patch == {}) == (old == new)
