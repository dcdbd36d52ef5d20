"""A VM with a kernel of its own: cgroup v2, a swap disk, and the host's files to look at.

The guest sees the host's file system read-only at the same paths, so the virtual environment and the work tree work
inside; /tmp, /run and /var/tmp are its own. What the host changes after boot may be seen late or never in the guest:
exchange files through `vm.shared`, which is the same folder at the same path on both sides, or with `vm.write`.
"""

import compileall
import contextlib
import dataclasses
import json
import os
import queue
import re
import secrets
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from testbed import host, initramfs, process, term

HOST = "10.0.2.2"  # the host's loopback, as the guest sees it
CGROUPS = Path("/sys/fs/cgroup")
QEMU = "qemu-system-x86_64"
WORK_TREE = Path(__file__).resolve().parent.parent
_GUEST = Path(__file__).with_name("guest.py")
_GUESTS_OWN = ("/tmp", "/run", "/var/tmp")  # noqa: S108 - where the guest has file systems of its own
_BOOT_TIMEOUT = {"kvm": 30.0, "tcg": 240.0}
_BROKEN: set[str] = set()  # accelerators that this process has seen fail
_ANSWER_GRACE = 60.0
_FILE_TIMEOUT = 60.0
_POLL = 0.05
_MIB = 1 << 20


class VMError(Exception):
    """The VM, or something in it, did not do what was asked."""


@dataclasses.dataclass(frozen=True, slots=True)
class Completed:
    """A program that ran in the guest: its exit status (negative: the signal) and what it wrote."""

    rc: int
    stdout: str
    stderr: str


class GuestProcess:
    """A program in the guest's background; its output is in `log`, which the host reads too."""

    def __init__(self, vm: "KernelVM", name: str, pid: int, log: Path) -> None:
        self._vm = vm
        self.name = name
        self.pid = pid
        self.log = log

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or None while it runs."""
        status: int | None = self._vm.call("wait", pid=self.pid, timeout=None)
        return status

    def wait(self, timeout: float) -> int:
        """Wait for the end; VMError after TIMEOUT seconds."""
        try:
            status: int = self._vm.call("wait", pid=self.pid, timeout=timeout, patience=timeout)
        except VMError as error:
            raise VMError(f"{self.name}: {error}\n{self.tail()}") from error
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        self._vm.call("signal", pid=self.pid, number=int(number))

    def stop(self, timeout: float = 60.0) -> int:
        """SIGTERM, and SIGKILL after TIMEOUT seconds. Returns the exit status."""
        self.send_signal(signal.SIGTERM)
        with contextlib.suppress(VMError):
            return self.wait(timeout)
        self.send_signal(signal.SIGKILL)
        return self.wait(timeout)

    def output(self) -> str:
        """All that it wrote so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = 30) -> str:
        """The end of what it wrote, indented."""
        return process.last_lines(self.output(), lines)


def ensure() -> initramfs.Kernel:
    """Have QEMU and a kernel on this machine; host.SetupError where that can't be."""
    host.need_linux()
    machine = os.uname().machine
    host.need(
        machine == "x86_64",
        f"the kernel VM is made for x86_64; this machine is {machine}",
        "run this part on an x86_64 machine; unit and integration tests work here",
    )
    if not shutil.which(QEMU):
        host.apt_install(["qemu-system-x86"], "the kernel VM")
    return initramfs.ensure()


class KernelVM:
    """Boots on entering, is gone on leaving. Its methods may be called from several threads."""

    def __init__(self, *, swap_mib: int = 512, memory_mib: int = 1024, cpus: int = 2) -> None:
        self._kernel = ensure()
        self._swap_mib = swap_mib
        self._memory_mib = memory_mib
        self._cpus = cpus
        self.folder = Path(tempfile.mkdtemp(prefix="swapwarden-vm-"))
        self.shared = self.folder / "shared"
        self.shared.mkdir()
        self._console = self.folder / "console.log"
        self._qemu: process.Process | None = None
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._count = 0
        self._gone = False
        self.accelerator = ""
        self.boot_seconds = 0.0

    # --- life cycle ---

    def __enter__(self) -> Self:
        begun = time.monotonic()
        try:
            self._boot()
        except BaseException:
            self.stop()
            raise
        self.boot_seconds = time.monotonic() - begun
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the VM, as pulling the plug would, and remove its files."""
        if self._qemu:
            self._qemu.kill()
        if self._connection:
            self._connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _boot(self) -> None:
        for folder in ("operator", "testbed"):
            # The guest can't keep compiled files, and compiling on an emulated CPU takes its time.
            compileall.compile_dir(WORK_TREE / folder, quiet=2)
        with (self.folder / "swap.img").open("wb") as disk:
            disk.truncate(self._swap_mib * _MIB)
        secret = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(0.2)
            port = listener.getsockname()[1]
            archive = self._boot_archive(port, secret)
            with term.step(f"booting the kernel VM ({self._kernel.release})"):
                self._connection = self._start(archive, listener, secret)
        threading.Thread(target=self._receive, args=(self._connection,), name="testbed-vm", daemon=True).start()

    def _start(self, archive: Path, listener: socket.socket, secret: str) -> socket.socket:
        if "kvm" not in _BROKEN and host.kvm_works():
            try:
                return self._start_with("kvm", archive, listener, secret)
            except process.ProcessError:
                # A virtual machine may offer /dev/kvm and even make VMs, but be unable to run them.
                _BROKEN.add("kvm")
        term.say("  on an emulated CPU, some 30 times slower than hardware: KVM does not work here")
        return self._start_with("tcg", archive, listener, secret)

    def _start_with(self, accelerator: str, archive: Path, listener: socket.socket, secret: str) -> socket.socket:
        self.accelerator = accelerator
        self._start_qemu(archive)
        return self._accept(listener, secret)

    def _boot_archive(self, port: int, secret: str) -> Path:
        needed = [WORK_TREE, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent]
        hidden = sorted({str(path) for path in needed if str(path).startswith(tuple(f"{own}/" for own in _GUESTS_OWN))})
        settings = {
            "BINDS": " ".join(hidden),
            "SHARED": str(self.shared),
            "PYTHON": sys.executable,
            "GUEST": str(_GUEST),
            "HOST": HOST,
            "PORT": str(port),
            "SECRET": secret,
        }
        conf = "".join(f"{key}={shlex.quote(value)}\n" for key, value in settings.items())
        return initramfs.with_boot_files(self._kernel, {"boot.conf": conf}, self.folder / "initramfs.cpio")

    def _start_qemu(self, archive: Path) -> None:
        kvm = self.accelerator == "kvm"
        # Without five-level page tables and side-channel defences the emulated CPU has less to do.
        words = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off random.trust_cpu=on psi=1 net.ifnames=0 no5lvl"
        share = "security_model=none,multidevs=remap"
        argv = [
            QEMU,
            "-machine",
            "q35",
            "-accel",
            "kvm" if kvm else "tcg,thread=multi",
            "-cpu",
            "host" if kvm else "max",
        ]
        argv += ["-smp", str(self._cpus), "-m", f"{self._memory_mib}M", "-nodefaults", "-no-user-config", "-no-reboot"]
        argv += ["-display", "none", "-monitor", "none", "-serial", f"file:{self._console}"]
        argv += ["-kernel", str(self._kernel.image), "-initrd", str(archive), "-append", words]
        argv += ["-drive", f"file={self.folder / 'swap.img'},if=virtio,format=raw,cache=unsafe"]
        argv += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
        argv += [
            "-fsdev",
            f"local,id=host,path=/,readonly=on,{share}",
            "-device",
            "virtio-9p-pci,fsdev=host,mount_tag=host",
        ]
        argv += ["-fsdev", f"local,id=shared,path={self.shared},{share}"]
        argv += ["-device", "virtio-9p-pci,fsdev=shared,mount_tag=shared", "-device", "virtio-rng-pci"]
        self._console.unlink(missing_ok=True)
        self._qemu = process.Process("qemu", argv, log=self.folder / "qemu.log")

    def _accept(self, listener: socket.socket, secret: str) -> socket.socket:
        """Wait for the guest to call; ProcessError when QEMU ends or the guest is too late."""
        assert self._qemu is not None  # noqa: S101 - the caller has just started it
        patience = _BOOT_TIMEOUT[self.accelerator]
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                self._qemu.check_alive()
            except process.ProcessError as error:
                raise process.ProcessError(f"{error}\n{self.console()}") from error
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(10)
                said = connection.makefile("rb", buffering=0).readline(len(secret) + 1)
                if secrets.compare_digest(said.strip(), secret.encode()):
                    connection.settimeout(None)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return connection
                connection.close()
        self._qemu.kill()
        raise process.ProcessError(f"the kernel VM is not up after {patience:.0f} s\n{self.console()}")

    def console(self, lines: int = 30) -> str:
        """The end of what the guest's kernel wrote, indented."""
        with contextlib.suppress(OSError):
            text = self._console.read_text(encoding="utf-8", errors="replace")
            return "  the VM's console:\n" + process.last_lines(
                re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc", "", text), lines
            )
        return "  the VM's console: nothing"

    # --- requests ---

    def _receive(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for line in connection.makefile("rb"):
                answer = json.loads(line)
                with self._lock:
                    waiting = self._answers.pop(answer["id"], None)
                if waiting:
                    waiting.put(answer)
        with self._lock:
            self._gone = True
            left, self._answers = self._answers, {}
        for waiting in left.values():
            waiting.put({"errno": None, "text": "the VM went away"})

    def call(self, op: str, *, patience: float = _FILE_TIMEOUT, path: str | None = None, **arguments: Any) -> Any:
        """One request of the guest. An error of the guest's system comes as the OSError it would be there."""
        answered: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            if self._gone or not self._connection:
                raise VMError(f"{op}: the VM is not there\n{self.console()}")
            self._count += 1
            self._answers[self._count] = answered
            request = {"id": self._count, "op": op, "path": path, **arguments}
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        what = path or arguments.get("argv") or op
        try:
            answer = answered.get(timeout=patience + _ANSWER_GRACE)
        except queue.Empty:
            raise VMError(f"{what}: no answer from the VM\n{self.console()}") from None
        if "ok" in answer:
            return answer["ok"]
        if answer["errno"] is None:
            raise VMError(f"{what}: {answer['text']}\n{self.console()}")
        raise OSError(answer["errno"], answer["text"], path)

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        timeout: float,
        text: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = "/",
        check: bool = True,
    ) -> Completed:
        """Run a program in the guest to its end, with TEXT on its stdin; VMError after TIMEOUT seconds.

        ENV is added to the guest's environment. With CHECK, a program that fails raises VMError too.
        """
        words = [os.fspath(word) for word in argv]
        place = {"cwd": os.fspath(cwd), "env": dict(env or {})}
        done = Completed(**self.call("run", patience=timeout, argv=words, input=text, timeout=timeout, place=place))
        if check and done.rc != 0:
            said = process.last_lines(done.stderr or done.stdout)
            raise VMError(f"{shlex.join(words)}: exit status {done.rc} in the VM\n{said}")
        return done

    def spawn(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        log: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = "/",
    ) -> GuestProcess:
        """Start a program in the guest's background; its output goes to a file named LOG in the shared folder."""
        words = [os.fspath(word) for word in argv]
        file = self.shared / f"{log}.log"
        pid = self.call("spawn", argv=words, log=str(file), place={"cwd": os.fspath(cwd), "env": dict(env or {})})
        return GuestProcess(self, log, pid, file)

    def read(self, path: str | os.PathLike[str]) -> str:
        """The content of a file in the guest."""
        return str(self.call("read", path=os.fspath(path)))

    def write(self, path: str | os.PathLike[str], text: str) -> None:
        """Write a file in the guest, in one write call."""
        self.call("write", path=os.fspath(path), text=text)

    def listdir(self, path: str | os.PathLike[str]) -> list[str]:
        """The names in a folder of the guest, sorted."""
        return list(self.call("listdir", path=os.fspath(path)))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Make a folder in the guest, its parents too; one that is there is fine."""
        self.call("mkdir", path=os.fspath(path))

    def rmdir(self, path: str | os.PathLike[str]) -> None:
        """Remove an empty folder, or a cgroup without processes and children, in the guest."""
        self.call("rmdir", path=os.fspath(path))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether there is something at PATH in the guest."""
        return bool(self.call("exists", path=os.fspath(path)))

    def wait_for(self, path: str | os.PathLike[str], predicate: Callable[[str], bool], timeout: float) -> str:
        """The content of a guest's file once it is there and PREDICATE holds for it; VMError if that never is."""
        deadline = time.monotonic() + timeout
        content: str | None = None
        while True:
            with contextlib.suppress(FileNotFoundError):
                content = self.read(path)
                if predicate(content):
                    return content
            if time.monotonic() > deadline:
                raise VMError(f"{os.fspath(path)}: still {content!r} after {timeout:.0f} s")
            time.sleep(_POLL)
