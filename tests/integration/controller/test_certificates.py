"""The webhook's certificate at a real API server: made, trusted, renewed, and made again after what may go wrong."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import math
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from swapwarden.api import names
from swapwarden.controller.certificates import key_pairs, manager, rotation
from swapwarden.kube import client, config, errors

from testbed.product import manifests
from testbed.product.controller import Controller
from tests.integration.conftest import Json
from tests.integration.controller import clocks
from tests.integration.controller.cluster import FAST, Cluster
from tests.unit.controller.certificates.test_key_pairs import handshake
from tests.unit.controller.known import Led, term

Keep = Callable[..., contextlib.AbstractAsyncContextManager[manager.CertificateManager]]

NAMESPACE, SERVICE, REGISTRATION = "swapwarden-system", "swapwarden-webhook", "swapwarden"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
SECRET = f"{SECRETS}/{SERVICE}-tls"
REGISTERED = f"{manager.REGISTRATIONS}/{REGISTRATION}"
HOST = f"{SERVICE}.{NAMESPACE}.svc"
FLAGS = (f"--webhook-service={SERVICE}", f"--webhook-registration={REGISTRATION}")
# A certificate begins an hour in the past, so that one which lasts for a minute is due at once.
SHORT = datetime.timedelta(minutes=1)
DAY = datetime.timedelta(days=1)
OVERLAP = datetime.timedelta(seconds=0.5)


class Installed:
    """The visible part of the certificate."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def data(self) -> dict[str, bytes]:
        found = self.cluster.cp.get(SECRET).get("data") or {}
        return {key: base64.b64decode(value) for key, value in found.items()}

    def served(self) -> key_pairs.KeyPair | None:
        data = self.data()
        return key_pairs.KeyPair(data["tls.crt"], data["tls.key"]) if {"tls.crt", "tls.key"} <= data.keys() else None

    def trusted(self) -> list[bytes]:
        """The bundle of each entry of the registration."""
        entries = self.cluster.cp.get(REGISTERED)["webhooks"]
        return [base64.b64decode(entry["clientConfig"].get("caBundle") or "") for entry in entries]

    def works(self) -> bool:
        """Whether the API server would accept the webhook's certificate, whichever entry it calls."""
        served, trusted = self.served(), self.trusted()
        now = datetime.datetime.now(datetime.UTC)
        return len(trusted) == 2 + len(names.Policy) and all(
            key_pairs.judge(served, each, HOST, now) for each in trusted
        )


async def look_thrice(keeper: manager.CertificateManager) -> None:
    """Beside its own loop, which may write first; that loop tries again where somebody else did."""
    for _ in range(3):
        try:
            await keeper.reconcile()
        except errors.ApiError as error:
            if error.status != 409:
                raise


@pytest.fixture
def installed(cluster: Cluster) -> Iterator[Installed]:
    """The registration, without any certificate."""
    path = manifests.folder() / "webhook-registration.yaml"
    cluster.cp.apply(path)
    yield Installed(cluster)
    cluster.cp.kubectl("delete", "--ignore-not-found", "-f", str(path))
    cluster.cp.request("PATCH", SECRET, {"data": None})


@pytest.fixture
def keep(cluster: Cluster) -> Keep:
    """Start a keeper with the controller's own rights."""
    kubeconfig = cluster.cp.kubeconfig_for(cluster.cp.token(NAMESPACE, "swapwarden-controller"), "keeper")

    @contextlib.asynccontextmanager
    async def start(**options: Any) -> AsyncIterator[manager.CertificateManager]:
        cfg = config.load(str(kubeconfig))
        given: Json = {"term": term(), "interval": 0.05, **options}
        async with client.Client(cfg, user_agent="test") as api:
            keeper = manager.CertificateManager(
                api, namespace=NAMESPACE, service=SERVICE, registration=REGISTRATION, **given
            )
            task = asyncio.create_task(keeper.run())
            try:
                yield keeper
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    return start


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 the API server knows of no event of ours
            await asyncio.sleep(0.02)
    assert condition(), what


async def test_an_installation_gets_one(installed: Installed, keep: Keep) -> None:
    assert not installed.works()
    async with keep():
        await until(installed.works, "a certificate that is trusted")
    data = installed.data()
    assert data.keys() == {"tls.crt", "tls.key", "ca.crt"}
    assert set(installed.trusted()) == {data["ca.crt"]}
    validity = key_pairs.judge(installed.served(), data["ca.crt"], HOST, datetime.datetime.now(datetime.UTC))
    assert validity
    left = validity.not_after - datetime.datetime.now(datetime.UTC)
    assert rotation.LIFETIME - datetime.timedelta(minutes=5) < left <= rotation.LIFETIME


async def test_a_good_certificate_is_left_alone(installed: Installed, keep: Keep) -> None:
    async with keep():
        await until(installed.works, "a certificate that is trusted")
    versions = [installed.cluster.cp.get(path)["metadata"]["resourceVersion"] for path in (SECRET, REGISTERED)]
    async with keep() as keeper:
        for _ in range(5):
            await keeper.reconcile()
    assert versions == [installed.cluster.cp.get(path)["metadata"]["resourceVersion"] for path in (SECRET, REGISTERED)]


async def test_no_moment_of_many_rotations_is_without_a_trusted_certificate(installed: Installed, keep: Keep) -> None:
    seen: set[bytes] = set()
    async with keep(lifetime=SHORT, overlap=OVERLAP):
        await until(installed.works, "the first certificate")

        def look() -> int:
            # The authorities that are read after the pair must cover it, and also those that are read before it: a
            # replica may be late, and so may an API server.
            before = installed.trusted()
            served = installed.served()
            after = installed.trusted()
            now = datetime.datetime.now(datetime.UTC)
            assert served
            for trusted in (*before, *after):
                assert key_pairs.judge(served, trusted, HOST, now)
            seen.add(served.certificate)
            return len(seen)

        async with asyncio.timeout(60):
            while await asyncio.to_thread(look) < 6:
                pass
    assert max(trusted.count(b"BEGIN") for trusted in installed.trusted()) >= 5, "earlier ones stay trusted"


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param({"data": None}, id="all of it gone"),
        pytest.param({"data": {"tls.key": None}}, id="the key gone"),
        pytest.param({"data": {"tls.crt": base64.b64encode(b"nonsense").decode()}}, id="nonsense"),
        pytest.param({"data": {"next.crt": "", "next.key": ""}}, id="an empty successor"),
    ],
)
async def test_a_damaged_secret_is_repaired_and_trusted_authorities_stay_trusted(
    damage: Json, installed: Installed, keep: Keep
) -> None:
    async with keep():
        await until(installed.works, "the first certificate")
        before = installed.served()
        assert installed.cluster.cp.request("PATCH", SECRET, damage)[0] == 200
        await until(installed.works, "a certificate again")
        now = datetime.datetime.now(datetime.UTC)
        # Replicas of the webhook serve it until they see the new one.
        assert all(key_pairs.judge(before, trusted, HOST, now) for trusted in installed.trusted())


async def test_a_registration_that_lost_its_authority_gets_it_back(installed: Installed, keep: Keep) -> None:
    async with keep():
        await until(installed.works, "the first certificate")
        before = installed.served()
        # As `kubectl replace` or `helm upgrade --force` do.
        installed.cluster.cp.kubectl("replace", "-f", str(manifests.folder() / "webhook-registration.yaml"))
        await until(installed.works, "trust again")
    assert installed.served() == before


async def test_applying_the_manifests_again_takes_nothing_away(installed: Installed, keep: Keep) -> None:
    async with keep():
        await until(installed.works, "the first certificate")
    before = installed.served()
    for name in ("webhook-registration.yaml", "webhook-certificates.yaml"):
        installed.cluster.cp.apply(manifests.folder() / name)
    assert installed.works()
    assert installed.served() == before


async def test_only_what_trusts_is_changed_in_a_registration(installed: Installed, keep: Keep) -> None:
    foreign = {
        "name": "other.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": "https://other.example.com/"},
        "failurePolicy": "Ignore",
    }
    before = installed.cluster.cp.get(REGISTERED)
    before["webhooks"].append(foreign)
    status, before = installed.cluster.cp.request("PUT", REGISTERED, before)
    assert status == 200
    async with keep():
        await until(lambda: installed.trusted()[0], "trust")
    after = installed.cluster.cp.get(REGISTERED)
    assert "caBundle" not in after["webhooks"][-1]["clientConfig"]
    for entry in after["webhooks"][:-1]:
        entry["clientConfig"].pop("caBundle")
    assert after["webhooks"] == before["webhooks"]


async def test_two_at_a_time_do_not_get_in_each_others_way(installed: Installed, keep: Keep) -> None:
    seen: set[bytes] = set()
    async with keep(lifetime=SHORT, overlap=OVERLAP), keep(lifetime=SHORT, overlap=OVERLAP):
        await until(installed.works, "the first certificate")
        async with asyncio.timeout(60):
            while len(seen) < 3:
                assert await asyncio.to_thread(installed.works)
                seen.add(installed.data()["tls.crt"])


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[datetime.timedelta]:
    """By how much the clock of the controller's machine, and of no other, is ahead."""
    by, real = [0 * DAY], manager.machine_time
    monkeypatch.setattr(manager, "machine_time", lambda: real() + by[0])
    return by


@pytest.mark.parametrize("days", [100, -100, 36500, -10000])
async def test_a_wrong_clock_of_the_leader_changes_nothing(
    days: int, installed: Installed, keep: Keep, ahead: list[datetime.timedelta], tmp_path: pathlib.Path
) -> None:
    async with keep():
        await until(installed.works, "a certificate that is trusted")
    before = installed.data(), installed.trusted()
    ahead[0] = days * DAY
    async with keep(overlap=0 * DAY) as keeper:
        for _ in range(5):
            await keeper.reconcile()
        assert manager.CLOCK.value() == pytest.approx(ahead[0].total_seconds(), abs=120)
    assert (installed.data(), installed.trusted()) == before
    served = installed.served()
    assert served
    for trusted in installed.trusted():
        await asyncio.to_thread(handshake, served, trusted, tmp_path)


@pytest.mark.parametrize("days", [100, -100])
async def test_a_new_installation_works_whatever_the_leaders_clock_says(
    days: int,
    installed: Installed,
    keep: Keep,
    ahead: list[datetime.timedelta],
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ahead[0] = days * DAY
    async with keep():
        await until(installed.works, "a certificate that is trusted")
        served = installed.served()
        assert served
        await asyncio.to_thread(handshake, served, installed.trusted()[0], tmp_path)
        # A registration that was installed again is not left without trust meanwhile.
        installed.cluster.cp.kubectl("replace", "-f", str(manifests.folder() / "webhook-registration.yaml"))
        await until(installed.works, "trust again")
    assert installed.served() == served
    assert caplog.text.count("put the wrong one right") == 1


async def test_clocks_that_agree_again_go_on_with_the_renewal(
    installed: Installed, keep: Keep, ahead: list[datetime.timedelta]
) -> None:
    async with keep(lifetime=SHORT):
        await until(installed.works, "a certificate that is trusted")
    first, ahead[0] = installed.served(), 100 * DAY
    async with keep(overlap=0 * DAY) as keeper:
        await look_thrice(keeper)
        assert installed.served() == first
        ahead[0] = 0 * DAY
        await until(lambda: installed.served() != first, "the renewal that was due")
    assert installed.works()


async def test_an_authority_that_signed_nothing_is_not_taken_over(installed: Installed, keep: Keep) -> None:
    async with keep():
        await until(installed.works, "a certificate that is trusted")
        before = installed.trusted()
        _, foreign = key_pairs.issue(HOST, datetime.datetime.now(datetime.UTC), DAY)
        bundle = base64.b64encode(installed.data()["ca.crt"] + foreign).decode()
        assert installed.cluster.cp.request("PATCH", SECRET, {"data": {"ca.crt": bundle}})[0] == 200
    async with keep() as keeper:
        await look_thrice(keeper)
    assert installed.trusted() == before
    assert installed.works()


async def test_one_that_does_not_lead_does_nothing(installed: Installed, keep: Keep) -> None:
    led = Led(0.0)
    async with keep(term=term(1, led)):
        await asyncio.sleep(0)
        await asyncio.to_thread(installed.cluster.cp.kubectl, "version")
        assert installed.data() == {}
        led.seconds = math.inf
        await until(installed.works, "a certificate once it leads")


async def test_a_missing_secret_is_reported_with_the_remedy(
    installed: Installed, keep: Keep, caplog: pytest.LogCaptureFixture
) -> None:
    failures = manager.FAILURES.value()
    secret = installed.cluster.cp.get(SECRET)
    installed.cluster.cp.request("DELETE", SECRET)
    try:
        async with keep():
            await until(lambda: manager.FAILURES.value() > failures, "a failure")
        assert "install the chart or the manifests again" in caplog.text
    finally:
        for key in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            secret["metadata"].pop(key, None)
        installed.cluster.cp.create(SECRETS, secret)


def test_the_process_keeps_the_certificate_when_its_flags_ask_for_it(
    installed: Installed, eventually: Callable[[Callable[[], object], str], None], tmp_path: pathlib.Path
) -> None:
    difference = "swapwarden_controller_clock_difference_seconds"
    program = (clocks.__file__, str(tmp_path))
    with Controller(installed.cluster.cp, FAST, *FLAGS, program=program) as controller:
        eventually(installed.works, "a certificate that is trusted")
        assert abs(controller.metric(difference)) < 60
        clocks.put(tmp_path, clocks.WALL, 100 * DAY.total_seconds())
        eventually(lambda: controller.metric(difference) > 99 * DAY.total_seconds(), "the wrong clock is seen")
        assert installed.works()
        assert controller.metric("swapwarden_controller_webhook_certificate_expiry_timestamp_seconds") > 0
        assert "PRIVATE" not in controller.process.output()
