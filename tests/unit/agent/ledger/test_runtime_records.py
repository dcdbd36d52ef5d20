"""The values that the container runtime holds, over restarts of the agent."""

from __future__ import annotations

import pathlib

import pytest
from swapwarden.agent.ledger import ledger, runtime_records

RECORD = runtime_records.RuntimeRecord("id", "uid", "app", 0, "77", 5.0)


def reopened(book: ledger.Ledger, folder: pathlib.Path) -> ledger.Ledger:
    book.close()
    return ledger.Ledger(folder)


def test_a_next_run_has_the_last_record_of_each_container(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.runtime.put(RECORD)
    other = runtime_records.RuntimeRecord("other", "uid")
    book.runtime.put(other)
    book.runtime.put(runtime_records.RuntimeRecord("id", "uid", "app", 4096, "77", 6.0, 0))
    book.runtime.forget("other")
    for _ in range(2):  # by its lines, and by the file that replaced them
        book = reopened(book, tmp_path)
        assert list(book.runtime) == [runtime_records.RuntimeRecord("id", "uid", "app", 4096, "77", 6.0, 0)]
        assert book.runtime.of_pod("uid") == list(book.runtime)
        assert book.complete
    book.close()


def test_the_number_of_records_is_bounded_and_known_ones_can_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_records, "MOST", 1)
    written: list[object] = []
    records = runtime_records.RuntimeRecords(written.append)
    records.expected = True
    records.put(RECORD)
    records.put(RECORD)
    assert written == [RECORD], "it was written twice"
    with pytest.raises(OverflowError):
        records.put(runtime_records.RuntimeRecord("other", "uid"))
    records.see("third", "uid", 1.0)
    records.put(runtime_records.RuntimeRecord("id", "another", "app"))
    assert [each.id for each in records] == ["id"]
    assert (records.of_pod("uid"), len(records.of_pod("another"))) == ([], 1)


def test_a_cgroup_that_is_seen_changes_no_record() -> None:
    records = runtime_records.RuntimeRecords(lambda _: None)
    records.see("id", "uid", 1.0)
    assert len(records) == 0, "no plugin is expected"
    records.expected = True
    records.put(RECORD)
    records.see("id", "uid", 9.0)
    assert records.get("id") == RECORD
