"""The build's settings for this machine, and when it is repeated."""

from pathlib import Path

import pytest

from deploy.build import image


def test_pip_settings_variables_win_over_files(tmp_path: Path) -> None:
    first, second = tmp_path / "etc.conf", tmp_path / "home.conf"
    first.write_text("[global]\nindex-url = https://mirror.example/simple\ncert = /etc/ca.pem\n", encoding="ascii")
    second.write_text(
        "[global]\ntimeout = 9\nuser = yes\n[install]\nindex-url = https://u%40x:p@other.example/\n", encoding="ascii"
    )
    assert image.pip_settings([first, tmp_path / "absent", second], {}) == {
        "index-url": "https://u%40x:p@other.example/",
        "cert": "/etc/ca.pem",
        "timeout": "9",
    }
    found = image.pip_settings(
        [first], {"PIP_INDEX_URL": "https://own.example/", "PIP_CERT": "/own.pem", "PIP_USER": "1"}
    )
    assert found == {"index-url": "https://own.example/", "cert": "/own.pem"}


def test_fingerprint_sees_content_name_mode_and_options_but_no_bytecode(tmp_path: Path) -> None:
    source = tmp_path / "package"
    source.mkdir()
    (source / "a.py").write_text("1", encoding="ascii")
    seen = {image.fingerprint(tmp_path, ["package"])}
    (source / "__pycache__").mkdir()
    (source / "__pycache__/a.pyc").write_text("x", encoding="ascii")
    assert image.fingerprint(tmp_path, ["package"]) in seen
    seen.add(image.fingerprint(tmp_path, ["package"], "base"))
    (source / "a.py").write_text("2", encoding="ascii")
    seen.add(image.fingerprint(tmp_path, ["package"]))
    (source / "a.py").chmod(0o755)
    seen.add(image.fingerprint(tmp_path, ["package"]))
    (source / "a.py").rename(source / "b.py")
    seen.add(image.fingerprint(tmp_path, ["package"]))
    assert len(seen) == 5


def test_default_base() -> None:
    assert image.default_base("# x\nARG BASE=python:3-slim\nFROM ${BASE}\nARG BASE=other\n") == "python:3-slim"


def test_a_commit_that_the_clone_lacks_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAPWARDEN_CACHE", str(tmp_path))
    with pytest.raises(image.NoCommitError, match="--unshallow"):
        image.of_commit("0" * 40)
    assert not (tmp_path / f"commit-{'0' * 40}").exists()
