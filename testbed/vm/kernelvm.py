"""A VM with a kernel of its own: cgroup v2, a swap disk, and read access to the host's files.

The guest sees the host's file system read-only at the same paths, so the virtual environment and the work tree work
inside; /tmp, /run and /var/tmp are its own. Changes of the host after boot may appear late or never in the guest:
exchange files through `vm.shared`, which is the same folder at the same path on both sides, or with `vm.write`.
"""

import compileall
import os
import secrets
import shlex
import socket
import sys
import tempfile
from pathlib import Path

from testbed.base import paths, process, term
from testbed.vm import initramfs, qemu
from testbed.vm.guestlink import GuestLink, GuestProcess, VMError

__all__ = ["CGROUPS", "HOST", "GuestProcess", "KernelVM", "VMError", "ensure"]

HOST = "10.0.2.2"  # The host's loopback, as the guest sees it.
CGROUPS = Path("/sys/fs/cgroup")
_GUEST = Path(__file__).with_name("guest.py")
_GUESTS_OWN = ("/tmp", "/run", "/var/tmp")  # noqa: S108 - where the guest has file systems of its own
_BOOT_TIMEOUT = {"kvm": 30.0, "tcg": 240.0}
_CPUS, _CACHED_BYTES = 2, 1 << 30


def ensure() -> initramfs.Kernel:
    """Prepare QEMU and a kernel on this machine; host.SetupError if that fails."""
    qemu.ensure("the kernel VM")
    return initramfs.ensure()


class KernelVM(GuestLink):
    """Boots on entering, and is removed on leaving. Several threads may call its methods."""

    def __init__(self, memory_mib: int = 1024, swap_mib: int = 512) -> None:
        self._kernel, self._memory_mib, self._swap_bytes = ensure(), memory_mib, swap_mib << 20
        super().__init__(Path(tempfile.mkdtemp(prefix=f"swapwarden-vm-{os.getpid()}-")))

    def _boot(self) -> None:
        for folder in ("operator", "testbed"):
            # The guest cannot keep compiled files, and compiling on an emulated CPU is slow.
            compileall.compile_dir(paths.ROOT / folder, quiet=2)
        with (self.folder / "swap.img").open("wb") as disk:
            disk.truncate(self._swap_bytes)
        secret = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(0.2)
            port = listener.getsockname()[1]
            archive = self._boot_archive(port, secret)
            with term.step(f"booting the kernel VM ({self._kernel.release})"):
                self.accelerator = qemu.boot(lambda name: self._start_with(name, archive, listener, secret))

    def _boot_archive(self, port: int, secret: str) -> Path:
        needed = [paths.ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent]
        needed.append(self._kernel.modules)
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

    def _start_with(self, accelerator: str, archive: Path, listener: socket.socket, secret: str) -> None:
        argv = qemu.machine(accelerator, cpus=_CPUS, memory_mib=self._memory_mib, console=self.console_file)
        argv += ["-kernel", str(self._kernel.image), "-initrd", str(archive), "-append", " ".join(qemu.KERNEL_WORDS)]
        argv += ["-drive", f"file={self.folder / 'swap.img'},if=virtio,format=raw,cache=unsafe"]
        # /dev/vdb has room for cached files, which is all that experiments need of it: what they write is gone.
        argv += ["-drive", f"driver=null-co,if=virtio,read-zeroes=on,size={_CACHED_BYTES}"]
        argv += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
        argv += qemu.shared_folder("host", Path("/"), readonly=True)
        argv += qemu.shared_folder("shared", self.shared)
        self.console_file.unlink(missing_ok=True)
        self.machine = process.Process("qemu", argv, log=self.folder / "qemu.log")
        self.accept(listener, secret, self.machine, _BOOT_TIMEOUT[accelerator])
