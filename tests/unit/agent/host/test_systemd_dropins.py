"""systemd's drop-in files: what the command writes and what the agent sees of them."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest
from swapwarden import __main__ as program
from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.host import systemd_dropins, worker
from swapwarden.agent.inventory import board

from tests.unit.agent.agent_node import until


def mounted(units: pathlib.Path, prefix: str = "kubepods") -> list[pathlib.Path]:
    """Where the files of the two folders are, which the kubelet makes."""
    return of_folders(units, *systemd_dropins.folders(prefix))


def of_slices(units: pathlib.Path, *names: str) -> list[pathlib.Path]:
    """Where the files of these slices are, whose folders the kubelet makes."""
    return of_folders(units, *(f"{name}.d" for name in names))


def of_folders(units: pathlib.Path, *names: str) -> list[pathlib.Path]:
    files = [units / name / systemd_dropins.FILE for name in names]
    for file in files:
        file.parent.mkdir()
    return files


def run(action: str, pods: pathlib.Path | None = None, slices: pathlib.Path | None = None, *more: str) -> int:
    folders = (("--drop-in-dir", pods), ("--slice-drop-in-dir", slices))
    return program.main(["drop-ins", action, *(f"{flag}={path}" for flag, path in folders if path), *more])


@pytest.fixture
def units(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path


def test_the_printed_files_are_the_installed_ones(units: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = mounted(units)
    assert run("install", units) == 0
    capsys.readouterr()
    assert program.main(["agent", "--print-drop-ins"]) == 0
    shown = [f"# /etc/systemd/system/{file.relative_to(units)}\n{file.read_text()}" for file in files]
    assert capsys.readouterr().out == "\n".join(shown)
    assert shown[0] == (
        "# /etc/systemd/system/kubepods-burstable-.slice.d/50-swapwarden.conf\n[Slice]\nMemorySwapMax=0\n"
    )


def test_other_trees_have_other_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["agent", "--print-drop-ins", "kubelet-kubepods"]) == 0
    assert "/etc/systemd/system/kubelet-kubepods-besteffort-.slice.d/50-swapwarden.conf" in capsys.readouterr().out


def test_a_file_that_is_right_is_left_alone(units: pathlib.Path) -> None:
    first, second = mounted(units)
    first.write_bytes(systemd_dropins.CONTENT)
    second.write_text("[Slice]\n")
    before = first.stat().st_ino
    assert run("install", units) == 0
    assert first.stat().st_ino == before
    assert second.read_bytes() == systemd_dropins.CONTENT
    assert [file.name for file in second.parent.iterdir()] == [systemd_dropins.FILE]
    assert second.stat().st_mode & 0o777 == 0o644


def test_a_link_is_replaced_and_what_it_leads_to_is_left_alone(units: pathlib.Path) -> None:
    other = units / "other"
    other.write_text("precious")
    for file in mounted(units):
        file.symlink_to(other)
        (file.parent / systemd_dropins.NEW).symlink_to(other)
    assert run("install", units) == 0
    assert other.read_text() == "precious"
    assert run("remove", units) == 0
    assert not [file for folder in units.iterdir() if folder.is_dir() for file in folder.iterdir()]


def test_only_installed_files_are_removed(units: pathlib.Path) -> None:
    burstable, besteffort = mounted(units)
    older = mounted(units, "kubelet-kubepods")
    for file in (burstable, *older):
        file.write_bytes(systemd_dropins.CONTENT)
    besteffort.write_text("[Slice]\nMemorySwapMax=1G\n")
    (burstable.parent / "10-mine.conf").write_text("[Slice]\n")
    (stranger,) = of_slices(units, "system.slice")
    stranger.write_bytes(systemd_dropins.CONTENT)
    assert run("remove", units) == 0
    left = sorted(str(file.relative_to(units)) for file in units.rglob("*.conf"))
    assert left == [
        "kubepods-besteffort-.slice.d/50-swapwarden.conf",
        "kubepods-burstable-.slice.d/10-mine.conf",
        "system.slice.d/50-swapwarden.conf",
    ]


def full(_fd: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("tolerated", [False, True])
def test_a_full_disk_leaves_the_earlier_file_and_the_agent_may_start(
    units: pathlib.Path, monkeypatch: pytest.MonkeyPatch, *, tolerated: bool
) -> None:
    first, second = mounted(units)
    first.write_text("[Slice]\n")
    monkeypatch.setattr("os.fsync", full)
    assert run("install", units, None, *(["--best-effort"] if tolerated else [])) == (0 if tolerated else 1)
    assert [(file.name, file.read_text()) for file in first.parent.iterdir()] == [(systemd_dropins.FILE, "[Slice]\n")]
    assert list(second.parent.iterdir()) == []


def test_one_file_that_cannot_be_written_keeps_no_other_from_it(units: pathlib.Path) -> None:
    first, second = mounted(units)
    second.mkdir()
    assert run("install", units) == 1
    assert first.read_bytes() == systemd_dropins.CONTENT


def test_slices_have_a_file_where_there_is_a_folder(units: pathlib.Path) -> None:
    system, other = of_slices(units, "system.slice", r"a\x2db-c.slice")
    assert run("install", None, units) == 0
    assert [file.read_text() for file in (system, other)] == ["[Slice]\nMemorySwapMax=0\n"] * 2
    other.write_text("[Slice]\nMemorySwapMax=1G\n")
    assert run("remove", None, units) == 0
    assert (system.exists(), system.parent.is_dir(), other.exists()) == (False, True, True)


@pytest.mark.parametrize("name", ["kubelet.service", "-.slice", "a-.slice", "slice", ".slice", "x-kubepods.slice"])
def test_no_folder_of_a_service_or_of_many_slices_or_of_pods_is_written_to(units: pathlib.Path, name: str) -> None:
    """Were it mounted: who writes a service's drop-ins says what it runs."""
    [file] = of_slices(units, name)
    run("install", units, units)
    assert list(file.parent.iterdir()) == []
    file.write_bytes(systemd_dropins.CONTENT)
    run("remove", units, units)
    assert file.exists()
    assert systemd_dropins.slice_files(units) == (frozenset(), frozenset())


@pytest.mark.parametrize(
    ("slices", "tree", "refused"),
    [
        ("kubelet.slice", "kubelet.slice/kubelet-kubepods.slice", True),
        ("a-b.slice", "a.slice/a-b.slice/x.slice/kubepods.slice", True),
        ("a-b.slice", "a.slice/kubepods.slice", False),
        ("system.slice", "kubepods.slice", False),
        ("system.slice", "system.slice/x.service", False),
    ],
)
def test_a_slice_with_pods_in_it_gets_no_file(units: pathlib.Path, slices: str, tree: str, *, refused: bool) -> None:
    (units / "units").mkdir()
    [file] = of_slices(units / "units", slices)
    (units / "cgroup" / tree).mkdir(parents=True)
    assert run("install", None, units / "units", f"--cgroup-root={units / 'cgroup'}") == int(refused)
    assert file.exists() is not refused


def test_waiting_ends_with_the_signal_that_ends_a_pod() -> None:
    code = "import sys; from swapwarden import __main__ as m; sys.exit(m.main(['drop-ins', 'wait']))"
    with subprocess.Popen([sys.executable, "-c", code]) as waiting:  # noqa: S603 fixed words
        # The process must end, by the signal or by itself, also if it does not wait for the signal yet.
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(30) in {0, -signal.SIGTERM}


class Viewed:
    def __init__(self, pods: pathlib.Path | None, slices: pathlib.Path | None) -> None:
        self.board = board.Board()
        self.view = systemd_zero.DropInView(pods, slices, self.board, worker.Worker())
        self.view.observe()
        self.task = asyncio.create_task(self.view.run())

    @property
    def pods(self) -> board.DropInStatus:
        return self.board.drop_ins[board.PODS]

    @property
    def slices(self) -> board.DropInStatus:
        return self.board.drop_ins[board.SLICES]


@pytest.fixture
async def viewed(units: pathlib.Path) -> AsyncIterator[Viewed]:
    for name in ("pods", "slices"):
        (units / name).mkdir()
    made = Viewed(units / "pods", units / "slices")
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_the_agent_sees_which_files_exist(units: pathlib.Path, viewed: Viewed) -> None:
    assert viewed.pods == viewed.slices == board.DropInStatus(visible=True)
    first, second = mounted(units / "pods")
    other, _ = mounted(units / "pods", "kubelet-kubepods")
    of_slices(units / "slices", "system.slice", "user.slice")
    for file in (first, second, other):
        file.write_bytes(systemd_dropins.CONTENT)
    run("install", None, units / "slices")
    (units / "slices/user.slice.d" / systemd_dropins.FILE).write_text("[Slice]\n")
    revision = viewed.board.revision
    viewed.view.check()
    await until(lambda: viewed.board.revision > revision)
    assert viewed.pods == board.DropInStatus(True, frozenset({"kubepods"}), frozenset({"kubelet-kubepods"}))
    assert viewed.slices == board.DropInStatus(True, frozenset({"system.slice"}), frozenset({"user.slice"}))
    assert Viewed(units / "pods", units / "slices").board.drop_ins == viewed.board.drop_ins, "the next agent at once"
    first.unlink()
    viewed.view.check()
    await until(lambda: not viewed.pods.held)


async def test_without_the_folders_there_is_nothing_to_see() -> None:
    viewed = Viewed(None, None)
    assert viewed.pods == viewed.slices == board.DropInStatus()
    assert viewed.board.revision == 0
    viewed.task.cancel()


async def test_a_look_does_not_wait_for_a_slow_disk(
    units: pathlib.Path, viewed: Viewed, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, reading = threading.Event(), threading.Event()

    def slow(_: pathlib.Path) -> tuple[frozenset[str], frozenset[str]]:
        reading.set()
        disk.wait(10)
        return frozenset({"kubepods"}), frozenset()

    monkeypatch.setattr(systemd_dropins, "pod_files", slow)
    viewed.view.check()
    await until(reading.is_set)
    assert not viewed.pods.held
    disk.set()
    await until(lambda: viewed.pods.held == {"kubepods"})
    assert units
