"""The node VM's disk: Debian with systemd, containerd and a kubelet, made once and kept in the cache.

Every VM writes to a layer of its own, so the disk stays as it was made.
"""

import dataclasses
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from testbed.base import cache, host, process, term
from testbed.controlplane import assets, programs
from testbed.vm import initramfs, ociimage, qemu

SUITE = "bookworm"
PACKAGES = (
    *("systemd-sysv", "dbus", "udev", "kmod", "mount", "util-linux", "procps", "apparmor", "python3", "busybox-static"),
    *(
        "iproute2",
        "iptables",
        "nftables",
        "conntrack",
        "runc",
        "crun",
        "containernetworking-plugins",
        "ca-certificates",
    ),
)
# With these the system starts without udev's look at every device, which takes an emulated CPU its time.
MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "crc32c_generic", "ext4", "9p", "9pnet_virtio")
_PURPOSE = "the node VM"
_DISK_SIZE = "6G"
_KEPT = 3
_ROOT = Path(__file__).with_name("noderoot")
_INIT = Path(__file__).with_name("nodeinit.sh")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_UNITS = ("containerd", "kube-proxy", "kubelet", "testbed-guest", "testbed-images")
# A test node has no use for them, and an emulated CPU none to spare.
_MASKED = (
    *("getty@tty1.service", "serial-getty@ttyS0.service", "e2scrub_reap.service", "e2scrub_all.timer", "fstrim.timer"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "systemd-udev-trigger.service"),
    *("modprobe@dm_mod.service", "modprobe@drm.service", "modprobe@efi_pstore.service", "modprobe@fuse.service"),
    *("modprobe@loop.service", "modprobe@configfs.service", "sys-kernel-config.mount", "sys-fs-fuse-connections.mount"),
    *("proc-sys-fs-binfmt_misc.automount", "systemd-binfmt.service", "systemd-pstore.service", "dev-hugepages.mount"),
    *("sys-kernel-debug.mount", "sys-kernel-tracing.mount", "apparmor.service", "systemd-random-seed.service"),
)
_UNUSED_DRIVERS = (
    *("drivers/gpu", "drivers/media", "drivers/infiniband", "drivers/net/wireless", "drivers/net/ethernet"),
    *("drivers/iio", "drivers/hwmon", "drivers/staging", "drivers/usb", "drivers/isdn", "sound"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeImage:
    """The files that a node VM boots from."""

    disk: Path
    kernel: Path
    initramfs: Path


def ensure(images: Sequence[Path] = ()) -> NodeImage:
    """The image, made on the first call (minutes, once; then half a minute); host.SetupError where it can't be had.

    IMAGES are archives (OCI layout) whose images the node's containerd has from the start, under the names that they
    say. An emulated CPU would take minutes to import them.
    """
    qemu.ensure(_PURPOSE)
    name = f"node-{_digest([*_recipe(), *(path.read_bytes() for path in images)])}"
    if not cache.find(name):
        with cache.lock("node"):
            if not cache.find(name):
                _make(name, images)
                _forget("node")
    folder = cache.root() / name
    os.utime(folder)
    return NodeImage(folder / "node.img", folder / "vmlinuz", folder / "initramfs.cpio")


def _recipe() -> list[bytes]:
    """All that decides what the image holds, but for the versions of Debian's packages."""
    files = sorted(path for path in _ROOT.rglob("*") if path.is_file())
    sources = [_INIT, *(Path(__file__).with_name(name) for name in ("nodeimage.py", "ociimage.py"))]
    versions = f"{assets.KUBE_VERSION} {programs.CONTAINERD_VERSION}".encode()
    return [versions, *(f"{path.relative_to(_ROOT)}".encode() + path.read_bytes() for path in files)] + [
        path.read_bytes() for path in sources
    ]


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\n".encode() + part)
    return digest.hexdigest()[:12]


def _forget(kind: str) -> None:
    """Remove all but the last few in use; a VM that still runs from one keeps its open files."""
    made = sorted(cache.root().glob(f"{kind}-{'?' * 12}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in made[_KEPT:]:
        shutil.rmtree(old)


def _make(name: str, images: Sequence[Path]) -> None:
    host.need(
        host.is_root(),
        "the node VM's disk has to be made with the owners and devices that a system has, and this is not root",
        "run it as root, in a VM if you prefer",
    )
    binaries = [programs.kube_on_node(program) for program in programs.KUBE_ON_NODE]
    binaries += [programs.containerd() / program for program in ("containerd", "containerd-shim-runc-v2", "ctr")]
    base = _base()
    with (
        term.step("putting the node VM's disk together"),
        cache.install(name) as folder,
        tempfile.TemporaryDirectory(prefix=".root-", dir=cache.root()) as made,
    ):
        root = Path(made) / "root"
        root.mkdir(mode=0o755)
        process.run(["tar", "-x", "--numeric-owner", "-f", str(base / "root.tar"), "-C", str(root)], timeout=600)
        _add_kernel(base / "kernel", root, folder)
        _add_files(root, binaries)
        _add_images(root, images)
        process.run(
            ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", str(root), str(folder / "node.img"), _DISK_SIZE],
            timeout=600,
        )


def _base() -> Path:
    """Debian's packages, unpacked and set up in root.tar, and its kernel in the folder kernel."""
    name = f"node-base-{_digest([SUITE.encode(), *(package.encode() for package in PACKAGES)])}"
    if not cache.find(name):
        host.apt_install(["mmdebstrap", "e2fsprogs"], _PURPOSE)
        with cache.install(name) as folder:
            with term.step("installing Debian for the node VM (minutes, once)"):
                process.run(_mmdebstrap(folder / "root.tar"), timeout=1800)
            with term.step("fetching a kernel for the node VM"):
                (folder / "kernel").mkdir()
                host.apt_unpack(initramfs.kernel_packages(), folder / "kernel", _PURPOSE)
        _forget("node-base")
    return cache.root() / name


def _mmdebstrap(target: Path) -> list[str]:
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale")]
    said = process.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI) $(RELEASE) $(COMPONENT)"],
        timeout=60,
    )
    return [*command, SUITE, str(target), *sources(said.stdout, signed_by=_KEYRING if _KEYRING.exists() else None)]


def sources(targets: str, *, signed_by: Path | None) -> list[str]:
    """Those of this machine's package sources that have SUITE, as lines of a sources.list; none means Debian's own.

    TARGETS is what apt-get says of them: origin, codename, address, release and component by line.
    """
    found = re.findall(rf"^Debian ({SUITE}\S*) (\S+) (\S+) (\S+)$", targets, re.MULTILINE)
    option = f"[signed-by={signed_by}] " if signed_by else ""
    lines = [f"deb {option}{address} {release} {component}" for _, address, release, component in found]
    return sorted(set(lines)) if any(codename == SUITE for codename, *_ in found) else []


def _add_kernel(kernel: Path, root: Path, folder: Path) -> None:
    (image,) = (kernel / "boot").glob("vmlinuz-*")
    release = image.name.removeprefix("vmlinuz-")
    (modules,) = [found for found in kernel.glob(f"**/modules/{release}") if (found / "kernel").is_dir()]
    inside = root / "usr/lib/modules" / release
    shutil.copytree(
        modules, inside, symlinks=True, ignore=lambda at, names: [n for n in names if _is_unused(Path(at) / n)]
    )
    process.run(["chroot", str(root), "depmod", release], timeout=300)
    archive = initramfs.Archive()
    for name in ("bin", "dev", "modules", "newroot", "proc"):
        archive.folder(name)
    archive.console()
    archive.file("bin/busybox", (root / "bin/busybox").read_bytes())
    archive.file("init", _INIT.read_bytes())
    order = initramfs.load_order(inside, MODULES)
    for path in order:
        archive.file(f"modules/{initramfs.module_name(path)}.ko", initramfs.read_module(path))
    archive.file("modules/order", "\n".join(initramfs.module_name(path) for path in order).encode() + b"\n")
    (folder / "initramfs.cpio").write_bytes(archive.content())
    shutil.copy2(image, folder / "vmlinuz")


def _is_unused(path: Path) -> bool:
    return path.is_dir() and str(path).endswith(tuple(f"/kernel/{name}" for name in _UNUSED_DRIVERS))


def _add_files(root: Path, binaries: Iterable[Path]) -> None:
    shutil.copytree(_ROOT, root, symlinks=True, dirs_exist_ok=True)
    for program in binaries:
        shutil.copy2(program, root / "usr/local/bin" / program.name)
    units = root / "etc/systemd/system"
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    for unit in _UNITS:
        (wanted / f"{unit}.service").symlink_to(f"../{unit}.service")
    for unit in _MASKED:
        (units / unit).symlink_to(os.devnull)
    (root / "etc/kubernetes/manifests").mkdir(parents=True)
    (root / "etc/hostname").write_text("node\n", encoding="ascii")
    # The node and its pods look nothing up; mmdebstrap leaves this machine's file there.
    resolver = root / "etc/resolv.conf"
    resolver.unlink(missing_ok=True)
    resolver.touch()


def _add_images(root: Path, images: Sequence[Path]) -> None:
    folder = root / "usr/local/share/testbed/images"
    folder.mkdir(parents=True)
    busybox = root / "bin/busybox"
    applets = process.run([str(busybox), "--list"], timeout=30).stdout.split()
    ociimage.write(folder / "testbed.tar", busybox.read_bytes(), applets)
    for number, archive in enumerate(images):
        shutil.copyfile(archive, folder / f"{number}.tar")
    own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", str(root)]
    try:
        process.run([*own, "/usr/local/sbin/testbed-import-early"], timeout=600)
    except process.ProcessError as error:
        # Not every file system can hold containerd's layers; the node's can.
        term.say(f"  the node will import its images itself, at each start: {error}")
        shutil.rmtree(root / "var/lib/containerd", ignore_errors=True)
