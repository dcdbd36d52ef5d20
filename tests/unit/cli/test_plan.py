from __future__ import annotations

import argparse
import io
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from swapwarden import __main__ as program
from swapwarden.api import names
from swapwarden.cli import objects, plan

INPUT = """\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: node-b, labels: {pool: batch}}
  status: {nodeInfo: {swap: {capacity: 4294967296}}, capacity: {memory: 8Gi}}
- apiVersion: v1
  kind: Node
  metadata: {name: node-a}
  status: {nodeInfo: {}, capacity: {memory: 8Gi}}
---
apiVersion: swapwarden.dev/v1alpha1
kind: NodeSwapProfile
metadata: {name: batch, generation: 3, creationTimestamp: null}
spec:
  nodeSelector: {matchLabels: {pool: batch}}
  swap: {behavior: LimitedSwap, reserved: 50%}
---
apiVersion: v1
kind: Namespace
metadata: {name: quiet, labels: {swapwarden.dev/default-swap-policy: Disabled}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, uid: uid-web}
spec:
  nodeName: node-b
  initContainers: [{name: side, restartPolicy: Always}]
  containers: [{name: app, resources: {requests: {memory: 1Gi}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: quiet}
spec: {nodeName: node-b, containers: [{name: db}]}
---
apiVersion: v1
kind: Pod
metadata: {name: done}
spec: {nodeName: node-b, containers: [{name: a}]}
status: {phase: Succeeded}
"""

TABLE = """\
NODE     POD           QOS          POLICY     REASON               SWAP.MAX
node-a   (all pods)    -            -          profile (built-in)   -
node-b   (all pods)    -            -          profile batch        2147483648
node-b   default/web   Burstable    -          LimitedSwap          268435456
           side                                LimitedSwap          0
           app                                 LimitedSwap          268435456
node-b   quiet/db      BestEffort   Disabled   PolicyDisabled       0
           db                                  PolicyDisabled       0
"""

LIST = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "swapwarden.dev/v1alpha1",
            "kind": "NodeSwapState",
            "metadata": {"name": "node-a"},
            "spec": {
                "profileRef": {"name": "(built-in)"},
                "mode": "Enforce",
                "guarantee": "Standard",
                "beforePlan": "NoSwap",
                "pods": {},
            },
        },
        {
            "apiVersion": "swapwarden.dev/v1alpha1",
            "kind": "NodeSwapState",
            "metadata": {"name": "node-b"},
            "spec": {
                "profileRef": {"name": "batch", "generation": 3},
                "mode": "Enforce",
                "guarantee": "Standard",
                "beforePlan": "NoSwap",
                "kubepods": {"swapMax": "2147483648"},
                "pods": {
                    "uid-web": {
                        "swapMax": "268435456",
                        "reason": "LimitedSwap",
                        "containers": {
                            "side": {"swapMax": "0", "reason": "LimitedSwap"},
                            "app": {"swapMax": "268435456", "reason": "LimitedSwap"},
                        },
                    },
                    "quiet/db": {
                        "swapMax": "0",
                        "reason": "PolicyDisabled",
                        "containers": {"db": {"swapMax": "0", "reason": "PolicyDisabled"}},
                    },
                },
            },
        },
    ],
}


def run(text: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return program.main(["plan", "-f", "-", *options])


def mentioned(text: str, *parts: str) -> bool:
    """Whether one line has all parts."""
    return any(all(part in line for part in parts) for line in text.splitlines())


def document(kind: str, name: str, **fields: Any) -> str:
    own = kind.startswith("NodeSwap")
    version = "swapwarden.dev/v1alpha1" if own else "v1"
    return "---\n" + yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields})


NODE = document("Node", "n", status={"nodeInfo": {"swap": {"capacity": 2**30}}, "capacity": {"memory": "1Gi"}})


def pod(name: str, node: str | None = "n") -> str:
    return document("Pod", name, spec={"nodeName": node, "containers": [{"name": "app"}]})


def template(kind: str, annotations: Mapping[str, object] | None = None, memory: str = "256Mi", **spec: Any) -> str:
    """A workload whose pods ask for memory."""
    group, path = next((group, path) for (group, one), path in objects.TEMPLATES.items() if one == kind)
    made: dict[str, Any] = {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [{"name": "app", "resources": {"requests": {"memory": memory}}}], **spec},
    }
    for step in reversed(path.split(".")):
        made = {step: made}
    version = f"{group}/v1" if group else "v1"
    return "---\n" + yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, **made})


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(INPUT, monkeypatch) == 0
    assert capsys.readouterr() == (TABLE, "")


def test_a_node_that_lacks_what_its_profile_requires(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swap = {"behavior": "Kubelet", "requirements": ["Encrypted", "TmpfsNoSwap"]}
    requiring = document("NodeSwapProfile", "safe", spec={"nodeSelector": {}, "swap": swap})
    facts = {
        "cgroupVersion": 2,
        "swapController": True,
        "swapBytes": 2**30,
        "memoryBytes": 2**30,
        "kernelRelease": "6.1.0",
    }
    device = {"name": "/dev/sda2", "type": "partition", "sizeBytes": 2**30, "backing": "ssd"}

    def planned(**found: Any) -> tuple[dict[str, Any], str]:
        reported = document("NodeSwapState", "n", status={"facts": {**facts, **found}})
        assert run(NODE + requiring + pod("app") + reported, monkeypatch, "-o", "json") == 0
        out, err = capsys.readouterr()
        return json.loads(out)["items"][0]["spec"], err

    spec, notes = planned(devices=[device])
    assert spec["pods"]["default/app"]["reason"] == "RequirementUnmet"
    assert spec["pods"]["default/app"]["swapMax"] == "0"
    assert list(spec["unmet"]) == ["encrypted", "tmpfsNoswap"]
    assert mentioned(notes, "node n: safe", "encrypted", "/dev/sda2")
    spec, notes = planned(devices=[{**device, "encrypted": True}], tmpfsNoswap=True)
    assert (spec["pods"]["default/app"]["reason"], spec["unmet"], notes) == ("KubeletDecides", {}, "")


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(INPUT, monkeypatch, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == LIST


def test_yaml_reads_back_with_strings_as_strings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(INPUT, monkeypatch, "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out) == LIST


def test_its_own_output_is_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(INPUT, monkeypatch, "-o", "yaml")
    again = capsys.readouterr().out
    assert run(f"{INPUT}---\n{again}", monkeypatch) == 0
    assert capsys.readouterr().out == TABLE


ODD = [
    None,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    10**300,
    True,
    "",
    "\ud800",
    "a\0b",
    "9" * 400,
    [],
    {},
    [None],
    {"a": 1},
]


def mutants(value: Any) -> Iterator[Any]:
    """The value with each part of it replaced by each of the odd values."""
    yield from ODD
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(children):
        for odd in mutants(child):
            copy = value.copy()
            copy[key] = odd
            yield copy


@pytest.mark.parametrize("number", range(7))
def test_any_input_gives_a_plan_or_errors(
    number: int, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    facts = {"cgroupVersion": 2, "swapController": True, "swapBytes": 2**30, "memoryBytes": 2**30, "pageSize": 4096}
    found = document("NodeSwapState", "node-b", status={"facts": facts})
    documents = list(yaml.safe_load_all(f"{INPUT}{found}"))
    assert len(documents) == 7
    for mutant in mutants(documents[number]):
        items = [*documents[:number], mutant, *documents[number + 1 :]]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        status = run(text, monkeypatch)
        out, err = capsysbinary.readouterr()
        assert (status == 0 and out.startswith((b"NODE ", b"POD "))) or (
            status == 2 and not out and b"error: " in err
        ), mutant


def test_several_files(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = INPUT.split("---\n")
    (tmp_path / "nodes.yaml").write_text(first)
    (tmp_path / "rest").mkdir()
    for number, text in enumerate(rest):
        (tmp_path / "rest" / f"{number}.yaml").write_text(text)
    assert program.main(["plan", "-f", str(tmp_path / "nodes.yaml"), "-f", str(tmp_path / "rest")]) == 0
    assert capsys.readouterr().out == TABLE


def test_what_the_agent_found_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"cgroupVersion": 1, "swapController": False, "swapBytes": 0, "memoryBytes": 1}
    text = NODE + pod("a") + document("NodeSwapState", "n", status={"facts": facts})
    assert run(text, monkeypatch, "-o", "json") == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert item["spec"]["pods"] == {
        "default/a": {"reason": "NodeIncompatible", "containers": {"app": {"reason": "NodeIncompatible"}}}
    }
    run(text, monkeypatch)
    assert capsys.readouterr().out.splitlines()[2].split() == [
        *("n", "default/a", "BestEffort", "-", "NodeIncompatible", "-")
    ]


def test_audit_shows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = NODE + document("NodeSwapProfile", "p", spec={"nodeSelector": {}, "mode": "Audit"})
    assert run(text, monkeypatch) == 0
    assert "profile p (Audit)" in capsys.readouterr().out


def test_notes_on_what_does_not_count(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    waits = pod("waits", None).replace("name: waits", "name: waits\n  uid: u")
    text = NODE + pod("here") + pod("lost", "elsewhere") + waits + document("ConfigMap", "c")
    assert run(text, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        (
            "note: standard input: document 5: v1 ConfigMap is ignored:"
            " only Node, Namespace, Pod, NodeSwapProfile, NodeSwapState, workloads count"
        ),
        "note: pod default/lost is left out: no Node 'elsewhere' (its spec.nodeName) in the input",
        "note: pod default/waits is left out: it waits to be scheduled; --node NAME plans it on that one",
    ]
    assert "lost" not in out
    assert run(text, monkeypatch, "--node", "n") == 0
    assert "default/waits" in capsys.readouterr().out


NO_SWAP_KNOWN = (
    "note: node bare: no swap: its status.nodeInfo.swap.capacity and its NodeSwapState name none; its pods get 0"
)
NO_MEMORY_KNOWN = "note: node bare: status.capacity.memory is not known: LimitedSwap gives 0 to its pods"


@pytest.mark.parametrize(
    ("behavior", "notes"),
    [
        ("Kubelet", []),
        ("NoSwap", []),
        ("LimitedSwap", [NO_SWAP_KNOWN, NO_MEMORY_KNOWN]),
        ("WorkloadControlled", [NO_SWAP_KNOWN]),
    ],
)
def test_notes_on_unknown_values_that_matter(
    behavior: str, notes: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = document("NodeSwapProfile", "p", spec={"nodeSelector": {}, "swap": {"behavior": behavior}})
    assert run(NODE + document("Node", "bare") + profile, monkeypatch) == 0
    assert capsys.readouterr().err.splitlines() == notes


def test_what_admission_would_refuse_is_noted_of_pods_that_do_not_exist_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"swapwarden.dev/swap-policy": "a\nb", "swap-limit.swapwarden.dev/ap": "1Gi"}
    spec = {"nodeName": "n", "containers": [{"name": "app"}]}
    metadata = [
        {"name": "new", "annotations": wrong},
        {"name": "old", "annotations": wrong, "uid": "u"},
        {"name": "system", "namespace": "kube-system", "annotations": wrong},
    ]
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": one, "spec": spec} for one in metadata]
    assert run(f"{NODE}---\n{yaml.safe_dump_all(pods)}", monkeypatch) == 0
    out, err = capsys.readouterr()
    reasons = [
        'swap-limit.swapwarden.dev/ap]: Invalid value: "ap": the pod has no container of that name; it has: "app"',
        'swapwarden.dev/swap-policy]: Unsupported value: "a\\nb": supported values: "Avoid", "Disabled", ',
    ]
    told = [("default/new", reason) for reason in reasons]
    # There the webhook is not asked, so that values are all that is checked.
    told.append(("kube-system/system", reasons[1]))
    for line, (pod, reason) in zip(err.splitlines(), told, strict=True):
        assert line.startswith(f"note: pod {pod} would be refused at admission: metadata.annotations[{reason}")
    assert [line.split()[1:5] for line in out.splitlines() if "BestEffort" in line] == [
        [name, "BestEffort", '"a\\nb"', "InvalidPolicy"]
        for name in ("default/new", "default/old", "kube-system/system")
    ]


def test_a_pod_whose_namespace_has_a_bad_default_would_be_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    label = "swapwarden.dev/default-swap-policy"
    documents = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "odd", "labels": {label: "Never"}}}]
    for name, own in (("new", {}), ("own", {"swapwarden.dev/swap-policy": "Disabled"})):
        meta = {"name": name, "namespace": "odd", "annotations": own}
        spec = {"nodeName": "n", "containers": [{"name": "app"}]}
        documents.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    assert run(f"{NODE}---\n{yaml.safe_dump_all(documents)}", monkeypatch) == 0
    [refused] = [line for line in capsys.readouterr().err.splitlines() if "refused" in line]
    path = f"label {label} of namespace odd"
    reason = 'Unsupported value: "Never": supported values: NoPreference, Disabled, Required, Preferred, Avoid'
    assert refused == f"note: pod odd/new would be refused at admission: {path}: {reason}"


@pytest.mark.parametrize(
    ("metadata", "spec", "path"),
    [
        ({}, {"nodeSelector": {"node.swapwarden.dev/swap": "false"}}, "spec.nodeSelector[node.swapwarden.dev/swap]"),
        (
            {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "controller": True}]},
            {},
            "metadata.annotations[swapwarden.dev/swap-policy]",
        ),
    ],
)
def test_what_the_rest_of_the_pod_contradicts_would_be_refused(
    metadata: dict[str, Any],
    spec: dict[str, Any],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    annotations = {"swapwarden.dev/swap-policy": "Required"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "new", "annotations": annotations, **metadata},
        "spec": {"nodeName": "n", "containers": [{"name": "app"}], **spec},
    }
    assert run(f"{NODE}---\n{yaml.safe_dump(pod)}", monkeypatch) == 0
    [refused] = [line for line in capsys.readouterr().err.splitlines() if "refused" in line]
    assert refused.startswith(f"note: pod default/new would be refused at admission: {path}: ")


def test_an_output_that_cannot_be_written_is_said(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "empty.yaml"
    source.write_text(NODE)
    with pathlib.Path("/dev/full").open("w") as full:
        argv = [sys.executable, "-m", "swapwarden", "plan", "-f", str(source), "-o", "json"]
        ended = subprocess.run(  # noqa: S603 our own program
            argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "error: standard output: No space left on device"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "nothing to plan: "),
        (document("NodeSwapProfile", "p", spec={"nodeSelector": {}}), "nothing to plan: "),
        (NODE + pod("lost", "elsewhere"), "none of 1 pods was planned"),
        (NODE + template("Deployment", nodeSelector={"no": "such"}), "none of 1 pods was planned"),
    ],
)
def test_input_with_nothing_to_plan_fails_with_a_reason(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(text, monkeypatch, "-o", "json") == plan.BAD_INPUT
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines()[-1].startswith(f"error: {reason}")


@pytest.mark.parametrize("kind", [kind for _, kind in objects.TEMPLATES])
def test_template_of_a_workload_is_planned_on_each_node_of_the_input(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = document("NodeSwapProfile", "p", spec={"nodeSelector": {}, "swap": {"behavior": "LimitedSwap"}})
    twin = NODE.replace("name: n\n", "name: twin\n")
    assert run(NODE + twin + profile + template(kind), monkeypatch) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if f"/{kind.lower()}/web" in line]
    share = ["Burstable", "-", "LimitedSwap", str(2**28)]
    assert lines == [[node, f"default/{kind.lower()}/web", *share] for node in ("n", "twin")]
    assert run(NODE + twin + profile + template(kind), monkeypatch, "--node", "twin") == 0
    out, err = capsys.readouterr()
    assert "twin" in out
    assert "\nn " not in out
    assert not err


def test_template_of_a_workload_that_exists_is_planned_on_a_node_that_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An export of a large cluster has thousands of both: each on each would be no answer."""
    text = NODE + pod("a") + template("Deployment").replace("name: web", "name: web\n  uid: u")
    assert run(text, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert "deployment/web" not in out
    assert mentioned(err, "pod default/deployment/web", "left out")
    assert run(text, monkeypatch, "--node", "n") == 0
    assert "deployment/web" in capsys.readouterr().out


def test_pods_that_come_are_planned_each_as_if_it_came_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swap = {"behavior": "WorkloadControlled", "workloadControlled": {"overcommitPercent": 100}}
    profile = document("NodeSwapProfile", "p", spec={"nodeSelector": {}, "swap": swap})
    limit = {"swapwarden.dev/swap-limit": "768Mi"}
    there = yaml.safe_load(pod("there").removeprefix("---"))
    there["metadata"].update(annotations={"swapwarden.dev/swap-limit": "512Mi"}, uid="u")
    there["status"] = {"startTime": "2026-01-01T00:00:00Z"}
    text = NODE + profile + f"---\n{yaml.safe_dump(there)}"
    text += template("Deployment", annotations=limit) + template("Job", annotations=limit)
    assert run(text, monkeypatch) == 0
    given = {line.split()[1]: line.split()[-1] for line in capsys.readouterr().out.splitlines() if "default/" in line}
    left = {"default/deployment/web": str(2**29), "default/job/web": str(2**29)}
    assert given == {"default/there": str(2**29), **left}


def test_node_that_is_not_in_the_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(NODE + pod("a"), monkeypatch, "--node", "m") == plan.BAD_INPUT
    assert capsys.readouterr().err.startswith("error: --node m: ")


def test_without_a_node_pods_are_shown_by_behavior(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = document("NodeSwapProfile", "mine", spec={"nodeSelector": {}, "swap": {"behavior": "LimitedSwap"}})
    disabled = template("Job", annotations={"swapwarden.dev/swap-policy": "Disabled"})
    text = profile + template("Deployment") + disabled + pod("bound", "elsewhere")
    assert run(text, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert mentioned(err, "note: no Node ")
    assert err.count("\n") == 1
    assert "LimitedSwap (mine)" in out
    assert "a share, by the memory request of app" in out
    [job] = [line.split() for line in out.splitlines() if "default/job/web" in line]
    assert job[1:] == ["Burstable", "Disabled", "(any)", "no", "swap:", "PolicyDisabled"]
    assert run(text, monkeypatch, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["items"] == []
    by_name = {one["name"]: one for one in told["byBehavior"]}
    assert by_name["job/web"]["reason"] == "PolicyDisabled"
    assert {one["behavior"] for one in by_name["deployment/web"]["behaviors"]} == set(names.Behavior)


def test_policy_of_a_template_that_is_no_policy_is_refused_at_admission(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = template(
        "Deployment", annotations={"swapwarden.dev/swap-policy": "disable", "swapwarden.dev/swap-limt": "1Gi"}
    )
    assert run(text, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert "no swap: InvalidPolicy" in out
    start = "note: pod default/deployment/web"
    assert f"{start} would be refused at admission: metadata.annotations[swapwarden.dev/swap-policy]: " in err
    assert f"{start} metadata.annotations[swapwarden.dev/swap-limt]: " in err
    assert 'did you mean "swapwarden.dev/swap-limit"?' in err


def test_a_misspelt_annotation_is_shown_beside_errors_of_the_pod(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = template("Deployment", memory="lots", annotations={"swapwarden.dev/swap-polcy": "Disabled"})
    assert run(text, monkeypatch) == plan.BAD_INPUT
    err = capsys.readouterr().err
    assert "error: standard input: document 1: spec.template.spec.containers[0].resources.requests.memory: " in err
    assert "note: standard input: document 1: spec.template.metadata.annotations[swapwarden.dev/swap-polcy]: " in err


@pytest.mark.parametrize(("kind", "place"), [("Pod", ""), ("Deployment", "spec.template.")])
def test_annotation_that_lacks_its_quotes_is_named_with_the_remedy_and_hides_no_misspelt_one(
    kind: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    annotations = {"swapwarden.dev/swap-limit": 0, "swapwarden.dev/swap-polcy": "Disabled"}
    made = yaml.safe_load(template("Deployment", annotations=annotations))
    if kind == "Pod":
        made = {**made["spec"]["template"], "apiVersion": "v1", "kind": "Pod"}
        made["metadata"]["name"] = "web"
    assert run(yaml.safe_dump(made), monkeypatch) == plan.BAD_INPUT
    err = capsys.readouterr().err
    at = f"standard input: document 1: {place}metadata.annotations"
    assert f"error: {at}[swapwarden.dev/swap-limit]: expected a string, got 0: put it in quotes" in err
    assert f"note: {at}[swapwarden.dev/swap-polcy]: " in err


@pytest.mark.parametrize("spec", [None, {}, {"template": 5}, {"template": {"metadata": []}}, {"jobTemplate": []}])
@pytest.mark.parametrize(("version", "kind"), [("apps/v1", "Deployment"), ("batch/v1", "CronJob")])
def test_workload_without_a_template_is_named_with_its_place(
    version: str, kind: str, spec: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, "spec": spec}
    assert run(NODE + "---\n" + yaml.safe_dump(made), monkeypatch) == plan.BAD_INPUT
    assert capsys.readouterr().err.startswith("error: standard input: document 2: spec.")


def test_profiles_that_tie(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = NODE + "".join(document("NodeSwapProfile", name, spec={"nodeSelector": {}}) for name in ("b", "a"))
    assert run(text, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert err == "note: node n: a, b have the same priority; a governs\n"
    assert "profile a" in out


def test_bad_input_prints_no_plan_and_all_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = NODE + document("Pod", "a") + document("NodeSwapProfile", "p", spec={"nodeSelector": {}, "mode": 1})
    assert run(text, monkeypatch) == plan.BAD_INPUT == 2
    assert capsys.readouterr() == (
        "",
        (
            "error: standard input: document 2: spec: Required value\n"
            'error: standard input: document 3: spec.mode: Unsupported value: 1: supported values: "Enforce", "Audit"\n'
        ),
    )


def test_a_file_that_is_not_there(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["plan", "-f", f"{tmp_path}/none.yaml"]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/none.yaml: cannot be read: No such file or directory\n"


def test_a_reader_that_has_seen_enough(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.yaml").write_text(INPUT)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        arguments = {"filename": [str(tmp_path)], "output": "table", "node": None}
        assert plan.run(argparse.Namespace(**arguments, as_kubelet=None, kubelet_config=None)) == 0


@pytest.mark.parametrize("arguments", [["plan"], ["plan", "-f", "-", "-o", "xml"]])
def test_options_that_are_wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    assert "usage: swapwarden plan" in capsys.readouterr().err


def memory_qos(monkeypatch: pytest.MonkeyPatch, *options: str, **fields: Any) -> int:
    """Plan a Burstable pod of two containers and a BestEffort one, under a profile with memoryQoS."""
    swap = {"behavior": "LimitedSwap"}
    profile = document("NodeSwapProfile", "p", spec={"nodeSelector": {}, "swap": swap, "memoryQoS": fields})
    app = {"name": "app", "resources": {"requests": {"memory": "256Mi"}, "limits": {"memory": "512Mi"}}}
    two = document("Pod", "two", spec={"nodeName": "n", "containers": [app, {"name": "proxy"}]})
    return run(NODE + profile + two + pod("besteffort"), monkeypatch, *options)


def test_memory_is_in_documents_with_its_reasons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memory_qos(monkeypatch, "-o", "json", reservationPolicy="Soft", throttlingPercent=50) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    spec, protected = item["spec"], {"memoryLow": str(2**28)}
    assert (spec["kubepods"], spec["burstable"], list(spec["units"])) == (protected, protected, ["system.slice"])
    two = spec["pods"]["default/two"]
    assert (two["memoryLow"], two["protectionReason"]) == (str(2**28), "RequestProtected")
    assert two["throttlingReason"] == "ContainersThrottled"
    assert two["containers"]["app"]["memoryHigh"] == str(384 * 2**20)
    assert two["containers"]["app"]["throttlingReason"] == "ThrottlingPercent"
    assert two["containers"]["proxy"]["throttlingReason"] == "NoMemoryLimit"
    assert spec["pods"]["default/besteffort"]["protectionReason"] == "NothingRequested"


def test_more_protection_than_the_node_has_is_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory_qos(monkeypatch, reservationPolicy="Soft", systemLow="900Mi")
    assert mentioned(capsys.readouterr().err, "node n", "memoryQoS.reservationPercent")
    memory_qos(monkeypatch, reservationPolicy="Soft", systemLow="700Mi")
    assert capsys.readouterr().err == ""


def test_memory_has_columns_where_it_is_planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memory_qos(monkeypatch, reservationPolicy="TieredReservation", throttlingPercent=50) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[-5:] == ["MEMORY.MIN", "MEMORY.LOW", "PROTECTION", "MEMORY.HIGH", "THROTTLING"]
    assert mentioned("\n".join(lines), "(Burstable pods)", str(2**28))
    assert mentioned("\n".join(lines), "default/two", str(2**28), "RequestProtected", "ContainersThrottled")
    assert mentioned("\n".join(lines), "  app", str(384 * 2**20), "ThrottlingPercent")
    assert mentioned("\n".join(lines), "system.slice memory.low")


RECLAIM = names.RECLAIM_ANNOTATION
STEADY = {"name": "steady", "podSelector": {"matchLabels": {"app": "b"}}, "reclaim": {"mode": "Startup"}}


def reclaimed(monkeypatch: pytest.MonkeyPatch, *options: str, **offer: Any) -> int:
    """Plan a pod that asks for reclaim, one that an override selects, and one about which nobody says anything."""
    spec = {"nodeSelector": {}, "swap": {"behavior": "WorkloadControlled"}, **offer}
    asks = {"name": "a", "annotations": {RECLAIM: "Continuous", names.LIMIT_ANNOTATION: "1Mi"}}
    selected = {"name": "b", "labels": {"app": "b"}, "annotations": {names.LIMIT_ANNOTATION: "1Mi"}}
    placed = {"nodeName": "n", "containers": [{"name": "app"}]}
    pods = [document("Pod", "", metadata=each, spec=placed) for each in (asks, selected, {"name": "c"})]
    return run(NODE + document("NodeSwapProfile", "p", spec=spec) + "".join(pods), monkeypatch, *options)


@pytest.mark.parametrize(
    ("offer", "shown"),
    [
        (
            {"reclaim": {"mode": "Continuous"}, "overrides": [STEADY]},
            ["Continuous (ReclaimAnnotation)", "Startup (OverrideReclaim)", "Off (NotAsked)"],
        ),
        ({"reclaim": {"mode": "Startup"}}, ["Startup (StartupOnly)", "Off (NotAsked)", "Off (NotAsked)"]),
        ({}, ["Off (NotOffered)", "-", "-"]),
    ],
)
def test_reclaim_has_a_column_with_its_mode_and_reason(
    offer: dict[str, Any], shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reclaimed(monkeypatch, **offer) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith("RECLAIM")
    column = head.index("RECLAIM")
    assert [line[column:] for line in lines if "default/" in line] == shown
    assert reclaimed(monkeypatch, "-o", "json", **offer) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    told = item["spec"]["pods"]["default/a"]
    assert f"{told['reclaim']} ({told['reclaimReason']})" == shown[0]


def test_reclaim_has_no_column_where_nobody_offers_or_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(NODE + pod("web"), monkeypatch) == 0
    assert "RECLAIM" not in capsys.readouterr().out


OVERRIDES = """\
apiVersion: v1
kind: Node
metadata: {name: node}
status: {nodeInfo: {swap: {capacity: 4294967296}}, capacity: {memory: 8Gi}}
---
apiVersion: v1
kind: Namespace
metadata: {name: quiet, labels: {team: a, swapwarden.dev/default-swap-policy: Disabled}}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: quiet}
spec: {nodeName: node, containers: [{name: db}]}
---
apiVersion: v1
kind: Pod
metadata: {name: vm, namespace: elsewhere, labels: {kubevirt.io: virt-launcher}}
spec: {nodeName: node, containers: [{name: vm}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: elsewhere}
spec: {nodeName: node, containers: [{name: web}]}
---
apiVersion: swapwarden.dev/v1alpha1
kind: NodeSwapProfile
metadata: {name: p}
spec:
  nodeSelector: {}
  overrides:
  - name: machines
    podSelector: {matchLabels: {kubevirt.io: virt-launcher}}
    swap: {policy: Disabled}
  - name: team-a
    namespaceSelector: {matchLabels: {team: a}}
    swap: {policy: NoPreference}
  - name: elsewhere
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: elsewhere}}
    swap: {limit: 1Gi}
"""


def test_overrides_are_shown_with_their_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(OVERRIDES, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert [line.split(maxsplit=3)[1:] for line in out.splitlines() if "/" in line] == [
        ["elsewhere/vm", "BestEffort", "-          OverrideDisabled (overrides[machines])   0"],
        ["elsewhere/web", "BestEffort", "-          OverrideLimit (overrides[elsewhere])     at most 1073741824"],
        ["quiet/db", "BestEffort", "Disabled   KubeletDecides (overrides[team-a])       kubelet's"],
    ]
    assert mentioned(err, "note: ", "'elsewhere'", "overrides of p")
    assert err.count("\n") == 1


def test_reports_have_the_name_of_the_override(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(OVERRIDES, monkeypatch, "--output=json") == 0
    [found] = json.loads(capsys.readouterr().out)["items"]
    assert {name: (pod["reason"], pod.get("override")) for name, pod in found["spec"]["pods"].items()} == {
        "elsewhere/vm": ("OverrideDisabled", "machines"),
        "elsewhere/web": ("OverrideLimit", "elsewhere"),
        "quiet/db": ("KubeletDecides", "team-a"),
    }


OFFERING = """\
apiVersion: v1
kind: Node
metadata: {name: n}
status: {nodeInfo: {swap: {capacity: 4294967296}}, capacity: {memory: 8Gi}}
---
apiVersion: swapwarden.dev/v1alpha1
kind: NodeSwapProfile
metadata: {name: p}
spec:
  nodeSelector: {}
  swap: {behavior: WorkloadControlled, reserved: 50%, workloadControlled: {overcommitPercent: 150}}
  scheduling: {extendedResource: Enabled}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {nodeName: n, containers: [{name: app, resources: {limits: {swapwarden.dev/swap: 1Gi}}}]}
"""


def test_the_extended_resource_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(OFFERING, monkeypatch) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[2] == ["n", "(swapwarden.dev/swap)", "-", "-", "profile", "p", "3221225472"]
    assert rows[3] == ["n", "default/web", "BestEffort", "-", "WorkloadLimit", "1073741824"]
    assert run(OFFERING, monkeypatch, "-o", "json") == 0
    [state] = json.loads(capsys.readouterr().out)["items"]
    assert state["spec"]["extendedResource"] == "3221225472"
    assert run(OFFERING.replace("Enabled", "Disabled"), monkeypatch, "-o", "json") == 0
    [state] = json.loads(capsys.readouterr().out)["items"]
    assert "extendedResource" not in state["spec"]


@pytest.mark.parametrize(
    ("capacity", "path"),
    [
        ("{memory: much}", "status.capacity.memory"),
        ("{memory: 8Gi, swapwarden.dev/swap: much}", "status.capacity[swapwarden.dev/swap]"),
    ],
)
def test_a_capacity_that_is_none_is_named(
    capacity: str, path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(OFFERING.replace("{memory: 8Gi}", capacity), monkeypatch) == plan.BAD_INPUT
    assert f"{path}: Invalid value: 'much' is not a quantity" in capsys.readouterr().err


def test_settings_of_the_node_are_shown_with_refused_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = OFFERING.replace(
        "scheduling: {extendedResource: Enabled}",
        "kernel: {swappiness: 10, minFreeKbytes: 999999}\n  systemUnits: [{name: system.slice,"
        " swap: {policy: Disabled}, io: {latencyTargetMilliseconds: 25, weight: 800}}]",
    )
    assert run(asks, monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["n", "(system.slice)", "-", "-", "profile", "p", "0"]
    assert lines[3].split() == ["n", "(system.slice", "io.latency)", "-", "-", "profile", "p", "25000", "us"]
    assert lines[4].split() == ["n", "(system.slice", "io.weight)", "-", "-", "profile", "p", "800"]
    assert lines[5].split() == ["n", "(vm.swappiness)", "-", "-", "profile", "p", "10"]
    assert lines[6].startswith("n      (vm.min_free_kbytes)")
    assert "999999 KiB" in lines[6]
    assert run(asks, monkeypatch, "-o", "json") == 0
    [state] = json.loads(capsys.readouterr().out)["items"]
    settings = {"swapMax": "0", "ioLatencyMicroseconds": 25000, "ioWeight": 800}
    assert state["spec"]["units"] == {"system.slice": settings}
    assert state["spec"]["kernelSettings"] == {"vm.swappiness": "10"}
    assert list(state["spec"]["refused"]) == ["vm.min_free_kbytes"]
