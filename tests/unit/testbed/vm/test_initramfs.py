"""Which kernel the kernel VM boots."""

from pathlib import Path

import pytest

from testbed.base import cache, debian, host
from testbed.vm import initramfs


def test_an_unknown_kernel_is_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(initramfs.VARIABLE, "5.10")
    with pytest.raises(host.SetupError, match=r"no kernel 5\.10\n.*one of 6\.1, 6\.12"):
        initramfs.ensure()


def test_each_kernel_and_choice_of_modules_has_files_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "release").touch()
    asked: list[str] = []

    def made(name: str, _: object) -> Path:
        asked.append(name)
        return tmp_path

    monkeypatch.setattr(cache, "made", made)
    for version in ("", *initramfs.SUITES):
        monkeypatch.setenv(initramfs.VARIABLE, version)
        initramfs.ensure()
    for name in ("MODULES", "ON_DEMAND"):
        monkeypatch.setattr(initramfs, name, (*getattr(initramfs, name), "another"))
        initramfs.ensure()
    assert len(set(asked)) == 1 + len(initramfs.SUITES) + 2


def test_packages_of_another_suite_come_from_where_this_machine_has_debians() -> None:
    targets = """Google cloud-sdk https://packages.example/apt cloud-sdk main
Debian bookworm-security https://mirror.example/debian-security bookworm-security main
Debian bookworm https://mirror.example/debian bookworm contrib
Debian bookworm https://mirror.example/debian bookworm main
"""
    assert debian.repository(targets, "the test") == "https://mirror.example/debian"
    with pytest.raises(host.SetupError, match="no package sources of Debian"):
        debian.repository(targets.replace("Debian", "Ubuntu"), "the test")
