"""Make pod cgroups for the node stand-in, like kubelet and runc, on a real cgroup v2 or on a plain folder.

On a plain folder every "cgroup" gets ordinary files with the kernel's first values, and appears and disappears as a
whole, by a rename (inotify reports IN_MOVED_TO and IN_MOVED_FROM instead of the kernel's IN_CREATE and IN_DELETE).
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

PAGE = 4096
# The files of a new cgroup, as far as anyone here reads them.
PLAIN_FILES = {
    "cgroup.controllers": "cpu io memory pids\n",
    "cgroup.events": "populated 0\nfrozen 0\n",
    "cgroup.procs": "",
    "cgroup.subtree_control": "",
    "memory.current": "4096000\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
    "memory.high": "max\n",
    "memory.low": "0\n",
    "memory.max": "max\n",
    "memory.min": "0\n",
    "memory.swap.current": "0\n",
    "memory.swap.events": "high 0\nmax 0\nfail 0\n",
    "memory.swap.high": "max\n",
    "memory.swap.max": "max\n",
}
_CONTROLLERS = "+memory +pids"


def is_cgroup_mount(folder: Path) -> bool:
    """Return whether FOLDER lies in a real cgroup v2 file system."""
    best = ("", "")
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields = line.split()
        place, kind = fields[4], fields[fields.index("-") + 1]
        if folder.is_relative_to(place) and len(place) >= len(best[0]):
            best = (place, kind)
    return best[1] == "cgroup2"


class Tree:
    """The cgroups below ROOT. NAMING is `systemd` or `cgroupfs`: the kubelet's cgroup driver."""

    def __init__(self, root: Path, naming: str) -> None:
        self.root = root.resolve()
        self.systemd = naming == "systemd"
        self.real = is_cgroup_mount(self.root)
        self.kubepods = self.root / ("kubepods.slice" if self.systemd else "kubepods")
        self._staging = Path()

    def prepare(self) -> None:
        """Make the levels above the pods. FileExistsError if some exist: another node owns them."""
        if not self.real:
            self._staging = Path(tempfile.mkdtemp(prefix=f".{self.root.name}-", dir=self.root.parent))
            _fill(self.root)
        self.make(self.kubepods)
        for level in ("burstable", "besteffort"):
            self.make(self._parent(level))

    def _parent(self, qos: str) -> Path:
        if qos == "guaranteed":
            return self.kubepods
        return self.kubepods / (f"kubepods-{qos}.slice" if self.systemd else qos)

    def pod(self, uid: str, qos: str) -> Path:
        """Return the folder of a pod's cgroup; QOS is the QoS class in lower case."""
        if not self.systemd:
            return self._parent(qos) / f"pod{uid}"
        level = "" if qos == "guaranteed" else f"-{qos}"
        return self._parent(qos) / f"kubepods{level}-pod{uid.replace('-', '_')}.slice"

    def container(self, pod: Path, identifier: str) -> Path:
        """Return the folder of a container's cgroup, as containerd names it."""
        return pod / (f"cri-containerd-{identifier}.scope" if self.systemd else identifier)

    def make(self, folder: Path, limits: dict[str, str] | None = None) -> None:
        """Make a pod's or a container's cgroup, with the given values of its files."""
        if self.real:
            # The controllers of a cgroup's children are switched on in the cgroup itself.
            self.write(folder.parent / "cgroup.subtree_control", _CONTROLLERS)
            folder.mkdir()
        else:
            whole = self._staging / folder.name
            whole.mkdir()
            _fill(whole)
            whole.rename(folder)
        for name, value in (limits or {}).items():
            self.write(folder / name, value)

    def write(self, file: Path, value: str) -> None:
        """Write a control file; in a plain folder, floor a number to the page like the kernel."""
        if not self.real and value.isdecimal():
            value = str(int(value) // PAGE * PAGE)
        ending = "" if self.real else "\n"
        with file.open("wb", buffering=0) as opened:
            opened.write(f"{value}{ending}".encode())

    def oom_kills(self, folder: Path) -> int:
        """Return how many processes of a cgroup the kernel has killed for want of memory."""
        lines = (folder / "memory.events").read_text(encoding="ascii").split()
        return int(lines[lines.index("oom_kill") + 1])

    def kill(self, folder: Path) -> None:
        """Kill every process in a cgroup and below it."""
        if self.real:
            with contextlib.suppress(FileNotFoundError):
                self.write(folder / "cgroup.kill", "1")

    def remove(self, folder: Path) -> bool:
        """Remove a cgroup and those below it; False while processes still hold it."""
        if not folder.exists():
            return True
        if not self.real:
            gone = self._staging / f"gone-{folder.name}"
            folder.rename(gone)
            shutil.rmtree(gone)
            return True
        try:
            for below, _, _ in os.walk(folder, topdown=False):
                Path(below).rmdir()
        except OSError:
            return False
        return True

    def close(self) -> bool:
        """Remove everything that was made; False while processes still hold it."""
        self.kill(self.kubepods)
        if not self.remove(self.kubepods):
            return False
        if not self.real:
            shutil.rmtree(self._staging, ignore_errors=True)
        return True


def _fill(folder: Path) -> None:
    for name, content in PLAIN_FILES.items():
        if not (folder / name).exists():
            (folder / name).write_text(content, encoding="ascii")
