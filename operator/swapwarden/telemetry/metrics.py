"""Counters, gauges and histograms, small enough for the agent.

The agent cannot afford prometheus_client (14 MB of memory on every node). All parts share modules with it, so every
metric of Swapwarden is one of these. The controller and the webhook can afford it, and publish them through
prometheus_client (swapwarden.telemetry.exposition), together with its process metrics.

Metrics are made at import time, by the module that counts. Any thread may change them.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import swapwarden

M = TypeVar("M", bound="Metric")
Kind = Literal["counter", "gauge", "histogram"]

DEFAULT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds: from a cgroup write to a slow API request."""


class Sample(NamedTuple):
    """One line of the text format."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Metric:
    """The common part of counters, gauges and histograms: a name, label names, one value per set of label values."""

    kind: Kind

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self.name = name
        self.help_text = help_text
        self.label_names = tuple(labels)
        self._lock = threading.Lock()

    def _check(self, values: tuple[str, ...]) -> None:
        if len(values) != len(self.label_names):
            raise ValueError(f"metric {self.name} has labels {self.label_names}, got values {values}")

    def _labels(self, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        return tuple(zip(self.label_names, values, strict=True))

    def samples(self) -> Iterator[Sample]:
        """Yield the current samples of the metric."""
        raise NotImplementedError


class _Scalar(Metric):
    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        super().__init__(name, help_text, labels)
        # A metric without labels exists from the start: rate() needs the zero before the first event.
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def value(self, *labels: str) -> float:
        """Return the value; 0 if it was never set."""
        return self._values.get(labels, 0.0)

    def remove(self, *labels: str) -> None:
        """Remove these label values: their subject no longer exists."""
        with self._lock:
            self._values.pop(labels, None)

    def samples(self) -> Iterator[Sample]:
        with self._lock:
            items = list(self._values.items())
        for labels, value in items:
            yield Sample(self.name, self._labels(labels), value)


class Counter(_Scalar):
    """Only grows. By convention its name ends in `_total`."""

    kind: Kind = "counter"

    def begin(self, known: Iterable[tuple[str, ...]]) -> None:
        """Publish these label values as 0 from now on: rate() misses an event that begins a series."""
        for labels in known:
            self._check(labels)
            with self._lock:
                self._values.setdefault(labels, 0.0)

    def inc(self, *labels: str, by: float = 1.0) -> None:
        """Add `by` to the value of these label values; ValueError if it is negative."""
        self._check(labels)
        if by < 0:
            raise ValueError(f"counter {self.name} cannot go down (by {by})")
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + by


class Gauge(_Scalar):
    """Goes up and down."""

    kind: Kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        """Set the value of these label values."""
        self._check(labels)
        with self._lock:
            self._values[labels] = value


class Histogram(Metric):
    """Counts observations in buckets."""

    kind: Kind = "histogram"

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str], buckets: Sequence[float] = DEFAULT_BUCKETS
    ) -> None:
        super().__init__(name, help_text, labels)
        self.buckets = tuple(buckets)
        # Per label values: the count of each bucket and of those above the last, then the sum.
        self._counts: dict[tuple[str, ...], list[int]] = {} if labels else {(): [0] * (len(self.buckets) + 1)}
        self._sums: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def begin(self, known: Iterable[tuple[str, ...]]) -> None:
        """Publish these label values from now on, without an observation, as a counter does."""
        for labels in known:
            self._check(labels)
            with self._lock:
                self._counts.setdefault(labels, [0] * (len(self.buckets) + 1))
                self._sums.setdefault(labels, 0.0)

    def observe(self, value: float, *labels: str) -> None:
        """Count one observation."""
        self._check(labels)
        with self._lock:
            counts = self._counts.setdefault(labels, [0] * (len(self.buckets) + 1))
            counts[bisect.bisect_left(self.buckets, value)] += 1
            self._sums[labels] = self._sums.get(labels, 0.0) + value

    def count(self, *labels: str) -> int:
        """Return the number of observations."""
        return sum(self._counts.get(labels, ()))

    def samples(self) -> Iterator[Sample]:
        with self._lock:
            items = [(labels, list(counts), self._sums[labels]) for labels, counts in self._counts.items()]
        for labels, counts, total in items:
            base = self._labels(labels)
            seen = 0
            for bound, count in zip((*map(_number, self.buckets), "+Inf"), counts, strict=True):
                seen += count
                yield Sample(f"{self.name}_bucket", (*base, ("le", bound)), seen)
            yield Sample(f"{self.name}_sum", base, total)
            yield Sample(f"{self.name}_count", base, seen)


class Reading(Metric):
    """A counter or gauge with an external source, such as the kernel: its values are replaced as a whole.

    It has no value before the first read, nor for subjects that no longer exist.
    """

    def __init__(self, kind: Kind, name: str, help_text: str, labels: Sequence[str]) -> None:
        super().__init__(name, help_text, labels)
        self.kind = kind
        self._values: Mapping[tuple[str, ...], float] = {}

    def hold(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Replace all values, by label values; the caller must not change the mapping afterwards."""
        for labels in values:
            self._check(labels)
        self._values = values

    def samples(self) -> Iterator[Sample]:
        for labels, value in self._values.items():
            yield Sample(self.name, self._labels(labels), value)


class Registry:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def __iter__(self) -> Iterator[Metric]:
        return iter(list(self._metrics.values()))

    def add(self, metric: M) -> M:
        """Register a metric; ValueError for a second one of the same name."""
        if metric.name in self._metrics:
            raise ValueError(f"metric {metric.name} is registered twice")
        self._metrics[metric.name] = metric
        return metric

    def render(self) -> str:
        """Write all metrics in the Prometheus text format, version 0.0.4."""
        return "".join(_lines(self))


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


def _escape(text: str, *, quotes: bool) -> str:
    # An agent writes some thousand label values, of which none needs it.
    if "\\" in text or "\n" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace("\n", "\\n")
        return text.replace('"', '\\"') if quotes else text
    return text


def _lines(metrics: Iterable[Metric]) -> Iterator[str]:
    for metric in metrics:
        yield f"# HELP {metric.name} {_escape(metric.help_text, quotes=False)}\n# TYPE {metric.name} {metric.kind}\n"
        for name, labels, value in metric.samples():
            inner = ",".join([f'{key}="{_escape(text, quotes=True)}"' for key, text in labels])
            yield f"{name}{{{inner}}} {_number(value)}\n" if inner else f"{name} {_number(value)}\n"


REGISTRY = Registry()


def counter(name: str, help_text: str, labels: Sequence[str] = (), known: Iterable[tuple[str, ...]] = ()) -> Counter:
    """Make a counter in the registry of this process; KNOWN label values start at 0."""
    made = REGISTRY.add(Counter(name, help_text, labels))
    made.begin(known)
    return made


def gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    """Make a gauge in the registry of this process."""
    return REGISTRY.add(Gauge(name, help_text, labels))


def histogram(
    name: str,
    help_text: str,
    labels: Sequence[str] = (),
    buckets: Sequence[float] = DEFAULT_BUCKETS,
    known: Iterable[tuple[str, ...]] = (),
) -> Histogram:
    """Make a histogram in the registry of this process; `buckets` are upper bounds, in the unit of the name.

    KNOWN label values exist from the start.
    """
    made = REGISTRY.add(Histogram(name, help_text, labels, buckets))
    made.begin(known)
    return made


def reading(kind: Literal["counter", "gauge"], name: str, help_text: str, labels: Sequence[str] = ()) -> Reading:
    """Make a metric in the registry of this process whose values are read from an external source."""
    return REGISTRY.add(Reading(kind, name, help_text, labels))


INFO = reading(
    "gauge", "swapwarden_build_info", "1, with the version of the running part.", labels=("version", "component")
)


def publish_build(component: Literal["agent", "controller", "webhook"]) -> None:
    """Set the part of this process."""
    INFO.hold({(swapwarden.__version__, component): 1})
