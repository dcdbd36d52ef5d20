from __future__ import annotations

import pathlib

import pytest
from swapwarden.agent.ledger import heartbeat


def test_the_last_sign_of_the_one_before(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "alive"
    first = heartbeat.Heartbeat(file, clock=lambda: 1234.5)
    assert first.last_seen is None
    first.beat()
    assert heartbeat.Heartbeat(file, clock=lambda: 2000.0).last_seen == 1234.5
    first.close()
    later = heartbeat.Heartbeat(file, clock=lambda: 2000.0)
    later.remove()
    later.remove()
    later.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"nan", b"inf", b"-1", b"1e9", b"\x00" * 32, b"9" * 500, b"."])
def test_a_sign_that_makes_no_sense_is_none(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "alive").write_bytes(content)
    sign = heartbeat.Heartbeat(tmp_path / "alive", clock=lambda: 100.0)
    assert sign.last_seen is None
    sign.close()
    assert heartbeat.Heartbeat(tmp_path / "alive", clock=lambda: 101.0).last_seen == 100.0


def test_a_full_disk_is_survived(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign = heartbeat.Heartbeat(tmp_path / "alive")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swapwarden.agent.ledger.heartbeat.os.pwrite", full)
    sign.close()
    assert heartbeat.Heartbeat(tmp_path / "alive").last_seen is None
