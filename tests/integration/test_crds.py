"""The two kinds at a real API server: what it accepts and fills in, and what it says of what it refuses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from swapwarden import __main__ as program
from swapwarden.api import names, state

from testbed.controlplane.servers import ControlPlane
from tests.contract import profiles

PROFILES = f"/apis/{names.API_VERSION}/{names.PROFILE_PLURAL}"
STATES = f"/apis/{names.API_VERSION}/{names.STATE_PLURAL}"

Create = Callable[..., str]


def manifest(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": name}, **fields}


def profile(name: str = "", **spec: Any) -> dict[str, Any]:
    return manifest(names.PROFILE_KIND, name or fresh(), spec={"nodeSelector": {}, **spec})


def planned(name: str = "", **spec: Any) -> dict[str, Any]:
    return manifest(names.STATE_KIND, name or fresh(), spec={"profileRef": {"name": "p"}, **spec})


def fresh() -> str:
    return f"test-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def create(crds: ControlPlane) -> Iterator[Create]:
    """Create objects with kubectl apply; the name of the last. They are gone when the test ends."""
    made: list[dict[str, Any]] = []

    def apply(*objects: dict[str, Any], options: tuple[str, ...] = ()) -> str:
        made.extend(objects)
        crds.kubectl("apply", *options, "-f", "-", text=yaml.safe_dump_all(objects))
        return str(objects[-1]["metadata"]["name"])

    yield apply
    crds.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", text=yaml.safe_dump_all(made))


def tried(control_plane: ControlPlane, document: dict[str, Any]) -> tuple[int, str]:
    """The API server's answer to a strict dry run like that of `kubectl apply`, in a twentieth of its time."""
    collection = PROFILES if document["kind"] == names.PROFILE_KIND else STATES
    status, answer = control_plane.request("POST", f"{collection}?dryRun=All&fieldValidation=Strict", document)
    return status, answer.get("message", "")


def refusal(control_plane: ControlPlane, document: dict[str, Any]) -> str:
    """The API server's message as it refuses the object."""
    status, message = tried(control_plane, document)
    assert status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}, message
    return message


@pytest.mark.parametrize(("spec", "field", "reason"), profiles.REFUSED, ids=[field for _, field, _ in profiles.REFUSED])
def test_a_profile_is_refused_at_its_field_with_the_reason(
    spec: dict[str, Any], field: str, reason: str | tuple[str, str], crds: ControlPlane
) -> None:
    said = refusal(crds, profiles.document(spec))
    assert field in said
    assert (reason if isinstance(reason, str) else reason[0]) in said


@pytest.mark.parametrize("spec", profiles.ACCEPTED)
def test_a_good_profile_is_accepted(spec: dict[str, Any], crds: ControlPlane) -> None:
    status, message = tried(crds, profiles.document(spec))
    assert status == HTTPStatus.CREATED, message


def test_defaults_are_filled_in(crds: ControlPlane, create: Create) -> None:
    name = create(profile())
    assert crds.get(f"{PROFILES}/{name}")["spec"] == {
        "nodeSelector": {},
        "priority": 100,
        "mode": "Enforce",
        "guarantee": "Standard",
        "swap": {"behavior": "Kubelet", "beforePlan": "NoSwap"},
        "scheduling": {"extendedResource": "Disabled"},
        "rollout": {"maxUnavailable": "25%", "onSwapInUse": "Proceed"},
    }


def test_a_state_is_stored_as_written(crds: ControlPlane, create: Create) -> None:
    written = planned(
        epoch=3,
        pods={
            UID: {"reason": "PolicyDisabled", "swapMax": "0"},
            UID.replace("a", "b"): {"reason": "NodeIncompatible"},
            UID.replace("a", "c"): {
                "swapMax": "max",
                "containers": {"app": {"id": "c" * 13, "swapAtMost": "4096"}, "waits": {"swapMax": "0"}},
            },
        },
        defaultReason="KubeletDecides",
        kubepods={"swapMax": "8192"},
        units={"system.slice": {"swapMax": "0", "ioWeight": 800}},
        mode="Audit",
        guarantee="Strict",
        beforePlan="Unmanaged",
    )
    assert crds.get(f"{STATES}/{create(written)}")["spec"] == written["spec"]


def test_unknown_fields_are_dropped_where_a_client_does_not_ask_for_strictness(
    crds: ControlPlane, create: Create
) -> None:
    name = create(profile(guaranty="Strict", swap={"behaviour": "NoSwap"}), options=("--validate=ignore",))
    spec = crds.get(f"{PROFILES}/{name}")["spec"]
    assert "guaranty" not in spec
    assert spec["swap"] == {"behavior": "Kubelet", "beforePlan": "NoSwap"}


UID = "aaaaaaaa-0000-4000-8000-000000000000"


def pod(**fields: Any) -> dict[str, Any]:
    return {"pods": {UID: {"reason": "LimitedSwap", **fields}}}


def containers(**fields: Any) -> dict[str, Any]:
    return pod(containers={"c-1": {"swapMax": "0", **fields}})


KERNEL_VALUE = "should match '^(max|0|[1-9][0-9]{0,18})$'"
SUPPORTED = "supported values: "
LONGER = "Too long: may not be "
BAD_STATES: list[tuple[dict[str, Any], str, str]] = [
    ({"profileRef": None}, "spec.profileRef", "null"),
    ({"system": {}}, "spec.system", "unknown field"),
    (
        {"units": {"a.slice": {"ioLatencyMicroseconds": 999}}},
        "spec.units.a.slice.ioLatencyMicroseconds",
        "greater than or equal to 1000",
    ),
    ({"units": {"a.slice": {"ioWeight": 0}}}, "spec.units.a.slice.ioWeight", "greater than or equal to 1"),
    ({"units": {"a" * 129: {}}}, "spec.units", "keys are names of slices and services"),
    ({"defaultReason": "Because"}, "spec.defaultReason", SUPPORTED),
    (pod(containers={"a" * 64: {}}), f"spec.pods[{UID}].containers", "keys are names of containers"),
    (containers(id="c" * 14), f"spec.pods.{UID}.containers.c-1.id", "should match"),
    (containers(swapAtMost="1Gi"), f"spec.pods.{UID}.containers.c-1.swapAtMost", KERNEL_VALUE),
    ({"kernelSettings": {"vm.swappiness": "a b"}}, "spec.kernelSettings.vm.swappiness", "should match"),
    ({"mode": "Off"}, "spec.mode", f'{SUPPORTED}"Audit", "Enforce", "Restore"'),
    ({"epoch": -1}, "spec.epoch", "greater than or equal to 0"),
    ({"kubepods": {"swapMax": "10%"}}, "spec.kubepods.swapMax", KERNEL_VALUE),
    (pod(swapMax="1Gi"), f"spec.pods.{UID}.swapMax", KERNEL_VALUE),
    (pod(swapMax="-1"), f"spec.pods.{UID}.swapMax", KERNEL_VALUE),
    (pod(swapMax=0), f"spec.pods.{UID}.swapMax", "must be of type string"),
    (pod(reason="Because"), f"spec.pods.{UID}.reason", f"{SUPPORTED}"),
    (containers(swapMax="MAX"), f"spec.pods.{UID}.containers.c-1.swapMax", KERNEL_VALUE),
    ({"pods": {"u-1": {"reason": "LimitedSwap"}}}, "spec.pods", "keys are UIDs"),
    ({"pods": {"0" * 129: {"reason": "LimitedSwap"}}}, "spec.pods", "keys are UIDs"),
    ({"pods": {"0" * 255_000: {"reason": "LimitedSwap"}}}, "spec.pods", "keys are UIDs"),
]


@pytest.mark.parametrize(
    ("spec", "field", "remedy"),
    BAD_STATES,
    ids=[f"{field}-{number}" for number, (_, field, _) in enumerate(BAD_STATES)],
)
def test_a_state_is_refused_with_its_field_and_what_would_do(
    spec: dict[str, Any], field: str, remedy: str, crds: ControlPlane
) -> None:
    said = refusal(crds, planned(**spec))
    assert field in said
    assert remedy in said


@pytest.mark.parametrize("epoch", [4, None])
def test_a_smaller_epoch_is_refused_and_nothing_else_of_an_update(
    epoch: int | None, crds: ControlPlane, create: Create
) -> None:
    path = f"{STATES}/{create(planned(epoch=5))}"
    status, answer = crds.request("PATCH", path, {"spec": {"epoch": epoch, "mode": "Audit"}})
    assert status == HTTPStatus.UNPROCESSABLE_ENTITY
    # Between the two, older versions say of what type the value is.
    assert "spec.epoch: Invalid value: " in answer["message"]
    assert state.EPOCH_REFUSAL in answer["message"]
    for allowed in (5, 6):
        assert crds.request("PATCH", path, {"spec": {"epoch": allowed}})[0] == HTTPStatus.OK
    assert "mode" not in crds.get(path)["spec"]


def full(pods: int, containers: int) -> dict[str, Any]:
    """Entries of the sizes that a real node has: UIDs of 36 characters, the beginnings of container ids."""
    return {
        str(uuid.UUID(int=number)): {
            "reason": "LimitedSwap",
            "swapMax": "1073741824",
            "containers": {
                f"container-{index}": {"id": f"{number:07x}{index:06x}", "swapMax": "536870912"}
                for index in range(containers)
            },
        }
        for number in range(pods)
    }


@pytest.mark.parametrize(("pods", "containers"), [(500, 2), (state.MAX_PODS, 1), (1, state.MAX_CONTAINERS)])
def test_a_full_state_is_accepted_and_can_be_changed(
    pods: int, containers: int, crds: ControlPlane, create: Create
) -> None:
    path = f"{STATES}/{create(planned(epoch=1))}"
    # The rules must stay within the API server's budget for an update, which also looks at the old object.
    for epoch in (2, 3):
        patch = {"spec": {"epoch": epoch, "pods": full(pods, containers)}}
        status, answer = crds.request("PATCH", path, patch)
        assert status == HTTPStatus.OK, answer
        assert len(answer["spec"]["pods"]) == pods


@pytest.mark.parametrize(
    ("pods", "containers", "field"),
    [(state.MAX_PODS + 1, 1, "spec.pods"), (1, state.MAX_CONTAINERS + 1, "containers")],
)
def test_one_more_is_too_many(pods: int, containers: int, field: str, crds: ControlPlane) -> None:
    status, answer = crds.request("POST", f"{STATES}?dryRun=All", planned(pods=full(pods, containers)))
    assert status == HTTPStatus.UNPROCESSABLE_ENTITY
    assert f"{field}: Too many: {max(pods, containers)}: must have at most" in answer["message"]


def condition(kind: str, status: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": "Test",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


@pytest.mark.parametrize("kind", ["nsp", "nodeswapprofile", names.PROFILE_PLURAL])
def test_what_kubectl_shows_of_a_profile(kind: str, crds: ControlPlane, create: Create) -> None:
    name = create(profile(priority=7, mode="Audit", swap={"behavior": "LimitedSwap", "reserved": "10%"}))
    status = {
        "nodes": {"matched": 9, "applied": 2, "pending": 4, "incompatible": 0, "withoutAgent": 3, "degraded": 1},
        "conditions": [condition("Ready", "False"), condition("Conflicted", "True")],
    }
    assert crds.request("PATCH", f"{PROFILES}/{name}/status", {"status": status})[0] == HTTPStatus.OK
    lines = crds.kubectl("get", kind, name).stdout.splitlines()
    assert " ".join(lines[0].split()) == "NAME BEHAVIOR MODE PRIORITY NODES APPLIED DEGRADED READY AGE"
    assert lines[1].split()[:-1] == [name, "LimitedSwap", "Audit", "7", "9", "2", "1", "False"]
    wide = crds.kubectl("get", kind, name, "-o", "wide", "--no-headers").stdout.split()
    assert wide[8:-1] == ["Test", "4", "3", "0", "10%", "True"]


@pytest.mark.parametrize("kind", ["nss", "nodeswapstate", names.STATE_PLURAL])
def test_what_kubectl_shows_of_a_state(kind: str, crds: ControlPlane, create: Create) -> None:
    name = create(planned(epoch=7, mode="Restore"))
    facts = {"cgroupVersion": 2, "swapController": True, "swapBytes": 2**30, "memoryBytes": 2**31}
    conditions = [
        condition("Ready", "Unknown"),
        condition("Applied", "True"),
        condition("Degraded", "False"),
        condition("Drifted", "True"),
    ]
    status = {"facts": facts, "conditions": conditions}
    assert crds.request("PATCH", f"{STATES}/{name}/status", {"status": status})[0] == HTTPStatus.OK
    lines = crds.kubectl("get", kind, name).stdout.splitlines()
    assert " ".join(lines[0].split()) == "NAME PROFILE MODE SWAP READY APPLIED DEGRADED AGE"
    assert lines[1].split()[:-1] == [name, "p", "Restore", str(2**30), "Unknown", "True", "False"]
    wide = crds.kubectl("get", kind, name, "-o", "wide", "--no-headers").stdout.split()
    assert wide[7:-1] == ["True", "7"]


def test_one_category_shows_both_kinds(crds: ControlPlane, create: Create) -> None:
    both = {create(profile()), create(planned())}
    listed = crds.kubectl("get", "swapwarden", "-o", "name").stdout.split()
    assert both <= {line.partition("/")[2] for line in listed}


@pytest.mark.parametrize("make", [profile, planned])
def test_spec_and_status_are_written_apart(
    make: Callable[..., dict[str, Any]], crds: ControlPlane, create: Create
) -> None:
    document = make()
    path = f"{PROFILES if document['kind'] == names.PROFILE_KIND else STATES}/{create(document)}"
    before = crds.get(path)
    both = {"spec": {"mode": "Audit"}, "status": {"observedGeneration": 9}}
    assert crds.request("PATCH", f"{path}/status", both)[0] == HTTPStatus.OK
    after = crds.get(path)
    assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], 1)
    assert after["status"] == {"observedGeneration": 9}
    assert crds.request("PATCH", path, {**both, "status": {"observedGeneration": 10}})[0] == HTTPStatus.OK
    after = crds.get(path)
    assert (after["spec"]["mode"], after["metadata"]["generation"]) == ("Audit", 2)
    assert after["status"] == {"observedGeneration": 9}


@pytest.mark.parametrize("kind", ["nodeswapprofiles", "nodeswapstates"])
def test_kubectl_explains_each_field(kind: str, crds: ControlPlane) -> None:
    said = crds.kubectl("explain", "--recursive", f"{kind}.spec").stdout
    assert ("reserved" if kind == names.PROFILE_PLURAL else "beforePlan") in said
    said = crds.kubectl("explain", f"{kind}.spec.mode").stdout
    assert "Enforce: write and repair." in said


def test_what_kubectl_gets_is_input_of_plan(
    crds: ControlPlane, create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node, namespace = fresh(), fresh()
    selector = {"matchLabels": {"test": node}}
    create(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {"test": node}}},
        profile(node, nodeSelector=selector, swap={"behavior": "LimitedSwap", "reserved": "25%"}),
        planned(node),
    )
    capacity = {"nodeInfo": {"swap": {"capacity": 2**32}}, "capacity": {"memory": "8Gi"}}
    assert crds.request("PATCH", f"/api/v1/nodes/{node}/status", {"status": capacity})[0] == HTTPStatus.OK
    if "swap" not in crds.get(f"/api/v1/nodes/{node}")["status"]["nodeInfo"]:
        # An older API server knows no swap of Nodes: what agents report of it is in the state.
        facts = {"facts": {"swapBytes": 2**32, "memoryBytes": 2**33, "cgroupVersion": 2, "swapController": True}}
        where = f"/apis/swapwarden.dev/v1alpha1/nodeswapstates/{node}/status"
        assert crds.request("PATCH", where, {"status": facts})[0] == HTTPStatus.OK
    crds.create_namespace(namespace, {names.DEFAULT_POLICY_LABEL: "Disabled"})
    requests = {"requests": {"memory": "1Gi"}}
    for name, own in (("web", {}), ("db", {names.POLICY_ANNOTATION: "Disabled"})):
        spec = {"nodeName": node, "containers": [{"name": "app", "image": "none", "resources": requests}]}
        body = {"metadata": {"name": name, "annotations": own}, "spec": spec}
        crds.create(f"/api/v1/namespaces/{namespace}/pods", body)
    objects = [f"{kind}/{node}" for kind in ("nodes", "nsp", "nss")]
    (tmp_path / "cluster.yaml").write_text(crds.kubectl("get", *objects, f"ns/{namespace}", "-o", "yaml").stdout)
    (tmp_path / "pods.json").write_text(crds.kubectl("get", "pods", "-n", namespace, "-o", "json").stdout)
    assert program.main(["plan", "-f", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    # The namespace's default is none of the pods that exist already.
    assert [line.split() for line in out.splitlines()[1:]] == [
        [node, "(all", "pods)", "-", "-", "profile", node, str(3 * 2**30)],
        [node, f"{namespace}/db", "Burstable", "Disabled", "PolicyDisabled", "0"],
        ["app", "PolicyDisabled", "0"],
        [node, f"{namespace}/web", "Burstable", "-", "LimitedSwap", str(3 * 2**27)],
        ["app", "LimitedSwap", str(3 * 2**27)],
    ]
