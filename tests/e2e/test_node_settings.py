"""Access that the chart grants the agent only on request: files of the node's kernel, and realtime priority.

With it, what docs/howto/latency-critical.md shows.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.docs import commands
from tests.e2e import cgroups
from tests.e2e.cgroups import MIB, TIMEOUT
from tests.e2e.conftest import Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release

ME = "tests/e2e/test_node_settings.py"
SERVICE = 120 * MIB
"""The memory of the service in docs/howto/latency-critical.md."""
BESIDE = "sleep 60\n"
"""How long the page has its reader leave the service beside the hog."""
ZSWAP = Path("/sys/module/zswap/parameters")
SWAPPINESS = Path("/proc/sys/vm/swappiness")
WANTED = {"enabled": "Y", "compressor": "lzo-rle", "max_pool_percent": "30"}
# More than a cgroup of its own has room for; text, since zswap keeps only pages that can be compressed.
SWAP_TEXT = """
systemd-run --quiet --wait --property=MemoryMax=16M sh -c 'seq 5000000 > /dev/shm/e2e-zswap; rm /dev/shm/e2e-zswap'"""


@pytest.fixture(scope="module")
def given(cluster: Provider, swapwarden: Release) -> Iterator[None]:
    """An agent with the files of /proc/sys/vm and of zswap, and before ordinary processes."""
    if not cluster.owns_swap:
        pytest.skip(f"the kernel of {cluster.name}'s node is not the suite's own")
    try:
        asked = ("agent.kernel.vm", "agent.kernel.zswap", "agent.realtime")
        swapwarden.upgrade(**dict.fromkeys(asked, "true"))
        yield
    finally:
        # Values that are not given have their default again.
        swapwarden.upgrade()


@pytest.mark.usefixtures("given")
def test_zswap_and_swappiness_are_set_and_put_back(node: Node, swapwarden: Release, eventually: Wait) -> None:
    def held() -> dict[str, str]:
        return {name: node.read(ZSWAP / name).strip() for name in WANTED}

    def swappiness() -> str:
        return node.read(SWAPPINESS).strip()

    def swapped_to_zswap() -> int:
        return int(dict(line.split() for line in node.read("/proc/vmstat").splitlines())["zswpout"])

    before = held(), swappiness()
    assert not before[0].items() & WANTED.items()
    kernel = {"swappiness": 70, "zswap": {"enabled": True, "compressor": "lzo-rle", "maxPoolPercent": 30}}
    with swapwarden.profile("e2e-kernel", kernel=kernel) as apply:
        apply(behavior="Kubelet")
        eventually(lambda: (held(), swappiness()) == (WANTED, "70"), "the kernel holds what the profile says")
        eventually(lambda: swapwarden.condition("SettingsApplied") == "True/AsSpecified", "the agent says so")
        unused = swapped_to_zswap()
        node.run(["sh", "-c", SWAP_TEXT], timeout=TIMEOUT)
        assert swapped_to_zswap() > unused
    eventually(lambda: (held(), swappiness()) == before, "the earlier values are restored")
    unused = swapped_to_zswap()
    node.run(["sh", "-c", SWAP_TEXT], timeout=TIMEOUT)
    assert swapped_to_zswap() == unused


@pytest.mark.usefixtures("given")
def test_an_agent_that_runs_before_ordinary_processes_keeps_no_capability(node: Node, swapwarden: Release) -> None:
    process = cgroups.first_process(node, cgroups.of_container(node, swapwarden.agent(), "agent"))
    # Behind the name in parentheses; policy is field 41 of proc_pid_stat(5), and rt_priority field 40.
    fields = node.read(f"/proc/{process}/stat").rpartition(") ")[2].split()
    assert (int(fields[41 - 3]) & 0xFF, fields[40 - 3]) == (os.SCHED_FIFO, "1")
    status = cgroups.status_of(node, process)
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert swapwarden.total("agent", "swapwarden_agent_realtime") == 1


@pytest.mark.usefixtures("given")
def test_the_memory_that_a_service_requests_stays_in_memory_beside_a_hog(
    cluster: Provider, node: Node, swapwarden: Release, eventually: Wait, capsys: pytest.CaptureFixture[str]
) -> None:
    """With protection, beside the hog for twice the time in which the same service without it lost a sixth."""
    before, protect, after, clean = commands.run_by(ME, "docs/howto/latency-critical.md")

    def said(text: str) -> str:
        done = cluster.shell(f"set -eu\n{text}")
        assert done.returncode == 0, done.stdout
        return done.stdout

    def shown(look: str) -> tuple[int, int]:
        resident, swapped = map(int, said(look).split()[-2:])
        with capsys.disabled():
            sys.stdout.write(f"\nthe service has {resident / MIB:.1f} MiB in memory and {swapped / MIB:.1f} in swap\n")
        return resident, swapped

    def kills() -> int:
        return cgroups.events(node, node.kubepods)["oom_kill"]

    killed = kills()
    try:
        begin, look = before.text.split(BESIDE)
        said(begin)
        begun = time.monotonic()
        eventually(lambda: shown(look)[1] > SERVICE / 6, "the service loses memory beside the hog")
        took = time.monotonic() - begun
        assert re.search(r"in effect .* = 136Mi", said(protect.text))
        begin, look = after.text.split(BESIDE)
        begun = time.monotonic()
        said(begin)
        eventually(lambda: cgroups.swap_used(node, node.kubepods) > SERVICE / 6, "the hog is swapped")
        eventually(lambda: time.monotonic() - begun > 2 * took, "twice the time is over")
        resident, swapped = shown(look)
        assert swapped < SERVICE / 20
        assert resident > SERVICE * 0.9
        assert kills() == killed
    finally:
        cleaned = cluster.shell(clean.text)
        eventually(lambda: swapwarden.state()["spec"]["profileRef"]["name"] == "(built-in)", "no profile is left")
    assert cleaned.returncode == 0, cleaned.stdout
