"""Keeps the webhook's certificate: makes and renews it, and has the API servers trust it.

By hand, so that an installation needs no cert-manager (it can have one: `certificates.source` of the chart).

A Secret holds it, and says how far a renewal is, so that any controller can go on with it. The webhook's pods mount it.
The installation creates the Secret, empty: uninstalling removes it, and no right to create Secrets is needed.

| key of the Secret | |
|---|---|
| tls.crt, tls.key | the pair that is served |
| next.crt, next.key | the pair that will follow it, until its authority is trusted everywhere |
| ca.crt | the authorities that vouch for these two, and for those before them that have not expired |

Of the authorities in the Secret only those count that signed one of its pairs. Those before them are in the
registration already, and stay there until they have expired.

rotation.py decides the steps. Both the Secret and the registration are written only as they were read: of two
writers, the second one must read again.

The time is that of the API server, which checks the certificate. If this machine's differs from it by more than
TOLERANCE, one of the two is wrong. Then a pair that is valid by either is left alone.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import json
import logging
import time
from typing import Any, Final

from swapwarden.api import names
from swapwarden.controller.certificates import key_pairs, rotation
from swapwarden.controller.term import Term, TermOver
from swapwarden.kube import backoff, client, errors
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

EXPIRY = metrics.gauge(
    "swapwarden_controller_webhook_certificate_expiry_timestamp_seconds",
    "When the webhook's certificate expires, in seconds since 1970; 0 without one, or if another instance leads.",
)
STEPS = metrics.counter(
    "swapwarden_controller_webhook_certificate_steps_total",
    "Steps of renewing the webhook's certificate: issue, publish, promote.",
    labels=("step",),
    known=[(step.value,) for step in rotation.RotationStep if step is not rotation.RotationStep.NOTHING],
)
CLOCK = metrics.gauge(
    "swapwarden_controller_clock_difference_seconds",
    "This instance's time less the API server's, by the leader that keeps the webhook's certificate; 0 by others.",
)
FAILURES = metrics.counter(
    "swapwarden_controller_webhook_certificate_failures_total",
    "Failed checks of the webhook's certificate, which are retried.",
)

TOLERANCE: Final = datetime.timedelta(hours=1)
INTERVAL_SECONDS: Final = 10.0
BACKOFF_SECONDS: Final = (0.5, 30.0)
TIMEOUT: Final = 10.0
MAX_STEPS: Final = 6
"""Steps in one reconcile: one more than there are. Further ones would be an endless loop."""

REGISTRATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_OURS: Final = {"fieldManager": names.FIELD_MANAGER}

Json = dict[str, Any]


class CertificateManager:
    """Keeps the certificate for one term."""

    def __init__(
        self,
        api: client.Client,
        *,
        namespace: str,
        service: str,
        registration: str,
        term: Term,
        lifetime: datetime.timedelta = rotation.LIFETIME,
        overlap: datetime.timedelta = rotation.OVERLAP,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        """`service` is a name in `namespace`; `registration` is that of the webhook configuration."""
        self._api = api
        self._service = service
        self._name = f"{service}-tls"
        self._secret = f"/api/v1/namespaces/{namespace}/secrets/{self._name}"
        self._namespace = namespace
        self._registration = f"{REGISTRATIONS}/{registration}"
        self._term = term
        self._lifetime = lifetime
        self._overlap = overlap
        self._interval = interval
        self._published: tuple[bytes, float] | None = None
        self._astray = False

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            await self._keep_reconciling()
        finally:
            EXPIRY.set(0)
            CLOCK.set(0)

    async def _keep_reconciling(self) -> None:
        waits = backoff.Backoff(*BACKOFF_SECONDS)
        while True:
            try:
                await self.reconcile()
            except TermOver:
                # The Lease may have been renewed since; else this ends in a moment.
                await asyncio.sleep(self._interval)
            except errors.KubeError as error:
                FAILURES.inc()
                # Another instance wrote first. That is no fault: the next reconcile reads the result.
                level = logging.INFO if error.status == 409 else logging.ERROR
                log.log(level, "cannot keep the webhook's certificate in Secret %s: %s", self._name, _remedy(error))
                await asyncio.sleep(waits.next())
            except Exception:
                # A fault here must not keep nodes from their plans.
                FAILURES.inc()
                log.exception("cannot keep the webhook's certificate in Secret %s", self._name)
                await asyncio.sleep(BACKOFF_SECONDS[1])
            else:
                waits.reset()
                await asyncio.sleep(self._interval)

    async def reconcile(self) -> None:
        """Take all steps that are due. Raise errors.KubeError if it should be retried, and TermOver."""
        for _ in range(MAX_STEPS):
            if await self._step() is rotation.RotationStep.NOTHING:
                return

    async def _step(self) -> rotation.RotationStep:
        secret = json.loads(await self._api.get(self._secret, timeout=TIMEOUT))
        registration = await self._registered()
        data = _decoded(secret)
        own = machine_time()
        now = self._server_time(own)
        times = now, own
        # Authorities that are trusted but not in the Secret: the Secret was lost, and its pair may still be served.
        trusted = _authorities(registration, self._service)
        current, coming = _pair(data, "tls"), _pair(data, "next")
        vouching = key_pairs.signers(data.get("ca.crt", b""), [current, coming])
        authorities = key_pairs.bundle([vouching, *trusted], min(times))
        host = f"{self._service}.{self._namespace}.svc"
        served = [validity for time in times if (validity := key_pairs.judge(current, authorities, host, time))]
        view = rotation.CertificateStatus(
            current=served[0] if served else None,
            coming=key_pairs.judge(coming, authorities, host, now),
            published=self._published_for(trusted, authorities),
        )
        EXPIRY.set(view.current.not_after.timestamp() if view.current else 0)
        step = rotation.decide(view, now, self._overlap)
        if self._astray and view.current is not None and step is not rotation.RotationStep.PUBLISH:
            return rotation.RotationStep.NOTHING
        if step is rotation.RotationStep.ISSUE:
            made, authority = key_pairs.issue(host, now, self._lifetime)
            bundle = key_pairs.bundle([authorities, authority], min(times))
            await self._store(secret, {"next.crt": made.certificate, "next.key": made.key, "ca.crt": bundle})
        elif step is rotation.RotationStep.PUBLISH:
            await self._publish(registration, authorities)
        elif step is rotation.RotationStep.PROMOTE and coming is not None:
            changes = {"tls.crt": coming.certificate, "tls.key": coming.key, "ca.crt": authorities}
            await self._store(secret, {**changes, "next.crt": None, "next.key": None})
        if step is not rotation.RotationStep.NOTHING:
            STEPS.inc(step.value)
            log.info("webhook's certificate: %s", step.value, extra={"secret": self._name})
        return step

    def _server_time(self, own: datetime.datetime) -> datetime.datetime:
        """Return the API server's time, as of its last answer. Publish its difference from `own` as a metric."""
        seconds = self._api.server_time()
        now = own if seconds is None else datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        CLOCK.set((own - now).total_seconds())
        astray = abs(own - now) > TOLERANCE
        if astray and not self._astray:
            log.error(
                "the clock of this machine says %s and the API server's %s: a webhook certificate that is valid by"
                " either is not renewed until they agree; put the wrong one right",
                own.isoformat(timespec="seconds"),
                now.isoformat(timespec="seconds"),
            )
        elif self._astray and not astray:
            log.info("the clock of this machine and the API server's agree again")
        self._astray = astray
        return now

    def _published_for(self, trusted: list[bytes], authorities: bytes) -> datetime.timedelta | None:
        """Return for how long all entries of the registration have trusted exactly these authorities."""
        if any(bundle != authorities for bundle in trusted):
            self._published = None
            return None
        if self._published is None or self._published[0] != authorities:
            self._published = authorities, time.monotonic()
        return datetime.timedelta(seconds=time.monotonic() - self._published[1])

    async def _registered(self) -> Json:
        """Return the webhook configuration; empty if there is none."""
        try:
            registration: Json = json.loads(await self._api.get(self._registration, timeout=TIMEOUT))
        except errors.ApiError as error:
            if error.status == 404:
                return {}
            raise
        return registration

    async def _store(self, secret: Json, changes: dict[str, bytes | None]) -> None:
        encoded = {key: value and base64.b64encode(value).decode("ascii") for key, value in changes.items()}
        data = {**(secret.get("data") or {}), **encoded}
        body = {**secret, "data": {key: value for key, value in data.items() if value is not None}}
        await self._term.write(self._api.put(self._secret, json.dumps(body).encode(), params=_OURS, timeout=TIMEOUT))

    async def _publish(self, registration: Json, authorities: bytes) -> None:
        encoded = base64.b64encode(authorities).decode("ascii")
        for entry in _entries(registration, self._service):
            entry["clientConfig"]["caBundle"] = encoded
        body = json.dumps(registration).encode()
        await self._term.write(self._api.put(self._registration, body, params=_OURS, timeout=TIMEOUT))


def machine_time() -> datetime.datetime:
    """Return the time by this machine's clock."""
    return datetime.datetime.now(datetime.UTC)


def _entries(registration: Json, service: str) -> list[Json]:
    """Return the entries of a webhook configuration that call the service."""
    entries: list[Json] = registration.get("webhooks") or []
    return [each for each in entries if (each["clientConfig"].get("service") or {}).get("name") == service]


def _authorities(registration: Json, service: str) -> list[bytes]:
    """Return the bundle of each entry of a webhook configuration."""
    return [_bytes(each["clientConfig"].get("caBundle")) for each in _entries(registration, service)]


def _remedy(error: errors.KubeError) -> str:
    if error.status in {403, 404}:
        return f"{error}: install the chart or the manifests again"
    return str(error)


def _decoded(secret: Json) -> dict[str, bytes]:
    return {key: _bytes(value) for key, value in (secret.get("data") or {}).items()}


def _bytes(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except binascii.Error:
        return b""


def _pair(data: dict[str, bytes], name: str) -> key_pairs.KeyPair | None:
    certificate, key = data.get(f"{name}.crt"), data.get(f"{name}.key")
    return key_pairs.KeyPair(certificate, key) if certificate and key else None
