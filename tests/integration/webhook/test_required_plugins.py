"""Pods without swap that need the runtime's plugin: the chart's two admission modes answer alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from swapwarden.policy.admission import required_plugins

from testbed.controlplane.servers import ControlPlane
from testbed.product import helm
from tests.integration.conftest import Eventually
from tests.integration.webhook import conftest, pods
from tests.unit.policy.admission import required_lists

KEY = required_plugins.KEY
DAEMON = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "0-1", "controller": True}


@pytest.fixture(scope="module", params=conftest.MODES, autouse=True)
def requiring(
    request: pytest.FixtureRequest, crds: ControlPlane, eventually: Eventually
) -> Iterator[conftest.Admission]:
    with conftest.installed(request.param, crds, eventually, require_plugin=True) as found:
        yield found


def admitted(crds: ControlPlane, namespace: str, body: pods.Json) -> dict[str, str]:
    status, answer = pods.create(crds, namespace, body, pods.DRY_RUN)
    assert status == 201, answer
    found: dict[str, str] = answer["metadata"].get("annotations") or {}
    return found


def disabled(**lists: str) -> pods.Json:
    return pods.pod("web", {pods.POLICY: "Disabled", **lists})


def test_lists_as_the_table_has_them(crds: ControlPlane) -> None:
    namespace = pods.new_namespace(crds)
    found = {before: admitted(crds, namespace, disabled(**{KEY: before}))[KEY] for before in required_lists.CASES}
    assert found == required_lists.CASES
    assert admitted(crds, namespace, disabled())[KEY] == required_lists.OURS


def test_the_more_specific_lists_have_it_also(crds: ControlPlane) -> None:
    lists = {f"{KEY}/pod": "[a]", f"{KEY}/container.app": "[]", f"{KEY}.example/a": "[]"}
    found = admitted(crds, pods.new_namespace(crds), disabled(**lists))
    assert {key: value for key, value in found.items() if key.startswith(KEY)} == {
        KEY: required_lists.OURS,
        f"{KEY}/pod": '["swapwarden", a]',
        f"{KEY}/container.app": required_lists.OURS,
        f"{KEY}.example/a": "[]",
    }


@pytest.mark.parametrize("own", [None, {"a": "b"}])
def test_a_default_of_the_namespace_counts_as_the_pods_own(crds: ControlPlane, own: dict[str, str] | None) -> None:
    found = admitted(crds, pods.new_namespace(crds, "Disabled"), pods.pod("web", own))
    assert (found[pods.POLICY], found[KEY]) == ("Disabled", required_lists.OURS)


@pytest.mark.parametrize("policy", ["NoPreference", "Required", None])
def test_other_pods_need_no_plugin(crds: ControlPlane, policy: str | None) -> None:
    body = pods.pod("web", {pods.POLICY: policy} if policy else None)
    assert KEY not in admitted(crds, pods.new_namespace(crds), body)


@pytest.mark.parametrize(("of_daemon_set", "needs"), [(True, False), (False, True)])
def test_pods_that_may_bring_the_network_of_the_node_do_not_wait(
    crds: ControlPlane, of_daemon_set: bool, needs: bool
) -> None:
    body = disabled()
    body["spec"]["hostNetwork"] = True
    if of_daemon_set:
        body["metadata"]["ownerReferences"] = [DAEMON]
    assert (KEY in admitted(crds, pods.new_namespace(crds), body)) is needs


def test_pods_of_the_release_and_of_kube_system_need_none(crds: ControlPlane) -> None:
    for namespace in ("kube-system", helm.NAMESPACE):
        crds.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
        assert KEY not in admitted(crds, namespace, disabled())
