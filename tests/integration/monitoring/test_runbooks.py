"""The commands of the runbooks, on a release with a node and a pod."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from hack.docs import commands
from testbed.base import process
from testbed.controlplane import pki
from testbed.controlplane.servers import ControlPlane
from testbed.product import helm
from tests.integration.conftest import Json

ME = "tests/integration/monitoring/test_runbooks.py"
PAGES = (
    "docs/runbooks/SwapwardenAgentDegraded.md",
    "docs/runbooks/SwapwardenAgentSilent.md",
    "docs/runbooks/SwapwardenCertificateNearExpiry.md",
    "docs/runbooks/SwapwardenCrdOutdated.md",
    "docs/runbooks/SwapwardenClockDiffers.md",
    "docs/runbooks/SwapwardenControllerPartFailing.md",
    "docs/runbooks/SwapwardenDisabledPodUsesSwap.md",
    "docs/runbooks/SwapwardenDriftFight.md",
    "docs/runbooks/SwapwardenEvictionsHeld.md",
    "docs/runbooks/SwapwardenNriErrors.md",
    "docs/runbooks/SwapwardenNriUnavailable.md",
    "docs/runbooks/SwapwardenHeadroomLow.md",
    "docs/runbooks/SwapwardenLimitedSwapNotEngaging.md",
    "docs/runbooks/SwapwardenMemoryPressure.md",
    "docs/runbooks/SwapwardenNoLeader.md",
    "docs/runbooks/SwapwardenNodeThrashing.md",
    "docs/runbooks/SwapwardenPodStuckAtMemoryHigh.md",
    "docs/runbooks/SwapwardenPodsNotPlanned.md",
    "docs/runbooks/SwapwardenReclaimHeld.md",
    "docs/runbooks/SwapwardenRestoring.md",
    "docs/runbooks/SwapwardenSwapHidesMemoryLimit.md",
    "docs/runbooks/SwapwardenSwapNearlyFull.md",
    "docs/runbooks/SwapwardenSwapStallsSystem.md",
    "docs/runbooks/SwapwardenWebhookDown.md",
    "docs/runbooks/SwapwardenWebhookFailing.md",
)
NODE = "worker-1"
STATES = "/apis/swapwarden.dev/v1alpha1/nodeswapstates"
SECRET = f"/api/v1/namespaces/{helm.NAMESPACE}/secrets/swapwarden-webhook-tls"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, dict[str, str]]]:
    """A release whose node has a pod that must not swap and did, and what a shell needs to look at it."""
    with ControlPlane() as cp:
        namespace, kubeconfig = f"--namespace={helm.NAMESPACE}", f"--kubeconfig={cp.kubeconfig}"
        helm.run("install", helm.RELEASE, str(helm.chart()), namespace, kubeconfig, "--create-namespace", "--no-hooks")
        cp.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        pod: Json = {
            "metadata": {"name": "ledger"},
            "spec": {"nodeName": NODE, "containers": [{"name": "app", "image": "ledger"}]},
        }
        uid = cp.request("POST", "/api/v1/namespaces/default/pods", pod)[1]["metadata"]["uid"]
        state: Json = {
            "apiVersion": "swapwarden.dev/v1alpha1",
            "kind": "NodeSwapState",
            "metadata": {"name": NODE},
            "spec": {
                "epoch": 1,
                "profileRef": {"name": "batch"},
                "kubepods": {"swapMax": "1073741824"},
                "pods": {uid: {"swapMax": "0", "reason": "PolicyDisabled"}},
                "reclaim": {
                    "maxStallPermille": 1,
                    "intervalSeconds": 6,
                    "stepPercent": 1,
                    "keepSwapFreeBytes": 1 << 28,
                    "writesPerDayBytes": 5 << 30,
                },
            },
        }
        assert cp.request("POST", STATES, state)[0] == 201
        device = {"name": "/dev/sdb", "type": "partition", "sizeBytes": 1 << 30, "priority": -2, "backing": "SSD"}
        facts = {"cgroupVersion": 2, "swapController": True, "swapBytes": 1 << 30, "memoryBytes": 1 << 32}
        status: Json = {
            "facts": {**facts, "devices": [device]},
            "conditions": [{"type": "Drifted", "status": "True", "reason": "Yielded", "message": "somebody writes"}],
            "holds": {"runtime": True, "systemd": False, "agentOnly": [uid]},
            "violations": [{"pod": uid, "reason": "Draining", "desired": "0", "observed": "4096", "swapBytes": 4096}],
            "reclaimed": [{"pod": uid, "hold": "WritesSpent", "movedBytes": 8192, "refaultedBytes": 4096}],
        }
        said = cp.request("PATCH", f"{STATES}/{NODE}/status", {"status": status})
        assert said[0] == 200, said
        authority = pki.Authority(tmp_path_factory.mktemp("pki"))
        certificate = authority.issue("webhook", "webhook").certificate.read_bytes()
        cp.request("PATCH", SECRET, {"data": {"tls.crt": base64.b64encode(certificate).decode()}})
        yield cp, commands.environment(cp.kubeconfig, cp.folder) | {"NODE": NODE, "POD_UID": uid}


def run(page: str, environment: tuple[ControlPlane, dict[str, str]]) -> list[str]:
    """The output of each block of the page's commands."""
    cp, variables = environment
    said = []
    for block in commands.run_by(ME, page):
        argv = cp.command(["sh", "-euc", block.text])
        said.append(process.run(argv, env=variables, timeout=120).stdout)
    return said


@pytest.mark.parametrize("page", PAGES)
def test_its_commands_work(page: str, environment: tuple[ControlPlane, dict[str, str]]) -> None:
    assert any(said.strip() for said in run(page, environment))


def test_they_show_what_the_runbooks_say_they_show(environment: tuple[ControlPlane, dict[str, str]]) -> None:
    _, variables = environment
    violations = run("docs/runbooks/SwapwardenDisabledPodUsesSwap.md", environment)[0]
    assert f"Draining {variables['POD_UID']} desired=0 observed=4096 swap=4096" in violations
    assert "ledger" in violations
    bounds, reclaimed = run("docs/runbooks/SwapwardenReclaimHeld.md", environment)[0].splitlines()
    assert '"writesPerDayBytes":5368709120' in bounds
    assert reclaimed == f"{variables['POD_UID']} WritesSpent moved=8192 refaulted=4096"
    assert "Drifted=True Yielded: somebody writes" in run("docs/runbooks/SwapwardenDriftFight.md", environment)[0]
    assert "notAfter=" in run("docs/runbooks/SwapwardenCertificateNearExpiry.md", environment)[0]
    assert "ledger" in run("docs/runbooks/SwapwardenSwapHidesMemoryLimit.md", environment)[0]
    assert (
        "pods.swapwarden.dev Fail swapwarden-system/" in run("docs/runbooks/SwapwardenWebhookDown.md", environment)[0]
    )
    assert "default" in run("docs/runbooks/SwapwardenPodsNotPlanned.md", environment)[0]
    assert "SSD" in run("docs/runbooks/SwapwardenSwapStallsSystem.md", environment)[0]
