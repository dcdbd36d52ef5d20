"""A directory tree that looks like a node: cgroups, /proc, /sys and the host's own files."""

from __future__ import annotations

import pathlib

from tests.unit.agent.cgroup_tree import CgroupTree

ZONEINFO = """\
Node 0, zone      DMA
  pages free     3840
        boost    0
        min      66
        low      82
        high     98
        spanned  4095
  pagesets
    cpu: 0
              count: 0
              high:  0
              batch: 1
Node 0, zone   Normal
  pages free     170213
        min      11205
        low      14006
        high     16807
"""
"""Of a machine with kernel 6.1; a CPU's sets of pages have lines of the same names."""
MIN_PAGES = 66 + 11205
LOW_PAGES = 82 + 14006
MEMINFO = """\
MemTotal:        4194304 kB
MemFree:         3145728 kB
MemAvailable:    3145728 kB
Buffers:            8048 kB
Cached:           250000 kB
SwapCached:            0 kB
Inactive(file):   204800 kB
SwapTotal:       1048576 kB
AnonPages:        786432 kB
SReclaimable:       2048 kB
"""
KERNEL_KIB = 4096
"""Of MEMINFO: neither free, anonymous nor of files."""

LIMITED = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
failSwapOn: false
memorySwap: {swapBehavior: LimitedSwap}
evictionHard: {memory.available: 50Mi}
"""

PROC = {
    "meminfo": MEMINFO,
    "zoneinfo": ZONEINFO,
    "pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "sys/vm/swappiness": "60\n",
    "sys/vm/min_free_kbytes": "45056\n",
    "sys/vm/watermark_scale_factor": "10\n",
    "sys/vm/page-cluster": "3\n",
}
SYS = {
    "module/zswap/parameters/enabled": "Y\n",
    "module/zswap/parameters/compressor": "zstd\n",
    "module/zswap/parameters/max_pool_percent": "20\n",
    "block/vda/queue/rotational": "1\n",
}
HOST = {
    "usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so": "",
    "run/systemd/system/placeholder": "",
    "var/lib/kubelet/config.yaml": LIMITED,
}


class HostTree(CgroupTree):
    """A node with systemd, containerd, one swap device and a kubelet that gives LimitedSwap."""

    def __init__(self, folder: pathlib.Path, naming: str = "systemd") -> None:
        super().__init__(folder, naming)
        self.sys, self.host = folder / "sys", folder / "host"
        for root, files in ((self.proc, PROC), (self.sys, SYS), (self.host, HOST)):
            for name, text in files.items():
                self.file(root / name, text)
        self.system = self.root / "system.slice"
        self.unit = self.system / "kubelet.service"
        self.group(self.unit)
        self.group(self.system / "containerd.service")
        for name, text in (("memory.swap.max", "max\n"), ("io.latency", "")):
            self.file(self.system / name, text)

    @staticmethod
    def file(path: pathlib.Path, text: str) -> pathlib.Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @property
    def arguments(self) -> list[str]:
        """For `swapwarden agent --check`."""
        roots = {"cgroup": self.root, "proc": self.proc, "sys": self.sys, "host": self.host}
        return [f"--{name}-root={path}" for name, path in roots.items()]

    def burstable(self, number: int, *limits: str) -> list[pathlib.Path]:
        """A pod with a sandbox and a container for each limit."""
        pod = self.pod(number)
        self.container(pod, f"sandbox{number}")
        return [
            self.container(pod, f"{number}.{place}", memory_swap_max=f"{limit}\n") for place, limit in enumerate(limits)
        ]
