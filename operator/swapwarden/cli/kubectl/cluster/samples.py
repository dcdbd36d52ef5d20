"""Parses the requested samples of the Prometheus text format. An agent's answer is untrusted input."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Final

import msgspec

MAX_BYTES: Final = 8 * 1024 * 1024
"""An agent with as many pods and containers as a state can name says less."""
MAX_LINE: Final = 2048

_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]{0,127})(?:\{([^}]*)\})? ([^ ]{1,32})")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]{0,63})="((?:[^"\\]|\\.)*)",?')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class MetricSample(msgspec.Struct, frozen=True):
    """One line: a metric with its labels and its value, which may be infinite."""

    name: str
    labels: dict[str, str]
    value: float


def parse(body: bytes, desired: Collection[str]) -> list[MetricSample]:
    """Return the samples of the `desired` metrics. Skip invalid lines, NaN and negative values.

    Label values with a closing brace are not understood, and of the metrics that are read here none can have one.
    """
    if len(body) > MAX_BYTES:
        return []
    found = []
    for line in body.decode("utf-8", "replace").split("\n"):
        if not line or line[0] == "#" or len(line) > MAX_LINE:
            continue
        match = _LINE.match(line)
        if match is None or match[1] not in desired:
            continue
        value = _number(match[3])
        if value >= 0:
            labels = {key: _unescaped(text) for key, text in _LABEL.findall(match[2] or "")}
            found.append(MetricSample(match[1], labels, value))
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPES.get(match[0], match[0]), text) if "\\" in text else text
