"""The webhook's metrics, in a form that Prometheus accepts."""

from __future__ import annotations

import pytest

from testbed.controlplane.servers import ControlPlane
from testbed.product.webhook import Webhook
from tests.integration import scrapes
from tests.integration.webhook import pods

pytestmark = pytest.mark.usefixtures("executed")


def scrape(webhook: Webhook) -> scrapes.Series:
    status, text = webhook.health("/metrics")
    assert status == 200
    return scrapes.check(text, "webhook")


def test_prometheus_takes_it_while_pods_are_asked_about(crds: ControlPlane, webhook: Webhook) -> None:
    namespace = pods.new_namespace(crds)
    first = scrape(webhook)
    for policy, verdict in (("NoPreference", 201), ("Nonsense", 422)):
        body = pods.pod(f"p-{policy.lower()}", {"swapwarden.dev/swap-policy": policy})
        assert pods.create(crds, namespace, body)[0] == verdict
    second = scrape(webhook)
    assert scrapes.growing(first, second) > 0
    verdicts = scrapes.values(second, "swapwarden_webhook_requests_total")
    assert any(count > 0 for labels, count in verdicts.items() if labels[-1] == "refused")
    assert scrapes.values(second, "swapwarden_webhook_certificate_expiry_timestamp_seconds")[()] > 0
