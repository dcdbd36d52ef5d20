from __future__ import annotations

import json
import pathlib
from typing import Any

import click
import pytest
from swapwarden.api import names
from swapwarden.cli.kubectl.cluster import snapshot
from swapwarden.cli.kubectl.output import tables
from swapwarden.cli.kubectl.simulate import report, simulation
from swapwarden.policy.memory import settings
from swapwarden.policy.reclaim.decisions import Reclaim

from tests.unit.objects import GI, agent_facts, changed, container, node, pod, profile, reported_row, view

BATCH = profile(name="batch", priority=100, behavior=names.Behavior.LIMITED_SWAP, max_unavailable="1")


def result(**change: Any) -> simulation.Simulation:
    """A node whose kubelet gives nothing, and one where nothing is known to limit pods."""
    read = view(
        [node("node-1"), node("node-2")],
        [
            pod(container(request=GI), name="web", uid="uid-web"),
            pod(container(request=GI), name="quiet", uid="uid-quiet", policy="Disabled"),
            pod(container(request=GI), name="big", uid="uid-big", node="node-2"),
        ],
        [reported_row("node-1"), reported_row("node-2", facts=agent_facts(behavior="LimitedSwap"))],
    )
    profile = changed(BATCH, **{"reserved": "75%", **change})
    used = {"uid-web": 2**20, "uid-big": 2**29}
    return simulation.simulate(read, snapshot.ProfileChange(put=(profile,)), used)


def shown(
    found: simulation.Simulation, capsys: pytest.CaptureFixture[str], form: str = "", *, known: bool = True
) -> str:
    report.show(tables.Form(form), found, report.summary(found, known=known))
    return capsys.readouterr().out


def test_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        shown(result(), capsys)
        == """\
Pods: 1 gain swap, 1 lose, 1 stay as they are.
Nodes: 2 get another profile, 0 another version of theirs, 0 stay as they are.
1 pod uses 480Mi of swap more than they would get: it stays until it is free, and can hardly grow.

NAMESPACE   POD     NODE     CHANGE   SWAP            REASON                               USED       ABOVE
default     big     node-2   Loses    128Mi -> 32Mi   KubeletDecides -> LimitedSwap       512Mi       480Mi
default     quiet   node-1   Same     0               PolicyDisabled                  <unknown>   <unknown>
default     web     node-1   Gains    0 -> 32Mi       KubeletDecides -> LimitedSwap         1Mi           0

NODE     PROFILE               BEHAVIOR                 GAIN   LOSE   SAME   ABOVE
node-1   (built-in) -> batch   Kubelet -> LimitedSwap      1      0      1       0
node-2   (built-in) -> batch   Kubelet -> LimitedSwap      0      1      0       1

Rollout of batch:
  2 nodes in 2 waves, at most 1 at a time
  wave 1: node-1
  wave 2: node-2
"""
    )


def test_wide_shows_the_settings_of_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    wide = shown(result(kernel=(("vm.swappiness", "10"),), behavior=names.Behavior.NO_SWAP), capsys, "wide")
    told = "kubepods: <none> -> 268435456; vm.swappiness: <none> -> 10; label node.swapwarden.dev/swap: true -> <none>"
    assert wide.count(told) == 2
    assert "(built-in) -> batch" in wide


def test_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(result(), capsys, "json"))
    assert found["summary"] == {
        "pods": {"gains": 1, "loses": 1, "same": 1, "unknown": 0},
        "above": {"pods": 1, "bytes": 480 * 2**20},
        "memory": {"protection": 0, "throttling": 0},
        "reclaim": 0,
        "nodes": {"profile": 2, "version": 0, "same": 0},
    }
    big = found["pods"][0]
    assert (big["name"], big["change"], big["usedBytes"], big["aboveBytes"]) == ("big", "Loses", 2**29, 480 * 2**20)
    assert big["before"] == {
        "profile": "(built-in)", "reason": "KubeletDecides", "kubelet": str(2**27), "most": str(2**27)
    }  # fmt: skip
    assert found["nodes"][0]["after"] == {"profile": "batch", "generation": 1, "behavior": "LimitedSwap"}
    assert found["rollouts"][0]["waves"] == [{"nodes": ["node-1"]}, {"nodes": ["node-2"]}]


def memory_qos(**change: Any) -> simulation.Simulation:
    """Two pods that request memory, one of them with two containers of which one is limited."""
    two = pod(container("app", request=GI, limit=2 * GI), container("proxy"), name="two", uid="uid-two")
    read = view(
        [node("node-1")], [pod(container(request=GI), name="web", uid="uid-web"), two], [reported_row("node-1")]
    )
    memory = settings.MemoryQoS(without_swap=names.WithoutSwap.BOUNDED, **change)
    own = profile(name="kept", priority=100, memory_qos=memory)
    return simulation.simulate(read, snapshot.ProfileChange(put=(own,)), {})


def test_memory_is_shown_where_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    found = memory_qos(reservation=names.ReservationPolicy.SOFT, throttling_percent=90, max_stall=3600)
    text = shown(found, capsys)
    assert "Memory: 2 pods get another protection, 1 another memory.high." in text
    assert "MEMORY.LOW" in text
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("default")}
    assert "- -> 1Gi" in lines["web"]
    assert "- -> app 1.9Gi" in lines["two"]
    assert not any(one.direction is not simulation.Direction.SAME for one in found.pods)


def test_wide_has_the_reasons_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    found = memory_qos(reservation=names.ReservationPolicy.SOFT, throttling_percent=90, max_stall=3600)
    assert "PROTECTION" not in shown(found, capsys)
    wide = shown(found, capsys, "wide")
    (two,) = [line for line in wide.splitlines() if line.split()[1:2] == ["two"]]
    assert "<none> -> RequestProtected" in two
    assert "<none> -> ContainersThrottled" in two


def test_memory_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    found = memory_qos(reservation=names.ReservationPolicy.TIERED_RESERVATION, throttling_percent=90, max_stall=3600)
    document = json.loads(shown(found, capsys, "json"))
    assert document["summary"]["memory"] == {"protection": 2, "throttling": 1}
    two = document["pods"][0]
    assert "memory" not in two["before"]
    assert two["after"]["memory"] == {
        "protectionReason": "RequestProtected",
        "throttlingReason": "ContainersThrottled",
        "memoryLow": str(GI),
        "containers": {"app": str(19 * GI // 10 // 4096 * 4096)},
    }
    assert document["nodes"][0]["settings"]["burstable memory.low"] == [None, str(2 * GI)]


def test_pods_whose_memory_alone_changes_are_listed() -> None:
    changed = memory_qos(reservation=names.ReservationPolicy.SOFT)
    assert [one.name for one in report.changing(changed).pods] == ["two", "web"]
    assert report.changing(memory_qos()).pods == ()


def test_nothing_of_memory_is_written_in_audit(capsys: pytest.CaptureFixture[str]) -> None:
    read = view([node("node-1")], [pod(container(request=GI))], [reported_row("node-1")])
    memory = settings.MemoryQoS(names.ReservationPolicy.SOFT)
    own = profile(name="kept", mode=names.Mode.AUDIT, memory_qos=memory)
    found = simulation.simulate(read, snapshot.ProfileChange(put=(own,)), {})
    assert "MEMORY.LOW" not in shown(found, capsys)


def reclaim(mode: names.Mode = names.Mode.ENFORCE) -> simulation.Simulation:
    """A pod that asks for reclaim, and one that does not, before and after a profile offers it."""
    web = pod(container(request=GI), name="web", uid="uid-web", reclaim=names.ReclaimMode.STARTUP)
    other = pod(container(request=GI), name="other", uid="uid-other")
    read = view([node("node-1")], [web, other], [reported_row("node-1", facts=agent_facts(behavior="LimitedSwap"))])
    offered = Reclaim(names.ReclaimMode.CONTINUOUS)
    profile = changed(BATCH, reclaim=offered, mode=mode)
    return simulation.simulate(read, snapshot.ProfileChange(put=(profile,)), {})


def test_reclaim_is_shown_with_its_reason_where_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    found = reclaim()
    text = shown(found, capsys)
    assert "Reclaim: 1 pod gets another mode." in text
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("default")}
    assert lines["web"].endswith("Off (NotOffered) -> Startup (ReclaimAnnotation)")
    assert lines["other"].endswith("<none> -> Off (NotAsked)")
    assert {one.name for one in report.changing(found).pods if one.direction is simulation.Direction.SAME} == {"web"}
    document = json.loads(shown(found, capsys, "json"))
    web = next(one for one in document["pods"] if one["name"] == "web")
    assert web["before"]["reclaim"] == {"mode": "Off", "reason": "NotOffered"}
    assert web["after"]["reclaim"] == {"mode": "Startup", "reason": "ReclaimAnnotation"}
    assert document["summary"]["reclaim"] == 1


def test_in_audit_no_idle_memory_is_moved() -> None:
    assert report.summary(reclaim(names.Mode.AUDIT), known=True)["reclaim"] == 0
    assert {one.after.reclaim for one in reclaim(names.Mode.AUDIT).pods} == {None}


def test_missing_reports_of_agents_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.USE_UNKNOWN in shown(result(), capsys, known=False)


def test_long_rollouts_are_shortened() -> None:
    waves = tuple(simulation.Wave(tuple(f"n-{wave}-{each}" for each in range(7))) for wave in range(5))
    one = simulation.SimulatedRollout("p", 7, waves, ("lone",), ("held",), ("bad",), ("late",))
    assert list(report.waves(one)) == [
        "1 node without an agent at once, which does nothing there: lone",
        "35 nodes in 5 waves, at most 7 at a time",
        *(f"wave {n + 1}: n-{n}-0, n-{n}-1, n-{n}-2, n-{n}-3, n-{n}-4 and 2 more" for n in range(3)),
        "and 2 more",
        "held, because pods there would lose swap that they use: held",
        "1 node would not get it while these are worse than before: bad",
    ]


def test_other_kinds_are_ignored(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(
        """{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}},
        {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile", "metadata": {"name": "p"},
         "spec": {"nodeSelector": {}}}]}"""
    )
    assert [one.name for one in report.read_profiles([str(file)]).put] == ["p"]
    assert "v1 Service is ignored" in capsys.readouterr().err


def test_files_without_a_profile_are_no_trial(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "service.yaml"
    file.write_text('{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}')
    with pytest.raises(click.exceptions.Exit) as ended:
        report.read_profiles([str(file)])
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err.endswith(f" {file}\n")
    assert report.read_profiles([]).put == ()


def test_a_profile_that_is_wrong(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    file.write_text('{"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile", "metadata": {"name": "p"}}')
    with pytest.raises(click.exceptions.Exit) as ended:
        report.read_profiles([str(file)])
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == f"error: {file}: document 1: spec: Required value\n"
