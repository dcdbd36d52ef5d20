"""What can't be given is said in one message, with a way out."""

import shutil

import pytest

from testbed.base import host


def test_need_names_what_is_missing_and_the_remedy() -> None:
    host.need(fulfilled=True, missing="nothing", remedy="nothing")
    with pytest.raises(host.SetupError, match=r"no moon here\n  What to do: wait for the night"):
        host.need(fulfilled=None, missing="no moon here", remedy="wait for the night")


def test_without_root_the_command_to_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_apt", lambda: True)
    monkeypatch.setattr(host, "is_root", lambda: False)
    monkeypatch.setattr(host, "_installed", lambda package: package == "present")
    host.apt_install(["present"], "the test")
    with pytest.raises(host.SetupError) as failure:
        host.apt_install(["present", "absent"], "the test")
    assert "sudo apt-get update && sudo apt-get install -y -q --no-install-recommends absent" in str(failure.value)


def test_without_apt_get_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(host.SetupError, match="qemu-system-x86"):
        host.apt_install(["qemu-system-x86"], "the kernel VM")
