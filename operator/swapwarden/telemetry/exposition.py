"""Publishes the metrics of this process through prometheus_client, with its process and garbage collection metrics.

For the controller and the webhook; the agent renders its metrics itself (swapwarden.telemetry.metrics).
"""

from __future__ import annotations

from collections.abc import Iterator

import prometheus_client
from prometheus_client import core, registry

from swapwarden.telemetry import metrics


class LeanCollector(registry.Collector):
    """Give a registry of prometheus_client the content of a lean registry."""

    def __init__(self, source: metrics.Registry) -> None:
        self._source = source

    def collect(self) -> Iterator[core.Metric]:
        """Yield each metric as it is now."""
        for metric in self._source:
            family = core.Metric(metric.name.removesuffix("_total"), metric.help_text, metric.kind)
            for sample in metric.samples():
                family.add_sample(sample.name, dict(sample.labels), sample.value)
            yield family


def register() -> None:
    """Join the metrics of this process to prometheus_client's default registry; call it once."""
    prometheus_client.REGISTRY.register(LeanCollector(metrics.REGISTRY))


def render() -> str:
    """Write all metrics in the Prometheus text format."""
    return prometheus_client.generate_latest().decode()
