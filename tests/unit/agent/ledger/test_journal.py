from __future__ import annotations

import logging
import os
import pathlib
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.ledger import journal

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "journal.jsonl"


def reopened(book: journal.Journal, file: pathlib.Path) -> journal.Journal:
    book.close()
    return journal.Journal(file)


def test_the_first_run_is_told_from_later_ones(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    assert (book.new, book.begun) == (True, False)
    book = reopened(book, file)
    assert (book.new, book.begun) == (False, False)
    book.begin()
    book = reopened(book, file)
    assert book.begun
    assert reopened(book, file).begun


def test_what_was_found_first_and_the_last_values_are_kept(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    for found, value in ((1 << 63, 3 * MIB), (3 * MIB, 2 * MIB), (2 * MIB, MIB), (MIB, MIB)):
        book.writing("pod", 7, found, value)
    book = reopened(book, file)
    assert book.get("pod", 7) == journal.Entry("pod", 7, 1 << 63, [2 * MIB, MIB])


def test_what_another_wrote_since_is_what_was_found(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    for found, value in ((1 << 63, MIB), (5, MIB), (MIB, 2 * MIB)):
        book.writing("pod", 7, found, value)
    assert reopened(book, file).get("pod", 7) == journal.Entry("pod", 7, 5, [MIB, 2 * MIB], unit=1 << 63)


def test_a_value_that_later_ones_failed_to_replace_is_not_anothers(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    book.writing("pod", 7, 1 << 63, 1)
    for refused in (2, 3, 4):
        book.writing("pod", 7, 1, refused)
    assert reopened(book, file).get("pod", 7) == journal.Entry("pod", 7, 1 << 63, [1, 4])


def test_a_0_of_systemds_that_is_ours_is_not_what_was_found(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    book.cover("pod", 7, covered=True)
    assert book.get("pod", 7) == journal.Entry("pod", 7, 1 << 63, [], covered=True)
    for found, value in ((0, MIB), (0, MIB), (MIB, 2 * MIB), (0, 2 * MIB)):
        book.writing("pod", 7, found, value)
    book = reopened(book, file)
    assert book.get("pod", 7) == journal.Entry("pod", 7, 1 << 63, [MIB, 2 * MIB], covered=True)
    book.writing("pod", 7, 5, MIB)
    assert book.get("pod", 7) == journal.Entry("pod", 7, 5, [MIB], covered=True, unit=1 << 63)
    book.seen("pod", 7)
    assert book.get("pod", 7) == journal.Entry("pod", 7, covered=True)
    book.cover("pod", 7, covered=False)
    book.writing("pod", 7, 0, MIB)
    assert reopened(book, file).get("pod", 7) == journal.Entry("pod", 7, 0, [MIB])


def test_what_was_written_before_systemd_had_the_files_is_kept(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    book.writing("a", 1, 1 << 63, MIB)
    book.writing("b", 2, 5, MIB)
    for path, inode in (("a", 1), ("b", 2)):
        book.cover(path, inode, covered=True)
    book = reopened(book, file)
    assert book.get("a", 1) == journal.Entry("a", 1, 1 << 63, [MIB], covered=True)
    assert book.get("b", 2) == journal.Entry("b", 2, 5, [MIB], covered=True)


def test_a_later_cgroup_of_the_same_name_is_another(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    book.writing("pod", 7, 5, 0)
    assert book.get("pod", 8) is None
    book.writing("pod", 8, 6, 0)
    assert reopened(book, file).get("pod", 8) == journal.Entry("pod", 8, 6, [0])


def test_a_cgroup_that_was_only_seen_gets_its_found_value_with_the_first_write(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    book.seen("pod", 7)
    assert book.get("pod", 7) == journal.Entry("pod", 7)
    book.writing("pod", 7, 5, 0)
    assert reopened(book, file).get("pod", 7) == journal.Entry("pod", 7, 5, [0])


def test_what_is_forgotten_stays_forgotten(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    book.writing("pod", 7, 5, 0)
    book.forget("pod")
    assert list(reopened(book, file).paths()) == []


def test_the_file_stays_bounded(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    for number in range(20_000):
        book.writing("pod", 7, 99, number % 3)
    assert file.stat().st_size <= journal.COMPACT_BYTES + 200


def test_a_full_disk_does_not_stop_the_agent(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    book = journal.Journal(file)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("swapwarden.agent.ledger.journal.os.write", full)
        book.writing("pod", 7, 5, 0)
    assert book.get("pod", 7) == journal.Entry("pod", 7, 5, [0])
    assert "the journal cannot be written" in caplog.text


def test_a_disk_that_stays_full_is_tried_and_told_of_now_and_then(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, tries, real = [0.0], 0, os.open
    book = journal.Journal(file, lambda: now[0])

    def full(*_: object) -> int:
        nonlocal tries
        tries += 1
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swapwarden.agent.ledger.journal.os.write", full)
    monkeypatch.setattr("swapwarden.agent.ledger.journal.os.open", full)
    failures = journal.FAILURES.value()
    for number in range(1000):
        now[0] += 1 / 16
        book.writing("pod", number, 5, 0)
    assert journal.FAILURES.value() == failures + 1000
    assert tries == 64
    assert caplog.text.count("the journal cannot be written") == 2
    monkeypatch.undo()
    assert os.open is real
    now[0] += journal.RETRY_SECONDS
    book.retry()
    assert reopened(book, file).get("pod", 999) == journal.Entry("pod", 999, 5, [0])


def test_that_lines_were_lost_is_known_until_the_next_boot(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = journal.Journal(file)
    book.begin()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("swapwarden.agent.ledger.journal.os.write", full)
        book.writing("pod", 7, 5, 0)
    assert book.whole  # in memory
    for _ in range(2):
        book = reopened(book, file)
        assert (book.whole, book.begun, book.get("pod", 7)) == (False, True, None)


def test_a_doubt_is_kept(file: pathlib.Path) -> None:
    book = journal.Journal(file)
    assert book.whole
    book.doubt()
    book.doubt()
    assert file.read_bytes() == b'{"lost":true}\n'
    assert not reopened(book, file).whole


def test_a_line_that_did_not_fit_does_not_spoil_the_next(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    book = journal.Journal(file, lambda: now)
    real = os.write
    with monkeypatch.context() as short:
        short.setattr("swapwarden.agent.ledger.journal.os.write", lambda fd, data: real(fd, data[:9]))
        book.writing("a", 1, 5, 0)
    now += journal.RETRY_SECONDS
    book.writing("b", 2, 6, 0)
    content = journal.replay(file.read_bytes())
    assert (list(content.entries), content.bad) == (["a", "b"], 0)
    assert list(reopened(book, file).paths()) == ["a", "b"]


def test_a_failure_to_compact_leaves_the_journal_as_it_was(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMPACT_BYTES", 200)
    book = journal.Journal(file)
    file.with_suffix(".new").mkdir()
    for number in range(10):
        book.writing("pod", 7, 99, number)
    assert journal.replay(file.read_bytes()).entries == {"pod": journal.Entry("pod", 7, 99, [8, 9])}
    file.with_suffix(".new").rmdir()
    for number in range(50):
        book.writing("pod", 7, 99, number)
    assert file.stat().st_size < 600
    assert book.get("pod", 7) == reopened(book, file).get("pod", 7)


@pytest.mark.parametrize(
    "line",
    [
        b'{"entry":{"path":"a","inode":1,"found":-1}}',
        b'{"entry":{"path":"a","inode":1,"found":1,"wrote":[-5]}}',
        b'{"entry":{"path":7,"inode":1}}',
        b'{"entry":' + b"[" * 100_000,
        b"\xff\xfe",
        b"null",
    ],
)
def test_a_line_that_makes_no_sense_is_passed_over(line: bytes) -> None:
    good = b'{"entry":{"path":"b","inode":2}}'
    content = journal.replay(line + b"\n" + good + b"\n")
    assert (list(content.entries), content.bad) == (["b"], 1)


@given(st.binary(max_size=200))
def test_no_content_stops_the_agent(data: bytes) -> None:
    journal.replay(data)


steps_ = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 5)),
        st.tuples(st.just("forget"), st.sampled_from("abc"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


@given(steps_, st.data())
def test_a_crash_at_any_byte_loses_no_value_that_may_be_ours(
    steps: list[tuple[str, str, int, int]], data: st.DataObject
) -> None:
    """The line that was being written is lost, and with it a write that never happened; nothing else is."""
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "journal.jsonl"
        book = journal.Journal(file)
        states = [dict[str, journal.Entry]()]
        sizes = [0]
        for step, path, found, value in steps:
            if step == "write":
                book.writing(path, 1, found, value)
            else:
                book.forget(path)
            content = journal.replay(file.read_bytes())
            assert content.bad == 0
            states.append(content.entries)
            sizes.append(file.stat().st_size)
        book.close()
        cut = data.draw(st.integers(0, sizes[-1]))
        file.write_bytes(file.read_bytes()[:cut])
        whole = max(index for index, size in enumerate(sizes) if size <= cut)
        # A line that lacks only its end of line is whole, too.
        follower = next((index for index, size in enumerate(sizes) if size == cut + 1), whole)
        after = journal.Journal(file)
        held = {path: after.get(path, 1) for path in after.paths()}
        after.close()
        assert held in (states[whole], states[follower])
    logging.disable(logging.NOTSET)


def test_an_agent_that_starts_on_a_full_disk_holds_limits_and_keeps_what_it_knows(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = journal.Journal(file)
    book.writing("old", 1, 5, 0)
    book.close()
    failures, now = journal.FAILURES.value(), 0.0

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("swapwarden.agent.ledger.journal.os.write", full)
        book = journal.Journal(file, lambda: now)
        book.writing("new", 2, 6, 0)
    assert journal.FAILURES.value() == failures + 2
    assert book.get("old", 1) == journal.Entry("old", 1, 5, [0])
    now += journal.RETRY_SECONDS
    book.writing("newest", 3, 7, 0)
    again = reopened(book, file)
    assert list(again.paths()) == ["old", "new", "newest"]
    again.close()


def test_a_disk_that_has_room_later_gets_all_that_was_not_written(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, now = os.open, 0.0
    with monkeypatch.context() as broken:

        def full(path: object, *arguments: int) -> int:
            raise OSError(28, "No space left on device", path, *arguments)

        broken.setattr("swapwarden.agent.ledger.journal.os.open", full)
        book = journal.Journal(file, lambda: now)
        book.begin()
        book.writing("first", 1, 5, 0)
    assert os.open is real
    now += journal.RETRY_SECONDS
    book.writing("second", 2, 6, 0)
    assert list(reopened(book, file).paths()) == ["first", "second"]
    assert reopened(book, file).begun


def test_removed_it_leaves_nothing(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "journal.jsonl"
    book = journal.Journal(file)
    book.writing("pod", 7, 5, 0)
    (tmp_path / "journal.new").touch()
    book.remove()
    book.close()
    assert list(tmp_path.iterdir()) == []


def test_what_systemd_holds_outlasts_what_others_write(file: pathlib.Path) -> None:
    book = journal.Journal(file)

    def units() -> int | None:
        nonlocal book
        book = reopened(book, file)
        entry = book.get("app", 7)
        return None if entry is None else entry.units

    book.unit_holds("app", 7, 4096)
    assert units() is None, "nothing is known of it"
    book.writing("app", 7, 4096, MIB)
    assert units() == 4096
    book.writing("app", 7, 0, MIB)
    book.cover("app", 7, covered=False)
    assert units() == 4096
    book.unit_holds("app", 7, 8192)
    assert units() == 8192
    book.writing("app", 7, 8192, MIB)
    book.unit_holds("app", 7, 8192)
    assert units() == 8192
