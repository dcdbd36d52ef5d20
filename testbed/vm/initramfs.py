"""The kernel VM's kernel and initial file system, made from Debian's (or Ubuntu's) packages without installing them.

$TESTBED_KERNEL chooses another kernel than this machine's distribution has: that of a suite of Debian.
"""

import dataclasses
import lzma
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from testbed.base import cache, debian, host, process, term

SUITES = {"6.1": "bookworm", "6.12": "trixie"}
"""Debian's suite with each version of the kernel that may be chosen."""
VARIABLE = "TESTBED_KERNEL"

# Raise it when the files that are made from the packages change otherwise than by the modules.
FORMAT = 2
MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "9p", "9pnet_virtio")
ON_DEMAND = ("zram",)
"""Modules that nothing loads at boot."""
_PURPOSE = "the kernel VM"
_INIT = Path(__file__).with_name("init.sh")
_MODE_FILE, _MODE_FOLDER, _MODE_DEVICE = 0o100755, 0o040755, 0o020600


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A bootable kernel: its image, an uncompressed cpio archive to boot it with, and its release."""

    image: Path
    initramfs: Path
    modules: Path
    """A folder with the modules on demand and those that they need, by name in the order to load them."""
    release: str


def ensure() -> Kernel:
    """The kernel, made on the first call; host.SetupError where it can't be had."""
    version = os.environ.get(VARIABLE, "")
    host.need(version in {"", *SUITES}, f"no kernel {version}", f"set {VARIABLE} to one of {', '.join(SUITES)}")
    content = zlib.crc32(repr((FORMAT, MODULES, ON_DEMAND)).encode())
    name = f"kernel-vm-{content:08x}{version and f'-{version}'}"
    folder = cache.made(name, lambda made: _make(made, SUITES.get(version, "")))
    release = (folder / "release").read_text(encoding="ascii")
    return Kernel(folder / "vmlinuz", folder / "initramfs.cpio", folder / "modules", release)


def _make(folder: Path, suite: str) -> None:
    unpacked = folder / "unpacked"
    unpacked.mkdir()
    with term.step("fetching and unpacking a kernel"), tempfile.TemporaryDirectory() as lists:
        options = debian.options(suite, Path(lists), _PURPOSE) if suite else []
        host.apt_unpack([*kernel_packages(options), "busybox-static"], unpacked, _PURPOSE, options)
    (image,) = (unpacked / "boot").glob("vmlinuz-*")
    release = image.name.removeprefix("vmlinuz-")
    (modules,) = [found for found in unpacked.glob(f"**/modules/{release}") if (found / "kernel").is_dir()]
    (busybox,) = [found for found in unpacked.glob("**/bin/busybox") if not found.is_symlink()]
    archive = Archive()
    for name in ("bin", "dev", "host", "modules", "newroot", "proc"):
        archive.folder(name)
    archive.console()
    archive.file("bin/busybox", busybox.read_bytes())
    order = load_order(modules, MODULES)
    for path in order:
        archive.file(f"modules/{module_name(path)}.ko", read_module(path))
    archive.file("modules/order", "\n".join(module_name(path) for path in order).encode() + b"\n")
    (folder / "initramfs.cpio").write_bytes(archive.content())
    (folder / "modules").mkdir()
    for place, path in enumerate(load_order(modules, ON_DEMAND)):
        (folder / f"modules/{place:02}-{module_name(path)}.ko").write_bytes(read_module(path))
    shutil.copy2(image, folder / "vmlinuz")
    (folder / "release").write_text(release, encoding="ascii")
    shutil.rmtree(unpacked)


def kernel_packages(options: Sequence[str] = ()) -> list[str]:
    """The packages behind the distribution's kernel: Debian has one, Ubuntu keeps the modules in two others."""
    for meta in ("linux-image-amd64", "linux-image-generic"):
        if images := _dependencies(meta, r"linux-image-\d\S+", options):
            modules = _dependencies(images[0], r"linux-modules-\d\S+", options)
            extra = _dependencies(meta, r"linux-modules-extra-\d\S+", options)
            return [images[0], *modules[:1], *extra[:1]]
    raise host.SetupError(
        f"{_PURPOSE} needs a kernel package (linux-image-amd64 or linux-image-generic), and apt-get knows of none",
        "run once as root: apt-get update; then check that /etc/apt names your distribution's main section",
    )


def _dependencies(package: str, pattern: str, options: Sequence[str]) -> list[str]:
    said = process.run(["apt-cache", *options, "depends", package], timeout=60, check=False).stdout
    return [found for found in re.findall(r"Depends: (\S+)", said) if re.fullmatch(pattern, found)]


def module_name(path: Path) -> str:
    """The module in a file: `9pnet` of `.../9pnet.ko.xz`. In files - and _ mean the same."""
    return path.name.partition(".ko")[0].replace("-", "_")


def read_module(path: Path) -> bytes:
    """A module's object code, whatever it is compressed with."""
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".zst":
        host.apt_install(["zstd"], _PURPOSE)
        unpacked = path.with_suffix("")
        process.run(["zstd", "-d", "-q", "-f", str(path), "-o", str(unpacked)], timeout=60)
        return unpacked.read_bytes()
    return path.read_bytes()


def load_order(modules: Path, wanted: tuple[str, ...]) -> list[Path]:
    """Return the files to load for WANTED, dependencies first; modules that are built into the kernel need none.

    MODULES is the folder lib/modules/RELEASE. The dependencies are read from the files themselves, as depmod does.
    """
    files = {module_name(path): path for path in (modules / "kernel").rglob("*.ko*")}
    lines = (modules / "modules.builtin").read_text(encoding="ascii").splitlines()
    builtin = {module_name(Path(line)) for line in lines}
    order: dict[str, Path] = {}

    def add(name: str) -> None:
        if name in order or name in builtin:
            return
        host.need(name in files, f"the kernel in {modules} has no module {name}", "use another kernel package")
        found = re.search(rb"\0depends=([^\0]*)\0", read_module(files[name]))
        for dependency in found[1].decode().split(",") if found else []:
            if dependency:
                add(dependency.replace("-", "_"))
        order[name] = files[name]

    for name in wanted:
        add(name)
    return list(order.values())


class Archive:
    """A cpio archive in the kernel's `newc` format (Documentation/driver-api/early-userspace/buffer-format.rst)."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._count = 0

    def _add(self, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._count += 1
        encoded = name.encode() + b"\0"
        fields = (self._count, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0)
        header = b"070701" + "".join(f"{field:08x}" for field in fields).encode() + encoded
        self._parts += [header, b"\0" * (-len(header) % 4), content, b"\0" * (-len(content) % 4)]

    def folder(self, name: str) -> None:
        """Add a folder."""
        self._add(name, _MODE_FOLDER)

    def file(self, name: str, content: bytes) -> None:
        """Add an executable file."""
        self._add(name, _MODE_FILE, content)

    def console(self) -> None:
        """Add /dev/console, without which init's messages are lost."""
        self._add("dev/console", _MODE_DEVICE, device=(5, 1))

    def content(self) -> bytes:
        """The whole archive."""
        self._add("TRAILER!!!", 0)
        return b"".join(self._parts)


def with_boot_files(kernel: Kernel, files: dict[str, str], target: Path) -> Path:
    """KERNEL's initramfs and, on top, the init script and FILES, in the file TARGET that only its owner can read."""
    extra = Archive()
    extra.file("init", _INIT.read_bytes())
    for name, content in files.items():
        extra.file(name, content.encode())
    target.touch(mode=0o600)
    target.write_bytes(kernel.initramfs.read_bytes() + extra.content())
    return target
