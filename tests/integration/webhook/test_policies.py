"""The policies inside the API server alone: no webhook runs here, and none is registered."""

from __future__ import annotations

import itertools
import json
import random
import re
import string
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from swapwarden.kube import errors
from swapwarden.policy.admission import memory, pod_annotations, validation
from swapwarden.policy.observed.new_pods import NewPod

from testbed.base.process import ProcessError
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from tests.contract import pod_memory, quantities
from tests.integration.webhook import pods

MIRROR = {"kubernetes.io/config.mirror": "0123", "kubernetes.io/config.source": "file"}


@pytest.fixture(scope="module", autouse=True)
def _policies(crds: ControlPlane) -> Iterator[None]:
    crds.apply(*manifests.other_manifests())
    crds.wait_for_policies()
    yield
    crds.kubectl(
        "delete", "--ignore-not-found", "--wait=false", *(f"--filename={path}" for path in manifests.policies())
    )
    crds.wait_for_policies()


@pytest.fixture
def namespace(crds: ControlPlane) -> str:
    return pods.new_namespace(crds)


def test_kubectl_annotate_is_refused(crds: ControlPlane, namespace: str) -> None:
    assert pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "Disabled"}))[0] == 201
    annotate = ("annotate", f"--namespace={namespace}", "pod/web", "--overwrite")
    for change in (f"{pods.POLICY}=NoPreference", f"{pods.POLICY}-", f"{pods.LIMIT}=1Gi"):
        with pytest.raises(ProcessError) as refused:
            crds.kubectl(*annotate, change)
        assert "cannot be added, changed or removed once the pod exists" in str(refused.value)
    crds.kubectl(*annotate, "example.com/note=x", f"{pods.POLICY}=Disabled")


def test_bad_values_are_refused_all_at_once(crds: ControlPlane, namespace: str) -> None:
    wrong = {pods.POLICY: "disabled", pods.LIMIT: "lots", pods.APP_LIMIT: "-1", pods.SOURCE: "me"}
    status, answer = pods.create(crds, namespace, pods.pod("web", {**wrong, "example.com/a": "b"}))
    assert (status, answer["reason"]) == (403, "Forbidden")
    for key, value in wrong.items():
        assert re.search(rf"\[{re.escape(key)}\]: (Unsupported|Invalid) value: {json.dumps(value)}", answer["message"])
    assert answer["message"].count("metadata.annotations[") == len(wrong)


def test_a_flood_of_bad_values_is_cut_not_lost(crds: ControlPlane, namespace: str) -> None:
    wrong = {f"swap-limit.swapwarden.dev/c{number}": "x\n" + "\N{GRINNING FACE}" * 100 for number in range(500)}
    status, answer = pods.create(crds, namespace, pods.pod("web", wrong))
    assert status == 403
    assert "not a quantity" in answer["message"]
    assert answer["message"].endswith("...")


def test_mirror_pods_are_admitted(crds: ControlPlane, namespace: str) -> None:
    wanted = {**MIRROR, pods.POLICY: "Sometimes"}
    assert pods.create(crds, namespace, pods.pod("mirror", wanted, node="node-1"))[0] == 201
    # Their kubelet reports on them as on others.
    path = pods.path(namespace, "mirror")
    assert pods.patch(crds, f"{path}/status", {"status": {"phase": "Running"}})[0] == 200
    assert pods.patch(crds, path, {"metadata": {"annotations": {pods.POLICY: "Disabled"}}})[0] == 403


def test_the_field_of_a_draft_of_the_kep_is_no_policy(crds: ControlPlane, namespace: str) -> None:
    body = pods.pod("web")
    body["spec"]["swapPolicy"] = {"mode": "Disabled"}
    with pytest.raises(ProcessError, match=r'unknown field "spec.swapPolicy"'):
        crds.kubectl("create", f"--namespace={namespace}", "-f", "-", text=json.dumps(body))
    status, answer = pods.create(crds, namespace, body)
    assert status == 201
    assert "swapPolicy" not in answer["spec"]


# --- the same verdicts as the webhook's ---

UNITS = (
    "",
    "k",
    "M",
    "G",
    "T",
    "P",
    "E",
    "Ki",
    "Mi",
    "Gi",
    "Ti",
    "Pi",
    "Ei",
    "n",
    "u",
    "m",
    "K",
    "mi",
    "GB",
    "e3",
    "E-2",
)
NUMBERS = (
    "0",
    "1",
    "007",
    "1.5",
    ".5",
    "1.",
    ".",
    "-1",
    "+1",
    "",
    " 1",
    "1e999",
    "9" * 63,
    "9" * 64,
    "9" * 65,
    "1_0",
    "\u0661",
)
WORDS = (
    "Disabled",
    "NoPreference",
    "Required",
    "Preferred",
    "Avoid",
    "disabled",
    "Disabled ",
    "",
    "namespace",
    "None",
    "Soft",
    "Startup",
    "90%",
    "max",
    "\n",
)
LETTERS = "019.eEKMGi+-dis abled\n\t\"'\\\u00e9\u0661\U0001f600"
KEYS = (
    pods.POLICY,
    pods.SOURCE,
    pods.LIMIT,
    pods.APP_LIMIT,
    "swap-limit.swapwarden.dev/x-1",
    *pod_memory.KEYS,
)
FOREIGN = ("swapwarden.dev/swap-policies", "example.com/swap-policy", "swap-limit.swapwarden.dev", "swapwarden.dev/x")


def generated(source: random.Random) -> dict[str, str]:
    """Some of ours and some of others', with values that are good, nearly good, or neither."""
    found = {}
    for key in source.sample([*KEYS, *FOREIGN], source.randint(1, 3)):
        kind = source.random()
        if kind < 0.4:
            value = source.choice(NUMBERS) + source.choice(UNITS)
        elif kind < 0.7:
            value = source.choice(WORDS)
        else:
            value = "".join(source.choice(LETTERS) for _ in range(source.randint(0, 8)))
        found[key] = value
    return found


def refused_by_webhook(body: pods.Json) -> set[str]:
    """The keys that the webhook refuses: those of invalid values, else those of contradictions about memory."""
    pod = msgspec.convert(body, NewPod)
    return {cause.field for cause in validation.wrong_values(pod)} or {
        cause.field for cause in memory.contradictions(pod)
    }


async def test_the_webhook_and_the_policy_agree_on_every_value(crds: ControlPlane, namespace: str) -> None:
    source = random.Random(5359)  # noqa: S311 cases to test with, the same in each run
    cases = [generated(source) for _ in range(600)]
    cases += [{pods.LIMIT: text} for text in quantities.QUANTITIES]
    bodies = [("POST", pods.path(namespace), pods.pod("web", each)) for each in cases]
    answers = await pods.many(crds, bodies, dry_run=True)
    refused = 0
    for found, answer in zip(cases, answers, strict=True):
        wanted = refused_by_webhook(pods.pod("web", found))
        if isinstance(answer, errors.ApiError):
            refused += 1
            assert answer.status == 403, (found, answer)
            # Values may hold anything, so that keys are looked for where a message of ours begins.
            told = {f"metadata.annotations[{key}]" for key in found if f"[{key}]: " in answer.message}
            assert told == wanted, (found, answer)
        else:
            assert wanted == set(), found
    assert 100 < refused < 550
    judged = {key for each in cases for key in each if pod_annotations.rule_of(key)}
    assert judged == set(KEYS)


def repeated(policy: dict[str, Any], times: int) -> dict[str, Any]:
    """The policy, with all its work repeated so many times."""
    spec = policy["spec"]

    def renamed(fields: dict[str, str], number: int) -> dict[str, str]:
        return {
            key: re.sub(r"variables\.([a-zA-Z]+)", rf"variables.\g<1>{number}", text) for key, text in fields.items()
        }

    variables = [
        {**renamed(each, number), "name": f"{each['name']}{number}"}
        for number in range(times)
        for each in spec["variables"]
    ]
    validations = [renamed(each, number) for number in range(times) for each in spec["validations"]]
    return {**policy, "spec": {**spec, "variables": variables, "validations": validations}}


def test_policies_that_cost_twice_as_much_let_the_largest_pods_in_and_be_changed(
    crds: ControlPlane, namespace: str
) -> None:
    # The limits of k8s.io/apiserver/pkg/apis/cel count for each policy, and all annotations together have 256 KiB.
    letters = string.ascii_letters + string.digits
    shortest = ("".join(key) for size in (1, 2, 3) for key in itertools.product(letters, repeat=size))
    largest = {
        "most-keys": dict.fromkeys(itertools.islice(shortest, 86_000), ""),
        "most-limits": {f"swap-limit.swapwarden.dev/c{number:04}": "1Mi" for number in range(7_700)},
    }
    file = manifests.folder() / "admission-policy-pods.yaml"
    policies = [
        each
        for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))
        if each["kind"] == "ValidatingAdmissionPolicy" and each["spec"].get("variables")
    ]
    assert len(policies) == 2
    crds.apply(*(yaml.safe_dump(repeated(each, 2)) for each in policies))
    crds.wait_for_policies()
    try:
        for name, wanted in largest.items():
            status, answer = pods.create(crds, namespace, pods.pod(name, wanted))
            assert status == 201, answer
            change = {"metadata": {"labels": {"a": "b"}}}
            status, answer = pods.patch(crds, pods.path(namespace, name) + pods.DRY_RUN, change)
            assert status == 200, answer
    finally:
        crds.apply(file)
        crds.wait_for_policies()
