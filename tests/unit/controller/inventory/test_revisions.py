from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.controller.inventory import revisions

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.integers(0, 30_000))
def test_what_is_kept_is_what_was_said(spec: dict[str, object], more: int) -> None:
    spec = {**spec, "more": "<" * more}
    assert revisions.unpacked(revisions.packed(spec)) == spec


def test_people_can_read_what_is_short() -> None:
    assert revisions.packed({"b": 1, "a": [2]}) == '{"a":[2],"b":1}'
    assert len(revisions.packed({"a": "x" * 10**6})) < 10_000


@given(st.text() | st.binary().map(lambda found: found.decode("latin-1")))
def test_what_is_no_revision_is_refused_in_one_way(text: str) -> None:
    try:
        revisions.unpacked(text)
    except ValueError:
        return
    assert isinstance(json.loads(text), dict)


def some(least: int, most: int) -> st.SearchStrategy[list[tuple[int, str]]]:
    """Revisions of generations from `least` to `most`."""
    texts = st.integers(1, 3000).map("<".__mul__)
    return st.lists(st.tuples(st.integers(least, most), texts), unique_by=lambda each: each[0])


@given(some(1, 5), some(6, 9), st.integers(0, 40_000))
def test_what_is_kept_fits_and_what_is_needed_is_named(
    wanted: list[tuple[int, str]], spare: list[tuple[int, str]], room: int
) -> None:
    kept = revisions.keep(wanted, spare, room)
    said = {entry["generation"]: entry["spec"] for entry in kept.written if entry["spec"]}
    assert revisions.stored_bytes([{"generation": key, "spec": text} for key, text in said.items()]) <= room + 2
    assert said.items() <= dict(wanted + spare).items()
    assert {*kept.omitted, *said} >= {number for number, _ in wanted}
    assert not said.keys() & set(kept.omitted)
    assert [entry["generation"] for entry in kept.written] == sorted({*said, *kept.omitted}, reverse=True)


@pytest.mark.parametrize("text", ["<>&", "\u2028", "\\", '"', "\x00", "\U0001f600", "a"])
def test_the_size_is_at_least_what_the_api_server_stores(text: str) -> None:
    stored = json.dumps(text, ensure_ascii=False).encode().replace(b"<", rb"\u003c").replace(b">", rb"\u003e")
    assert revisions.stored_bytes(text) >= len(stored.replace(b"&", rb"\u0026"))
