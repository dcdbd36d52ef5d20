from __future__ import annotations

import asyncio
import pathlib
import threading
from collections.abc import AsyncIterator

import pytest
from swapwarden import __main__ as program
from swapwarden.agent.host import systemd_dropins, worker
from swapwarden.agent.inventory import board
from swapwarden.agent.reconcile import dropin_sync
from swapwarden.kube import backoff

from tests.unit.agent.agent_node import until


def mounted(units: pathlib.Path, prefix: str = "kubepods") -> list[pathlib.Path]:
    """Where the files of the two folders are, which the kubelet makes."""
    files = [units / name / systemd_dropins.FILE for name in systemd_dropins.folders(prefix)]
    for file in files:
        file.parent.mkdir()
    return files


@pytest.fixture
def units(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path


def test_the_printed_files_are_the_installed_ones(units: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = mounted(units)
    systemd_dropins.install(units, "kubepods")
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
    systemd_dropins.install(units, "kubepods")
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
    systemd_dropins.install(units, "kubepods")
    assert other.read_text() == "precious"
    systemd_dropins.remove(units)
    assert not [file for folder in units.iterdir() if folder.is_dir() for file in folder.iterdir()]


def test_only_installed_files_are_removed(units: pathlib.Path) -> None:
    burstable, besteffort = mounted(units)
    older = mounted(units, "kubelet-kubepods")
    for file in (burstable, *older):
        file.write_bytes(systemd_dropins.CONTENT)
    besteffort.write_text("[Slice]\nMemorySwapMax=1G\n")
    (burstable.parent / "10-mine.conf").write_text("[Slice]\n")
    stranger = units / "system.slice.d"
    stranger.mkdir()
    (stranger / systemd_dropins.FILE).write_bytes(systemd_dropins.CONTENT)
    systemd_dropins.remove(units)
    left = sorted(str(file.relative_to(units)) for file in units.rglob("*.conf"))
    assert left == [
        "kubepods-besteffort-.slice.d/50-swapwarden.conf",
        "kubepods-burstable-.slice.d/10-mine.conf",
        "system.slice.d/50-swapwarden.conf",
    ]


def test_a_full_disk_leaves_the_earlier_file(units: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = mounted(units)
    first.write_text("[Slice]\n")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        systemd_dropins.install(units, "kubepods")
    assert [(file.name, file.read_text()) for file in first.parent.iterdir()] == [(systemd_dropins.FILE, "[Slice]\n")]


def test_a_folder_that_is_not_mounted_is_named_with_the_remedy(units: pathlib.Path) -> None:
    mounted(units)
    with pytest.raises(
        OSError, match=r"/kubelet-kubepods-burstable-\.slice\.d is not mounted: set agent\.dropIns\.pref"
    ):
        systemd_dropins.install(units, "kubelet-kubepods")


class Kept:
    def __init__(self, units: pathlib.Path | None) -> None:
        self.board = board.Board()
        self.brought: list[str] = []
        self.keeper = dropin_sync.DropInSync(units, self.bring, self.board, board.PODS, worker.Worker())
        self.task = asyncio.create_task(self.keeper.run())

    def bring(self, directory: pathlib.Path, prefix: str) -> None:
        self.brought.append(prefix)
        systemd_dropins.reconcile_pods(directory, prefix)


class Waits:
    """Bounds of the waits after failures, and how long each takes."""

    def __init__(self) -> None:
        self.bounds: list[float] = []
        self.seconds = 1e9

    def between(self, _: float, most: float) -> float:
        self.bounds.append(most)
        return self.seconds


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    made = Waits()
    monkeypatch.setattr(backoff, "between", made.between)
    return made


@pytest.fixture
async def kept(units: pathlib.Path) -> AsyncIterator[Kept]:
    made = Kept(units)
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_files_are_installed_and_removed_as_wanted(units: pathlib.Path, kept: Kept) -> None:
    files = mounted(units)
    kept.keeper.want("kubepods")
    await until(lambda: all(file.exists() for file in files))
    files[0].unlink()
    kept.keeper.check()
    await until(files[0].exists)
    kept.keeper.want("")
    assert kept.keeper.status.left
    await until(lambda: not kept.keeper.status.left)
    assert not any(file.exists() for file in files)
    assert kept.board.revision


async def test_an_unknown_wish_changes_nothing(units: pathlib.Path, kept: Kept) -> None:
    files = mounted(units)
    kept.keeper.want("kubepods")
    kept.keeper.want(None)
    await until(lambda: all(file.exists() for file in files))


async def test_a_failure_is_reported_and_retried(units: pathlib.Path, kept: Kept, waits: Waits) -> None:
    waits.seconds = 0.001
    before = dropin_sync.FAILURES.value()
    kept.keeper.want("kubepods")
    await until(lambda: "is not mounted" in kept.keeper.status.failed)
    assert dropin_sync.FAILURES.value() > before
    assert kept.board.revision
    files = mounted(units)
    await until(lambda: not kept.keeper.status.failed and all(file.exists() for file in files))


async def test_a_new_state_does_not_wait_for_the_retry_of_the_one_before(
    units: pathlib.Path, kept: Kept, waits: Waits
) -> None:
    """A restore must not wait for the backoff of a failed installation, whose failures do not count for it."""
    file, _ = mounted(units)
    file.write_bytes(systemd_dropins.CONTENT)
    for prefix in ("kubelet-kubepods", "other-kubepods"):
        kept.keeper.want(prefix)
        await until(lambda prefix=prefix: f"/{prefix}-" in kept.keeper.status.failed)  # type: ignore[misc] # mypy sees no type for the default
    assert waits.bounds == [dropin_sync.BACKOFF_SECONDS[0]] * 2
    kept.keeper.want("")
    await until(lambda: not kept.keeper.status.left and not kept.keeper.status.failed)
    assert not file.exists()


@pytest.mark.usefixtures("waits")
async def test_a_check_does_not_shorten_the_backoff(kept: Kept) -> None:
    kept.keeper.want("kubepods")
    await until(lambda: kept.keeper.status.failed != "")
    kept.keeper.check()
    for _ in range(5):
        await asyncio.sleep(0)
    kept.keeper.want("")
    await until(lambda: not kept.keeper.status.left)
    assert kept.brought == ["kubepods", ""]


async def test_without_a_mount_there_is_nothing_to_do() -> None:
    keeper = dropin_sync.DropInSync(None, systemd_dropins.reconcile_pods, board.Board(), board.PODS, worker.Worker())
    keeper.want("")
    assert not keeper.status.left
    assert not keeper.status.mounted


def of_slices(units: pathlib.Path, *names: str) -> list[pathlib.Path]:
    """Where the files of these slices are, whose folders the kubelet makes."""
    files = [units / f"{name}.d" / systemd_dropins.FILE for name in names]
    for file in files:
        file.parent.mkdir()
    return files


def test_slices_that_are_named_and_mounted_have_a_file(units: pathlib.Path) -> None:
    system, user = of_slices(units, "system.slice", r"a\x2db-c.slice")
    systemd_dropins.reconcile_slices(units, ("system.slice", "other.slice"))
    assert [file.exists() for file in (system, user)] == [True, False]
    assert system.read_text() == "[Slice]\nMemorySwapMax=0\n"
    assert systemd_dropins.installed(units) == {"system.slice"}
    assert not (units / "other.slice.d").exists()
    systemd_dropins.reconcile_slices(units, (r"a\x2db-c.slice",))
    assert [file.exists() for file in (system, user)] == [False, True]
    systemd_dropins.reconcile_slices(units, ())
    assert not user.exists()
    assert user.parent.is_dir()


@pytest.mark.parametrize("name", ["kubelet.service", "-.slice", "a-.slice", "slice", ".slice"])
def test_no_folder_of_a_service_or_of_many_slices_is_written_to(units: pathlib.Path, name: str) -> None:
    """Were it mounted: who writes a service's drop-ins says what it runs."""
    [file] = of_slices(units, name)
    systemd_dropins.reconcile_slices(units, (name,))
    assert list(file.parent.iterdir()) == []
    file.write_bytes(systemd_dropins.CONTENT)
    systemd_dropins.reconcile_slices(units, ())
    assert file.exists()
    assert systemd_dropins.installed(units) == frozenset()


def test_files_of_others_are_left_alone_when_a_slice_is_no_longer_named(units: pathlib.Path) -> None:
    [file] = of_slices(units, "system.slice")
    file.write_text("[Slice]\nMemorySwapMax=1G\n")
    systemd_dropins.reconcile_slices(units, ())
    assert file.read_text() == "[Slice]\nMemorySwapMax=1G\n"
    assert systemd_dropins.installed(units) == frozenset()
    systemd_dropins.reconcile_slices(units, ("system.slice",))
    assert file.read_bytes() == systemd_dropins.CONTENT


@pytest.mark.parametrize(
    ("root", "slices"),
    [
        ("kubepods.slice", ("system.slice", "kubelet.slice")),
        ("kubelet.slice/kubelet-kubepods.slice", ("system.slice",)),
        ("kubepods", ("system.slice", "kubelet.slice")),
    ],
)
def test_slices_with_pods_and_services_have_none(root: str, slices: tuple[str, ...]) -> None:
    named = (
        "system.slice",
        "kubelet.slice",
        "kubelet.service",
        "kubepods.slice",
        "kubelet-kubepods.slice",
        "-.slice",
        "a/b.slice",
    )
    assert systemd_dropins.slices(named, root) == slices


async def test_a_slice_has_its_file_while_it_is_named(units: pathlib.Path) -> None:
    system, user = of_slices(units, "system.slice", "user.slice")
    keeper = dropin_sync.DropInSync(
        units, systemd_dropins.reconcile_slices, board.Board(), board.SLICES, worker.Worker()
    )
    task = asyncio.create_task(keeper.run())
    keeper.want(("system.slice", "user.slice", "other.slice"))
    await until(lambda: system.exists() and user.exists())
    await until(lambda: keeper.status.held == {"system.slice", "user.slice"})
    again = dropin_sync.DropInSync(
        units, systemd_dropins.reconcile_slices, board.Board(), board.SLICES, worker.Worker()
    )
    again.observe()
    assert again.status.held == keeper.status.held, "the next agent knows before it writes any"
    keeper.want(("user.slice",))
    await until(lambda: not system.exists())
    await until(lambda: keeper.status.held == {"user.slice"})
    keeper.want(())
    await until(lambda: not keeper.status.left)
    assert not user.exists()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_slice_counts_as_held_before_its_file_is_known_to_be_there(
    units: pathlib.Path,
) -> None:
    """systemd may read the file while the agent waits for the disk."""
    [file] = of_slices(units, "system.slice")
    written, disk = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(directory: pathlib.Path, wanted: tuple[str, ...]) -> None:
        systemd_dropins.reconcile_slices(directory, wanted)
        loop.call_soon_threadsafe(written.set)
        disk.wait()

    keeper = dropin_sync.DropInSync(units, slow, board.Board(), board.SLICES, worker.Worker())
    task = asyncio.create_task(keeper.run())
    keeper.want(("system.slice",))
    await written.wait()
    assert file.exists()
    assert keeper.status.held == {"system.slice"}
    disk.set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
