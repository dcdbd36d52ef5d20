"""Rows of nodes from the readable objects."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any

import msgspec
from swapwarden.api import state
from swapwarden.cli import wire
from swapwarden.cli.kubectl import status as nodes
from swapwarden.cli.kubectl.cluster import agents, usage
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy.observed import nodes as policy
from swapwarden.policy.verdict.node import NodeHealth

from tests.unit.objects import sent

GIB = 1 << 30


def node(name: str, labels: dict[str, str] | None = None, swap: int | None = None) -> policy.WireNode:
    info: dict[str, Any] = {"kubeletVersion": "v1.34.0"} | ({"swap": {"capacity": swap}} if swap is not None else {})
    body = {"metadata": {"name": name, "labels": labels or {}}, "status": {"nodeInfo": info}}
    return msgspec.convert(body, policy.WireNode)


def reported(profile: str, swap: int, *devices: state.SwapDevice, **status: Any) -> state.NodeSwapState:
    conditions = [
        state.Condition("Compatible", "True", "Compatible"),
        state.Condition("Applied", "True", "AsSpecified"),
        state.Condition("Degraded", "False", "AsExpected"),
    ]
    reference = state.ProfileRef(profile, 1)
    facts = state.Facts(2, swap_controller=True, swap_bytes=swap, memory_bytes=8 * GIB, devices=list(devices))
    return state.NodeSwapState(
        spec=state.StateSpec(reference),
        status=state.StateStatus(profile_ref=reference, facts=facts, conditions=status.get("conditions", conditions)),
    )


def agent(name: str) -> agents.AgentPod:
    return agents.AgentPod(name, "swapwarden-system", f"agent-{name}", 8082, ready=True)


def profile(name: str, behavior: str, **spec: Any) -> wire.WireProfile:
    swap = {"behavior": behavior, **spec.pop("swap", {})}
    body = {"metadata": {"name": name, "generation": 1}, "spec": {"swap": swap, **spec}}
    return msgspec.convert(body, wire.WireProfile)


DISK = state.SwapDevice("/dev/nvme0n1p3", "partition", 4 * GIB, backing="nvme", encrypted=True)
KNOWN = nodes.Known(
    states=sent(
        batch_1=reported("batch", 4 * GIB, DISK),
        batch_2=reported(
            "batch",
            4 * GIB,
            DISK,
            state.SwapDevice("/swapfile", "file", GIB, backing="File"),
            conditions=[state.Condition("Degraded", "True", "WriteFailed", "2 cgroups cannot be written")],
        ),
        web_1=reported("web", 0),
        gone=reported("web", GIB),
    ),
    agents={name: agent(name) for name in ("batch-1", "batch-2", "web-1")},
    measured={"batch-1": nodes.Measured(GIB), "batch-2": nodes.Measured(4 * GIB - 5)},
    profiles={name: profile(name, behavior) for name, behavior in (("web", "NoSwap"), ("batch", "LimitedSwap"))},
)
LABELS = {"node.swapwarden.dev/swap-behavior": "LimitedSwap"}
NODES = [node("batch-1", LABELS), node("batch-2", LABELS), node("web-1"), node("gone"), node("new", swap=GIB)]


TABLE = """\
NAME      STATE      PROFILE     BEHAVIOR      GUARANTEE   SWAP        USED       USED%   BACKING     ENCRYPTED
batch-2   Degraded   batch       LimitedSwap   Standard     4Gi         4Gi         99%   file,nvme   false
gone      Silent     web         NoSwap        Standard     1Gi   <unknown>   <unknown>   <unknown>   <unknown>
new       NoState    <unknown>   <unknown>     <unknown>    1Gi   <unknown>   <unknown>   <unknown>   <unknown>
batch-1   Enforced   batch       LimitedSwap   Standard     4Gi         1Gi         25%   nvme        true
web-1     Enforced   web         NoSwap        Standard       0           0      <none>   <none>      <none>
"""


def table(known: nodes.Known, form: tables.Form, sort: str = "state") -> str:
    out = io.StringIO()
    rows = sorted((nodes.row(each, known) for each in NODES), key=nodes.SORTS[sort])
    with contextlib.redirect_stdout(out):
        tables.show(form, rows, nodes.COLUMNS, name=lambda row: f"node/{row.name}")
    return out.getvalue()


def test_the_memory_that_is_protected() -> None:
    memory = state.CgroupSettings(memory_min=str(GIB), memory_low=str(2 * GIB))
    found = reported("batch", GIB)
    assert found.spec is not None
    planned = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, kubepods=memory))
    known = msgspec.structs.replace(KNOWN, states=sent(a=planned, b=found))
    assert [nodes.row(node(name), known).protected_bytes for name in "abc"] == [3 * GIB, 0, None]
    assert [nodes.row(node(name), known).protection_asked_bytes for name in "abc"] == [0, 0, None]
    assert state.protected_bytes(state.CgroupSettings(memory_low="max")) >= 1 << 62


def test_memory_that_is_protected_twice_over_counts_once() -> None:
    """Guaranteed pods of TieredReservation are, where the kernel has no memory_recursiveprot."""
    found = reported("batch", GIB)
    assert found.spec is not None
    assert found.status.facts is not None
    twice = state.PodSettings(memory_min=str(GIB), memory_low=str(GIB))
    above = state.CgroupSettings(memory_min=str(GIB), memory_low=str(GIB))
    spec = msgspec.structs.replace(found.spec, pods={"uid-1": twice}, kubepods=above)
    facts = msgspec.structs.replace(found.status.facts, recursive_protection=False)
    status = msgspec.structs.replace(found.status, facts=facts)
    planned = msgspec.structs.replace(found, spec=spec, status=status)
    shown = nodes.row(node("a"), msgspec.structs.replace(KNOWN, states=sent(a=planned)))
    assert (shown.protected_bytes, shown.protection_asked_bytes) == (GIB, GIB)


def test_how_much_protection_pods_ask_for_of_the_nodes_memory() -> None:
    found = reported("batch", GIB)
    assert found.spec is not None
    assert found.status.facts is not None
    half = found.status.facts.memory_bytes // 2
    pods = {f"uid-{number}": state.PodSettings(memory_low=str(half)) for number in range(3)}
    asked = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, pods=pods))
    wide = table(msgspec.structs.replace(KNOWN, states=sent(batch_1=asked, batch_2=found)), tables.Form("wide"))
    header, *rows = (line.split("  ") for line in wide.splitlines())
    assert "PROTECTED%" in [cell.strip() for cell in header]
    shares = {
        row[0]: [cell.strip() for cell in row if cell.strip().endswith("%")][-1] for row in rows if "%" in str(row)
    }
    assert (shares["batch-1"], shares["batch-2"]) == ("150%", "0%")


def test_memory_pressure() -> None:
    found = reported("batch", GIB)
    assert found.spec is not None
    thresholds = state.PressureSettings(state.HeadroomThresholds(1, 2, 0), state.StallThresholds(400, 10_000))
    watched = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, pressure=thresholds))
    report = state.PressureReport(seq=1, signal="Headroom", scope="Pods", headroom_bytes=5 << 20, stall_permille=125)
    pressed = msgspec.structs.replace(watched, status=msgspec.structs.replace(watched.status, pressure=report))
    known_states = sent(batch_1=watched, batch_2=pressed, web_1=found)
    figures = {"batch-1": nodes.Measured(headroom_bytes=GIB, stall_permille=0)}
    known = msgspec.structs.replace(KNOWN, states=known_states, measured=figures)
    header, *rows = table(known, tables.Form("wide")).splitlines()
    begin = header.index("PRESSURE")
    shown = {row.split()[0]: row[begin:].split()[:3] for row in rows}
    assert shown["batch-1"] == ["No", "1Gi", "0%"], "as its agent measures it"
    assert shown["batch-2"] == ["Headroom/Pods", "5Mi", "12.5%"], "by its last report, as no metrics are at hand"
    assert shown["web-1"][0] == "<none>"


def test_the_table() -> None:
    assert table(KNOWN, tables.Form()) == TABLE


def test_other_orders() -> None:
    assert table(KNOWN, tables.Form("name"), "name").split()[0] == "node/batch-1"
    assert table(KNOWN, tables.Form("name"), "used").split()[0] == "node/batch-2"


def test_what_only_the_node_says_where_the_rest_may_not_be_seen() -> None:
    nothing = nodes.Known(states=None, agents=None, measured={}, profiles={})
    labels = {
        "node.swapwarden.dev/swap-behavior": "LimitedSwap",
        "node.swapwarden.dev/swap-backing": "file_nvme",
        "node.swapwarden.dev/swap-encrypted": "false",
    }
    assert nodes.row(node("a", labels, swap=GIB), nothing) == nodes.NodeReport(
        "a",
        NodeHealth.UNKNOWN,
        behavior="LimitedSwap",
        swap_bytes=GIB,
        backing="file,nvme",
        encrypted=False,
    )


def test_a_kubelet_that_reports_no_swap_size_may_have_swap() -> None:
    old = msgspec.convert(
        {"metadata": {"name": "a"}, "status": {"nodeInfo": {"kubeletVersion": "v1.30.2"}}}, policy.WireNode
    )
    assert nodes.row(old, KNOWN).swap_bytes is None
    assert nodes.row(node("a"), KNOWN).swap_bytes == 0


def test_problems_that_no_agent_reports() -> None:
    def shown(seen: policy.WireNode, **spec: Any) -> tuple[NodeHealth, str]:
        profiles = {"batch": profile("batch", "LimitedSwap", **spec)}
        found = nodes.row(seen, nodes.Known(sent(a=reported("batch", GIB)), {"a": agent("a")}, {}, profiles))
        return found.health, found.why

    same = node("a", swap=GIB)
    assert shown(same) == (NodeHealth.ENFORCED, "")
    health, why = shown(same, swap={"requirements": ["Encrypted"]})
    assert (health, why.startswith("encrypted: ")) == (NodeHealth.UNMET, True)
    health, why = shown(same, kernel={"minFreeKbytes": 16_000_000})
    assert (health, why.startswith("vm.min_free_kbytes: ")) == (NodeHealth.DEGRADED, True)
    health, why = shown(node("a", swap=2 * GIB))
    assert (health, why.startswith("KubeletRestartNeeded: ")) == (NodeHealth.ENFORCED, True)


def test_a_profile_that_the_node_does_not_follow_yet_requires_nothing_of_it() -> None:
    newer = msgspec.convert(
        {"metadata": {"name": "batch", "generation": 2}, "spec": {"swap": {"requirements": ["Encrypted"]}}},
        wire.WireProfile,
    )
    known = nodes.Known(sent(a=reported("batch", GIB)), {"a": agent("a")}, {}, {"batch": newer})
    assert nodes.row(node("a", swap=GIB), known).health is NodeHealth.ENFORCED


def test_the_built_in_profile_leaves_it_to_the_kubelet() -> None:
    known = nodes.Known(sent(a=reported("(built-in)", 0)), {"a": agent("a")}, {}, {})
    assert nodes.row(node("a"), known).behavior == "Kubelet"


def test_figures_of_the_agents() -> None:
    """Of scopes, the one that is worst; no infinity, and nothing below zero."""

    def of_scopes(name: str, *values: float) -> list[agents.MetricSample]:
        return [agents.MetricSample(name, {"scope": str(number)}, value) for number, value in enumerate(values)]

    found = {
        "a": [agents.MetricSample(usage.NODE_USED, {}, 5.0), agents.MetricSample("other", {}, 7.0)],
        "b": of_scopes(usage.NODE_USED, math.inf, -math.inf, math.nan),
        "c": [*of_scopes(usage.NODE_HEADROOM, 3.0, 2.0), *of_scopes(usage.NODE_STALL, 0.0, 0.0349)],
    }
    assert nodes.measured(found) == {
        "a": nodes.Measured(5),
        "b": nodes.Measured(),
        "c": nodes.Measured(headroom_bytes=2, stall_permille=35),
    }
