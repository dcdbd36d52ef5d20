"""QEMU for all VMs of the testbed: with hardware virtualization if that works, else with an emulated processor."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from testbed.base import host, process, term

PROGRAM = "qemu-system-x86_64"
# Without five-level page tables and side-channel defences the emulated CPU has less to do. The kernel's timer check
# considers an emulated CPU broken if other work of the host delays it, and panics. The kernel does not expect the time
# stamp counters of several emulated CPUs to agree, although they do (all give the host's), and would ask an emulated
# device for the time.
KERNEL_WORDS = (
    *("console=ttyS0", "quiet", "panic=-1", "psi=1", "net.ifnames=0", "random.trust_cpu=on"),
    *("nokaslr", "mitigations=off", "no5lvl", "no_timer_check", "tsc=reliable"),
)
# QEMU emulates `rep stosb` byte by byte. Without these two features the kernel clears and copies pages by words: a page
# fault takes a third of the time.
EMULATED_CPU = "max,-erms,-fsrm"
_INSTEAD = {"kvm": "KVM does not work here", "uml": "Linux does not run in user mode here"}
_BROKEN: set[str] = set()  # Accelerators that have failed in this process.


def ensure(purpose: str) -> None:
    """Prepare QEMU on this machine; host.SetupError if that fails."""
    host.need_linux()
    machine = os.uname().machine
    host.need(
        machine == "x86_64",
        f"{purpose} is made for x86_64; this machine is {machine}",
        "run this part on an x86_64 machine; unit and integration tests work here",
    )
    if not shutil.which(PROGRAM):
        host.apt_install(["qemu-system-x86"], purpose)


def accelerators(*, user_mode: bool = False) -> list[str]:
    """Return the accelerators for a VM, best first: `kvm`, with USER_MODE `uml` (testbed.vm.uml), `tcg`.

    $TESTBED_ACCELERATOR names one to use instead of those before it.
    """
    chosen = os.environ.get("TESTBED_ACCELERATOR", "")
    order = ["kvm", "uml", "tcg"]
    works = {"kvm": host.kvm_works(), "uml": user_mode, "tcg": True}
    left = order[order.index(chosen) :] if chosen in order else order
    return [name for name in left if works[name] and name not in _BROKEN]


def give_up(accelerator: str, error: Exception) -> None:
    """Stop using ACCELERATOR in this process, as it has failed with ERROR."""
    _BROKEN.add(accelerator)
    term.say(f"  {_INSTEAD[accelerator]}: {str(error).splitlines()[0]}")


def boot(start: Callable[[str], None], *, user_mode: bool = False) -> str:
    """START a VM with the first accelerator that does not fail with a ProcessError; return it."""
    for name in accelerators(user_mode=user_mode):
        if name == "tcg":
            break
        try:
            start(name)
        except (process.ProcessError, host.SetupError) as error:
            # A virtual machine may offer /dev/kvm and even make VMs, but be unable to run them.
            give_up(name, error)
        else:
            return name
    term.say("  on an emulated CPU, some 30 times slower than hardware: KVM does not work here")
    start("tcg")
    return "tcg"


def machine(accelerator: str, *, cpus: int, memory_mib: int, console: Path, reboots: bool = False) -> list[str]:
    """Return the command line of a VM without disks, network and kernel; its console is written to a file.

    Without REBOOT, the VM ends instead of rebooting, also after a kernel panic.
    """
    kvm = accelerator == "kvm"
    argv = [
        PROGRAM,
        "-machine",
        "q35",
        "-accel",
        "kvm" if kvm else "tcg,thread=multi",
        "-cpu",
        "host" if kvm else EMULATED_CPU,
    ]
    argv += ["-smp", str(cpus), "-m", f"{memory_mib}M", "-nodefaults", "-no-user-config"]
    argv += [] if reboots else ["-no-reboot"]
    argv += ["-display", "none", "-monitor", "none", "-serial", f"file:{console}", "-device", "virtio-rng-pci"]
    return argv


def shared_folder(tag: str, folder: Path, *, readonly: bool = False) -> list[str]:
    """Return options for a folder of this machine that the guest mounts by 9p with the tag TAG."""
    access = ",readonly=on" if readonly else ""
    backend = f"local,id={tag},path={folder},security_model=none,multidevs=remap{access}"
    return ["-fsdev", backend, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
