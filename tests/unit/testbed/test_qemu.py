from __future__ import annotations

import pytest

from testbed.base import host, process
from testbed.vm import qemu


@pytest.fixture(autouse=True)
def kvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """KVM seems to work, and nothing has failed or been chosen yet."""
    monkeypatch.setattr(host, "kvm_works", lambda: True)
    monkeypatch.setattr(qemu, "_BROKEN", set())
    monkeypatch.delenv("TESTBED_ACCELERATOR", raising=False)


def test_the_best_comes_first() -> None:
    assert qemu.accelerators() == ["kvm", "tcg"]
    assert qemu.accelerators(user_mode=True) == ["kvm", "uml", "tcg"]


@pytest.mark.parametrize(
    ("chosen", "left"), [("uml", ["uml", "tcg"]), ("tcg", ["tcg"]), ("kvm", ["kvm", "uml", "tcg"])]
)
def test_one_can_be_chosen(monkeypatch: pytest.MonkeyPatch, chosen: str, left: list[str]) -> None:
    monkeypatch.setenv("TESTBED_ACCELERATOR", chosen)
    assert qemu.accelerators(user_mode=True) == left


@pytest.mark.parametrize(
    ("fails", "used"), [({}, "kvm"), ({"kvm"}, "uml"), ({"kvm", "uml"}, "tcg")], ids=["none", "kvm", "both"]
)
def test_what_fails_is_tried_once(fails: set[str], used: str) -> None:
    started: list[str] = []

    def start(name: str) -> None:
        started.append(name)
        if name in fails:
            raise process.ProcessError(f"{name} ended\nand said more")

    assert qemu.boot(start, user_mode=True) == used
    assert qemu.boot(start, user_mode=True) == used
    assert started == [*sorted(fails), used, used]


def test_that_of_the_last_resort_is_told() -> None:
    def start(name: str) -> None:
        raise process.ProcessError(name)

    with pytest.raises(process.ProcessError, match="tcg"):
        qemu.boot(start, user_mode=True)
