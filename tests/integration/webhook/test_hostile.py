"""One tenant's pods, of any kind that the API server passes on, and others' beside them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Callable

import pytest
from swapwarden.kube import client, config, errors
from swapwarden.webhook import bodies

from testbed.base import process
from testbed.controlplane.servers import ControlPlane
from testbed.product.webhook import Webhook
from tests.integration.webhook import pods
from tests.unit.webhook import reviews

OTHERS = 30
LARGE = 10
MIB = 1024 * 1024


def of_many_names() -> pods.Json:
    """Each limit is for no container, and resembles all of them."""
    limits = {f"swap-limit.swapwarden.dev/{'ab' * 30}{number:02}": "1" for number in range(21)}
    pod = pods.pod("costly", limits)
    (container,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [{**container, "name": f"{'ba' * 30}{number:02}"} for number in range(63)]
    return pod


def of_many_containers() -> pods.Json:
    """Each container has its limit."""
    pod = pods.pod("large", {f"swap-limit.swapwarden.dev/c{number}": "1Mi" for number in range(4000)})
    pod["spec"]["containers"] = [{"name": f"c{number}", "image": "none"} for number in range(8000)]
    return pod


def of_long_text() -> pods.Json:
    """Nearly as large as etcd takes, and six times that in the API server's JSON."""
    pod = pods.pod("long", {pods.POLICY: "Disabled"})
    pod["spec"]["containers"][0]["env"] = [{"name": "A", "value": "<" * (14 * MIB // 10)}]
    return pod


@contextlib.asynccontextmanager
async def asked_again_and_again(
    api: client.Client, path: str, pod: pods.Json, clients: int
) -> AsyncIterator[list[int]]:
    """So many clients ask for a pod, as dry runs, for as long as the block lasts; HTTP statuses of the answers."""
    body, ended, statuses = json.dumps(pod).encode(), asyncio.Event(), list[int]()

    async def ask() -> None:
        while not ended.is_set():
            try:
                await api.post(path, body, params={"dryRun": "All"})
                statuses.append(201)
            except errors.ApiError as error:
                statuses.append(error.status)

    askers = [asyncio.create_task(ask()) for _ in range(clients)]
    try:
        async with asyncio.timeout(60):
            while not statuses:  # noqa: ASYNC110 the first answer
                await asyncio.sleep(0.01)
        yield statuses
    finally:
        ended.set()
        await asyncio.gather(*askers)


@pytest.mark.parametrize(("hostile", "clients"), [(of_many_names, 24), (of_many_containers, 6), (of_long_text, 4)])
async def test_one_tenants_costly_pods_refuse_nobody_elses(
    crds: ControlPlane, webhook: Webhook, hostile: Callable[[], pods.Json], clients: int
) -> None:
    tenant, other = pods.new_namespace(crds), pods.new_namespace(crds)
    cfg = config.load(str(crds.kubeconfig))
    async with client.Client(cfg, user_agent="tenant", max_connections=clients) as api:
        async with asked_again_and_again(api, pods.path(tenant), hostile(), clients) as statuses:
            before = len(statuses)
            asked = [
                ("POST", pods.path(other), pods.pod(f"web-{n}", {pods.POLICY: "Preferred"})) for n in range(OTHERS)
            ]
            answers = await pods.many(crds, asked, dry_run=True)
        assert [each for each in answers if isinstance(each, errors.ApiError)] == []
        assert len(statuses) > before, "the tenant asked all the while"
    assert webhook.metric("swapwarden_webhook_bad_requests_total", code="500") == 0


def test_a_pod_that_can_be_stored_is_admitted_however_long_it_is_in_json(crds: ControlPlane, webhook: Webhook) -> None:
    asked = webhook.metric(pods.CALLS)
    namespace = pods.new_namespace(crds)
    pod = of_long_text()
    del pod["metadata"]["finalizers"]
    status, answer = pods.create(crds, namespace, pod)
    assert status == 201, answer
    assert webhook.metric(pods.CALLS) == asked + 1
    assert crds.request("DELETE", f"{pods.path(namespace, 'long')}?gracePeriodSeconds=0")[0] == 200


def test_keys_of_any_length_go_shortened_into_answers_and_logs(crds: ControlPlane, webhook: Webhook) -> None:
    namespace = pods.new_namespace(crds)
    line = "\n2026-01-01T00:00:00.000Z ERROR forged"
    limit = f"swap-limit.swapwarden.dev/{line}{'x' * 2_000_000}"
    status, answer = pods.create(crds, namespace, pods.pod("web", {limit: "1"}), pods.DRY_RUN)
    assert status == 422, answer
    assert len(json.dumps(answer)) < 5000
    lines = webhook.process.output().splitlines()
    assert max(map(len, lines)) < 10_000
    assert all(json.loads(each) for each in lines)


@pytest.mark.parametrize(
    ("sent", "count"),
    [(b"", 6000), (b"\x16\x03\x01", 2000), (reviews.client_hello(), 1500)],
    ids=["nothing", "a-little", "a-handshake"],
)
def test_thousands_of_idle_connections_cost_little_and_refuse_no_pod(
    crds: ControlPlane, webhook: Webhook, sent: bytes, count: int
) -> None:
    namespace = pods.new_namespace(crds)
    address = urllib.parse.urlsplit(webhook.url)
    before = process.resident(webhook.process.pid)
    idle: list[socket.socket] = []
    most = 0
    try:
        for number in range(count):
            one = socket.socket()
            one.settimeout(20)
            one.bind((f"127.2.0.{number % 100 + 1}", 0))
            one.connect((str(address.hostname), address.port))
            with contextlib.suppress(ConnectionError):  # dropped again already
                one.sendall(sent)
            idle.append(one)
            if number % 500 == 499:
                most = max(most, process.resident(webhook.process.pid))
                status, answer = pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "Disabled"}), pods.DRY_RUN)
                assert status == 201, answer
                assert webhook.health("/readyz")[0] == 200
    finally:
        for one in idle:
            one.close()
    assert most - before < 60 * MIB


# --- clients that come to the port directly ---


def review_of(pod: pods.Json, namespace: str) -> bytes:
    """An API server's review of a new pod."""
    request = {
        "uid": "c0ffee00-0000-4000-8000-000000000001",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": namespace,
        "operation": "CREATE",
        "object": pod,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


class Direct:
    """Clients of one address that do the same again and again."""

    def __init__(self, webhook: Webhook, source: str) -> None:
        self._address = urllib.parse.urlsplit(webhook.url)
        self._source = source
        self._trusting = ssl.create_default_context()
        self._trusting.check_hostname = False
        self._trusting.verify_mode = ssl.CERT_NONE
        self._open: set[asyncio.StreamWriter] = set()
        self._over = False
        self.ended = 0
        """How often the webhook answered, or closed the connection."""

    @contextlib.asynccontextmanager
    async def keep_sending(self, bodies: list[bytes], *, announced: int) -> AsyncIterator[None]:
        """A client for each of the bodies, with more bytes announced than are in it, or as many."""
        self._over = False
        clients = [asyncio.create_task(self._keep_sending(body, announced or len(body))) for body in bodies]
        try:
            yield
        finally:
            self._over = True
            for writer in self._open:
                writer.transport.abort()
            await asyncio.gather(*clients)

    async def _keep_sending(self, body: bytes, announced: int) -> None:
        head = (
            f"POST /pods HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: {announced}\r\n\r\n"
        )
        while not self._over:
            reader, writer = await asyncio.open_connection(
                self._address.hostname, self._address.port, ssl=self._trusting, local_addr=(self._source, 0)
            )
            self._open.add(writer)
            with contextlib.suppress(ConnectionError):
                writer.write(head.encode("ascii") + body)
                await writer.drain()
                if not self._over:
                    await reader.read(1)
            self.ended += 1
            self._open.discard(writer)
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@pytest.mark.parametrize("source", ["127.3.0.1", "127.0.0.1"], ids=["another-address", "the-api-servers-address"])
async def test_bodies_that_are_held_back_keep_no_large_pod_out(
    crds: ControlPlane, webhook: Webhook, source: str
) -> None:
    namespace = pods.new_namespace(crds)
    direct, size = Direct(webhook, source), bodies.MAX_BUFFERED_BYTES // 5 - 10_000
    held = [(b'{"namespace":"forged-%d",' % number).ljust(size) for number in range(5)]
    before = process.resident(webhook.process.pid)
    async with direct.keep_sending(held, announced=13 * MIB):
        async with asyncio.timeout(60):
            while process.resident(webhook.process.pid) - before < 50 * MIB:  # noqa: ASYNC110 another process
                await asyncio.sleep(0.01)
        answers = await large_pods(crds, namespace)
    assert answers == [201] * LARGE
    assert direct.ended > 0, "some of the held bodies gave way"
    assert webhook.metric("swapwarden_webhook_bad_requests_total", code="500") == 0


async def test_reviews_under_forged_namespaces_keep_no_large_pod_out(crds: ControlPlane, webhook: Webhook) -> None:
    namespace = pods.new_namespace(crds)
    costly = of_many_containers()
    direct = Direct(webhook, "127.3.0.1")
    forged = [review_of(costly, f"forged-{number}") for number in range(24)]
    async with direct.keep_sending(forged, announced=0):
        async with asyncio.timeout(60):
            while direct.ended < len(forged):  # noqa: ASYNC110 as above
                await asyncio.sleep(0.01)
        asked = direct.ended
        answers = await large_pods(crds, namespace)
    assert answers == [201] * LARGE
    assert direct.ended > asked, "they asked all the while"


async def large_pods(control_plane: ControlPlane, namespace: str) -> list[int]:
    """HTTP statuses of the API server's answers about pods whose reviews wait for turns, one after the other."""
    pod = pods.pod("web", {pods.POLICY: "Disabled", "note": "x" * 2 * bodies.SMALL_BODY_BYTES})
    statuses = []
    cfg = config.load(str(control_plane.kubeconfig))
    async with client.Client(cfg, user_agent="other") as api:
        for _ in range(LARGE):
            try:
                # Less than the webhook's clients get to send a body, so that none slips in when that time is over.
                await api.post(
                    pods.path(namespace), json.dumps(pod).encode(), params={"dryRun": "All", "timeout": "4s"}
                )
                statuses.append(201)
            except errors.ApiError as error:
                statuses.append(error.status)
    return statuses
