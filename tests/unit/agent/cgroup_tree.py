"""A directory tree that looks like the cgroups of a node, made by the tests themselves in a temporary folder."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil

PAGE = os.sysconf("SC_PAGE_SIZE")

PROC = {
    "meminfo": "MemTotal:        4194304 kB\nMemAvailable:    3145728 kB\nSwapTotal:       1048576 kB\n",
    "swaps": "Filename\tType\tSize\tUsed\tPriority\n/dev/vda\tpartition\t1048576\t0\t-2\n",
    "sys/kernel/osrelease": "6.1.0-25-amd64\n",
}
FILES = {
    "cgroup.events": "populated 1\nfrozen 0\n",
    "memory.swap.current": "0\n",
    "memory.current": "1048576\n",
    "memory.max": "max\n",
    "memory.high": "max\n",
    "memory.swap.max": "max\n",
}


def uid(number: int) -> str:
    """A UID as Kubernetes makes them."""
    text = hashlib.sha256(f"pod {number}".encode()).hexdigest()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def container_id(name: str) -> str:
    """A container id as runtimes make them."""
    return hashlib.sha256(f"container {name}".encode()).hexdigest()


class CgroupTree:
    """`naming`: systemd, cgroupfs, or kind (systemd, below kubelet.slice)."""

    def __init__(self, folder: pathlib.Path, naming: str = "systemd") -> None:
        self.root = folder / "cgroup"
        self.proc = folder / "proc"
        self.naming = naming
        self.root.mkdir()
        (self.root / "cgroup.controllers").write_text("cpu io memory pids\n")
        for name, text in PROC.items():
            file = self.proc / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (self.root / "system.slice" / "ssh.service").mkdir(parents=True)
        self.kubepods = (
            self.root
            / {
                "systemd": "kubepods.slice",
                "cgroupfs": "kubepods",
                "kind": "kubelet.slice/kubelet-kubepods.slice",
            }[naming]
        )
        self.group(self.kubepods)
        for qos in ("burstable", "besteffort"):
            self.group(self.level(qos))

    @property
    def prefix(self) -> str:
        return "kubelet-" if self.naming == "kind" else ""

    def group(self, path: pathlib.Path, **files: str) -> pathlib.Path:
        """Make a cgroup; the limit appears last and with its value, as a kernel shows none without usage or value."""
        path.mkdir(parents=True)
        aside = self.root.parent / f"limit of {path.name}"
        for name, text in FILES.items():
            file = aside if name == "memory.swap.max" else path / name
            file.write_text(files.get(name.replace(".", "_"), text))
        aside.rename(path / "memory.swap.max")
        return path

    def level(self, qos: str) -> pathlib.Path:
        if qos == "guaranteed":
            return self.kubepods
        return self.kubepods / (qos if self.naming == "cgroupfs" else f"{self.prefix}kubepods-{qos}.slice")

    def pod_path(self, number: int, qos: str = "burstable") -> pathlib.Path:
        if self.naming == "cgroupfs":
            return self.level(qos) / f"pod{uid(number)}"
        middle = "" if qos == "guaranteed" else f"-{qos}"
        return self.level(qos) / f"{self.prefix}kubepods{middle}-pod{uid(number).replace('-', '_')}.slice"

    def pod(self, number: int, qos: str = "burstable", **files: str) -> pathlib.Path:
        return self.group(self.pod_path(number, qos), **files)

    def container_path(self, pod: pathlib.Path, name: str) -> pathlib.Path:
        cid = container_id(name)
        return pod / (cid if self.naming == "cgroupfs" else f"cri-containerd-{cid}.scope")

    def container(self, pod: pathlib.Path, name: str, **files: str) -> pathlib.Path:
        return self.group(self.container_path(pod, name), **files)

    def remove(self, path: pathlib.Path) -> None:
        shutil.rmtree(path)


def swap_max(path: pathlib.Path) -> str:
    return (path / "memory.swap.max").read_text().partition("\n")[0]


def write(path: pathlib.Path, value: str, file: str = "memory.swap.max") -> None:
    """As another writer does it: in one step, as kernel files take it."""
    fd = os.open(path / file, os.O_WRONLY)
    try:
        os.write(fd, f"{value}\n".encode().ljust(os.fstat(fd).st_size, b"\n"))
    finally:
        os.close(fd)
