"""Abilities of this machine, found out by use rather than by presence."""

import fcntl
import functools
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.base import cache, process, term

KVM_GET_API_VERSION = 0xAE00
KVM_CREATE_VM = 0xAE01
KVM_CREATE_VCPU = 0xAE41
KVM_API_VERSION = 12
KVM_FOR_KERNELS_MADE_FOR_IT = Path("/sys/module/kvm_pvm")
"""The module of KVM for CPUs without virtualisation: it makes VMs, but a kernel that does not know it hangs in them."""


class SetupError(Exception):
    """Something that the machine lacks, and the remedy."""

    def __init__(self, missing: str, remedy: str) -> None:
        super().__init__(f"{missing}\n  What to do: {remedy}")


def need(fulfilled: object, missing: str, remedy: str) -> None:
    """Stop the set-up with one clear message unless FULFILLED is true."""
    if not fulfilled:
        raise SetupError(missing, remedy)


def need_linux() -> None:
    """Require Linux: the testbed starts Linux programs and reads Linux interfaces."""
    need(
        sys.platform == "linux",
        f"the testbed needs Linux; this is {platform.system()}",
        "run it in a Linux machine or VM (Debian 12 is what it is tested on)",
    )


def is_root() -> bool:
    """Return whether this process can install packages."""
    return os.geteuid() == 0


def has_apt() -> bool:
    """Return whether this is a Debian or a derivative."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg-query") is not None


@functools.cache
def kvm_works() -> bool:
    """Return whether a VM with a CPU can be made: /dev/kvm may open on a CPU without virtualisation."""
    if KVM_FOR_KERNELS_MADE_FOR_IT.exists():
        return False
    opened: list[int] = []
    try:
        opened.append(kvm := os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC))
        if fcntl.ioctl(kvm, KVM_GET_API_VERSION, 0) != KVM_API_VERSION:
            return False
        opened.append(vm := fcntl.ioctl(kvm, KVM_CREATE_VM, 0))
        opened.append(fcntl.ioctl(vm, KVM_CREATE_VCPU, 0))
    except OSError:
        return False
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)
    return True


def _installed(package: str) -> bool:
    query = process.run(["dpkg-query", "-W", "-f", "${Status}", package], timeout=30, check=False)
    return query.stdout.strip() == "install ok installed"


@functools.cache
def _apt_update() -> None:
    # A stale list only matters when one of its packages no longer exists, which the download then reports.
    if is_root():
        process.run(["apt-get", "update", "-q"], timeout=300, check=False)


def apt_install(packages: list[str], purpose: str) -> None:
    """Install the missing ones of PACKAGES; without root, name the command that does."""
    need(
        has_apt(),
        f"{purpose} needs these programs of Debian's packages: {', '.join(packages)}; there is no apt-get here",
        "install them with your distribution's package manager and put them on PATH, or use Debian or Ubuntu",
    )
    missing = [package for package in packages if not _installed(package)]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
    need(
        is_root(),
        f"{purpose} needs packages that are not installed ({', '.join(missing)}), and this is not root",
        f"run once: sudo apt-get update && sudo {shlex.join(command)}",
    )
    with term.step(f"apt-get install {' '.join(missing)}"):
        _apt_update()
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        result = process.run(command, timeout=900, check=False, env=environment)
        need(
            result.returncode == 0,
            f"apt-get could not install {' '.join(missing)} for {purpose}:\n{process.last_lines(result.stderr)}",
            f"check the network and the package sources, then try by hand: {shlex.join(command)}",
        )


def apt_get(arguments: Sequence[str], work: Path, purpose: str) -> None:
    """Run apt-get in the folder WORK; SetupError if it fails."""
    done = process.run(["apt-get", "-q", *arguments], timeout=900, check=False, cwd=work)
    need(
        done.returncode == 0,
        f"{purpose}: apt-get {' '.join(arguments)} failed:\n{process.last_lines(done.stderr)}",
        "check the network and the package sources (as root: apt-get update), then run the set-up again",
    )


def apt_unpack(packages: list[str], into: Path, purpose: str, options: Sequence[str] = ()) -> None:
    """Download PACKAGES and unpack them into a folder; not installed, so no service starts and no host file changes.

    OPTIONS are apt's: testbed.base.debian has those for another suite.
    """
    need(
        has_apt() and shutil.which("dpkg-deb"),
        f"{purpose} is in Debian's packages ({', '.join(packages)}); there is no apt-get here",
        "use Debian or Ubuntu",
    )
    _apt_update()
    downloads = into / ".download"
    downloads.mkdir()
    # The unprivileged sandbox user cannot write into the cache folder, and apt-get warns about it at length.
    apt_get(["-o", "APT::Sandbox::User=root", *options, "download", *packages], downloads, purpose)
    for archive in sorted(downloads.glob("*.deb")):
        process.run(["dpkg-deb", "-x", str(archive), str(into)], timeout=300)
    shutil.rmtree(downloads)


def uv() -> Path | None:
    """Return the uv on PATH, else the one that hack/bootstrap.sh keeps in the cache."""
    if found := shutil.which("uv"):
        return Path(found)
    return next(iter(sorted(cache.root().glob("uv-*/uv"), reverse=True)), None)
