import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest, parser
from swapwarden.telemetry import exposition, metrics


@pytest.fixture
def registry() -> metrics.Registry:
    return metrics.Registry()


def test_a_counter_without_labels_starts_at_zero(registry: metrics.Registry) -> None:
    registry.add(metrics.Counter("repairs_total", "Repairs.", ()))
    assert registry.render() == "# HELP repairs_total Repairs.\n# TYPE repairs_total counter\nrepairs_total 0\n"


def test_counters_add_up_per_label_value(registry: metrics.Registry) -> None:
    counter = registry.add(metrics.Counter("writes_total", "Writes.", ("result",)))
    counter.inc("ok")
    counter.inc("ok", by=2)
    counter.inc("failed")
    assert counter.value("ok") == 3
    assert 'writes_total{result="ok"} 3\nwrites_total{result="failed"} 1\n' in registry.render()


def test_a_counter_refuses_to_go_down(registry: metrics.Registry) -> None:
    with pytest.raises(ValueError, match="cannot go down"):
        registry.add(metrics.Counter("writes_total", "Writes.", ())).inc(by=-1)


def test_label_values_must_fit_label_names(registry: metrics.Registry) -> None:
    with pytest.raises(ValueError, match="has labels"):
        registry.add(metrics.Gauge("pods", "Pods.", ("state",))).set(1)


def test_a_name_cannot_be_registered_twice(registry: metrics.Registry) -> None:
    registry.add(metrics.Gauge("pods", "Pods.", ()))
    with pytest.raises(ValueError, match="twice"):
        registry.add(metrics.Gauge("pods", "Pods.", ()))


def test_removed_label_values_are_not_rendered(registry: metrics.Registry) -> None:
    gauge = registry.add(metrics.Gauge("exposed", "Exposed.", ("pod",)))
    gauge.set(1, "a")
    gauge.set(2, "b")
    gauge.remove("a")
    assert 'pod="a"' not in registry.render()
    assert gauge.value("b") == 2


def test_a_reading_has_the_last_values_and_none_before(registry: metrics.Registry) -> None:
    limit = registry.add(metrics.Reading("gauge", "limit_bytes", "Limit.", ("pod",)))
    assert registry.render() == "# HELP limit_bytes Limit.\n# TYPE limit_bytes gauge\n"
    limit.hold({("a",): 1, ("b",): math.inf})
    assert registry.render().endswith('limit_bytes{pod="a"} 1\nlimit_bytes{pod="b"} +Inf\n')
    limit.hold({("b",): -math.inf})
    assert registry.render().endswith('gauge\nlimit_bytes{pod="b"} -Inf\n')
    with pytest.raises(ValueError, match="has labels"):
        limit.hold({(): 1})


def test_known_label_values_exist_before_the_first_event(registry: metrics.Registry) -> None:
    counter = registry.add(metrics.Counter("repairs_total", "Repairs.", ("cause",)))
    counter.begin([("Reload",), ("Start",)])
    counter.inc("Start")
    assert [(sample.labels, sample.value) for sample in counter.samples()] == [
        ((("cause", "Reload"),), 0),
        ((("cause", "Start"),), 1),
    ]
    histogram = registry.add(metrics.Histogram("latency_seconds", "Latency.", ("path",), (1,)))
    histogram.begin([("own",)])
    assert [sample.value for sample in histogram.samples()] == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="has labels"):
        counter.begin([("Start", "pod")])


def test_histogram_buckets_are_cumulative_and_inclusive(registry: metrics.Registry) -> None:
    histogram = registry.add(metrics.Histogram("latency_seconds", "Latency.", (), (0.1, 1)))
    for value in (0.05, 0.1, 0.5, 7):
        histogram.observe(value)
    assert [(dict(s.labels).get("le"), s.value) for s in histogram.samples()] == [
        ("0.1", 2),
        ("1", 3),
        ("+Inf", 4),
        (None, pytest.approx(7.65)),
        (None, 4),
    ]


def test_a_histogram_without_labels_starts_with_empty_buckets(registry: metrics.Registry) -> None:
    registry.add(metrics.Histogram("latency_seconds", "Latency.", (), (0.1,)))
    registry.add(metrics.Histogram("other_seconds", "Other.", ("verb",), (0.1,)))
    lines = [line for line in registry.render().splitlines() if not line.startswith("#")]
    assert lines == [
        'latency_seconds_bucket{le="0.1"} 0',
        'latency_seconds_bucket{le="+Inf"} 0',
        "latency_seconds_sum 0",
        "latency_seconds_count 0",
    ]


def test_both_renderings_are_read_the_same_by_a_prometheus_parser(registry: metrics.Registry) -> None:
    registry.add(metrics.Counter("writes_total", 'With "quotes"\nand lines.', ("path",))).inc('a\\b"c\nd')
    registry.add(metrics.Gauge("ratio", "Ratio.", ())).set(0.25)
    registry.add(metrics.Reading("counter", "reads_total", "Reads.", ())).hold({(): math.inf})
    registry.add(metrics.Histogram("latency_seconds", "Latency.", ("verb",), (0.1,))).observe(0.2, "get")
    heavy = CollectorRegistry()
    heavy.register(exposition.LeanCollector(registry))

    def read(text: str) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
        return {
            (sample.name, tuple(sorted(sample.labels.items())), sample.value)
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
        }

    assert read(registry.render()) == read(generate_latest(heavy).decode())
    assert ("writes_total", (("path", 'a\\b"c\nd'),), 1.0) in read(registry.render())
