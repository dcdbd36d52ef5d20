"""Anything missing is reported in one message, with a remedy."""

import pytest

from testbed.base import host


def test_without_root_the_command_to_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_apt", lambda: True)
    monkeypatch.setattr(host, "is_root", lambda: False)
    monkeypatch.setattr(host, "_installed", lambda package: package == "present")
    host.apt_install(["present"], "the test")
    with pytest.raises(host.SetupError) as failure:
        host.apt_install(["present", "absent"], "the test")
    assert "sudo apt-get update && sudo apt-get install -y -q --no-install-recommends absent" in str(failure.value)
