from __future__ import annotations

import errno
import logging
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.ledger import ledger, replaced_file
from swapwarden.agent.reconcile.settings import next_setting

MIB = 1 << 20
MAX = cgroupfs.NO_LIMIT
SWAP_MAX = "memory.swap.max"
POD = ledger.Key(SWAP_MAX, "pod", inode=7)
SWAPPINESS = ledger.Key("vm.swappiness")
LATENCY = ledger.Key("io.latency", "system.slice", "254:0", 3)
SETTING = pytest.mark.parametrize("key", [SWAPPINESS, LATENCY])
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


def pod(path: str, inode: int = 1) -> ledger.Key:
    return ledger.Key(SWAP_MAX, path, inode=inode)


def reopened(book: ledger.Ledger, folder: pathlib.Path) -> ledger.Ledger:
    """Return the ledger of the next run of the agent."""
    book.close()
    return ledger.Ledger(folder)


def limit_records(book: ledger.Ledger) -> dict[ledger.Key, ledger.LimitRecord]:
    return {record.key: record for record in book.limits}


def setting_records(book: ledger.Ledger) -> dict[ledger.Key, ledger.SettingRecord]:
    return {record.key: record for record in book.settings}


class Killed(BaseException):
    """No handler of the agent's sees this one, as with SIGKILL."""


T = TypeVar("T")


class Disk:
    """Stands where the module has `os`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.tries = 0
        self.torn_at: int | None = None
        """Bytes of a line that still fit on a disk that is full."""
        self.kill_in: int | None = None
        """Calls until the agent is killed; half of a line is written by then."""
        monkeypatch.setattr(ledger, "os", self)
        monkeypatch.setattr(replaced_file, "os", self)
        real = pathlib.Path.replace
        monkeypatch.setattr(pathlib.Path, "replace", lambda path, to: self._step(lambda: real(path, to)))

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _step(self, call: Callable[[], T], half: Callable[[], object] = lambda: None) -> T:
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                half()
                raise Killed
        return call()

    def _fail_if_full(self) -> None:
        if self.full:
            self.tries += 1
            raise NO_ROOM

    def open(self, path: pathlib.Path, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT and self.torn_at is None:
            self._fail_if_full()
        return os.open(path, flags, *mode)

    def write(self, fd: int, data: bytes) -> int:
        if self.full and self.torn_at is not None:
            return os.write(fd, data[: self.torn_at])
        self._fail_if_full()
        return self._step(lambda: os.write(fd, data), lambda: os.write(fd, data[: len(data) // 2]))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


# The ledger as a whole


def test_the_first_run_differs_from_later_ones(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    assert (book.is_new, book.initialised, book.complete) == (True, False, True)
    book = reopened(book, tmp_path)
    assert (book.is_new, book.initialised, book.complete) == (False, False, True)
    book.initialise()
    for _ in range(2):
        book = reopened(book, tmp_path)
        assert (book.is_new, book.initialised, book.complete) == (False, True, True)


def test_lost_lines_are_remembered_until_the_next_boot(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.mark_incomplete()
    size = (tmp_path / ledger.FILE).stat().st_size
    book.mark_incomplete()
    assert (tmp_path / ledger.FILE).stat().st_size == size
    for _ in range(2):
        book = reopened(book, tmp_path)
        assert not book.complete


def test_removed_it_leaves_nothing(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.limits.record(POD, 5, 0)
    (tmp_path / "ledger.new").touch()
    book.remove()
    book.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ledger.EARLIER)
def test_records_of_an_earlier_version_are_refused_and_kept(tmp_path: pathlib.Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(
        ledger.LedgerError, match=rf"earlier version \({name}\).*uninstall that version first, or remove"
    ):
        ledger.Ledger(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    (tmp_path / name).unlink()
    book = ledger.Ledger(tmp_path)
    (tmp_path / name).touch()
    reopened(book, tmp_path).close()


def test_records_of_a_later_version_are_refused_and_kept(tmp_path: pathlib.Path) -> None:
    content = b'{"version":2}\n{"limit":{"key":["memory.swap.max","pod","",7],"maybe":1}}\n'
    (tmp_path / ledger.FILE).write_bytes(content)
    with pytest.raises(ledger.LedgerError, match="later version"):
        ledger.Ledger(tmp_path)
    assert (tmp_path / ledger.FILE).read_bytes() == content


def test_an_unreadable_file_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / ledger.FILE).mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        ledger.Ledger(tmp_path)


def test_a_fifo_in_its_place_does_not_hold_up_the_agent(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / ledger.FILE)
    book = ledger.Ledger(tmp_path)
    assert not book.complete
    assert (tmp_path / ledger.FILE).is_file()
    book.close()


def test_a_link_in_its_place_is_not_followed(tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / "ledger.new").symlink_to(other)
    ledger.Ledger(tmp_path).close()
    assert other.read_text() == "kept"
    (tmp_path / ledger.FILE).symlink_to(other)
    with pytest.raises(OSError, match="symbolic"):
        ledger.Ledger(tmp_path)


def test_metrics_count_limits_and_settings(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.limits.mark_known(pod("a"))
    book.limits.mark_known(pod("b"))
    book.settings.record(LATENCY, "default", "target=1")
    book.publish()
    assert (ledger.LIMITS.value(), ledger.SETTINGS.value()) == (2, 1)


# Limits


def test_the_first_found_and_the_last_written_values_are_kept(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    for observed, value in ((MAX, 3 * MIB), (3 * MIB, 2 * MIB), (2 * MIB, MIB), (MIB, MIB)):
        book.limits.record(POD, observed, value)
    book = reopened(book, tmp_path)
    record = book.limits.get(POD)
    assert record == ledger.LimitRecord(POD, MAX, (2 * MIB, MIB))
    assert record.last_applied == MIB


def test_another_writers_value_becomes_the_found_one(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    for observed, value in ((MAX, MIB), (5, MIB), (MIB, 2 * MIB)):
        book.limits.record(POD, observed, value)
    assert reopened(book, tmp_path).limits.get(POD) == ledger.LimitRecord(POD, 5, (MIB, 2 * MIB), unit=MAX)


def test_a_value_that_later_ones_failed_to_replace_stays_the_agents(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.limits.record(POD, MAX, 1)
    for refused in (2, 3, 4):
        book.limits.record(POD, 1, refused)
    assert reopened(book, tmp_path).limits.get(POD) == ledger.LimitRecord(POD, MAX, (1, 4))


def test_a_zero_that_systemd_writes_for_the_agent_is_not_the_found_value(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.limits.set_systemd_zero(POD, held=True)
    assert book.limits.get(POD) == ledger.LimitRecord(POD, MAX, systemd_zero=True)
    for observed, value in ((0, MIB), (0, MIB), (MIB, 2 * MIB), (0, 2 * MIB)):
        book.limits.record(POD, observed, value)
    book = reopened(book, tmp_path)
    assert book.limits.get(POD) == ledger.LimitRecord(POD, MAX, (MIB, 2 * MIB), systemd_zero=True)
    book.limits.record(POD, 5, MIB)
    assert book.limits.get(POD) == ledger.LimitRecord(POD, 5, (MIB,), systemd_zero=True, unit=MAX)
    book.limits.mark_known(POD)
    assert book.limits.get(POD) == ledger.LimitRecord(POD, systemd_zero=True)
    book.limits.set_systemd_zero(POD, held=False)
    book.limits.record(POD, 0, MIB)
    assert reopened(book, tmp_path).limits.get(POD) == ledger.LimitRecord(POD, 0, (MIB,))


def test_values_written_before_systemd_had_the_drop_ins_are_kept(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.limits.record(pod("a"), MAX, MIB)
    book.limits.record(pod("b"), 5, MIB)
    for path in "ab":
        book.limits.set_systemd_zero(pod(path), held=True)
    book = reopened(book, tmp_path)
    assert book.limits.get(pod("a")) == ledger.LimitRecord(pod("a"), MAX, (MIB,), systemd_zero=True)
    assert book.limits.get(pod("b")) == ledger.LimitRecord(pod("b"), 5, (MIB,), systemd_zero=True)


def test_the_value_of_systemd_outlasts_other_writes(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)

    def unit_value() -> int | None:
        nonlocal book
        book = reopened(book, tmp_path)
        record = book.limits.get(POD)
        return None if record is None else record.unit_value

    book.limits.set_unit_value(POD, 4096)
    assert unit_value() is None, "there is no record of it"
    book.limits.record(POD, 4096, MIB)
    assert unit_value() == 4096
    book.limits.record(POD, 0, MIB)
    book.limits.set_systemd_zero(POD, held=False)
    assert unit_value() == 4096
    book.limits.set_unit_value(POD, 8192)
    assert unit_value() == 8192
    book.limits.record(POD, 8192, MIB)
    book.limits.set_unit_value(POD, 8192)
    assert unit_value() == 8192


def test_a_later_cgroup_of_the_same_name_is_another(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.limits.record(pod("a", 7), 5, 0)
    assert book.limits.get(pod("a", 8)) is None
    book.limits.forget(pod("a", 8))
    assert book.limits.has_name(SWAP_MAX, "a")
    assert book.limits.has_names(("memory.high", SWAP_MAX), ("b", "a"))
    assert not book.limits.has_names(("memory.high", SWAP_MAX), ("c", "d"))
    book.limits.record(pod("a", 8), 6, 0)
    assert limit_records(reopened(book, tmp_path)) == {pod("a", 8): ledger.LimitRecord(pod("a", 8), 6, (0,))}


def test_a_cgroup_that_was_only_seen_gets_its_found_value_with_the_first_write(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.limits.mark_known(POD)
    record = book.limits.get(POD)
    assert record == ledger.LimitRecord(POD)
    assert record.last_applied is None
    book.limits.record(POD, 5, 0)
    assert reopened(book, tmp_path).limits.get(POD) == ledger.LimitRecord(POD, 5, (0,))


def test_a_forgotten_record_stays_forgotten(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.limits.record(POD, 5, 0)
    book.settings.record(SWAPPINESS, "60", "1")
    book.settings.record(LATENCY, "default", "target=1")
    book.limits.forget(POD)
    book.settings.forget(SWAPPINESS)
    book.settings.forget(SWAPPINESS)
    book = reopened(book, tmp_path)
    assert list(book.limits) == []
    assert [record.key for record in book.settings] == [LATENCY]
    assert not book.limits.has_name(SWAP_MAX, "pod")


def test_repairs_with_the_same_value_write_nothing(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    book.limits.record(POD, MAX, 0)
    book.limits.record(pod("refuses"), 1, 2)
    book.limits.record(pod("refuses"), 2, 3)
    size = (tmp_path / ledger.FILE).stat().st_size
    for _ in range(100):
        book.limits.record(POD, MAX, 0)
        book.limits.record(pod("refuses"), 2, 3)
        book.limits.set_systemd_zero(POD, held=False)
        book.limits.set_unit_value(POD, MAX)
    assert (tmp_path / ledger.FILE).stat().st_size == size


# Settings


@SETTING
def test_the_original_of_a_setting_is_kept(tmp_path: pathlib.Path, key: ledger.Key) -> None:
    book = ledger.Ledger(tmp_path)
    for observed, value in (("60", "1"), ("1", "2"), ("2", "3"), ("3", "4")):
        book.settings.record(key, observed, value)
    book = reopened(book, tmp_path)
    assert book.settings.get(key) == ledger.SettingRecord(key, "60", ("3", "4"))
    assert book.settings.get(key._replace(inode=key.inode + 1)) is None


@SETTING
def test_a_foreign_value_becomes_the_original_of_a_setting(tmp_path: pathlib.Path, key: ledger.Key) -> None:
    book = ledger.Ledger(tmp_path)
    book.settings.record(key, "60", "1")
    book.settings.record(key, "50", "1")
    assert reopened(book, tmp_path).settings.get(key) == ledger.SettingRecord(key, "50", ("1",))


@SETTING
def test_a_value_that_was_perhaps_not_written_is_kept(tmp_path: pathlib.Path, key: ledger.Key) -> None:
    book = ledger.Ledger(tmp_path)
    book.settings.record(key, "60", "1")
    book.settings.record(key, "60", "2")
    assert reopened(book, tmp_path).settings.get(key) == ledger.SettingRecord(key, "60", ("1", "2"))


@SETTING
@pytest.mark.parametrize("torn_at", [None, 0, 9])
def test_a_setting_that_cannot_be_recorded_has_no_record(
    tmp_path: pathlib.Path, disk: Disk, key: ledger.Key, torn_at: int | None
) -> None:
    now = [0.0]
    book = ledger.Ledger(tmp_path, lambda: now[0])
    book.settings.record(pod("other"), "1", "2")
    disk.full, disk.torn_at = True, torn_at
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            book.settings.record(key, "60", "1")
        assert book.settings.get(key) is None
        with pytest.raises(OSError, match="No space left"):
            book.settings.forget(pod("other"))
        assert book.settings.get(pod("other")) is not None
        now[0] += ledger.RETRY_SECONDS
    disk.full = False
    book.settings.record(key, "60", "1")
    assert reopened(book, tmp_path).settings.get(key) == ledger.SettingRecord(key, "60", ("1",))


def test_a_setting_with_a_longer_value_than_can_be_read_again_has_no_record(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    for observed, value in (("9" * 65, "1"), ("1", "9" * 65)):
        with pytest.raises(OSError, match="64 characters"):
            book.settings.record(SWAPPINESS, observed, value)
    book.settings.record(SWAPPINESS, "\ufffd" * 64, "9" * 64)
    assert len(list(reopened(book, tmp_path).settings)) == 1


def test_a_name_that_is_no_unicode_spoils_no_other_record(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    with pytest.raises(UnicodeEncodeError):
        book.limits.mark_known(pod("\udcff"))
    with pytest.raises(UnicodeEncodeError):
        book.settings.record(ledger.Key("\udcff"), "1", "2")
    assert (list(book.limits), list(book.settings)) == ([], [])
    book.limits.mark_known(POD)
    book = reopened(book, tmp_path)
    assert [record.key for record in book.limits] == [POD]
    assert list(book.settings) == []


RECORD = ledger.SettingRecord(SWAPPINESS, "60", ("10", "20"))


@pytest.mark.parametrize(
    ("observed", "desired", "record", "step"),
    [
        ("10", "10", None, (None, False)),
        ("10", "10", RECORD, (None, False)),
        ("60", "10", None, ("10", False)),
        ("60", "10", RECORD, ("10", False)),
        ("10", "30", RECORD, ("30", False)),
        ("33", "10", None, ("10", False)),
        ("33", "10", RECORD, ("10", True)),
        ("60", None, None, (None, False)),
        ("60", None, RECORD, (None, False)),
        ("10", None, RECORD, ("60", False)),
        ("20", None, RECORD, ("60", False)),
        ("33", None, RECORD, (None, True)),
    ],
)
def test_a_setting_gets_its_desired_or_its_earlier_value(
    observed: str, desired: str | None, record: ledger.SettingRecord | None, step: tuple[str | None, bool]
) -> None:
    assert msgspec.structs.astuple(next_setting(observed, desired, record)) == step


# A full disk


def test_a_full_disk_does_not_stop_a_limit(
    tmp_path: pathlib.Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    book = ledger.Ledger(tmp_path)
    disk.full = True
    book.limits.record(POD, 5, 0)
    assert book.limits.get(POD) == ledger.LimitRecord(POD, 5, (0,))
    assert "cannot write the ledger" in caplog.text


def test_a_disk_that_stays_full_is_tried_and_reported_now_and_then(
    tmp_path: pathlib.Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    book = ledger.Ledger(tmp_path, lambda: now[0])
    disk.full = True
    failures = replaced_file.FAILURES.value()
    for number in range(1000):
        now[0] += 1 / 16
        book.limits.record(pod("pod", number), 5, 0)
    assert replaced_file.FAILURES.value() == failures + 1000
    assert disk.tries == 64
    assert caplog.text.count("cannot write the ledger") == 2
    disk.full = False
    now[0] += ledger.RETRY_SECONDS
    book.retry()
    assert reopened(book, tmp_path).limits.get(pod("pod", 999)) == ledger.LimitRecord(pod("pod", 999), 5, (0,))


def test_lines_lost_on_a_full_disk_are_known_to_be_lost(tmp_path: pathlib.Path, disk: Disk) -> None:
    book = ledger.Ledger(tmp_path)
    book.initialise()
    disk.full, disk.torn_at = True, 0
    book.limits.record(POD, 5, 0)
    assert book.complete, "memory has it"
    disk.full = False
    for _ in range(2):
        book = reopened(book, tmp_path)
        assert (book.complete, book.initialised, book.limits.get(POD)) == (False, True, None)


def test_a_line_that_did_not_fit_does_not_spoil_the_next(tmp_path: pathlib.Path, disk: Disk) -> None:
    now = [0.0]
    book = ledger.Ledger(tmp_path, lambda: now[0])
    disk.full, disk.torn_at = True, 9
    book.limits.record(pod("a"), 5, 0)
    disk.full = False
    now[0] += ledger.RETRY_SECONDS
    book.limits.record(pod("b"), 6, 0)
    bad = ledger.BAD_LINES.value()
    book = reopened(book, tmp_path)
    assert list(limit_records(book)) == [pod("a"), pod("b")]
    assert (book.complete, ledger.BAD_LINES.value()) == (True, bad)


def test_an_agent_that_starts_on_a_full_disk_knows_and_records(tmp_path: pathlib.Path, disk: Disk) -> None:
    now = [0.0]
    book = ledger.Ledger(tmp_path)
    book.limits.record(pod("old"), 5, 0)
    book.close()
    failures = replaced_file.FAILURES.value()
    disk.full = True
    book = ledger.Ledger(tmp_path, lambda: now[0])
    book.limits.record(pod("new"), 6, 0)
    assert replaced_file.FAILURES.value() == failures + 2
    assert book.limits.get(pod("old")) == ledger.LimitRecord(pod("old"), 5, (0,))
    disk.full = False
    now[0] += ledger.RETRY_SECONDS
    book.limits.record(pod("newest"), 7, 0)
    assert list(limit_records(reopened(book, tmp_path))) == [pod("old"), pod("new"), pod("newest")]


def test_a_first_start_on_a_full_disk_records_all_once_there_is_room(tmp_path: pathlib.Path, disk: Disk) -> None:
    now = [0.0]
    disk.full = True
    book = ledger.Ledger(tmp_path, lambda: now[0])
    book.initialise()
    book.limits.record(pod("first"), 5, 0)
    disk.full = False
    now[0] += ledger.RETRY_SECONDS
    book.limits.record(pod("second"), 6, 0)
    book = reopened(book, tmp_path)
    assert list(limit_records(book)) == [pod("first"), pod("second")]
    assert book.initialised


# Its size


def test_the_file_stays_bounded(tmp_path: pathlib.Path) -> None:
    book = ledger.Ledger(tmp_path)
    for number in range(20_000):
        book.limits.record(POD, 99, number % 3)
    for number in range(2_000):
        book.settings.record(SWAPPINESS, str(number), "1")
    assert (tmp_path / ledger.FILE).stat().st_size <= ledger.COMPACT_BYTES + 200


def test_a_failure_to_compact_leaves_the_file_as_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "COMPACT_BYTES", 300)
    book = ledger.Ledger(tmp_path)
    (tmp_path / "ledger.new").mkdir()
    failures = replaced_file.FAILURES.value()
    for number in range(10):
        book.limits.record(POD, 99, number)
        book.settings.record(SWAPPINESS, "60", str(number))
    assert 1 <= replaced_file.FAILURES.value() - failures <= 4, "each attempt follows after twice as many bytes"
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / ledger.FILE).write_bytes((tmp_path / ledger.FILE).read_bytes())
    other = ledger.Ledger(copy)
    assert other.limits.get(POD) == ledger.LimitRecord(POD, 99, (8, 9))
    assert other.settings.get(SWAPPINESS) == ledger.SettingRecord(SWAPPINESS, "60", ("8", "9"))
    (tmp_path / "ledger.new").rmdir()
    for number in range(50):
        book.limits.record(POD, 99, number)
    assert (tmp_path / ledger.FILE).stat().st_size < 900
    assert book.limits.get(POD) == reopened(book, tmp_path).limits.get(POD)


def test_no_more_of_a_file_is_read_than_its_bound(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_file, "MAX_BYTES", 4096)
    book = ledger.Ledger(tmp_path)
    for number in range(100):
        book.limits.mark_known(pod(f"{number}"))
    assert (tmp_path / ledger.FILE).stat().st_size > 4096
    book = reopened(book, tmp_path)
    assert 0 < len(list(book.limits)) < 100
    assert not book.complete


# Garbage


@pytest.mark.parametrize(
    "line",
    [
        b'{"limit":{"key":["memory.swap.max","a","",1],"found":-1}}',
        b'{"limit":{"key":["memory.swap.max","a","",1],"found":"1"}}',
        b'{"limit":{"key":["memory.swap.max","a","",1],"found":1,"wrote":[-5]}}',
        b'{"limit":{"key":["memory.swap.max","a","",1],"wrote":[5]}}',
        b'{"limit":{"key":["memory.swap.max",7,"",1]}}',
        b'{"limit":{"key":["memory.swap.max","a","",-1]}}',
        b'{"limit":{"found":1}}',
        b'{"setting":{"key":["vm.swappiness"],"found":60,"wrote":["1"]}}',
        b'{"setting":{"key":["vm.swappiness"],"found":"60","wrote":[]}}',
        b'{"setting":{"key":["vm.swappiness"],"found":"60"}}',
        b'{"setting":{"key":["io.latency","","254:0",1],"found":"60","wrote":["1"]}}',
        b'{"setting":{"key":["vm.swappiness"],"found":"%s","wrote":["1"]}}' % (b"6" * 65),
        b'{"limit":' + b"[" * 100_000,
        b'{"limit":' + b" " * replaced_file.LINE_BYTES + b'{"key":["memory.swap.max","a","",1]}}',
        b'{"limit":{"key":["memory.swap.max","\\ud800","",1]}}',
        b"\xff\xfe",
        b"null",
        b"",
    ],
)
def test_a_line_that_makes_no_sense_is_skipped(
    tmp_path: pathlib.Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    good = b'{"limit":{"key":["memory.swap.max","b","",2]}}'
    bad, starts = ledger.BAD_LINES.value(), ledger.BAD_STARTS.value()
    (tmp_path / ledger.FILE).write_bytes(b'{"version":1}\n' + line + b"\n" + good + b"\n")
    book = ledger.Ledger(tmp_path)
    assert ([record.key for record in book.limits], list(book.settings)) == ([pod("b", 2)], [])
    assert not book.complete
    assert ledger.BAD_LINES.value() > bad
    assert ledger.BAD_STARTS.value() == starts + 1
    assert "unreadable lines" in caplog.text
    bad = ledger.BAD_LINES.value()
    book = reopened(book, tmp_path)
    assert ([record.key for record in book.limits], ledger.BAD_LINES.value()) == ([pod("b", 2)], bad)
    assert not book.complete


@pytest.mark.parametrize("line", [b'{"gone":["memory.swap.max","a","",1]}', b'{"gone":["x"]}', b'{"more":1}'])
def test_the_end_of_a_missing_record_changes_nothing(tmp_path: pathlib.Path, line: bytes) -> None:
    (tmp_path / ledger.FILE).write_bytes(b'{"version":1}\n' + line + b"\n")
    book = ledger.Ledger(tmp_path)
    assert (list(book.limits), list(book.settings), book.complete) == ([], [], True)


def test_a_file_that_lost_its_beginning_is_incomplete(tmp_path: pathlib.Path) -> None:
    (tmp_path / ledger.FILE).touch()
    assert not ledger.Ledger(tmp_path).complete


GOOD = b"".join(
    msgspec.json.encode(line) + b"\n"
    for line in (
        {"version": 1, "initialised": True},
        {"limit": {"key": ["memory.swap.max", "a", "", 1], "found": MAX, "wrote": [5, 6], "unit": 7}},
        {"limit": {"key": ["memory.swap.max", "b", "", 2], "systemd_zero": True}},
        {"setting": {"key": ["io.latency", "system.slice", "254:0", 3], "found": "default", "wrote": ["target=1"]}},
        {"gone": ["memory.swap.max", "b", "", 2]},
    )
)
pieces = st.one_of(
    st.binary(max_size=8), st.sampled_from([b'"', b"}", b"]", b"\n", b"null", b"-1", b"1e400", b"9" * 30])
)


@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 40), pieces), min_size=1, max_size=4),
    )
)
def test_garbage_stops_no_agent_and_its_readable_part_can_be_read_again(
    garbage: bytes | list[tuple[int, int, bytes]],
) -> None:
    logging.disable()
    if isinstance(garbage, list):
        content = GOOD
        for begin, length, piece in garbage:
            content = content[:begin] + piece + content[begin + length :]
    else:
        content = garbage
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / ledger.FILE).write_bytes(content)
        try:
            book = ledger.Ledger(folder)
        except ledger.LedgerError:
            assert (folder / ledger.FILE).read_bytes() == content
            return
        for limit in book.limits:
            book.limits.record(limit.key, 1, 2)
        for setting in book.settings:
            book.settings.record(setting.key, "1", "2")
        known = limit_records(book), setting_records(book), book.initialised, book.complete
        book = reopened(book, folder)
        assert (limit_records(book), setting_records(book), book.initialised, book.complete) == known
        book.close()
    logging.disable(logging.NOTSET)


# Killed


keys = st.sampled_from([pod("a"), pod("b"), SWAPPINESS, LATENCY])
steps_ = st.lists(
    st.one_of(
        st.tuples(st.just("write"), keys, st.integers(0, 3).map(lambda value: 2 * value)),
        st.tuples(st.just("refused"), keys, st.integers(0, 3).map(lambda value: 2 * value)),
        st.tuples(st.just("foreign"), keys, st.integers(0, 3).map(lambda value: 2 * value + 1)),
        st.tuples(st.just("restore"), keys, st.just(0)),
        st.tuples(st.just("full"), keys, st.integers(0, 2)),
        st.tuples(st.just("kill"), keys, st.integers(0, 3)),
    ),
    min_size=1,
    max_size=25,
)


class Host:
    """Files with numbers, and an agent that writes even ones to them; others write odd ones."""

    def __init__(self, folder: pathlib.Path, disk: Disk) -> None:
        self.folder = folder
        self.disk = disk
        self.now = 0.0
        self.holds = dict.fromkeys((pod("a"), pod("b"), SWAPPINESS, LATENCY), 1)
        self.foreign = dict(self.holds)
        self.unsaved: set[ledger.Key] = set()
        """Limits that were written while the disk was full: memory alone has their records."""
        self.lost: set[ledger.Key] = set()
        """Those that were so when the agent was killed."""
        self.book = ledger.Ledger(folder, lambda: self.now)

    def do(self, kind: str, key: ledger.Key, value: int) -> None:
        self.now += 0.4
        if kind == "foreign":
            self.holds[key] = self.foreign[key] = value
            self.lost.discard(key)
        elif kind == "full":
            self.disk.full, self.disk.torn_at = value > 0, None if value == 1 else 9
            if not self.disk.full:
                self.book.retry()
                self.unsaved.clear()
        elif kind == "kill":
            self.disk.kill_in = value
        elif key.path and not key.device:
            self._limit(kind, key, value)
        else:
            self._setting(kind, key, value)

    def _limit(self, kind: str, key: ledger.Key, value: int) -> None:
        observed = self.holds[key]
        record = self.book.limits.get(key)
        if kind != "restore":
            if observed != value:
                self.book.limits.record(key, observed, value)
                self.holds[key] = value if kind == "write" else observed
                if self.disk.full:
                    self.unsaved.add(key)
        elif record is not None and observed in record.wrote:
            assert record.found is not None
            self.holds[key] = record.found
            self.book.limits.mark_known(key)

    def _setting(self, kind: str, key: ledger.Key, value: int) -> None:
        observed, desired = str(self.holds[key]), None if kind == "restore" else str(value)
        step = next_setting(observed, desired, self.book.settings.get(key))
        try:
            if desired is not None and step.write is not None:
                self.book.settings.record(key, observed, desired)
        except OSError:
            return
        if step.write is not None and kind != "refused":
            self.holds[key] = int(step.write)
        if desired is None:
            try:
                self.book.settings.forget(key)
            except OSError:
                assert self.book.settings.get(key) is not None

    def restart(self) -> None:
        self.book.close()
        self.lost |= self.unsaved
        self.unsaved.clear()
        self.disk.kill_in = None
        self.disk.full = False
        self.book = ledger.Ledger(self.folder, lambda: self.now)

    def check(self) -> None:
        for key, value in self.holds.items():
            record: ledger.LimitRecord | ledger.SettingRecord | None
            is_limit = key.path and not key.device
            record = self.book.limits.get(key) if is_limit else self.book.settings.get(key)
            if value % 2 == 0 and key not in self.lost:
                assert record is not None, key
                assert str(value) in map(str, record.wrote), key
                assert str(record.found) == str(self.foreign[key]), key


@settings(max_examples=300)
@given(steps_)
def test_killed_anywhere_on_any_disk_every_value_of_the_agent_is_on_record_with_the_earlier_one(
    steps: list[tuple[str, ledger.Key, int]],
) -> None:
    """Each write, each half-written line and each replacement of the file may be the last thing that an agent does.

    A limit that was written while the disk was full may be forgotten by the next agent. A setting never is.
    """
    logging.disable()
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ledger, "COMPACT_BYTES", 400)
        host = Host(pathlib.Path(name), Disk(monkeypatch))
        for step in steps:
            try:
                host.do(*step)
            except Killed:
                host.restart()
            host.check()
        host.restart()
        host.check()
        host.book.close()
    logging.disable(logging.NOTSET)


@given(steps_, st.data())
def test_cut_at_any_byte_the_file_loses_its_last_lines_alone(
    steps: list[tuple[str, ledger.Key, int]], data: st.DataObject
) -> None:
    logging.disable()
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkeypatch:
        folder = pathlib.Path(name)
        host = Host(folder, Disk(monkeypatch))
        file = folder / ledger.FILE

        def state() -> tuple[object, object]:
            return limit_records(host.book), setting_records(host.book)

        states, sizes = [state()], [file.stat().st_size]
        for kind, key, value in steps:
            if kind not in {"full", "kill"}:
                host.do(kind, key, value)
                states.append(state())
                sizes.append(file.stat().st_size)
        cut = data.draw(st.integers(sizes[0], sizes[-1]))
        content = file.read_bytes()[:cut]
        host.book.close()
        file.write_bytes(content)
        whole = max(index for index, size in enumerate(sizes) if size <= cut)
        # A line that lacks only its end of line is also whole.
        follower = next((index for index, size in enumerate(sizes) if size == cut + 1), whole)
        host.book = ledger.Ledger(folder)
        assert state() in (states[whole], states[follower])
        host.book.close()
    logging.disable(logging.NOTSET)
