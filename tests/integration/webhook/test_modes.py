"""The chart's two admission modes judge alike: the same cases, with the webhook and without."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from swapwarden.api import names
from swapwarden.kube import errors
from swapwarden.policy.admission import pod_annotations
from swapwarden.webhook import review

from testbed.controlplane.servers import ControlPlane
from tests.contract import pod_memory
from tests.integration.webhook import pods
from tests.integration.webhook.conftest import Admission
from tests.unit.webhook import reviews

DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "0-1", "controller": True}]


@pytest.mark.parametrize(
    ("annotations", "more", "found"),
    [
        ({pods.POLICY: "Disabled", pods.LIMIT: "1Gi"}, {}, {pods.LIMIT: pod_annotations.DISABLED_HAS_NONE}),
        ({pods.POLICY: "Disabled", pods.APP_LIMIT: "1"}, {}, {pods.APP_LIMIT: pod_annotations.DISABLED_HAS_NONE}),
        (
            {"swap-limit.swapwarden.dev/a": "1", "swap-limit.swapwarden.dev/b": "1"},
            {},
            {
                "swap-limit.swapwarden.dev/a": pod_annotations.NO_CONTAINER,
                "swap-limit.swapwarden.dev/b": 'it has: "app"',
            },
        ),
        ({pods.LIMIT: "1Gi", pods.APP_LIMIT: "2Gi"}, {}, {pods.APP_LIMIT: f'{pod_annotations.MORE_THAN_POD}, "1Gi"'}),
        (
            {pods.POLICY: "Required"},
            {"metadata": {"ownerReferences": DAEMON}},
            {pods.POLICY: pod_annotations.OF_DAEMON_SET},
        ),
    ],
)
def test_contradictions(
    crds: ControlPlane,
    admission: Admission,
    namespace: str,
    annotations: dict[str, str],
    more: pods.Json,
    found: dict[str, str],
) -> None:
    body = pods.pod("web", annotations)
    body["metadata"].update(more.get("metadata", {}))
    status, answer = pods.create(crds, namespace, body, pods.DRY_RUN)
    assert status == admission.refuses_with
    causes = pods.causes(answer)
    assert causes.keys() == {f"metadata.annotations[{key}]" for key in found}
    assert all(text in causes[f"metadata.annotations[{key}]"] for key, text in found.items())


def test_required_where_the_pods_own_selector_forbids_it(
    crds: ControlPlane, admission: Admission, namespace: str
) -> None:
    body = pods.pod("web", {pods.POLICY: "Required"})
    body["spec"]["nodeSelector"] = {pods.SWAP: "false"}
    status, answer = pods.create(crds, namespace, body)
    assert status == admission.refuses_with
    assert pods.causes(answer).keys() == {f"spec.nodeSelector[{pods.SWAP}]"}


@pytest.mark.parametrize("policy", list(names.Policy))
def test_a_policy_that_is_understood_is_kept_as_it_is(crds: ControlPlane, namespace: str, policy: str) -> None:
    wanted = {pods.POLICY: policy, "swap-limit.swapwarden.dev/app": "0"}
    status, answer = pods.create(crds, namespace, pods.pod("web", wanted))
    assert status == 201
    assert answer["metadata"]["annotations"] == wanted


# --- defaults ---


@pytest.mark.parametrize("policy", list(names.Policy))
@pytest.mark.parametrize("annotations", [None, {}, {"example.com/note": "a"}, {pods.LIMIT: "0"}])
def test_the_namespaces_default_is_written_to_the_pod(
    crds: ControlPlane, admission: Admission, policy: str, annotations: dict[str, str] | None
) -> None:
    assert admission
    status, answer = pods.create(crds, pods.new_namespace(crds, policy), pods.pod("web", annotations))
    assert status == 201, answer
    assert answer["metadata"]["annotations"] == {**(annotations or {}), pods.POLICY: policy, pods.SOURCE: "namespace"}


def test_a_pods_own_policy_wins(crds: ControlPlane, admission: Admission) -> None:
    assert admission
    body = pods.pod("web", {pods.POLICY: "NoPreference"})
    status, answer = pods.create(crds, pods.new_namespace(crds, "Disabled"), body)
    assert status == 201
    assert answer["metadata"]["annotations"] == {pods.POLICY: "NoPreference"}


def test_a_dry_run_says_what_would_be_and_leaves_nothing(crds: ControlPlane, admission: Admission) -> None:
    namespace = pods.new_namespace(crds, "Disabled")
    status, answer = pods.create(crds, namespace, pods.pod("web"), pods.DRY_RUN)
    assert status == 201
    assert answer["metadata"]["annotations"][pods.POLICY] == "Disabled"
    contradiction = pods.pod("web", {pods.POLICY: "Disabled", pods.LIMIT: "1"})
    assert pods.create(crds, namespace, contradiction, pods.DRY_RUN)[0] == admission.refuses_with
    assert crds.get(pods.path(namespace))["items"] == []


def test_mirror_pods_are_neither_refused_nor_changed(crds: ControlPlane, admission: Admission) -> None:
    assert admission
    mirror = {"kubernetes.io/config.mirror": "0123", "kubernetes.io/config.source": "file"}
    wanted = {**mirror, pods.POLICY: "Disabled", pods.LIMIT: "1Gi"}
    for name, written in (("plain", mirror), ("contradicting", wanted)):
        body = pods.pod(name, written, node="node-1")
        status, answer = pods.create(crds, pods.new_namespace(crds, "Required"), body)
        assert status == 201, answer
        assert answer["metadata"]["annotations"] == written


@pytest.mark.parametrize("namespace", ["kube-system", "swapwarden-system"])
def test_namespaces_that_must_come_up_alone_are_left_alone(
    crds: ControlPlane, admission: Admission, namespace: str
) -> None:
    assert admission
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    crds.request("POST", account, {"metadata": {"name": "default"}})
    status, answer = pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "Required"}), pods.DRY_RUN)
    assert status == 201, answer
    assert "nodeSelector" not in answer["spec"]


@pytest.mark.parametrize("count", [500, 5000])
def test_a_flood_of_limits_is_refused_whatever_it_costs(
    crds: ControlPlane, admission: Admission, namespace: str, count: int
) -> None:
    flood = {f"swap-limit.swapwarden.dev/c{number}": "1Gi" for number in range(count)}
    status, answer = pods.create(crds, namespace, pods.pod("web", {**flood, pods.POLICY: "Disabled"}))
    assert status == admission.refuses_with, answer["message"][:300]
    assert pod_annotations.NO_CONTAINER in answer["message"] or "exceeded" in answer["message"]


# --- annotations without effect ---


@pytest.mark.parametrize(
    ("default", "metadata", "spec", "says"),
    [
        (
            None,
            {"annotations": {"swapwarden.dev/swap-polcy": "x"}},
            {},
            f"swap-polcy]: {pod_annotations.NO_SUCH_KEY}",
        ),
        (
            None,
            {"labels": {pods.POLICY: "Disabled"}},
            {},
            f"metadata.labels[{pods.POLICY}]: {pod_annotations.AS_LABEL}",
        ),
        (
            None,
            {"annotations": {pods.POLICY: "Required"}},
            {"nodeName": "n"},
            f"Required {pod_annotations.NOT_PLACED}{pod_annotations.NODE_CHOSEN}",
        ),
        ("Disabled", {"annotations": {pods.LIMIT: "1Gi"}}, {}, f"swap-limit]: {pod_annotations.OVERRULED}"),
        (
            "Avoid",
            {"ownerReferences": DAEMON},
            {},
            f"Avoid {pod_annotations.NOT_PLACED}{pod_annotations.DAEMON_SET_CHOOSES}",
        ),
    ],
)
def test_annotations_without_effect_get_a_warning(
    crds: ControlPlane, admission: Admission, default: str | None, metadata: pods.Json, spec: pods.Json, says: str
) -> None:
    assert admission
    body = pods.pod("web")
    body["metadata"].update(metadata)
    body["spec"].update(spec)
    namespace = pods.new_namespace(crds, default)
    said = crds.kubectl("create", f"--namespace={namespace}", "-f", "-", text=json.dumps(body)).stderr
    assert said.startswith("Warning: ")
    assert said.count("Warning: ") == 1
    assert says in said


# --- pods of all kinds ---

TERM = {"weight": 50, "preference": {"matchExpressions": [{"key": pods.SWAP, "operator": "In", "values": ["true"]}]}}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
AFFINITIES: list[pods.Json | None] = [
    None,
    {},
    {"podAntiAffinity": {}},
    {"nodeAffinity": {}},
    {"nodeAffinity": {PREFERRED: []}},
    {"nodeAffinity": {PREFERRED: [TERM]}},
    {"nodeAffinity": {PREFERRED: [{**TERM, "weight": 1}]}},
    {"nodeAffinity": {PREFERRED: [{"weight": 50, "preference": {"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["n"]}]}}]}},
]  # fmt: skip
TOLERATIONS: list[list[pods.Json] | None] = [
    None,
    [],
    [{"operator": "Exists"}],
    [{"key": pods.SWAP, "operator": "Exists"}],
    [{"key": pods.SWAP, "operator": "Exists", "effect": "NoSchedule"}],
    [{"key": pods.SWAP, "operator": "Equal", "value": "true"}],
    [{"key": "example.com/other", "operator": "Exists"}],
]
SELECTORS: list[dict[str, str] | None] = [None, {}, {"pool": "a"}, {pods.SWAP: "true"}, {pods.SWAP: "false"}]
INIT_CONTAINERS: list[list[pods.Json] | None] = [None, [{"name": "side", "image": "none"}]]
VALUES = ("0", "1n", "1500m", "2", "512Mi", "1Gi", "1.5Gi", "2e9", "10E", "20E", "lots", "-1", "")
MEMORY_VALUES = ("None", "Soft", "90%", "Disabled", "1Mi", "64Mi", "65Mi")
BY_API_SERVER = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def generated(source: random.Random) -> pods.Json:
    """A pod that may be anything that concerns us."""
    annotations = {}
    if source.random() < 0.6:
        annotations[pods.POLICY] = source.choice([*names.Policy, *names.Policy, "disabled"])
    if source.random() < 0.1:
        annotations[pods.SOURCE] = "namespace"
    for key in source.sample([pods.LIMIT, pods.APP_LIMIT, "swap-limit.swapwarden.dev/side"], source.randint(0, 2)):
        annotations[key] = source.choice(VALUES)
    if source.random() < 0.3:
        annotations[source.choice(pod_memory.KEYS)] = source.choice(MEMORY_VALUES)
    body = pods.pod("web", annotations if annotations or source.random() < 0.5 else None)
    if source.random() < 0.2:
        body["metadata"]["ownerReferences"] = [{**DAEMON[0], "controller": source.choice([True, False])}]
    chosen = {
        "affinity": source.choice(AFFINITIES),
        "tolerations": source.choice(TOLERATIONS),
        "nodeSelector": source.choice(SELECTORS),
        "nodeName": source.choice([None, None, None, "node-1"]),
        "initContainers": source.choice(INIT_CONTAINERS),
    }
    body["spec"].update({key: value for key, value in chosen.items() if value is not None})
    return body


def placement(spec: pods.Json) -> list[Any]:
    """The placement of a pod, without empty fields and those that the API server adds itself."""
    of_node = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(PREFERRED) or []
    tolerations = [each for each in spec.get("tolerations") or [] if each.get("key") not in BY_API_SERVER]
    return [spec.get("nodeSelector") or {}, of_node, tolerations, spec.get("nodeName", "")]


async def test_pods_of_all_kinds_fare_as_the_webhooks_code_says(crds: ControlPlane, admission: Admission) -> None:
    source = random.Random(2400)  # noqa: S311 cases to test with, the same in each run
    defaults = [None, *names.Policy]
    namespaces = {default: pods.new_namespace(crds, default) for default in defaults}
    cases = [(source.choice(defaults), generated(source)) for _ in range(500)]
    asked = [("POST", pods.path(namespaces[default]), body) for default, body in cases]
    verdicts = {True: 0, False: 0}
    for (default, body), answer in zip(cases, await pods.many(crds, asked, dry_run=True), strict=True):
        wanted = review.answer(review.decode(reviews.raw(body)), default)
        refused = isinstance(answer, errors.ApiError)
        assert refused is not wanted.allowed, (default, body, answer)
        verdicts[refused] += 1
        if isinstance(answer, errors.ApiError):
            assert answer.status in {403, admission.refuses_with}
            assert wanted.status is not None
            fields = {cause.field for cause in wanted.status.details.causes}
            assert any(f"{field}: " in answer.message for field in fields), (body, answer.message)
        else:
            expected = reviews.patched(body, wanted)
            assert answer["metadata"].get("annotations", {}) == (expected["metadata"].get("annotations") or {})
            assert placement(answer["spec"]) == placement(expected["spec"])
    assert min(verdicts.values()) > 100
