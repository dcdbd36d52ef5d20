"""The commands of docs/howto/denser-idle-pods.md; what the controller and an agent write in between is written here."""

from __future__ import annotations

import shlex

from swapwarden.api import names

from hack.docs import commands
from testbed.base import paths, process
from tests.integration.cli.conftest import API, GIB, Cluster, healthy

ME = "tests/integration/cli/test_howto.py"
PAGE = "docs/howto/denser-idle-pods.md"
MIB = 1 << 20


def test_a_reader_who_wants_room_on_a_node_full_of_idle_pods(cluster: Cluster) -> None:
    node, cp = cluster.name("dense-1"), cluster.control_plane
    environment = commands.environment(cp.kubeconfig, cp.folder)
    cluster.node("dense-1", {"pool": "dense"}, swap=8 * GIB)
    cluster.state("dense-1", {"profileRef": {"name": "(built-in)"}}, healthy("", 8 * GIB))
    uid = cluster.pod("catalogue", "dense-1", annotations={names.RECLAIM_ANNOTATION: "Continuous"}, memory="256Mi")

    def run(command: str) -> str:
        here = command.replace("dense-1", node).replace("-n shop", f"-n {cluster.namespace}")
        if here.startswith("kubectl swap "):
            done = cluster.admin(*shlex.split(here)[2:])
            assert done.returncode == 0, done.stderr
            return done.stdout
        return process.run(cp.command(["sh", "-euc", here]), env=environment, cwd=paths.ROOT, timeout=60).stdout

    before, after = ([command for command, _ in block.steps()] for block in commands.run_by(ME, PAGE))
    try:
        simulated, applied = map(run, before)
        (line,) = [each for each in simulated.splitlines() if "catalogue" in each]
        assert line.endswith("Off (NotOffered) -> Continuous (ReclaimAnnotation)")
        assert applied == "nodeswapprofile.swapwarden.dev/dense created\n"
        bounds = {"maxStallPermille": 1, "intervalSeconds": 6, "stepPercent": 1}
        bounds |= {"keepSwapFreeBytes": GIB, "writesPerDayBytes": 5 * GIB}
        planned = {uid: {"swapMax": "134217728", "reason": "LimitedSwap", "reclaim": "Continuous"}}
        spec = {"profileRef": {"name": "dense", "generation": 1}, "reclaim": bounds, "pods": planned}
        cluster.patch(f"{API}/nodeswapstates/{node}", {"spec": spec})
        moved = {"pod": uid, "hold": "Step", "movedBytes": 64 * MIB, "refaultedBytes": MIB, "milliseconds": 800}
        cluster.patch(f"{API}/nodeswapstates/{node}/status", {"status": {"reclaimed": [moved]}})
        explained, listed = map(run, after)
    finally:
        cp.request("DELETE", f"{API}/nodeswapprofiles/dense")
    assert f"Continuous: annotation {names.RECLAIM_ANNOTATION}" in explained
    assert "64Mi to swap by it, in 0.8 s; 1Mi of swapped memory soon came back; steps go on" in explained
    assert listed == f"{uid} Step moved={64 * MIB} refaulted={MIB}\n"
