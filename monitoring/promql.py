"""The series that an expression of PromQL reads: enough of its syntax to check that they exist."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"\b(ALERTS|(?:swapwarden|kube|apiserver)_[a-z0-9_]+)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")


class Selector(NamedTuple):
    """A metric, and the label matchers beside it as (label, operator, value)."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def selectors(expression: str) -> Iterator[Selector]:
    """Yield the selected metrics."""
    for metric, inner in _SELECTOR.findall(expression):
        yield Selector(metric, tuple(_MATCHER.findall(inner)))


def grouped(expression: str) -> set[str]:
    """Return the labels that it groups or matches by."""
    return {
        label
        for inner in _GROUPING.findall(_STRING.sub('""', expression))
        for each in inner.split(",")
        if (label := each.strip())
    }
