"""What the node shows besides the facts that the state has: a look at it, for findings and for `--check`."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from swapwarden.agent.host import cgroupfs, files, values
from swapwarden.agent.inventory import layout
from swapwarden.agent.node import kubelet_config
from swapwarden.api import state

KUBELET_UNITS: Final = (
    "system.slice/kubelet.service",
    "system.slice/k3s.service",
    "system.slice/k3s-agent.service",
    "system.slice/rke2-server.service",
    "system.slice/rke2-agent.service",
    "runtime.slice/kubelet.service",
    "podruntime.slice/kubelet.service",
    "kubelet.slice/kubelet.service",
)
"""Where distributions run the kubelet."""
RUNTIME_UNITS: Final = (
    "system.slice/containerd.service",
    "system.slice/crio.service",
    "runtime.slice/containerd.service",
    "podruntime.slice/containerd.service",
    "podruntime.slice/crio.service",
    "system.slice/k3s.service",
    "system.slice/k3s-agent.service",
    "system.slice/rke2-server.service",
    "system.slice/rke2-agent.service",
)
"""Where they run the container runtime: k3s and RKE2 in the unit of the kubelet."""
KUBELET_FILES: Final = (
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/kubelet-config.json",
    "home/kubernetes/kubelet-config.yaml",
    "etc/kubernetes/kubelet.conf",
    "etc/kubernetes/kubelet.yaml",
)
"""Where kubeadm and kind, Amazon's images, Google's and OpenShift keep the kubelet's configuration."""
KUBELET_DROP_INS: Final = (
    "var/lib/rancher/k3s/agent/etc/kubelet.conf.d",
    "var/lib/rancher/rke2/agent/etc/kubelet.conf.d",
)
_PODS: Final = 32
"""Pods whose containers are looked at; what a kubelet does, it does with all of them."""
_RUNTIMES: Final = {"cri-containerd-": "containerd", "crio-": "CRI-O", "docker-": "cri-dockerd"}
_LOW: Final = re.compile(r"\s+low\s+([0-9]{1,12})\s*", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class Containers(NamedTuple):
    """Of Burstable pods: those whose containers all have no limit, and those where one has."""

    without: int = 0
    limited: int = 0
    swapping: int = 0
    """Of the limited, those with a limit above 0."""


class Look(NamedTuple):
    """What was seen. None, or 0 for sizes: not to be told."""

    configuration: kubelet_config.Configuration | None = None
    unreadable: str = ""
    """Why there is no configuration although there are files for it; empty elsewhere."""
    watermark_low: int = 0
    """Free memory in bytes below which the kernel begins to reclaim and to swap: the sum over all zones."""
    kubelet_swaps: bool | None = None
    """Whether the kubelet's own unit may swap."""
    runtime_swaps: bool | None = None
    """Whether the container runtime's may."""
    containers: Containers = Containers()
    controllers: str | None = None
    """Of cgroup v2, as the kernel lists them."""
    zswap: state.Zswap | None = None
    pressure: bool | None = None
    """Whether the kernel tells of memory pressure."""
    runtime: str = ""
    """The container runtime; empty where that is not to be told."""


def look(
    proc: pathlib.Path,
    sys: pathlib.Path,
    cgroups: cgroupfs.Cgroups,
    root: str | None,
    kubelet: kubelet_config.Files = kubelet_config.Files(),  # noqa: B008 a tuple of nothing
    *,
    ours: Callable[[str], bool] = lambda _: False,
) -> Look:
    """Look at the node; `root` is the cgroup above all pods. `ours` tells cgroups whose limit the agent has written."""
    found, unreadable = None, ""
    if any(kubelet):
        try:
            found = kubelet_config.read(kubelet)
        except kubelet_config.ConfigurationError as error:
            unreadable = str(error)
    return Look(
        configuration=found,
        unreadable=unreadable,
        watermark_low=watermark_low(proc, cgroups.page),
        kubelet_swaps=_may_one_swap(cgroups, KUBELET_UNITS),
        runtime_swaps=_may_one_swap(cgroups, RUNTIME_UNITS),
        containers=Containers() if root is None else containers(cgroups, root, ours),
        controllers=controllers(pathlib.Path(cgroups.root)),
        zswap=zswap(sys),
        pressure=pressure(proc),
        runtime=runtime(cgroups, root),
    )


def told(found: state.Facts, seen: Look, root: str | None) -> state.Facts:
    """The facts as a node's state has them: with what of `seen` is worth telling."""
    return msgspec.structs.replace(
        found,
        controllers=[name[:32] for name in (seen.controllers or "").split()[:16]],
        zswap=seen.zswap,
        memory_pressure=seen.pressure is True,
        runtime=seen.runtime,
        kubelet=kubelet_facts(seen, root),
    )


def kubelet_facts(seen: Look, root: str | None) -> state.Kubelet | None:
    """What a node's state says of the kubelet: what it was told, else what the cgroups show; None: nothing is known."""
    found = seen.configuration
    if found is not None:
        return state.Kubelet(
            fail_swap_on=found.fail_swap_on,
            swap_behavior=found.swap_behavior,
            eviction_memory=found.eviction_memory,
            enforce_node_allocatable=list(found.enforce_node_allocatable),
            memory_qos=found.memory_qos,
            cgroup_driver=found.cgroup_driver,
            cgroup_root=found.cgroup_root,
        )
    if root is None:
        return None
    above, _, name = root.rpartition("/")
    return state.Kubelet(
        inferred=True,
        swap_behavior=behavior(seen.containers),
        cgroup_driver="systemd" if name.endswith(".slice") else "cgroupfs",
        cgroup_root=f"/{above}"[:128],
    )


def behavior(tally: Containers) -> str:
    """What the kubelet's swapBehavior must be, by what limits containers have; empty where that is not to be told.

    Zeros tell nothing: under LimitedSwap, too, critical pods and containers without a request get no swap.
    """
    return "LimitedSwap" if tally.swapping else ""


def watermark_low(proc: pathlib.Path, page: int) -> int:
    """The sum of all zones' low watermarks in bytes (/proc/zoneinfo); 0 where they cannot be read."""
    matches = (_LOW.fullmatch(line.rstrip("\n")) for line in files.lines(proc / "zoneinfo"))
    return sum(int(match[1]) for match in matches if match) * page


def may_swap(cgroups: cgroupfs.Cgroups, path: str) -> bool | None:
    """Whether neither the cgroup nor one above it has a limit of 0; None where there is no such cgroup, or no limit."""
    if cgroups.inode(path) is None:
        return None
    found = [value for each in _upwards(path) if (value := _limit(cgroups, each)) is not None]
    return all(value > 0 for value in found) if found else None


def _may_one_swap(cgroups: cgroupfs.Cgroups, units: Iterable[str]) -> bool | None:
    """Whether the first of these that there is may swap; None where there is none."""
    return next((swaps for unit in units if (swaps := may_swap(cgroups, unit)) is not None), None)


def _upwards(path: str) -> Sequence[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _limit(cgroups: cgroupfs.Cgroups, path: str) -> int | None:
    try:
        return cgroups.limit(path)
    except cgroupfs.CgroupError:
        return None


def containers(cgroups: cgroupfs.Cgroups, root: str, ours: Callable[[str], bool]) -> Containers:
    """What limits containers of Burstable pods have that the agent has not written.

    A pod counts that has at least two: one is the sandbox, which no kubelet gives a limit.
    """
    without = limited = swapping = 0
    burstable = (pod for pod in layout.pods(cgroups.dirs, root) if "burstable" in pod.path)
    for pod, _ in zip(burstable, range(_PODS), strict=False):
        paths = [cgroupfs.join(pod.path, name) for name in cgroups.dirs(pod.path) if layout.container_id(name)]
        known = [value for path in paths if (value := _effective(cgroups, path, ours)) is not None]
        if len(known) < max(2, len(paths)):
            continue
        numbers = [value for value in known if value < values.NO_LIMIT]
        without += not numbers
        limited += bool(numbers)
        swapping += any(numbers)
    return Containers(without, limited, swapping)


def _effective(cgroups: cgroupfs.Cgroups, path: str, ours: Callable[[str], bool]) -> int | None:
    """The limit of a container, in whose cgroup crun makes another; None where it is not to be told, or of ours."""
    inner = cgroupfs.join(path, layout.INNER)
    if ours(path) or ours(inner):
        return None
    known = [value for each in (path, inner) if (value := _limit(cgroups, each)) is not None]
    return min(known, default=None)


def runtime(cgroups: cgroupfs.Cgroups, root: str | None) -> str:
    """The container runtime, by what it calls containers' cgroups under systemd; empty where that is not to be told."""
    for pod in layout.pods(cgroups.dirs, root) if root is not None else ():
        for name in cgroups.dirs(pod.path):
            for prefix, runtime_name in _RUNTIMES.items():
                if name.startswith(prefix):
                    return runtime_name
    return ""


def controllers(cgroup_root: pathlib.Path) -> str | None:
    """The controllers of cgroup v2, as the kernel lists them; None where it is not mounted."""
    return files.text(cgroup_root / "cgroup.controllers")


def io_weight(cgroup: pathlib.Path) -> str | None:
    """A cgroup's share of disks (io.cost, or the scheduler bfq); None where the kernel has neither."""
    found = (files.text(cgroup / name) for name in ("io.weight", "io.bfq.weight"))
    return next((each for each in found if each is not None), None)


def zswap(sys: pathlib.Path) -> state.Zswap | None:
    """How zswap is set; None where the kernel has none."""
    folder = sys / "module/zswap/parameters"
    enabled = files.text(folder / "enabled")
    if enabled is None:
        return None
    compressor, percent = (files.text(folder / name) or "" for name in ("compressor", "max_pool_percent"))
    share = int(percent) if _NUMBER.fullmatch(percent) else None
    return state.Zswap(enabled in {"Y", "1"}, compressor[:32], share if share is not None and share <= 100 else None)


def pressure(proc: pathlib.Path) -> bool | None:
    """Whether the kernel tells of memory pressure (PSI); None where there is no such file: no PSI, or turned off."""
    found = files.text(proc / "pressure/memory")
    return None if found is None else found.startswith("some ")


def sysctl(proc: pathlib.Path, name: str) -> int | None:
    """A number of /proc/sys, by its path there."""
    found = files.text(proc / "sys" / name) or ""
    return int(found) if _NUMBER.fullmatch(found) else None


def systemd(host: pathlib.Path) -> str | None:
    """Version of the systemd that runs the host, empty where that is not to be told; None where none does."""
    if not (host / "run/systemd/system").is_dir():
        return None
    for folder in ("usr/lib/systemd", "lib/systemd", "usr/lib64/systemd", *_multiarch(host)):
        for name in files.names(host / folder, "libsystemd-shared-*.so"):
            return name.removeprefix("libsystemd-shared-").removesuffix(".so")
    return ""


def _multiarch(host: pathlib.Path) -> list[str]:
    return [f"usr/lib/{name}/systemd" for name in files.names(host / "usr/lib", "*-linux-gnu*")]


def configuration_files(host: pathlib.Path) -> kubelet_config.Files:
    """Where the host keeps the kubelet's configuration, as far as there is any."""
    file = next((host / path for path in KUBELET_FILES if _is_configuration(host / path)), None)
    drop_ins = next((host / path for path in KUBELET_DROP_INS if (host / path).is_dir()), None)
    return kubelet_config.Files(file, drop_ins)


def _is_configuration(file: pathlib.Path) -> bool:
    """Whether a file is one at all: some distributions keep other things of the kubelet's under these names."""
    return kubelet_config.KIND in (files.text(file) or "")
