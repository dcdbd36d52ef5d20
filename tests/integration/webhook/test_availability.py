"""No call is lost, with failurePolicy Fail, while replicas and certificates are replaced under load."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import signal
import ssl
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from testbed.base import process
from testbed.controlplane import pki
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from testbed.product.webhook import Webhook
from tests.integration.webhook import pods
from tests.integration.webhook.service import Load, Service

PER_SECOND = 100
# In proportion to the chart's 5 seconds: endpoints follow a pod's deletion within a second or so.
SHUTDOWN_DELAY = "--shutdown-delay=2"
ENDPOINTS_LAG = 0.5
REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


async def started(stack: contextlib.AsyncExitStack, control_plane: ControlPlane, service: Service) -> Webhook:
    """One more replica, ready and known to the Service."""
    replica = await asyncio.to_thread(Webhook, control_plane, SHUTDOWN_DELAY)
    stack.callback(replica.process.kill)
    assert (await asyncio.to_thread(replica.health, "/readyz"))[0] == 200
    service.add(replica)
    return replica


async def until(condition: Callable[[], object], what: str) -> None:
    """Ask on a thread until it holds."""
    for _ in range(1500):
        if await asyncio.to_thread(condition):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(what)


@pytest.fixture
def namespace(crds: ControlPlane) -> str:
    return pods.new_namespace(crds)


@pytest.fixture
async def replicas(
    crds: ControlPlane, namespace: str
) -> AsyncIterator[tuple[contextlib.AsyncExitStack, Service, list[Webhook]]]:
    """Two, behind a Service that is registered."""
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(Service())
        running = [await started(stack, crds, service) for _ in range(2)]
        registration = manifests.webhook_manifests(service.url, crds.ca_file.read_bytes())
        await asyncio.to_thread(crds.apply, registration)
        stack.callback(crds.request, "DELETE", f"{REGISTRATIONS}/swapwarden")
        bad = pods.pod("probe", {pods.POLICY: "x"})
        await until(lambda: pods.create(crds, namespace, bad, pods.DRY_RUN)[0] == 422, "the webhook is asked")
        yield stack, service, running


async def test_a_rolling_restart_loses_no_call(
    crds: ControlPlane, namespace: str, replicas: tuple[contextlib.AsyncExitStack, Service, list[Webhook]]
) -> None:
    stack, service, running = replicas
    load = Load(crds, namespace, PER_SECOND)
    async with load.going_on():
        await load.more(PER_SECOND)
        # As a Deployment does with maxSurge 1 and maxUnavailable 0.
        for _ in range(2):
            new = await started(stack, crds, service)
            await load.more(PER_SECOND)
            gone = running.pop(0)
            assert await asyncio.to_thread(gone.metric, pods.CALLS) > 0
            gone.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(ENDPOINTS_LAG)
            service.remove(gone)
            assert await asyncio.to_thread(gone.process.wait, 20) == 0
            running.append(new)
        await load.more(PER_SECOND)
    assert load.failures == [], load.told()
    assert load.made > 4 * PER_SECOND


async def test_without_a_replica_calls_are_lost(
    crds: ControlPlane, namespace: str, replicas: tuple[contextlib.AsyncExitStack, Service, list[Webhook]]
) -> None:
    _, _, running = replicas
    load = Load(crds, namespace, PER_SECOND)
    async with load.going_on():
        await load.more(20)
        for replica in running:
            replica.process.kill()
        await load.more(PER_SECOND * 60)
    assert load.failures
    assert all("failed calling webhook" in failure for failure in load.failures)


def serves(replica: Webhook, authority: Path) -> bool:
    """Whether a new connection gets a certificate of this authority."""
    address = urllib.parse.urlsplit(replica.url)
    try:
        ssl.get_server_certificate((str(address.hostname), int(address.port or 0)), ca_certs=str(authority), timeout=10)
    except ssl.SSLCertVerificationError:
        return False
    return True


def trust(control_plane: ControlPlane, *authorities: Path) -> None:
    """Have the registration trust these, and wait until the API server does as it says."""
    bundle = base64.b64encode(b"".join(path.read_bytes() for path in authorities)).decode()
    path = f"{REGISTRATIONS}/swapwarden"
    found = control_plane.get(path)
    entries = [each for each in found["webhooks"] if not each["name"].startswith("marker")]
    for each in entries:
        each["clientConfig"]["caBundle"] = bundle
    name = f"marker-{uuid.uuid4().hex[:8]}"
    marker = {
        **entries[0],
        "name": f"{name}.example.com",
        "clientConfig": {"url": f"https://127.0.0.1:{process.free_port()}/"},
        "namespaceSelector": {},
        "matchConditions": [{"name": "marker", "expression": f"object.metadata.name == '{name}'"}],
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
    }
    status, answer = control_plane.request("PUT", path, {**found, "webhooks": [*entries, marker]})
    assert status == 200, answer
    probe = {"metadata": {"name": name}}
    for _ in range(2000):
        if control_plane.request("POST", "/api/v1/namespaces/default/configmaps?dryRun=All", probe)[0] == 500:
            return
    raise AssertionError("the registration is not in force")


async def test_a_new_authority_and_its_certificates_lose_no_call(
    crds: ControlPlane,
    namespace: str,
    replicas: tuple[contextlib.AsyncExitStack, Service, list[Webhook]],
    tmp_path: Path,
) -> None:
    _, _, running = replicas
    load = Load(crds, namespace, PER_SECOND)
    trusted = crds.ca_file
    async with load.going_on():
        for number in range(3):
            await load.more(PER_SECOND // 2)
            folder = tmp_path / str(number)
            folder.mkdir()
            authority = pki.Authority(folder)
            pair = authority.issue("swapwarden-webhook", "swapwarden-webhook", ["127.0.0.1"])
            # The order that the controller keeps: trusted first, then served; the one before stays trusted meanwhile.
            await asyncio.to_thread(trust, crds, trusted, authority.certificate)
            for replica in running:
                replica.replace_certificate(pair.certificate, pair.key)
                await until(functools.partial(serves, replica, authority.certificate), "the new certificate")
                await load.more(PER_SECOND // 4)
            trusted = authority.certificate
        # Those that were opened under certificates before are still in use: here all are opened again.
        await asyncio.to_thread(trust, crds, trusted)
        await load.more(PER_SECOND)
    assert load.failures == [], load.told()
