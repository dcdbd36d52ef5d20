from __future__ import annotations

import base64
import datetime
from typing import Any

import msgspec
import pytest
from swapwarden.cli.kubectl.check import installation
from swapwarden.cli.kubectl.check.installation import Installed
from swapwarden.cli.kubectl.cluster import snapshot
from swapwarden.controller.certificates import key_pairs

from tests.unit.objects import view

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
OURS = {"app.kubernetes.io/name": "swapwarden"}


def bundle(*days: float) -> str:
    """Authorities as the controller makes them, which end so many days from now."""
    host, begin = "swapwarden-webhook.swapwarden-system.svc", NOW - 90 * DAY
    found = [key_pairs.issue(host, begin, (90 + each) * DAY)[1] for each in days]
    return base64.b64encode(b"".join(found)).decode("ascii")


GOOD = bundle(60)


def webhook(ca: str = GOOD, failure: str = "Fail") -> dict[str, Any]:
    config = {"service": {"name": "swapwarden-webhook", "namespace": "swapwarden-system"}, "caBundle": ca}
    entries = [("pods.swapwarden.dev", failure), ("warnings.pods.swapwarden.dev", "Ignore")]
    return {
        "metadata": {"name": "swapwarden"},
        "webhooks": [{"name": name, "failurePolicy": policy, "clientConfig": config} for name, policy in entries],
    }


def policy(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": OURS}}


def binding(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"policyName": name}}


POLICIES = [f"swapwarden-{suffix}" for suffix in (*installation.POLICIES, "unknown-namespace-default")]


def lease(ago: float = 3, holder: str = "controller-1") -> dict[str, Any]:
    renewed = (NOW - datetime.timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    return {
        "metadata": {"name": "swapwarden-controller", "namespace": "swapwarden-system"},
        "spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15},
    }


def installed(**fields: Any) -> Installed:
    given = {
        "crds": installation.own_definitions(),
        "own_crds": installation.own_definitions(),
        "webhooks": [webhook()],
        "mutating": [],
        "policies": [policy(name) for name in POLICIES],
        "bindings": [binding(name) for name in POLICIES],
        "leases": [lease()],
    }
    return msgspec.convert({**given, **fields}, Installed)


def read(*, ready: bool = True) -> snapshot.ClusterSnapshot:
    found = view()
    found.parts = [snapshot.ComponentPod("webhook", "swapwarden-system", "webhook-1", "node-1", ready)]
    return found


def told(found: Installed, seen: snapshot.ClusterSnapshot | None = None) -> list[tuple[str, str]]:
    every = installation.judge(found, seen or read(), NOW)
    return [(one.check.value, f"{one.object}: {one.message}") for one in every]


def test_an_installation_without_problems() -> None:
    assert told(installed()) == []
    assert told(Installed()) == []


def test_without_the_kinds_there_is_nothing_else_to_say() -> None:
    none = read()
    none.installed = False
    assert [check for check, _ in told(installed(leases=[], webhooks=[]), none)] == ["NotInstalled"]
    _, state = installation.own_definitions()
    ((check, text),) = told(installed(crds=[state]))
    assert (check, text) == (
        "NotInstalled",
        "customresourcedefinition/nodeswapprofiles.swapwarden.dev: does not exist",
    )


def test_nodes_without_a_plugin_where_others_have_one() -> None:
    seen, where = read(), "swapwarden-system"

    def part(component: str, node: str, *, ready: bool = True) -> snapshot.ComponentPod:
        return snapshot.ComponentPod(component, where, f"{component}-{node}", node, ready)

    seen.parts += [part("agent", node) for node in ("one", "two", "three")] + [part("agent", "four", ready=False)]
    assert told(installed(), seen) == [], "nri.mode is off"
    seen.parts += [part("nri", "one"), part("nri", "two", ready=False)]
    seen.parts.append(snapshot.ComponentPod("nri", "a-tenants", "nri-three", "three", ready=True))
    found = told(installed(), seen)
    assert [check for check, _ in found] == ["PluginNotReady"] * 2
    assert [text.partition(":")[0] for _, text in found] == ["node/two", "node/three"]


def test_kinds_of_another_version() -> None:
    older, newer = installation.own_definitions()
    del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["rollout"]
    spec = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["pods"]["additionalProperties"]["properties"]["later"] = {"type": "string"}
    first, second = told(installed(crds=[older, newer]))
    assert first[0] == second[0] == "OtherVersion"
    assert "spec.rollout, spec.rollout.maxUnavailable, spec.rollout.onSwapInUse" in first[1]
    assert "spec.pods[].later" in second[1]


@pytest.mark.parametrize(
    ("leases", "expected"),
    [
        ([], "no Lease"),
        ([lease(holder="")], "nobody holds"),
        ([lease(ago=46)], "2026-05-31T23:59:14Z, by controller-1"),
        ([{**lease(), "spec": {"holderIdentity": "x", "renewTime": "soon"}}], "nobody holds"),
        ([{**lease(), "spec": {"holderIdentity": "x", "renewTime": "2026-06-01T00:00:00"}}], "nobody holds"),
    ],
)
def test_nobody_leads(leases: list[dict[str, Any]], expected: str) -> None:
    ((check, text),) = told(installed(leases=leases))
    assert check == "NoLeader"
    assert expected in text
    assert told(installed(leases=[*leases, lease(ago=44)])) == []


@pytest.mark.parametrize(
    ("ca", "expected"),
    [
        ("", "has no caBundle"),
        (base64.b64encode(b"nothing").decode(), "holds no certificates"),
        ("no base64!", "holds no certificates"),
        (bundle(-1), "expired on 2026-05-31"),
        (bundle(13), "expires on 2026-06-14"),
    ],
)
def test_a_certificate_that_is_not_trusted_for_long(ca: str, expected: str) -> None:
    ((check, text),) = told(installed(webhooks=[webhook(ca)]))
    assert check == "WebhookCertificate"
    assert expected in text


def test_of_several_authorities_the_last_one_counts() -> None:
    both = base64.b64encode(base64.b64decode(bundle(3)) + b"\n" + base64.b64decode(GOOD)).decode("ascii")
    assert told(installed(webhooks=[webhook(both)])) == []


def test_the_webhook() -> None:
    others = {"metadata": {"name": "other"}, "webhooks": [{"name": "pods.example.com"}]}
    assert [check for check, _ in told(installed(webhooks=[others]))] == ["NoAdmission"]
    assert told(installed(webhooks=[], mutating=[policy("swapwarden-pod-default")])) == []
    ((check, text),) = told(installed(webhooks=[webhook(failure="Ignore")]))
    assert check == "FailurePolicy"
    assert "Ignore for pods.swapwarden.dev:" in text
    ((check, _),) = told(installed(), read(ready=False))
    assert check == "WebhookNotReady"
    unseen = read(ready=False)
    unseen.unread["pods"] = "forbidden"
    assert told(installed(), unseen) == []


@pytest.mark.parametrize("missing", [name for name in POLICIES if "unknown" not in name])
def test_policies_inside_the_api_server(missing: str) -> None:
    others = [name for name in POLICIES if name != missing]
    ((check, text),) = told(installed(policies=[policy(name) for name in others]))
    assert (check, text.partition(": ")[0]) == ("NoAdmission", f"validatingadmissionpolicy/{missing}")
    ((check, text),) = told(installed(bindings=[binding(name) for name in others]))
    assert check == "NoAdmission"
    assert "has no binding" in text


def test_which_entries_of_webhook_configurations_are_ours() -> None:
    ours = ["pods.swapwarden.dev", "warnings.pods.swapwarden.dev", "disabled.default.pods.swapwarden.dev"]
    assert all(map(installation.is_ours, ours))
    assert not any(map(installation.is_ours, ["others.example.org", "notpods.swapwarden.dev", "pods.example.com"]))


def test_problems_can_be_shown_as_json() -> None:
    (one,) = installation.judge(installed(leases=[]), read(), NOW)
    assert msgspec.to_builtins(one)["severity"] == "Error"
