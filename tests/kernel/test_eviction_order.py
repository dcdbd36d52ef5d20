"""A real kernel swaps, and kills, near the sizes that the check of a node expects; the headroom shrinks before."""

from __future__ import annotations

import inspect
import json
import os
import sys

import pytest

from testbed.vm.kernelvm import KernelVM

pytestmark = pytest.mark.skipif(
    "KERNEL_FACTS" not in os.environ,
    reason="an experiment with the kernel that takes minutes: `make test-kernel-memory` runs it",
)

MIB = 1 << 20
CACHE = 200
"""MiB of page cache, which the kernel drops before it swaps."""
STEP = 8 * MIB
"""Bytes that are taken between two samples."""
SWAPS = 4
"""MiB: a few pages that it swaps while it drops page cache do not count."""
SLACK = 40
"""MiB of memory.available between an expected size and the one that a sample shows. Measured in four runs: 5 to 29."""
LATE = 32
"""MiB that can still be taken at least when the headroom falls below a tenth of the VM's memory."""


def grow(cache: int, step: int) -> None:
    """Run in the guest: have a child take all memory until it is killed, and print samples.

    The child waits for a sample after each step, so a slow machine has as many samples.
    """
    import mmap
    import os
    import pathlib
    import select

    from swapwarden.agent.host import cgroupfs
    from swapwarden.agent.node import eviction_order, headroom_reader, node_info

    mib, page, proc = 1 << 20, os.sysconf("SC_PAGE_SIZE"), pathlib.Path("/proc")
    cgroups = cgroupfs.Cgroups("/sys/fs/cgroup", page)
    (proc / "sys/vm/drop_caches").write_text("3\n")
    disk = os.open((proc / "swaps").read_text().splitlines()[1].split()[0], os.O_RDONLY)
    for place in range(cache):
        os.pread(disk, mib, place * mib)

    def seen() -> dict[str, float]:
        memory = node_info.memory(proc, cgroups, None)
        sizes = node_info.meminfo((proc / "meminfo").read_text())
        counted = cgroupfs.counts((proc / "vmstat").read_text())
        assert memory is not None
        order = eviction_order.find(memory, lambda _: 0, limits_pods=False)
        assert order is not None
        file = sizes["Active(file)"] + sizes["Inactive(file)"]
        of_node = headroom_reader.NodeSizes(memory.free, memory.minimum, file, memory.slab, sizes["SwapFree"])
        return {
            "available": (memory.free + memory.inactive_file + memory.kernel) / mib,
            "swaps": order.swaps / mib,
            "kills": order.kills / mib,
            "headroom": headroom_reader.node_headroom(of_node, sizes["AnonPages"], ()) / memory.total,
            "swapped": counted["pswpout"] * page / mib,
            "taken": (sizes["AnonPages"] + sizes["SwapTotal"] - sizes["SwapFree"]) / mib,
            "killed": counted["oom_kill"],
        }

    found, (begin, takes), (had, done) = [seen()], os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        (proc / "self/oom_score_adj").write_text("1000\n")
        block, held = os.urandom(page), []
        while os.read(begin, 1):
            held.append(mmap.mmap(-1, step, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            for place in range(0, step, page):
                held[-1][place : place + page] = block
            os.write(done, b".")
    (proc / "self/oom_score_adj").write_text("-1000\n")
    os.write(takes, b".")
    while not os.waitpid(child, os.WNOHANG)[0]:
        ready = select.select([had], [], [], 0.1)[0]
        found.append(seen())
        if ready:
            os.write(takes, os.read(had, 1))
    found.append(seen())
    print(json.dumps(found))  # noqa: T201


def test_the_kernel_swaps_and_kills_where_the_check_expects_it(
    kernel_vm: KernelVM, capsys: pytest.CaptureFixture[str]
) -> None:
    program = f"import json, sys\n{inspect.getsource(grow)}\ngrow(*map(int, sys.argv[1:]))"
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = kernel_vm.run([sys.executable, "-c", program, str(CACHE), str(STEP)], env=env, timeout=500)
    start, *samples, end = json.loads(done.stdout)
    assert end["killed"] > start["killed"]
    alive = [each for each in samples if each["killed"] == start["killed"]]
    swapping = next(each for each in alive if each["swapped"] - start["swapped"] > SWAPS)
    seen = {"swaps": swapping["available"], "kills": alive[-1]["available"]}
    assert max(abs(found - start[what]) for what, found in seen.items()) < SLACK
    # Above a tenth of memory with 200 MiB in swap, below it well before the kill.
    half = next(each for each in alive if each["swapped"] - start["swapped"] > 200)
    assert half["headroom"] > 0.1
    late = next(each for each in alive if each["headroom"] < 0.1)
    left = alive[-1]["taken"] - late["taken"]
    text = "; ".join(f"{what} at {found:.0f}, expected {start[what]:.0f}" for what, found in seen.items())
    with capsys.disabled():
        sys.stdout.write(
            f"\nMiB of memory.available at which the kernel {text}; headroom below a tenth {left:.0f} before\n"
        )
    assert left > LATE
