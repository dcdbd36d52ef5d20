"""The elements of a dashboard, and the expressions that its queries share."""

import dataclasses
from typing import Final, Literal

WINDOW: Final = "$__rate_interval"
POD: Final = "{{namespace}}/{{pod}}"
"""The name of a series of a pod."""
AGENTS: Final = 'namespace=~"$namespace"'
_NODE: Final = 'namespace=~"$namespace",node="$node"'


@dataclasses.dataclass(frozen=True)
class Query:
    """An expression, and the names of its series (Grafana's {{label}})."""

    expression: str
    legend: str = ""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["lines", "stacked", "number", "table"] = "lines"
    width: int = 8
    """Of 24."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def fleet(metric: str, what: str = AGENTS) -> str:
    """Return the sum over nodes, of which two agents may report during an update."""
    return f"sum(max by (cluster, node) ({metric}{{{what}}}))"


def of_nodes(metric: str) -> str:
    return f"sum(max by (cluster, node) (rate({metric}{{{AGENTS}}}[{WINDOW}])))"


def of_node(metric: str, *labels: str, matchers: str = "") -> str:
    """Return the value that the chosen node's agent reports, whichever pod that is."""
    inner = f"{_NODE},{matchers}" if matchers else _NODE
    return f"max by ({', '.join(('node', *labels))}) ({metric}{{{inner}}})"


def rate_of_node(metric: str, *labels: str, matchers: str = "") -> str:
    inner = f"{_NODE},{matchers}" if matchers else _NODE
    return f"max by ({', '.join(('node', *labels))}) (rate({metric}{{{inner}}}[{WINDOW}]))"


def named(expression: str) -> str:
    """Return a series of pods of the chosen node, by name if kube-state-metrics reports it, else by UID.

    A deleted pod keeps its name as long as it has a series.
    """
    names = (
        "max by (pod_uid, namespace, pod)"
        f' (label_replace(last_over_time(kube_pod_info[{WINDOW}]), "pod_uid", "$1", "uid", "(.+)"))'
    )
    by_uid = f'label_replace(label_replace({expression}, "pod", "$1", "pod_uid", "(.+)"), "namespace", "uid", "", "")'
    return f"{expression} * on (pod_uid) group_left (namespace, pod) {names} or on (pod_uid) {by_uid}"


def largest(expression: str) -> str:
    """Return the ten pods with the highest values, without zeros."""
    return f"topk(10, {named(f'({expression} > 0)')})"


def quantile(share: float, histogram: str, *labels: str, matchers: str = AGENTS) -> str:
    grouped = ", ".join(("le", *labels))
    return f"histogram_quantile({share}, sum by ({grouped}) (rate({histogram}_bucket{{{matchers}}}[{WINDOW}])))"
