"""User-mode Linux: a kernel that runs as a process of this machine, where VMs would have an emulated processor.

It is Linux' own memory management, cgroups and network stack (Documentation/virt/uml/user_mode_linux_howto_v2.rst);
programs in it run on the real processor, and only their system calls and page faults take longer. Debian's kernel for
it lacks features that kube-proxy needs, so it is built from Debian's sources.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.base import cache, debian, host, process, term

SUITE = "forky"
"""Of Debian, whose kernel (7.2) is new enough: it catches system calls without ptrace(2), and knows processors with
large registers. That of Debian 12 (6.1) panics at its first program on one with AMX."""
_CONFIG = Path(__file__).with_name("uml.config")
_PURPOSE = "a kernel in user mode"
_PROGRAMS = ("build-essential", "flex", "bison", "bc", "xz-utils")
_UNUSED = ("Documentation", "tools/testing", "sound", "drivers/gpu", "drivers/net/ethernet", "drivers/media")
_BUILD_TIMEOUT = 3600.0


def ensure() -> Path:
    """Return the kernel, built on the first call (some ten minutes on two cores); host.SetupError if that fails."""
    host.need_linux()
    name = f"uml-{hashlib.sha256(SUITE.encode() + _CONFIG.read_bytes()).hexdigest()[:12]}"
    return cache.made(name, _make) / "linux"


def machine(
    kernel: Path, folder: Path, *, memory_mib: int, disks: Sequence[str], device: str, words: Sequence[str]
) -> list[str]:
    """Return the command line of a machine whose console is its output; FOLDER is for its own files.

    DISKS are /dev/ubda and so on, each `FILE` or `CHANGES,FILE`. DEVICE is this machine's end of its network device,
    which is vec0 inside: one end of a pair (veth), as Linux 7.2 fails in user mode with a tap. WORDS are the kernel's.
    It has one processor: with two, which wait for each other's locks, the e2e tests take longer. It has a process
    namespace of its own, so that no process of it outlives it.
    """
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--", str(kernel), f"uml_dir={folder}", f"mem={memory_mib}M"]
    argv += ["seccomp=on", *(f"ubd{number}={disk}" for number, disk in enumerate(disks))]
    argv += [f"vec0:transport=raw,ifname={device},depth=64,gro=1", "con=null", "con0=null,fd:1", "ssl=null"]
    return [*argv, "root=/dev/ubda", "rw", *words]


def _make(folder: Path) -> None:
    host.apt_install(list(_PROGRAMS), _PURPOSE)
    with tempfile.TemporaryDirectory(prefix=".uml-", dir=cache.root()) as made:
        work = Path(made)
        with term.step("fetching the sources of Debian's kernel for the node VM (once)"):
            source = _source(work)
        with term.step("building a kernel that runs in user mode (minutes, once)"):
            _build(source)
        shutil.copy2(source / "linux", folder / "linux")


def _source(work: Path) -> Path:
    """Return the sources, unpacked in WORK."""
    options = debian.options(SUITE, work, _PURPOSE)
    said = process.run(["apt-cache", *options, "depends", "linux-source"], timeout=60, cwd=work).stdout
    package = re.search(r"Depends: (linux-source-\S+)", said)
    host.need(package, f"Debian's {SUITE} has no linux-source", "the node VM can do without: it will be slow")
    assert package  # noqa: S101 - for the types; said above
    host.apt_unpack([package[1]], work, _PURPOSE, options)
    (sources,) = (work / "usr/src").glob("linux-source-*.tar.xz")
    unused = [f"--exclude=*/{name}/*.[ch]" for name in _UNUSED]
    process.run(["tar", "-x", "-f", str(sources), "-C", str(work), *unused], timeout=900)
    return work / sources.name.removesuffix(".tar.xz")


def _build(source: Path) -> None:
    make = ["make", "-s", "ARCH=um"]
    process.run([*make, "x86_64_defconfig"], timeout=300, cwd=source)
    process.run(["scripts/kconfig/merge_config.sh", "-m", ".config", str(_CONFIG)], timeout=300, cwd=source)
    process.run([*make, "olddefconfig"], timeout=300, cwd=source)
    process.run([*make, f"-j{os.cpu_count() or 1}", "linux"], timeout=_BUILD_TIMEOUT, cwd=source)
    process.run(["strip", "linux"], timeout=60, cwd=source)
