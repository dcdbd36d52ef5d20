"""The cache holds whole things only."""

from pathlib import Path

import pytest

from testbed.base import cache


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAPWARDEN_CACHE", str(tmp_path))


def test_a_finished_install_is_found(tmp_path: Path) -> None:
    with cache.install("tool-1") as folder:
        (folder / "tool").write_text("x")
        assert cache.find("tool-1") is None, "not there before it is whole"
    assert cache.find("tool-1") == tmp_path / "tool-1"
    assert [path.name for path in tmp_path.iterdir()] == ["tool-1"]


def test_a_broken_install_leaves_nothing(tmp_path: Path) -> None:
    def break_down() -> None:
        with cache.install("tool-1") as folder:
            (folder / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_down()
    assert list(tmp_path.iterdir()) == []
