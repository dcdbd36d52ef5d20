"""The testbed's VM is what the other kernel tests need: a real kernel that swaps, except where a limit forbids it."""

import errno
import signal
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed.standin import hog
from testbed.vm.kernelvm import CGROUPS, KernelVM, VMError

MIB = 1 << 20
PATIENCE = 120.0
GUEST_TMP = Path("/tmp")  # noqa: S108 - a file system of the guest's own


@pytest.fixture
def cgroup(kernel_vm: KernelVM) -> Iterator[Path]:
    """A cgroup of one test's own."""
    folder = CGROUPS / f"test-{uuid.uuid4().hex[:8]}"
    kernel_vm.mkdir(folder)
    yield folder
    kernel_vm.write(folder / "cgroup.kill", "1")
    kernel_vm.wait_for(folder / "cgroup.events", lambda text: "populated 0" in text, PATIENCE)
    kernel_vm.rmdir(folder)


def test_a_program_runs_in_the_guest_and_its_failure_is_reported(kernel_vm: KernelVM) -> None:
    assert kernel_vm.run(["cat"], text="hello", timeout=PATIENCE).stdout == "hello"
    assert kernel_vm.run(["sh", "-c", "exit 3"], timeout=PATIENCE, check=False).rc == 3
    with pytest.raises(VMError, match=r"exit status 4 in the VM\n    no way"):
        kernel_vm.run(["sh", "-c", "echo no way >&2; exit 4"], timeout=PATIENCE)
    with pytest.raises(VMError, match="not done after 1 s"):
        kernel_vm.run(["sleep", "1000"], timeout=1)


def test_a_slow_request_holds_nobody_up(kernel_vm: KernelVM) -> None:
    with ThreadPoolExecutor(max_workers=9) as threads:
        slow = threads.submit(
            kernel_vm.run, ["sh", "-c", "while ! [ -e /tmp/go-on ]; do sleep 0.1; done"], timeout=PATIENCE
        )
        try:
            quick = [
                threads.submit(kernel_vm.read, f"/proc/sys/vm/{name}") for name in ("swappiness", "page-cluster") * 4
            ]
            assert [answer.result() for answer in quick] == ["60\n", "3\n"] * 4
            assert not slow.done()
        finally:
            kernel_vm.write(GUEST_TMP / "go-on", "")
        assert slow.result().rc == 0


def test_files_of_the_guest_behave_as_files(kernel_vm: KernelVM) -> None:
    with pytest.raises(FileNotFoundError):
        kernel_vm.read(GUEST_TMP / "not-there")
    kernel_vm.mkdir(GUEST_TMP / "some/folder")
    kernel_vm.write(GUEST_TMP / "some/folder/file", "text")
    assert kernel_vm.listdir(GUEST_TMP / "some/folder") == ["file"]
    assert kernel_vm.read(GUEST_TMP / "some/folder/file") == "text"
    with pytest.raises(OSError, match="not empty") as failure:
        kernel_vm.rmdir(GUEST_TMP / "some/folder")
    assert failure.value.errno == errno.ENOTEMPTY
    assert not (GUEST_TMP / "some/folder").exists(), "the guest's /tmp is not the host's"


def test_the_shared_folder_is_the_same_on_both_sides(kernel_vm: KernelVM) -> None:
    (kernel_vm.shared / "from-host").write_text("1")
    assert kernel_vm.read(kernel_vm.shared / "from-host") == "1"
    (kernel_vm.shared / "from-host").write_text("2")
    assert kernel_vm.read(kernel_vm.shared / "from-host") == "2"
    kernel_vm.write(kernel_vm.shared / "from-guest", "3")
    assert (kernel_vm.shared / "from-guest").read_text() == "3"


def test_the_virtual_environment_works_in_the_guest(kernel_vm: KernelVM) -> None:
    code = "import msgspec; print(msgspec.json.encode({'a': 1}).decode())"
    assert kernel_vm.run([sys.executable, "-c", code], timeout=PATIENCE).stdout.strip() == '{"a":1}'


def test_a_background_program_can_be_watched_and_ended(kernel_vm: KernelVM) -> None:
    running = kernel_vm.spawn(["sh", "-c", "echo started; exec sleep 1000"], log="sleeper")
    kernel_vm.wait_for(running.log, lambda text: text == "started\n", PATIENCE)
    assert running.output() == "started\n"
    assert running.poll() is None
    running.send_signal(signal.SIGKILL)
    assert running.wait(PATIENCE) == -signal.SIGKILL


def test_the_guest_has_swap_and_the_memory_controller(kernel_vm: KernelVM) -> None:
    assert "/dev/vda" in kernel_vm.read("/proc/swaps")
    assert {"memory", "io", "cpu", "pids"} <= set(kernel_vm.read(CGROUPS / "cgroup.controllers").split())


def test_a_hog_above_its_limit_swaps(kernel_vm: KernelVM, cgroup: Path) -> None:
    kernel_vm.write(cgroup / "memory.max", str(24 * MIB))
    running = kernel_vm.spawn([sys.executable, "-I", "-S", hog.__file__, "40", "--cgroup", str(cgroup)], log="hog")
    kernel_vm.wait_for(running.log, lambda text: "round 1" in text, PATIENCE)
    assert int(kernel_vm.read(cgroup / "memory.swap.current")) > 8 * MIB
    assert running.poll() is None


def test_a_hog_above_its_limit_is_killed_where_swap_is_forbidden(kernel_vm: KernelVM, cgroup: Path) -> None:
    kernel_vm.write(cgroup / "memory.max", str(24 * MIB))
    kernel_vm.write(cgroup / "memory.swap.max", "0")
    running = kernel_vm.spawn([sys.executable, "-I", "-S", hog.__file__, "40", "--cgroup", str(cgroup)], log="hog")
    assert running.wait(PATIENCE) == -signal.SIGKILL
    assert "oom_kill 1" in kernel_vm.read(cgroup / "memory.events")
    assert kernel_vm.read(cgroup / "memory.swap.current") == "0\n"
