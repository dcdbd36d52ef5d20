"""`swapwarden agent --check`: prints what a node shows of its swap. It needs no cluster."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Final

import msgspec

from swapwarden.agent.host import cgroup_files, cgroupfs, files
from swapwarden.agent.inventory import layout
from swapwarden.agent.node import diagnostics, eviction_order, kubelet_config, node_info
from swapwarden.api import names, state

COMPATIBLE: Final = 0
INCOMPATIBLE: Final = 1
UNKNOWN: Final = 3
"""Exit statuses; an invalid command line ends with 2."""

_UNKNOWN: Final = "unknown"
_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
_WIDTH: Final = 160
"""Longest value that is printed, in characters."""


class Row(msgspec.Struct, frozen=True):
    """A fact and its source."""

    name: str
    value: str
    evidence: str


class Gap(msgspec.Struct, frozen=True):
    """Something to improve."""

    name: str
    message: str
    remedy: str


class Node(msgspec.Struct, frozen=True):
    """Everything that was read."""

    facts: state.Facts
    root: str | None
    """The cgroup above all pods."""
    problem: str
    """Why the cgroup above all pods was not found, or empty."""
    compatible: bool | None
    seen: node_info.NodeLook
    systemd: str | None
    sysctls: dict[str, int | None]
    system_swaps: bool | None
    """Whether system.slice may swap."""
    io_latency: str | None
    """The content of system.slice's io.latency; None without that file."""
    system_io: bool | None
    """Whether it has the io controller; None without that slice."""
    io_weight: str | None
    """The node's weight for I/O; None if it has none."""


_SYSCTLS: Final = ("vm/swappiness", "vm/min_free_kbytes", "vm/watermark_scale_factor", "vm/page-cluster")
_SHARED: Final = {None: "disk shared: unknown", True: "disk not shared", False: "disk shared with file systems"}
"""Words for whether a swap device has a disk of its own."""
_SYSTEM: Final = "system.slice"
_FIRST: Final = {
    eviction_order.FirstEvent.SWAP: "swapping, then evictions",
    eviction_order.FirstEvent.NODE_EVICTION: "evictions before swapping",
    eviction_order.FirstEvent.PODS_EVICTION: "evictions before swapping",
    eviction_order.FirstEvent.OOM_KILLER: "OOM kills, no evictions",
}


def run(arguments: argparse.Namespace) -> int:
    """Print the table and return the exit status."""
    try:
        cgroups = cgroupfs.Cgroups(arguments.cgroup_root, os.sysconf("SC_PAGE_SIZE"))
    except OSError as error:
        sys.stderr.write(f"error: --cgroup-root {arguments.cgroup_root}: {error.strerror}\n")
        return UNKNOWN
    try:
        node = read(arguments, cgroups)
    finally:
        cgroups.close()
    sys.stdout.write(report(node))
    return {True: COMPATIBLE, False: INCOMPATIBLE, None: UNKNOWN}[node.compatible]


def read(arguments: argparse.Namespace, cgroups: cgroupfs.Cgroups) -> Node:
    """Read everything."""
    proc, sys_root, host = (
        pathlib.Path(each) for each in (arguments.proc_root, arguments.sys_root, arguments.host_root)
    )
    kubelet = kubelet_config.given(arguments)
    if not kubelet:
        kubelet = node_info.configuration_files(host)
    root, problem = _tree(cgroups, arguments.cgroup_anchor.strip("/"))
    facts = node_info.read_facts(proc, sys_root / "block", cgroups, root, (str(host.absolute()),))
    return Node(
        facts=facts,
        root=root,
        problem=problem,
        compatible=_compatible(facts, cgroups, root),
        seen=node_info.look(proc, sys_root, cgroups, root, kubelet),
        systemd=node_info.systemd(host),
        sysctls={name: node_info.sysctl(proc, name) for name in _SYSCTLS},
        system_swaps=node_info.may_swap(cgroups, _SYSTEM),
        io_latency=files.text(pathlib.Path(arguments.cgroup_root) / _SYSTEM / "io.latency"),
        system_io=None if cgroups.inode(_SYSTEM) is None else cgroupfs.IO in cgroups.controllers(_SYSTEM),
        io_weight=node_info.io_weight(pathlib.Path(arguments.cgroup_root) / _SYSTEM),
    )


def _tree(cgroups: cgroupfs.Cgroups, anchor: str) -> tuple[str | None, str]:
    try:
        return layout.find(cgroups.dirs, own_uid=os.environ.get("POD_UID", ""), anchor=anchor), ""
    except layout.TreeError as error:
        return None, str(error)


def _compatible(facts: state.Facts, cgroups: cgroupfs.Cgroups, root: str | None) -> bool | None:
    """Return whether pods' swap can be limited; without pods any cgroup below the root shows it."""
    if facts.cgroup_version == 0:  # not a cgroup file system
        return None
    if facts.cgroup_version != 2:
        return False
    if root is not None:
        return facts.swap_controller
    return True if any(cgroups.has(name, cgroupfs.SWAP_MAX) for name in cgroups.dirs("")) else None


# Output


def report(node: Node) -> str:
    """Return the facts as a table, then the gaps, then the verdict."""
    rows = [(_plain(row.name), _plain(row.value), _plain(row.evidence)) for row in rows_of(node)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lacks = list(gaps(node))
    lines += ["", "What falls short:" if lacks else "Nothing falls short."]
    for number, each in enumerate(lacks, 1):
        lines += [f"{number}. {_plain(each.name)}: {_plain(each.message)}.", f"   Remedy: {_plain(each.remedy)}."]
    verdict = {
        True: "Compatible: Swapwarden can hold pods' swap limits on this node.",
        False: "Not compatible: Swapwarden can hold no pod's swap limit on this node.",
        None: "Unknown: whether Swapwarden can hold pods' swap limits on this node is not visible.",
    }
    return "".join(f"{line}\n" for line in [*lines, "", verdict[node.compatible]])


def _plain(text: str) -> str:
    """Return text from a file on one line, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text)[: 4 * _WIDTH]


def _yes(value: bool | None) -> str:  # noqa: FBT001 the value itself is what is spelled
    return _UNKNOWN if value is None else "yes" if value else "no"


def _size(size: int) -> str:
    if size >= 10 * _GIB:
        return f"{size / _GIB:.0f} GiB"
    return f"{size / _MIB:.0f} MiB" if size else "0"


def rows_of(node: Node) -> Iterator[Row]:
    """Yield all facts."""
    yield Row("FACT", "VALUE", "EVIDENCE")
    yield from _cgroup_rows(node)
    yield from _memory_rows(node)
    yield Row(
        "systemd", _UNKNOWN if node.systemd is None else node.systemd or "runs", "/run/systemd/system, libsystemd"
    )
    yield Row("container runtime", node.seen.runtime or _UNKNOWN, "names of containers' cgroups")
    yield Row("container runtime may swap", _yes(node.seen.runtime_swaps), "memory.swap.max of its unit")
    yield from _kubelet_rows(node.seen)


def _cgroup_rows(node: Node) -> Iterator[Row]:
    facts = node.facts
    yield Row("cgroup version", str(facts.cgroup_version or _UNKNOWN), "cgroup.controllers")
    yield Row("controllers", (node.seen.controllers or _UNKNOWN)[:_WIDTH], "cgroup.controllers")
    yield Row("pods below", _UNKNOWN if node.root is None else f"/{node.root}", node.problem or "names of cgroups")
    yield Row("swap controller", _yes(node.compatible), "memory.swap.max")
    yield Row("io.latency", "no" if node.io_latency is None else node.io_latency or "not set", f"/{_SYSTEM}/io.latency")
    weight = "no" if node.io_weight is None else node.io_weight.replace("\n", ", ") or "not set"
    yield Row("io.weight", weight[:_WIDTH], f"/{_SYSTEM}/io.weight, io.bfq.weight")


def _memory_rows(node: Node) -> Iterator[Row]:
    facts = node.facts
    yield Row("kernel", facts.kernel_release or _UNKNOWN, "/proc/sys/kernel/osrelease")
    yield Row(
        "tmpfs noswap",
        _yes(facts.tmpfs_noswap if facts.kernel_release else None),
        "tmpfs volumes in mountinfo, else kernel 6.4 and newer",
    )
    yield Row("page size", str(facts.page_size), "sysconf")
    yield Row("memory", _size(facts.memory_bytes) if facts.memory_bytes else _UNKNOWN, "MemTotal of /proc/meminfo")
    yield Row("swap", _size(facts.swap_bytes) if facts.memory_bytes else _UNKNOWN, "SwapTotal of /proc/meminfo")
    for device in facts.devices:
        said = (
            _size(device.size_bytes),
            device.type,
            f"priority {device.priority}",
            device.backing,
            "encrypted" if device.encrypted else "not encrypted",
            _SHARED[device.dedicated],
        )
        yield Row(f"swap on {device.name}", ", ".join(said), "/proc/swaps, /sys/block, mountinfo")
    zswap, parts = node.seen.zswap, ["no"]
    if zswap is not None:
        parts = ["on" if zswap.enabled else "off", zswap.compressor]
        parts += [] if zswap.max_pool_percent is None else [f"{zswap.max_pool_percent}%"]
    yield Row("zswap", ", ".join(part for part in parts if part), "/sys/module/zswap")
    for name, number in node.sysctls.items():
        yield Row(name.replace("/", "."), _UNKNOWN if number is None else str(number), f"/proc/sys/{name}")
    used = node.seen.memory
    yield Row(
        "kswapd starts below",
        _UNKNOWN if used is None else f"{_size(used.low)} free",
        "low watermarks of /proc/zoneinfo",
    )
    yield Row("memory pressure (PSI)", _yes(node.seen.pressure is True), "/proc/pressure/memory")


def _kubelet_rows(seen: node_info.NodeLook) -> Iterator[Row]:
    yield Row("kubelet may swap", _yes(seen.kubelet_swaps), "memory.swap.max of its unit")
    tally = seen.containers
    known = tally.without or tally.limited
    value = f"limited in {tally.limited}, not in {tally.without} of {tally.without + tally.limited} pods"
    yield Row("Burstable containers", value if known else _UNKNOWN, "memory.swap.max of some")
    configuration = seen.configuration
    if configuration is None:
        yield Row("kubelet: configuration", _UNKNOWN, seen.unreadable or "not found")
        yield Row("kubelet: swapBehavior", node_info.behavior(tally) or _UNKNOWN, "inferred from the containers")
        return
    yield from _order_rows(seen)
    gate = "by its version" if configuration.memory_qos is None else _yes(configuration.memory_qos)
    for name, value in (
        ("failSwapOn", str(configuration.fail_swap_on).lower()),
        ("swapBehavior", configuration.swap_behavior),
        ("evictionHard memory.available", configuration.eviction_memory or "none"),
        ("enforceNodeAllocatable", ", ".join(configuration.enforce_node_allocatable) or "none"),
        ("MemoryQoS", gate),
        ("cgroupDriver", configuration.cgroup_driver),
        ("cgroupRoot", configuration.cgroup_root),
        ("containerRuntimeEndpoint", configuration.runtime_endpoint or "default"),
    ):
        yield Row(f"kubelet: {name}", value, configuration.source)


def _order_rows(seen: node_info.NodeLook) -> Iterator[Row]:
    order = diagnostics.order_of(seen)
    if order is None:
        yield Row("under memory pressure", _UNKNOWN, "/proc/meminfo, /proc/zoneinfo, evictionHard")
        return
    yield Row("under memory pressure", _FIRST[order.first], "the rows below")
    evicts = f"below {_size(order.threshold)} available" if order.threshold else "never"
    yield Row("kubelet evicts by the node", evicts, "evictionHard memory.available")
    yield Row("kernel swaps", f"below {_size(order.swaps)} available", "low watermarks, memory of the kernel")
    yield Row("kernel kills", f"below {_size(order.kills)} available", "min watermarks, memory of the kernel")
    if order.pods_threshold:
        yield Row("kubelet evicts by pods", f"above {_size(order.pods_threshold)}", "memory.max above all pods")
        yield Row("kernel swaps by pods", f"above {_size(order.pods_swap)}", "the same, and the memory beside pods")


# Gaps


def gaps(node: Node) -> Iterator[Gap]:
    """Yield the worst first: what makes limits impossible, then misconfiguration, then good practice."""
    yield from _incompatible(node)
    facts = node.facts
    if facts.memory_bytes and not facts.swap_bytes:
        yield Gap(
            "no swap",
            "swap is off, so pods have none",
            "set the kubelet's failSwapOn: false, make a swap device (mkswap, swapon, /etc/fstab), restart the kubelet",
        )
    for each in diagnostics.conditions(facts, node.seen):
        yield Gap(each.kind, each.message, each.remedy)
    yield from _kubelet_gaps(node.seen)
    if facts.devices:
        yield from _practices(node)


def _incompatible(node: Node) -> Iterator[Gap]:
    if node.facts.cgroup_version != 2:
        yield Gap(
            "no cgroup v2",
            "there is no cgroup v2 file system here",
            "boot with systemd.unified_cgroup_hierarchy=1, or an image that does; in a container, mount the host's"
            " /sys/fs/cgroup and name it with --cgroup-root",
        )
    elif node.seen.controllers is not None and "memory" not in node.seen.controllers.split():
        yield Gap(
            "no memory controller",
            "the kernel has disabled it",
            "boot with cgroup_enable=memory, and without cgroup_disable=memory",
        )
    elif node.compatible is False:
        yield Gap(
            "no swap controller",
            "pods' cgroups have no memory.swap.max",
            "boot without swapaccount=0, a kernel with CONFIG_SWAP and CONFIG_MEMCG",
        )
    if node.root is None:
        yield Gap("no tree of pods", node.problem, "look again when the kubelet runs")


def _kubelet_gaps(seen: node_info.NodeLook) -> Iterator[Gap]:
    if seen.configuration is None:
        yield Gap(
            "kubelet's configuration",
            seen.unreadable or "not found where distributions keep it",
            "give --kubelet-config and --kubelet-config-dir the kubelet's own --config and --config-dir; in a"
            " container, --host-root is where the host's root directory is mounted",
        )
    elif seen.configuration.swap_behavior != "LimitedSwap":
        yield Gap(
            "swapBehavior",
            "the kubelet gives pods no swap",
            "set memorySwap.swapBehavior: LimitedSwap, or have a profile give swap",
        )


def _practices(node: Node) -> Iterator[Gap]:
    devices = node.facts.devices
    for device in devices:
        if device.backing in {names.Backing.HDD, names.Backing.NETWORK, names.Backing.LOOP}:
            yield Gap(
                f"swap on {device.name}",
                f"its pages come back slowly ({device.backing})",
                "put swap on an SSD, NVMe or zram, best on a disk of its own",
            )
    shared = [device.name for device in devices if device.dedicated is False]
    if shared:
        yield Gap(
            "disk of swap",
            f"it also holds the node's file systems, which wait while pods swap ({', '.join(shared)[:_WIDTH]})",
            "put swap on a disk of its own",
        )
    clear = [device.name for device in devices if not device.encrypted]
    if clear:
        yield Gap(
            "swap not encrypted",
            f"pods' memory reaches a disk unencrypted, or its encryption is unknown ({', '.join(clear)[:_WIDTH]})",
            "put dm-crypt under the swap device (crypttab with the option swap and a random key)",
        )
    if node.seen.kubelet_swaps:
        yield Gap(
            "kubelet may swap",
            "a kubelet that waits for its own pages makes the node NotReady",
            "MemorySwapMax=0 in a drop-in of the kubelet's unit",
        )
    if node.seen.runtime_swaps:
        yield Gap(
            "container runtime may swap",
            "a runtime that waits for its own pages starts and ends containers late, and answers the kubelet late",
            "MemorySwapMax=0 in a drop-in of the unit of the container runtime",
        )
    if node.system_swaps:
        yield Gap(
            _SYSTEM,
            "system services may swap, and are slow when the node is short of memory",
            f"MemorySwapMax=0 in a drop-in of {_SYSTEM}",
        )
    yield from _io_gaps(node)
    if not node.seen.pressure:
        yield Gap("memory pressure (PSI)", "the kernel does not report it", "boot with psi=1, a kernel with CONFIG_PSI")


def _io_gaps(node: Node) -> Iterator[Gap]:
    harm = "system services wait for a disk that pods' swapping keeps busy"
    if node.io_latency == "":
        yield Gap(
            "io.latency",
            harm,
            f"io of {_SYSTEM} among a profile's systemUnits, or IODeviceLatencyTargetSec= in a drop-in of {_SYSTEM}",
        )
    elif node.io_latency is None and node.system_io:
        yield Gap(
            "io.latency",
            f"{harm}, and the node's kernel has no io.latency",
            f"a kernel with {cgroup_files.LATENCY.option}; or io.weight in a profile's systemUnits, where there is"
            " io.weight",
        )
    elif node.io_latency is None and node.system_io is False:
        yield Gap(
            "io.latency",
            f"{harm}, and {_SYSTEM} has no io controller",
            f"`systemctl set-property {_SYSTEM} IOAccounting=yes`, and then io among a profile's systemUnits",
        )
