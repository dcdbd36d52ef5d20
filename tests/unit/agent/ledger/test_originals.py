from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.ledger import originals


def kept(folder: pathlib.Path, name: str = "x") -> originals.Entry | None:
    """What the next run of the agent would know."""
    return originals.Originals(folder).get(name)


def test_what_was_found_first_and_the_last_values_are_kept(tmp_path: pathlib.Path) -> None:
    book = originals.Originals(tmp_path)
    for found, value in (("60", "1"), ("1", "2"), ("2", "3"), ("3", "3")):
        book.writing("x", found, value)
    assert kept(tmp_path) == originals.Entry("60", ("3",))
    book.writing("x", "3", "4")
    assert kept(tmp_path) == originals.Entry("60", ("3", "4"))


def test_what_another_wrote_since_is_what_was_found(tmp_path: pathlib.Path) -> None:
    book = originals.Originals(tmp_path)
    book.writing("x", "60", "1")
    book.writing("x", "50", "1")
    assert kept(tmp_path) == originals.Entry("50", ("1",))


def test_a_value_that_did_not_get_there_may_still(tmp_path: pathlib.Path) -> None:
    book = originals.Originals(tmp_path)
    book.writing("x", "60", "1")
    book.writing("x", "60", "2")
    assert kept(tmp_path) == originals.Entry("60", ("1", "2"))


def test_what_is_forgotten_stays_forgotten(tmp_path: pathlib.Path) -> None:
    book = originals.Originals(tmp_path)
    book.writing("x", "60", "1")
    book.writing("y", "6", "0")
    book.forget("x")
    book.forget("z")
    assert originals.Originals(tmp_path).names() == ["y"]


def test_nothing_is_left_where_nothing_is_needed(tmp_path: pathlib.Path) -> None:
    book = originals.Originals(tmp_path)
    book.writing("x", "60", "1")
    (tmp_path / "originals.json.new").write_text("torn")
    book.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_kept_is_not_taken_for_kept(tmp_path: pathlib.Path) -> None:
    book = originals.Originals(tmp_path)
    (tmp_path / "originals.json.new").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        book.writing("x", "60", "1")
    assert book.get("x") is None


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"x":{"found":1}}', b'{"x":{"found":"1","wrote":[]}}', b"[" * 9999, b" " * 70_000]
)
def test_what_makes_no_sense_is_told_and_counts_as_nothing(
    content: bytes, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = originals.BAD.value()
    (tmp_path / "originals.json").write_bytes(content)
    assert originals.Originals(tmp_path).names() == []
    assert originals.BAD.value() == before + 1
    assert "not readable" in caplog.text


steps_ = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("123"), st.sampled_from("123")), max_size=8)


@given(steps=steps_)
def test_the_value_about_to_be_written_is_always_known_as_ours(
    steps: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    book = originals.Originals(folder)
    for name, found, value in steps:
        book.writing(name, found, value)
        entry = kept(folder, name)
        assert entry is not None
        assert entry.wrote[-1] == value
        assert found in {entry.found, *entry.wrote}
        assert len(entry.wrote) <= originals.KEPT_VALUES
