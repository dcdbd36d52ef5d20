"""Which flow the API server puts requests of each part into (API Priority and Fairness)."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable

import pytest

from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests

NAMESPACE = "swapwarden-system"
API = "/apis/swapwarden.dev/v1alpha1"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
HEADER = "X-Kubernetes-PF-FlowSchema-UID"


@pytest.fixture(scope="module")
def installed(crds: ControlPlane) -> ControlPlane:
    """Accounts, rights and flows; no policies, which other tests must not meet."""
    applied = set(manifests.other_manifests()) - set(manifests.policies())
    crds.apply(*sorted(applied))
    return crds


def flow(control_plane: ControlPlane, account: str, method: str, path: str) -> str:
    """Name of the flow schema that a request matched, whatever became of it."""
    context = ssl.create_default_context(cafile=str(control_plane.ca_file))
    headers = {"Authorization": f"Bearer {control_plane.token(NAMESPACE, account)}"}
    connection = http.client.HTTPSConnection("127.0.0.1", control_plane.port, timeout=30, context=context)
    try:
        connection.request(method, path, "{}", headers)
        uid = connection.getresponse().headers[HEADER]
    finally:
        connection.close()
    names = {item["metadata"]["uid"]: item["metadata"]["name"] for item in control_plane.get(FLOWS)["items"]}
    return str(names[uid])


@pytest.mark.parametrize(
    ("account", "method", "path", "name"),
    [
        ("swapwarden-controller", "GET", "/api/v1/pods?limit=1", "swapwarden-controller"),
        ("swapwarden-controller", "POST", f"{API}/nodeswapstates", "swapwarden-controller"),
        ("swapwarden-controller", "PATCH", "/api/v1/nodes/node-1", "swapwarden-controller"),
        ("swapwarden-controller", "GET", f"{LEASES}/swapwarden-controller", "swapwarden-leader-election"),
        ("swapwarden-controller", "PUT", f"{LEASES}/swapwarden-controller", "swapwarden-leader-election"),
        ("swapwarden-agent", "GET", f"{API}/nodeswapstates?fieldSelector=metadata.name=node-1", "swapwarden-agent"),
        ("swapwarden-agent", "PATCH", f"{API}/nodeswapstates/node-1/status", "swapwarden-agent"),
        ("swapwarden-webhook", "GET", "/api/v1/pods?limit=1", "service-accounts"),
    ],
)
def test_each_request_is_in_its_flow(
    account: str,
    method: str,
    path: str,
    name: str,
    installed: ControlPlane,
    eventually: Callable[[Callable[[], object], str], None],
) -> None:
    eventually(lambda: flow(installed, account, method, path) == name, f"{method} {path} of {account} is in {name}")


def test_the_levels_that_the_flows_name_exist(
    installed: ControlPlane, eventually: Callable[[Callable[[], object], str], None]
) -> None:
    def dangling() -> dict[str, str]:
        return {
            item["metadata"]["name"]: condition["status"]
            for item in installed.get(FLOWS)["items"]
            for condition in item.get("status", {}).get("conditions", ())
            if condition["type"] == "Dangling" and item["metadata"]["name"].startswith("swapwarden-")
        }

    wanted = dict.fromkeys(("swapwarden-agent", "swapwarden-controller", "swapwarden-leader-election"), "False")
    eventually(lambda: dangling() == wanted, "the API server has found the levels")
