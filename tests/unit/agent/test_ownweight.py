"""The cpu.weight of the agent's own pod, on a directory tree."""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import AsyncIterator, Callable

import pytest
from swapwarden.agent import cgroupfs, inotify, ownweight

from tests.unit.agent.agent_node import until
from tests.unit.agent.cgroup_tree import PAGE, CgroupTree, write

FILE = "cpu.weight"


class Own:
    """The agent's own pod, and what keeps its weight."""

    def __init__(self, folder: pathlib.Path, weight: int = 1000) -> None:
        self.tree = CgroupTree(folder)
        self.pod = self.tree.pod(1)
        (self.pod / FILE).write_text("1\n")
        self.cgroups = cgroupfs.Cgroups(str(self.tree.root), PAGE)
        self.now = 1000.0
        self.path: str | None = str(self.pod.relative_to(self.tree.root))
        self.keeper = ownweight.OwnWeight(self.cgroups, weight, lambda: self.path, clock=lambda: self.now)

    @property
    def weight(self) -> str:
        return (self.pod / FILE).read_text().strip()

    def close(self) -> None:
        self.keeper.close()
        self.cgroups.close()


Make = Callable[..., Own]


@pytest.fixture
async def make(tmp_path: pathlib.Path) -> AsyncIterator[Make]:
    made: list[Own] = []

    def begin(weight: int = 1000) -> Own:
        made.append(Own(tmp_path, weight))
        return made[-1]

    yield begin
    for each in made:
        each.close()


async def test_the_weight_is_written_and_written_again_when_systemd_reads_its_units(make: Make) -> None:
    own, rewrites = make(), ownweight.REWRITES.value()
    own.keeper.find()
    assert own.weight == "1000"
    for reload in range(1, 4):
        own.now += 1
        write(own.pod, "1", FILE)
        await until(lambda: own.weight == "1000")
        assert ownweight.REWRITES.value() == rewrites + reload
    assert dict(ownweight.WEIGHT._values) == {(): 1000.0}


async def test_without_a_weight_the_file_is_the_kubelets(make: Make) -> None:
    own = make(0)
    own.keeper.find()
    own.keeper.check()
    assert own.weight == "1"


async def test_the_own_pod_may_become_known_late_and_be_made_anew(make: Make) -> None:
    own = make()
    path, own.path = own.path, None
    own.keeper.find()
    own.keeper.check()
    assert own.weight == "1"
    own.path = path
    own.keeper.find()
    assert own.weight == "1000"
    own.pod = own.tree.pod(2)
    (own.pod / FILE).write_text("1\n")
    own.path = str(own.pod.relative_to(own.tree.root))
    own.keeper.check()
    assert own.weight == "1000"
    write(own.pod, "1", FILE)
    own.now += 1
    await until(lambda: own.weight == "1000")


async def test_to_a_writer_that_insists_the_agent_gives_way_for_ever_longer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers that answer each other's events would take a whole CPU."""
    monkeypatch.setattr(ownweight, "CONTEST_SECONDS", (1000.0, 1000.0))
    own, rewrites = make(), ownweight.REWRITES.value()
    own.keeper.find()
    own.now += 1
    write(own.pod, "1", FILE)
    await until(lambda: own.weight == "1000")
    write(own.pod, "1", FILE)  # at the same moment of the agent's clock
    await until(lambda: ownweight.REWRITES.value() == rewrites + 2)
    assert own.weight == "1"
    own.keeper.check()
    assert own.weight == "1000", "a full comparison does not wait"


@pytest.mark.parametrize("how", ["gone", "garbage", "watch"])
async def test_what_fails_is_told_once_and_tried_again(
    how: str, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ownweight, "FAILED_SECONDS", (0.001, 0.001))
    own, failures = make(), ownweight.FAILURES.value()
    file = own.pod / FILE
    with monkeypatch.context() as broken:
        if how == "gone":
            file.unlink()
        elif how == "garbage":
            file.write_text("many\n")
        else:

            def refuse(*_: object) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            broken.setattr(inotify.Inotify, "add", refuse)
        own.keeper.find()
        await until(lambda: ownweight.FAILURES.value() >= failures + 3)
        assert caplog.text.count("cpu.weight cannot be kept") == 1
        file.write_text("1\n")
    await until(lambda: own.weight == "1000")
    failures = ownweight.FAILURES.value()
    own.keeper.check()
    assert ownweight.FAILURES.value() == failures
