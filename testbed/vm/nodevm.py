"""A VM with a whole node in it: Debian, systemd, containerd and a kubelet with swap, in a network of the testbed's own.

`shared` is the same folder at the same path on both sides; everything else in the VM is its own and ends with it.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import secrets
import shlex
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testbed.base import host, process, term
from testbed.controlplane import netns
from testbed.vm import nodeimage, qemu, uml
from testbed.vm.guestlink import GuestLink, GuestProcess, VMError

NAME = "node-1"
HOST = "192.168.77.1"
ADDRESS = "192.168.77.2"
PODS = "10.85.0.0/24"
CGROUPS = Path("/sys/fs/cgroup")
KUBEPODS = CGROUPS / "kubepods.slice"
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - not for files of a known name
_TAP, _PEER = "tap0", "tap1"
_GUEST_FILES = ("guest.py", "recorder.py")
_BOOT_TIMEOUT = {"kvm": 90.0, "uml": 90.0, "tcg": 600.0}
_COMMAND_TIMEOUT = 300.0
_MEMORY_MIB = 3072
_ROOM = 6 << 30
_VIRTIO = {"DEVICE": "eth0", "SWAP": "/dev/vdb"}
_DEVICES = {"kvm": _VIRTIO, "tcg": _VIRTIO, "uml": {"DEVICE": "vec0", "SWAP": "/dev/ubdb"}}
# Wait until the host has hung up: otherwise its connection to the ended machine would stay open.
_REBOOT = "while systemctl --quiet is-active testbed-guest; do sleep 0.2; done; exec systemctl reboot --force --force"
_NUMBERS = itertools.count(1)


def ensure(images: Sequence[Path] = ()) -> None:
    """Prepare a node VM with IMAGES on its disk; host.SetupError if this machine lacks something."""
    nodeimage.ensure(images)
    if qemu.accelerators(user_mode=True)[0] == "uml":
        try:
            uml.ensure()
        except (host.SetupError, process.ProcessError) as error:
            qemu.give_up("uml", error)


def _place() -> str | None:
    """Return the best folder for a VM's files: in memory, if there is room; None for the usual place."""
    with contextlib.suppress(OSError):
        found = os.statvfs(IN_MEMORY)
        if found.f_bavail * found.f_frsize > _ROOM:
            return str(IN_MEMORY)
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A record of a cgroup's swap; `event` is as in testbed.vm.recorder, bytes are None for no limit."""

    at: float
    path: str
    event: str
    max_bytes: int | None
    current_bytes: int
    after: float = 0.0
    """Everything up to this time is recorded in earlier samples; the recorder may read later events with a delay."""


def parse_samples(text: str) -> list[Sample]:
    """Return the recorder's lines, without an unfinished one; a cgroup's end has no values and counts as 0."""
    return [
        Sample(
            at=line["at"],
            path=line["path"],
            event=line["event"],
            max_bytes=None if line.get("max") == "max" else int(line.get("max", 0)),
            current_bytes=int(line.get("current", 0)),
            after=line.get("after", 0.0),
        )
        for line in map(json.loads, text[: text.rfind("\n") + 1].splitlines())
    ]


class Recording(process.Managed):
    """A running recorder in the VM."""

    def __init__(self, vm: "NodeVM", running: GuestProcess, output: Path) -> None:
        self._vm = vm
        self._running = running
        self._output = output

    def samples(self, contains: str = "") -> list[Sample]:
        """Return the samples so far of the cgroups whose path contains CONTAINS, in the order of recording."""
        self._running.check_alive()
        return [sample for sample in parse_samples(self._vm.read(self._output)) if contains in sample.path]

    def stop(self) -> None:
        self._running.stop()


class NodeVM(GuestLink):
    """Boots on entering, and is removed on leaving. Several threads may call its methods.

    CREDENTIALS are the files of /etc/kubernetes that no image can hold, by name. IMAGES are archives (OCI layout) whose
    images exist from the start; `import_image` is slow.
    """

    kubepods = KUBEPODS

    def __init__(
        self,
        network: netns.NetworkNamespace,
        credentials: Mapping[str, bytes],
        *,
        images: Sequence[Path] = (),
        swap_mib: int = 512,
        cpus: int = 2,
    ) -> None:
        self._image = nodeimage.ensure(images)
        self._network = network
        self._swap_bytes = swap_mib << 20
        self._cpus = cpus
        super().__init__(Path(tempfile.mkdtemp(prefix=f"swapwarden-node-{os.getpid()}-", dir=_place())))
        self._swap = self.folder / "swap.img"
        kubernetes = self.shared / "kubernetes"
        kubernetes.mkdir()
        for name, content in credentials.items():
            (kubernetes / name).touch(mode=0o600)
            (kubernetes / name).write_bytes(content)

    def _boot(self) -> None:
        with self._swap.open("wb") as disk:
            disk.truncate(self._swap_bytes)
        for name in _GUEST_FILES:
            shutil.copy2(Path(__file__).with_name(name), self.shared / name)
        with term.step("booting the node VM"):
            self.accelerator = qemu.boot(self._start_with, user_mode=True)

    @contextlib.contextmanager
    def _awaited(self, accelerator: str) -> Iterator[tuple[socket.socket, str]]:
        """Return the address that the VM calls once it is up, and the secret that it shows; the VM receives both."""
        secret = secrets.token_hex(16)
        with self._network.entered():
            listener = socket.create_server((HOST, 0))
        with listener:
            listener.settimeout(0.2)
            self._write_settings(listener.getsockname()[1], secret, _DEVICES[accelerator])
            yield listener, secret

    def _write_settings(self, port: int, secret: str, devices: Mapping[str, str]) -> None:
        settings = {"NODE": NAME, "ADDRESS": ADDRESS, "HOST": HOST, "PORT": str(port), "SECRET": secret, **devices}
        file = self.shared / "node.conf"
        file.touch(mode=0o600)
        file.write_text("".join(f"{key}={shlex.quote(value)}\n" for key, value in settings.items()), encoding="ascii")

    def _start_with(self, accelerator: str) -> None:
        user_mode = accelerator == "uml"
        argv = self._user_mode() if user_mode else self._emulation(accelerator)
        self._plug(user_mode=user_mode)
        self.console_file.unlink(missing_ok=True)
        # Nameless files are kept in TMPDIR: by QEMU what the VM writes on top of an image that it only reads, by Linux
        # in user mode its memory.
        environment = os.environ | {"TMPDIR": str(self.folder)}
        log = self.console_file if user_mode else self.folder / "qemu.log"
        with self._awaited(accelerator) as (listener, secret):
            self.machine = process.Process("the node VM", self._network.command(argv), log=log, env=environment)
            self.accept(listener, secret, self.machine, _BOOT_TIMEOUT[accelerator])

    def _plug(self, *, user_mode: bool) -> None:
        """Make the host's end of the VM's network."""
        with contextlib.suppress(process.ProcessError):
            self._network.ip("link", "delete", _TAP)  # Left behind by another accelerator that did not work.
        if user_mode:
            self._network.ip("link", "add", _TAP, "type", "veth", "peer", "name", _PEER)
            self._network.ip("link", "set", _PEER, "up")
        else:
            self._network.ip("tuntap", "add", "dev", _TAP, "mode", "tap")
        self._network.ip("address", "add", f"{HOST}/24", "dev", _TAP)
        self._network.ip("link", "set", _TAP, "up")
        self._network.ip("route", "add", PODS, "via", ADDRESS)

    def _emulation(self, accelerator: str) -> list[str]:
        argv = qemu.machine(
            accelerator, cpus=self._cpus, memory_mib=_MEMORY_MIB, console=self.console_file, reboots=True
        )
        words = [*qemu.KERNEL_WORDS, self._shared_word]
        argv += ["-kernel", str(self._image.kernel), "-initrd", str(self._image.initramfs), "-append", " ".join(words)]
        argv += ["-drive", f"file={self._image.disk},if=virtio,format=raw,snapshot=on,cache=unsafe"]
        argv += ["-drive", f"file={self._swap},if=virtio,format=raw,cache=unsafe"]
        argv += ["-netdev", f"tap,id=net,ifname={_TAP},script=no,downscript=no"]
        argv += ["-device", "virtio-net-pci,netdev=net,romfile="]
        return argv + qemu.shared_folder("shared", self.shared)

    def _user_mode(self) -> list[str]:
        return uml.machine(
            uml.ensure(),
            self.folder,
            memory_mib=_MEMORY_MIB,
            disks=[f"{self.folder / 'changes.img'},{self._image.disk}", str(self._swap)],
            device=_PEER,
            words=["quiet", "rootflags=noinit_itable", self._shared_word],
        )

    @property
    def _shared_word(self) -> str:
        return f"testbed.shared={self.shared}"

    # --- what happens to nodes ---

    def reboot(self) -> None:
        """Reboot the node, with its disk; nothing in it is asked to end, and its swap device is new.

        Return when programs can be run in it again; its kubelet may not be up yet. ProcessError if it does not start.
        """
        if self.machine is None:
            raise VMError("the VM was not started")
        with self._awaited(self.accelerator) as (listener, secret):
            self.spawn(["sh", "-c", _REBOOT], log="reboot")
            self.hang_up()
            self.accept(listener, secret, self.machine, _BOOT_TIMEOUT[self.accelerator])

    def systemctl(self, *arguments: str, timeout: float = _COMMAND_TIMEOUT) -> str:
        """Run systemctl in the VM; return its output."""
        return self.run(["systemctl", *arguments], timeout=timeout).stdout

    def restart(self, unit: str) -> None:
        """Restart a unit: `kubelet`, `containerd`."""
        self.systemctl("restart", unit)

    def daemon_reload(self) -> None:
        """Make systemd reload its units, upon which it writes the cgroup files of all of them."""
        self.systemctl("daemon-reload")

    def journal(self, unit: str, lines: int = 100) -> str:
        """Return the end of a unit's log."""
        return self.run(
            ["journalctl", "--no-pager", "--output=short-precise", f"--lines={lines}", f"--unit={unit}"],
            timeout=_COMMAND_TIMEOUT,
        ).stdout

    def import_image(self, archive: Path, timeout: float = 900.0) -> None:
        """Import an archive of images (OCI layout) into containerd, under their names in it."""
        inside = self.shared / archive.name
        shutil.copyfile(archive, inside)
        try:
            self.run(["ctr", "--namespace", "k8s.io", "images", "import", str(inside)], timeout=timeout)
        finally:
            inside.unlink()

    def record(self, root: Path = KUBEPODS, every: float | None = None) -> Recording:
        """Start a recorder of all swap limits below the cgroup ROOT; it works when this returns.

        EVERY is in seconds, as in testbed.vm.recorder.
        """
        name = f"recorder-{next(_NUMBERS)}"
        output = Path("/run") / f"{name}.jsonl"
        argv = ["python3", "-S", str(self.shared / "recorder.py"), str(root), str(output)]
        running = self.spawn([*argv, *([] if every is None else [str(every)])], log=name)
        recording = Recording(self, running, output)
        try:
            process.until(
                lambda: "recording" in running.output(), "the recorder starts", _COMMAND_TIMEOUT, running=[running]
            )
        except BaseException:
            recording.stop()
            raise
        return recording
