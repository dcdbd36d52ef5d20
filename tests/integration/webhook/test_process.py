"""The webhook's process in front of a real API server: rotation, outage, end."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

from testbed.base import process
from testbed.controlplane.servers import ControlPlane
from testbed.product.webhook import Webhook
from tests.integration.conftest import Eventually
from tests.integration.webhook import pods

REGISTRATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/swapwarden"


@pytest.fixture
def own(ruled: ControlPlane) -> Iterator[Webhook]:
    """A registered webhook that the test may stop."""
    with registered(ruled) as running:
        yield running


@contextlib.contextmanager
def registered(control_plane: ControlPlane, *options: str) -> Iterator[Webhook]:
    with Webhook(control_plane, *options) as running:
        try:
            running.register()
            yield running
        finally:
            control_plane.request("DELETE", REGISTRATION)


def serial(webhook: Webhook, ca: str) -> str:
    """The serial number of the certificate that a new connection is offered."""
    address = urllib.parse.urlsplit(webhook.url)
    trusting = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection((str(address.hostname), address.port), timeout=10) as plain,
        trusting.wrap_socket(plain, server_hostname=address.hostname) as connection,
    ):
        certificate = connection.getpeercert()
    assert certificate
    return str(certificate["serialNumber"])


def test_rotation_under_load_loses_no_request(crds: ControlPlane, own: Webhook, eventually: Eventually) -> None:
    namespace = pods.new_namespace(crds, "Disabled")
    done = threading.Event()
    failures: list[object] = []

    def keep_creating() -> None:
        while not done.is_set():
            status, answer = pods.create(crds, namespace, pods.pod("web"), pods.DRY_RUN)
            if status != 201:
                failures.append(answer)

    asker = threading.Thread(target=keep_creating)
    asker.start()
    try:
        seen = {serial(own, str(crds.ca_file))}
        for number in range(5):
            before = serial(own, str(crds.ca_file))
            own.replace_certificate(*crds.credentials.issue(f"rotated-{number}", ["127.0.0.1"]))
            eventually(lambda before=before: serial(own, str(crds.ca_file)) != before, "a new certificate")  # type: ignore[misc]  # a default argument
            seen.add(serial(own, str(crds.ca_file)))
    finally:
        done.set()
        asker.join()
    assert failures == []
    assert len(seen) == 6
    assert own.metric("swapwarden_webhook_certificate_reloads_total", result="ok") >= 5


def test_a_broken_certificate_is_counted_and_changes_nothing(
    crds: ControlPlane, own: Webhook, eventually: Eventually
) -> None:
    before = serial(own, str(crds.ca_file))
    own.certificate.write_text("not a certificate", encoding="ascii")
    eventually(lambda: own.metric("swapwarden_webhook_certificate_reloads_total", result="failed"), "a failure counted")
    assert serial(own, str(crds.ca_file)) == before
    assert own.health("/readyz")[0] == 200
    assert "are not a certificate and its private key" in own.process.output()


def test_without_the_webhook_only_pods_with_a_policy_have_to_wait(crds: ControlPlane, own: Webhook) -> None:
    plain, default = pods.new_namespace(crds), pods.new_namespace(crds, "Disabled")
    assert pods.create(crds, plain, pods.pod("kept", {pods.POLICY: "Disabled"}))[0] == 201
    own.process.kill()
    status, answer = pods.create(crds, plain, pods.pod("policy", {pods.POLICY: "Disabled"}))
    assert status == 500
    assert 'failed calling webhook "pods.swapwarden.dev"' in answer["message"]
    assert pods.create(crds, default, pods.pod("default"))[0] == 500
    assert pods.create(crds, plain, pods.pod("plain"))[0] == 201
    kept = pods.path(plain, "kept")
    assert pods.patch(crds, kept, {"metadata": {"labels": {"a": "b"}}})[0] == 200
    # The policies inside the API server still hold.
    with pytest.raises(process.ProcessError, match="cannot be added, changed or removed"):
        crds.kubectl("annotate", "--namespace", plain, "--overwrite", "pod/kept", f"{pods.POLICY}=NoPreference")
    assert pods.patch(crds, kept, {"metadata": {"finalizers": None}})[0] == 200
    assert crds.request("DELETE", kept)[0] == 200


def test_it_continues_serving_while_it_reports_that_it_stops(ruled: ControlPlane, eventually: Eventually) -> None:
    with registered(ruled, "--shutdown-delay=30") as running:
        assert running.health("/readyz") == (200, "ok\n")
        running.process.send_signal(signal.SIGTERM)
        eventually(lambda: running.health("/readyz") == (503, "stopping\n"), "not ready")
        assert running.health("/healthz")[0] == 200
        assert pods.create(ruled, "default", pods.pod("web", {pods.POLICY: "x"}), pods.DRY_RUN)[0] == 422
        running.process.kill()


def test_it_ends_well_on_sigterm(crds: ControlPlane) -> None:
    with Webhook(crds) as running:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
        assert '"stopped"' in running.process.output()
        assert "Traceback" not in running.process.output()


# --- clients that behave badly ---

HEAD = b"POST /pods HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
ASKED = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u"}}).encode()


def message(body: bytes, announced: int | None = None) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % (len(body) if announced is None else announced) + body


BAD = {
    "no JSON": (message(b"{" + b"x" * 200_000), b"400"),
    "an unknown version": (message(ASKED.replace(b"/v1", b"/v9")), b"400"),
    "no pod": (message(ASKED), b"400"),
    "too large": (message(b"", 14 * 1024 * 1024), b"413"),
    "nested too deeply": (message(b"[" * 100_000), b"400"),
    "half a body": (message(b"{" * 200_000, 300_000), b""),
    "half a head": (HEAD, b""),
}


def test_clients_that_behave_badly_are_answered_and_leave_nothing(crds: ControlPlane) -> None:
    trusting = ssl.create_default_context(cafile=str(crds.ca_file))
    with Webhook(crds) as webhook:
        address = urllib.parse.urlsplit(webhook.url)

        def say(sent: bytes, code: bytes) -> None:
            with (
                socket.create_connection((str(address.hostname), address.port), timeout=20) as plain,
                trusting.wrap_socket(plain, server_hostname=address.hostname) as connection,
            ):
                connection.sendall(sent)
                if code:
                    assert connection.recv(4096).split(b" ")[1] == code

        def rounds(count: int) -> int:
            for _ in range(count):
                for sent, code in BAD.values():
                    say(sent, code)
            return process.resident(webhook.process.pid)

        # The allocator takes some MiB more, and ever less: how soon it has all depends on how fast clients come. One
        # kind of body, were it kept, would be 8 MB and more each time.
        taken = [rounds(40), rounds(40)]
        while taken[-1] >= taken[-2] + 2 * 1024 * 1024:
            assert len(taken) < 20, taken
            taken.append(rounds(40))
        assert webhook.metric("swapwarden_webhook_bad_requests_total", code="400") >= 3 * 80
        assert webhook.metric("swapwarden_webhook_bad_requests_total", code="500") == 0


def test_by_default_it_serves_clients_of_both_families(control_plane: ControlPlane) -> None:
    with Webhook(control_plane, "--host=", "--metrics-address=:0") as running:
        ports = {"reviews": int(running.url.rpartition(":")[2]), "health": int(running.metrics_url.rpartition(":")[2])}
        for host in ("127.0.0.1", "::1"):
            probe = http.client.HTTPConnection(host, ports["health"], timeout=10)
            probe.request("GET", "/readyz")
            assert probe.getresponse().status == 200
            probe.close()
            trusting = ssl.create_default_context(cafile=str(control_plane.ca_file))
            trusting.check_hostname = False  # the certificate is for the usual address
            review = http.client.HTTPSConnection(host, ports["reviews"], timeout=10, context=trusting)
            review.request("POST", "/pods", b"{}", {"Content-Type": "application/json"})
            assert review.getresponse().status == 400
            review.close()
