"""A VM with a whole node in it: Debian, systemd, containerd and a kubelet with swap, in a network of the testbed's own.

`shared` is the same folder at the same path on both sides; all else in the VM is its own and gone with it.
"""

import dataclasses
import itertools
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from testbed import netns, nodeimage, process, qemu, term
from testbed.guestlink import GuestLink, GuestProcess

NAME = "node-1"
HOST = "192.168.77.1"
ADDRESS = "192.168.77.2"
PODS = "10.85.0.0/24"
CGROUPS = Path("/sys/fs/cgroup")
KUBEPODS = CGROUPS / "kubepods.slice"
_TAP = "tap0"
_GUEST_FILES = ("guest.py", "recorder.py")
_BOOT_TIMEOUT = {"kvm": 90.0, "tcg": 600.0}
_COMMAND_TIMEOUT = 300.0
_MIB = 1 << 20
_NUMBERS = itertools.count(1)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What the recorder saw of a cgroup's swap; `event` is as in testbed.recorder, bytes are None for no limit."""

    at: float
    path: str
    event: str
    max_bytes: int | None
    current_bytes: int


def parse_samples(text: str) -> list[Sample]:
    """The recorder's lines, but for one that is not whole yet; a cgroup's end has no values and counts as 0."""
    return [
        Sample(
            at=line["at"],
            path=line["path"],
            event=line["event"],
            max_bytes=None if line.get("max") == "max" else int(line.get("max", 0)),
            current_bytes=int(line.get("current", 0)),
        )
        for line in map(json.loads, text[: text.rfind("\n") + 1].splitlines())
    ]


class Recording:
    """A recorder at work in the VM."""

    def __init__(self, vm: "NodeVM", running: GuestProcess, output: Path) -> None:
        self._vm = vm
        self._running = running
        self._output = output

    def samples(self, contains: str = "") -> list[Sample]:
        """What was seen so far of the cgroups whose path has CONTAINS in it, in the order in which it was seen."""
        if (status := self._running.poll()) is not None:
            raise process.ProcessError(f"the recorder ended with status {status}\n{self._running.tail()}")
        return [sample for sample in parse_samples(self._vm.read(self._output)) if contains in sample.path]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self._running.stop()


class NodeVM(GuestLink):
    """Boots on entering, is gone on leaving. Its methods may be called from several threads.

    CREDENTIALS are the files of /etc/kubernetes that no image can hold, by name. IMAGES are archives (OCI layout) whose
    images are there from the start; `import_image` takes its time.
    """

    kubepods = KUBEPODS

    def __init__(
        self,
        network: netns.NetworkNamespace,
        credentials: Mapping[str, bytes],
        *,
        images: Sequence[Path] = (),
        swap_mib: int = 512,
        memory_mib: int = 3072,
        cpus: int = 2,
    ) -> None:
        self._image = nodeimage.ensure(images)
        self._network = network
        self._swap_mib = swap_mib
        self._memory_mib = memory_mib
        self._cpus = cpus
        self.folder = Path(tempfile.mkdtemp(prefix=f"swapwarden-node-{os.getpid()}-"))
        super().__init__(self.folder / "shared", self.folder / "console.log")
        kubernetes = self.shared / "kubernetes"
        kubernetes.mkdir(parents=True)
        for name, content in credentials.items():
            (kubernetes / name).touch(mode=0o600)
            (kubernetes / name).write_bytes(content)
        self._qemu: process.Process | None = None
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
        self.hang_up()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _boot(self) -> None:
        with (self.folder / "swap.img").open("wb") as disk:
            disk.truncate(self._swap_mib * _MIB)
        for name in _GUEST_FILES:
            shutil.copy2(Path(__file__).with_name(name), self.shared / name)
        self._network.ip("tuntap", "add", "dev", _TAP, "mode", "tap")
        self._network.ip("address", "add", f"{HOST}/24", "dev", _TAP)
        self._network.ip("link", "set", _TAP, "up")
        self._network.ip("route", "add", PODS, "via", ADDRESS)
        secret = secrets.token_hex(16)
        with self._network.entered():
            listener = socket.create_server((HOST, 0))
        with listener, term.step("booting the node VM"):
            listener.settimeout(0.2)
            self._write_settings(listener.getsockname()[1], secret)
            self.accelerator = qemu.boot(lambda name: self._start_with(name, listener, secret))

    def _write_settings(self, port: int, secret: str) -> None:
        settings = {"NODE": NAME, "ADDRESS": ADDRESS, "HOST": HOST, "PORT": str(port), "SECRET": secret}
        file = self.shared / "node.conf"
        file.touch(mode=0o600)
        file.write_text("".join(f"{key}={shlex.quote(value)}\n" for key, value in settings.items()), encoding="ascii")

    def _start_with(self, accelerator: str, listener: socket.socket, secret: str) -> None:
        argv = qemu.machine(accelerator, cpus=self._cpus, memory_mib=self._memory_mib, console=self.console_file)
        words = [*qemu.KERNEL_WORDS, f"testbed.shared={self.shared}"]
        argv += ["-kernel", str(self._image.kernel), "-initrd", str(self._image.initramfs), "-append", " ".join(words)]
        # QEMU keeps what the VM writes in a nameless file in TMPDIR, on top of an image that it only reads.
        argv += ["-drive", f"file={self._image.disk},if=virtio,format=raw,snapshot=on,cache=unsafe"]
        argv += ["-drive", f"file={self.folder / 'swap.img'},if=virtio,format=raw,cache=unsafe"]
        argv += ["-netdev", f"tap,id=net,ifname={_TAP},script=no,downscript=no"]
        argv += ["-device", "virtio-net-pci,netdev=net,romfile="]
        argv += qemu.shared_folder("shared", self.shared)
        self.console_file.unlink(missing_ok=True)
        environment = os.environ | {"TMPDIR": str(self.folder)}
        log = self.folder / "qemu.log"
        self._qemu = process.Process("qemu", self._network.command(argv), log=log, env=environment)
        self.accept(listener, secret, self._qemu, _BOOT_TIMEOUT[accelerator])

    # --- what happens to nodes ---

    def systemctl(self, *arguments: str, timeout: float = _COMMAND_TIMEOUT) -> str:
        """Run systemctl in the VM; what it prints."""
        return self.run(["systemctl", *arguments], timeout=timeout).stdout

    def restart(self, unit: str) -> None:
        """Restart a unit: `kubelet`, `containerd`."""
        self.systemctl("restart", unit)

    def daemon_reload(self) -> None:
        """Have systemd read its units again, upon which it writes the cgroup files of all of them."""
        self.systemctl("daemon-reload")

    def journal(self, unit: str, lines: int = 100) -> str:
        """The end of what a unit logged."""
        return self.run(
            ["journalctl", "--no-pager", "--output=short-precise", f"--lines={lines}", f"--unit={unit}"],
            timeout=_COMMAND_TIMEOUT,
        ).stdout

    def import_image(self, archive: Path, timeout: float = 900.0) -> None:
        """Give an archive of images (OCI layout) to containerd, under the names that it says."""
        inside = self.shared / archive.name
        shutil.copyfile(archive, inside)
        try:
            self.run(["ctr", "--namespace", "k8s.io", "images", "import", str(inside)], timeout=timeout)
        finally:
            inside.unlink()

    def record(self, root: Path = KUBEPODS) -> Recording:
        """Start a recorder of all swap limits below the cgroup ROOT; it is at work when this returns."""
        name = f"recorder-{next(_NUMBERS)}"
        output = Path("/run") / f"{name}.jsonl"
        running = self.spawn(["python3", "-S", str(self.shared / "recorder.py"), str(root), str(output)], log=name)
        deadline = time.monotonic() + _COMMAND_TIMEOUT
        while "recording" not in running.output():
            if running.poll() is not None or time.monotonic() > deadline:
                running.send_signal(signal.SIGKILL)
                raise process.ProcessError(f"the recorder does not start\n{running.tail()}")
            time.sleep(0.1)
        return Recording(self, running, output)
