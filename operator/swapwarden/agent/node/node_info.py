"""Reads how the node is equipped and configured: facts for its state, and more for diagnostics and preflight.

Read from /proc, /sys, the cgroup file system and the kubelet's files. Unreadable files count as absent.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from swapwarden.agent.host import block_devices, cgroupfs, files, mounts
from swapwarden.agent.inventory import layout, records
from swapwarden.agent.node import eviction_order, kubelet_config
from swapwarden.api import names, state

TMPFS_NOSWAP_KERNEL: Final = (6, 4)
"""From this version on the kubelet assumes tmpfs noswap (pkg/kubelet/util/swap/swap_util.go)."""
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
"""Units in which distributions run the kubelet."""
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
"""Units in which they run the container runtime; k3s and RKE2 run it in the kubelet's."""
KUBELET_FILES: Final = (
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/kubelet-config.json",
    "home/kubernetes/kubelet-config.yaml",
    "etc/kubernetes/kubelet.conf",
    "etc/kubernetes/kubelet.yaml",
)
"""The kubelet's configuration: kubeadm and kind, Amazon's images, Google's, OpenShift."""
KUBELET_DROP_INS: Final = (
    "var/lib/rancher/k3s/agent/etc/kubelet.conf.d",
    "var/lib/rancher/rke2/agent/etc/kubelet.conf.d",
)
_IN_A_FILE: Final = msgspec.structs.replace(block_devices.UNKNOWN, backing=names.Backing.FILE)
_PODS: Final = 32
"""Most pods whose containers are read: a kubelet treats all pods alike."""
_RUNTIMES: Final = {"cri-containerd-": "containerd", "crio-": "CRI-O", "docker-": "cri-dockerd"}
_ZONE: Final = re.compile(r"\s+(min|low|count:)\s+([0-9]{1,12})\s*", re.ASCII)
_FILE_PAGES: Final = ("Cached", "SwapCached", "Buffers")
"""Fields of /proc/meminfo; their sum equals `file` in the root cgroup's memory.stat."""
_NEEDED: Final = frozenset({"MemTotal", "MemFree", "AnonPages", "Inactive(file)", *_FILE_PAGES})
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_SIZE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
"""A size in KiB, with as many digits as bytes have that fit into the status."""
_PRIORITY: Final = re.compile(r"-?[0-9]{1,9}", re.ASCII)


class Containers(msgspec.Struct, frozen=True):
    """Numbers of Burstable pods, by the swap limits of their containers."""

    without: int = 0
    """Pods of which no container has a swap limit."""
    limited: int = 0
    """Pods of which a container has a swap limit."""
    swapping: int = 0
    """Pods of which a container has a swap limit above 0."""


class NodeLook(msgspec.Struct, frozen=True):
    """Other findings. None: unknown."""

    configuration: kubelet_config.Configuration | None = None
    unreadable: str = ""
    """Why the files have no valid configuration, or empty."""
    memory: eviction_order.NodeMemory | None = None
    kubelet_swaps: bool | None = None
    """Whether the kubelet's unit may swap."""
    runtime_swaps: bool | None = None
    """Whether the container runtime's unit may swap."""
    containers: Containers = Containers()
    controllers: str | None = None
    """Controllers of cgroup v2, as the kernel lists them."""
    zswap: state.ZswapFacts | None = None
    pressure: bool | None = None
    """Whether the kernel reports memory pressure."""
    runtime: str = ""
    """The container runtime, or empty."""


def look(
    proc: pathlib.Path,
    sys: pathlib.Path,
    cgroups: cgroupfs.Cgroups,
    root: str | None,
    kubelet: kubelet_config.Files = kubelet_config.Files(),  # noqa: B008 frozen, and empty
    *,
    ours: Collection[str] = (),
) -> NodeLook:
    """Read what the facts leave out. `root` is the cgroup above all pods; `ours` are cgroups that the agent limited."""
    configuration, unreadable = None, ""
    if kubelet:
        try:
            configuration = kubelet_config.read(kubelet)
        except kubelet_config.ConfigurationError as error:
            unreadable = str(error)
    return NodeLook(
        configuration=configuration,
        unreadable=unreadable,
        memory=memory(proc, cgroups, root),
        kubelet_swaps=_may_one_swap(cgroups, KUBELET_UNITS),
        runtime_swaps=_may_one_swap(cgroups, RUNTIME_UNITS),
        containers=Containers() if root is None else containers(cgroups, root, ours),
        controllers=controllers(pathlib.Path(cgroups.root)),
        zswap=zswap(sys),
        pressure=pressure(proc),
        runtime=runtime(cgroups, root),
    )


def reported(facts: state.Facts, seen: NodeLook, root: str | None) -> state.Facts:
    """Return the facts as a node's state has them: with the part of `seen` that is reported."""
    return msgspec.structs.replace(
        facts,
        controllers=[name[:32] for name in (seen.controllers or "").split()[:16]],
        zswap=seen.zswap,
        psi_available=seen.pressure is True,
        runtime=seen.runtime,
        kubelet=kubelet_facts(seen, root),
    )


def kubelet_facts(seen: NodeLook, root: str | None) -> state.Kubelet | None:
    """Return the kubelet's configuration, else what the cgroups show of it, or None."""
    configuration = seen.configuration
    if configuration is not None:
        return state.Kubelet(
            fail_swap_on=configuration.fail_swap_on,
            swap_behavior=configuration.swap_behavior,
            eviction_memory=configuration.eviction_memory,
            enforce_node_allocatable=list(configuration.enforce_node_allocatable),
            memory_qos=configuration.memory_qos,
            cgroup_driver=configuration.cgroup_driver,
            cgroup_root=configuration.cgroup_root,
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
    """Infer the kubelet's swapBehavior from container limits; empty if they do not show it.

    Zeros show nothing: under LimitedSwap critical pods and containers without a request also get no swap.
    """
    return "LimitedSwap" if tally.swapping else ""


class Zones(msgspec.Struct, frozen=True):
    """Sums over all zones (/proc/zoneinfo), in bytes; zeros if it is unreadable."""

    minimum: int
    """The min watermarks."""
    low: int
    """The low watermarks."""
    listed: int
    """Free memory on lists of processors, which take from it first. The kernel does not count it as free."""


def zones(proc: pathlib.Path, page: int) -> Zones:
    """Return the sums; `page` is the size of a page in bytes."""
    sums = dict.fromkeys(("min", "low", "count:"), 0)
    for line in files.lines(proc / "zoneinfo"):
        if match := _ZONE.fullmatch(line.rstrip("\n")):
            sums[match[1]] += int(match[2]) * page
    return Zones(*sums.values())


def memory(proc: pathlib.Path, cgroups: cgroupfs.Cgroups, root: str | None) -> eviction_order.NodeMemory | None:
    """Return how the node's memory is used; None if /proc does not show it. `root` is the cgroup above all pods."""
    sizes = meminfo(files.text(proc / "meminfo") or "")
    marks = zones(proc, cgroups.page)
    if not sizes.keys() >= _NEEDED or not marks.low:
        return None
    total, free = sizes["MemTotal"], sizes["MemFree"] + marks.listed
    return eviction_order.NodeMemory(
        total=total,
        free=free,
        inactive_file=sizes["Inactive(file)"],
        kernel=max(0, total - free - sizes["AnonPages"] - sum(sizes[name] for name in _FILE_PAGES)),
        slab=sizes.get("SReclaimable", 0),
        minimum=marks.minimum,
        low=marks.low,
        pods=None if root is None else _pods_memory(cgroups, root),
    )


def _pods_memory(cgroups: cgroupfs.Cgroups, root: str) -> eviction_order.PodsMemory | None:
    try:
        limit, used = (
            cgroups.read(cgroupfs.join(root, name)) for name in (cgroupfs.MEMORY_MAX, cgroupfs.MEMORY_CURRENT)
        )
        inactive = cgroups.stat(root).inactive_file
    except cgroupfs.CgroupError:
        return None
    return eviction_order.PodsMemory(limit, max(0, used - inactive)) if limit < cgroupfs.NO_LIMIT else None


def may_swap(cgroups: cgroupfs.Cgroups, path: str) -> bool | None:
    """Return whether no limit of the cgroup and those above it is 0; None if it does not exist, or none has a limit."""
    if cgroups.inode(path) is None:
        return None
    limits = (cgroups.number(each, cgroupfs.SWAP_MAX) for each in (path, *cgroupfs.above(path)))
    numbers = [value for value in limits if value is not None]
    return all(value > 0 for value in numbers) if numbers else None


def _may_one_swap(cgroups: cgroupfs.Cgroups, units: Iterable[str]) -> bool | None:
    """Return whether the first of these that exists may swap; None if none exists."""
    return next((swaps for unit in units if (swaps := may_swap(cgroups, unit)) is not None), None)


def containers(cgroups: cgroupfs.Cgroups, root: str, ours: Collection[str]) -> Containers:
    """Count Burstable pods by the limits of containers that the agent did not write.

    Only pods with at least two containers count: one is the sandbox, to which no kubelet gives a limit.
    """
    without = limited = swapping = 0
    burstable = (pod for pod in layout.pods(cgroups.dirs, root) if "burstable" in pod.path)
    for pod, _ in zip(burstable, range(_PODS), strict=False):
        paths = [cgroupfs.join(pod.path, name) for name in cgroups.dirs(pod.path) if records.container_id(name)]
        known = [value for path in paths if (value := _effective(cgroups, path, ours)) is not None]
        if len(known) < max(2, len(paths)):
            continue
        numbers = [value for value in known if value < cgroupfs.NO_LIMIT]
        without += not numbers
        limited += bool(numbers)
        swapping += any(numbers)
    return Containers(without, limited, swapping)


def _effective(cgroups: cgroupfs.Cgroups, path: str, ours: Collection[str]) -> int | None:
    """Return a container's limit, with that of the cgroup that crun makes inside; None if unknown or the agent's."""
    inner = cgroupfs.join(path, records.INNER)
    if path in ours or inner in ours:
        return None
    limits = (cgroups.number(each, cgroupfs.SWAP_MAX) for each in (path, inner))
    return min((value for value in limits if value is not None), default=None)


def runtime(cgroups: cgroupfs.Cgroups, root: str | None) -> str:
    """Return the container runtime by the names of containers' cgroups under systemd, or an empty string."""
    for pod in layout.pods(cgroups.dirs, root) if root is not None else ():
        for name in cgroups.dirs(pod.path):
            for prefix, runtime_name in _RUNTIMES.items():
                if name.startswith(prefix):
                    return runtime_name
    return ""


def controllers(cgroup_root: pathlib.Path) -> str | None:
    """Return the controllers of cgroup v2 as the kernel lists them; None if it is not mounted."""
    return files.text(cgroup_root / "cgroup.controllers")


def io_weight(cgroup: pathlib.Path) -> str | None:
    """Return a cgroup's share of disks (io.cost, or the scheduler bfq); None if the kernel has neither."""
    weights = (files.text(cgroup / name) for name in ("io.weight", "io.bfq.weight"))
    return next((each for each in weights if each is not None), None)


def zswap(sys: pathlib.Path) -> state.ZswapFacts | None:
    """Return how zswap is configured; None if the kernel has none."""
    folder = sys / "module/zswap/parameters"
    enabled = files.text(folder / "enabled")
    if enabled is None:
        return None
    compressor, percent = (files.text(folder / name) or "" for name in ("compressor", "max_pool_percent"))
    share = int(percent) if _NUMBER.fullmatch(percent) else None
    return state.ZswapFacts(
        enabled in {"Y", "1"}, compressor[:32], share if share is not None and share <= 100 else None
    )


def pressure(proc: pathlib.Path) -> bool | None:
    """Return whether the kernel reports memory pressure (PSI); None without such a file: no PSI, or turned off."""
    content = files.text(proc / "pressure/memory")
    return None if content is None else content.startswith("some ")


def sysctl(proc: pathlib.Path, name: str) -> int | None:
    """Return a number of /proc/sys by its path there."""
    content = files.text(proc / "sys" / name) or ""
    return int(content) if _NUMBER.fullmatch(content) else None


def systemd(host: pathlib.Path) -> str | None:
    """Return the version of the systemd that runs the host, empty if it is unknown; None if none does."""
    if not (host / "run/systemd/system").is_dir():
        return None
    for folder in ("usr/lib/systemd", "lib/systemd", "usr/lib64/systemd", *_multiarch(host)):
        for name in files.names(host / folder, "libsystemd-shared-*.so"):
            return name.removeprefix("libsystemd-shared-").removesuffix(".so")
    return ""


def _multiarch(host: pathlib.Path) -> list[str]:
    return [f"usr/lib/{name}/systemd" for name in files.names(host / "usr/lib", "*-linux-gnu*")]


def configuration_files(host: pathlib.Path) -> kubelet_config.Files:
    """Find the kubelet's configuration on the host."""
    file = next((host / path for path in KUBELET_FILES if _is_configuration(host / path)), None)
    drop_ins = next((host / path for path in KUBELET_DROP_INS if (host / path).is_dir()), None)
    return kubelet_config.Files(file, drop_ins)


def _is_configuration(file: pathlib.Path) -> bool:
    """Return whether a file is one: some distributions keep other files of the kubelet under these names."""
    return kubelet_config.KIND in (files.text(file) or "")


def meminfo(text: str) -> dict[str, int]:
    """Return the sizes in /proc/meminfo, in bytes."""
    sizes = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and _SIZE.fullmatch(words[0]) and words[1] == "kB":
            sizes[name] = int(words[0]) * 1024
    return sizes


def devices(text: str, block: pathlib.Path, node_disks: frozenset[str] | None = None) -> list[state.SwapDevice]:
    """Parse /proc/swaps, which escapes spaces and the like in paths; invalid lines are skipped.

    `block` is /sys/block; `node_disks` are the disks with the node's file systems, or None. A container cannot see the
    disk of a swap file: it counts as a file, not encrypted, on an unknown disk.
    """
    listed = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 5 or not _SIZE.fullmatch(words[2]):
            continue
        name, is_file = mounts.unescaped(words[0]), words[1] == "file"
        priority = int(words[4]) if _PRIORITY.fullmatch(words[4]) else 0
        under = _IN_A_FILE if is_file else block_devices.look(block, name)
        dedicated = None if under.disks is None or node_disks is None else under.disks.isdisjoint(node_disks)
        size = int(words[2]) * 1024
        listed.append(
            state.SwapDevice(name[:256], words[1][:32], size, priority, under.backing, under.encrypted, dedicated)
        )
    return listed[: state.MAX_DEVICES]


def noswap(release: str) -> bool:
    """Return whether a kernel of this release can keep tmpfs out of swap."""
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", release)
    return match is not None and (int(match[1]), int(match[2])) >= TMPFS_NOSWAP_KERNEL


def available(proc: pathlib.Path) -> int:
    """Return the bytes that the node can allocate without swapping (MemAvailable), or 0."""
    return meminfo(files.text(proc / "meminfo") or "").get("MemAvailable", 0)


def has_swap_controller(cgroups: cgroupfs.Cgroups, root: str) -> bool:
    """Return whether pods can have swap limits; `root` is the cgroup above all pods."""
    return cgroups.has("", cgroupfs.CONTROLLERS) and cgroups.has(root, cgroupfs.SWAP_MAX)


def read_facts(
    proc: pathlib.Path,
    block: pathlib.Path,
    cgroups: cgroupfs.Cgroups,
    pods_root: str | None,
    folders: Sequence[str] = (),
) -> state.Facts:
    """Read the facts; `block` is /sys/block.

    `folders` are on file systems of the node, to find the disks that swap may share with them. Only the cgroup above
    all pods shows whether there is a swap controller: without `pods_root` there is none.
    """
    sizes = meminfo(files.text(proc / "meminfo") or "")
    release = files.text(proc / "sys/kernel/osrelease") or ""
    mounted = mounts.read(proc)
    seen = mounts.noswap(mounted)
    unified = cgroups.has("", cgroupfs.CONTROLLERS)
    return state.Facts(
        cgroup_version=2 if unified else 1 if cgroups.has("", "memory") else 0,
        swap_controller=pods_root is not None and has_swap_controller(cgroups, pods_root),
        swap_bytes=sizes.get("SwapTotal", 0),
        memory_bytes=sizes.get("MemTotal", 0),
        page_size=cgroups.page,
        kernel_release=release[:128],
        tmpfs_noswap=noswap(release) if seen is None else seen,
        recursive_protection=mounts.recursive_protection(mounted),
        devices=devices(files.text(proc / "swaps") or "", block, mounts.node_disks(mounted, block, folders)),
    )
