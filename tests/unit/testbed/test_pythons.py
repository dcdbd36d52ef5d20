from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed.base import host, paths
from testbed.run import pythons


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = pythons.of_image()
    assert isinstance(found, str)
    assert re.search(r"no python3\.\d+ on PATH", found)


def test_a_shim_that_only_fails_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pyenv puts onto PATH; the interpreter itself is among its versions."""
    version = (paths.ROOT / "Dockerfile").read_text().partition("ARG BASE=python:")[2].partition("-")[0]
    shim = tmp_path / f"python{version}"
    real = tmp_path / "versions" / f"{version}.9" / "bin" / f"python{version}"
    real.parent.mkdir(parents=True)
    shim.write_text("#!/bin/sh\nexit 127\n")
    real.write_text(f"#!/bin/sh\necho {version}.9\n")
    for each in (shim, real):
        each.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert [pythons._is(each, version) for each in pythons._candidates(version)] == [False, True]
    monkeypatch.setattr(host, "uv", lambda: None)
    monkeypatch.setattr("sys.version_info", (3, 0))
    assert "no uv" in str(pythons.of_image())
