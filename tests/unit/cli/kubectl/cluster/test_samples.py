from __future__ import annotations

import math

import hypothesis
import hypothesis.strategies as st
from swapwarden.cli.kubectl.cluster import agents
from swapwarden.telemetry import metrics

WANTED = frozenset({"used_bytes", "other_total"})


def test_what_a_registry_of_ours_writes_is_read() -> None:
    registry = metrics.Registry()
    used = registry.add(metrics.Gauge("used_bytes", "Help.", ("pod_uid",)))
    used.set(5, "a")
    used.set(1e18, 'b"\\\n')
    registry.add(metrics.Counter("other_total", "Help.", ())).inc()
    registry.add(metrics.Gauge("unwanted", "Help.", ())).set(7)
    assert agents.parse(registry.render().encode(), WANTED) == [
        agents.MetricSample("used_bytes", {"pod_uid": "a"}, 5.0),
        agents.MetricSample("used_bytes", {"pod_uid": 'b"\\\n'}, 1e18),
        agents.MetricSample("other_total", {}, 1.0),
    ]


def test_no_limit_is_infinite() -> None:
    assert agents.parse(b"used_bytes +Inf\n", WANTED) == [agents.MetricSample("used_bytes", {}, math.inf)]


def test_impossible_samples_are_ignored() -> None:
    body = b"used_bytes NaN\nused_bytes -1\nused_bytes x\nused_bytes\nused_bytes{pod_uid= 1\n{} 1\n\xff\xfe 1\n"
    assert agents.parse(body, WANTED) == []
    assert agents.parse(b'used_bytes{a="' + b"x" * agents.MAX_LINE + b'"} 1', WANTED) == []
    assert agents.parse(b"used_bytes 1\n" + b"#" * agents.MAX_BYTES, WANTED) == []


@hypothesis.given(st.binary(max_size=500))
def test_any_bytes_can_come(body: bytes) -> None:
    for sample in agents.parse(b"used_bytes" + body, WANTED):
        assert sample.value >= 0
