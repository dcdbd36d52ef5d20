"""The pods of files by the node that each is planned on. Pure."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import NamedTuple

from swapwarden.cli.inputs import objects
from swapwarden.policy.observed import pods


class Printed(NamedTuple):
    """A text for standard output, with notes for standard error; or a problem in place of both."""

    text: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""


Placed = dict[str, list[pods.PodRow]]
"""Pods by node."""


def place(
    found: objects.Inputs, rows: Iterable[pods.PodRow], only: str | None, notes: list[str]
) -> tuple[Placed, Placed]:
    """Return the pods on the nodes, or on the chosen one, and the pods without a node that may be scheduled there."""
    chosen = found.nodes.keys() if only is None else {only}
    bound: Placed = collections.defaultdict(list)
    free: Placed = collections.defaultdict(list)
    for row in rows:
        pod = f"pod {row.namespace}/{row.name} is left out"
        if row.node:
            if row.node in chosen:
                bound[row.node].append(row)
            elif row.node not in found.nodes:
                notes.append(f"{pod}: no Node {row.node!r} (its spec.nodeName) in the input")
            continue
        if row.uid and only is None:
            notes.append(f"{pod}: it waits to be scheduled; --node NAME plans it on that one")
            continue
        if f"{row.namespace}/{row.name}" in found.existing and only is None:
            # An export of a whole cluster has thousands of them, and of nodes.
            notes.append(f"{pod}: its workload exists, and its pods count; --node NAME plans its template")
            continue
        selector = found.pods[f"{row.namespace}/{row.name}"].spec.node_selector or {}
        fitting = [name for name in sorted(chosen) if selector.items() <= found.nodes[name].labels.items()]
        if not fitting:
            notes.append(f"{pod}: no Node that it may be planned on has all labels of its spec.nodeSelector")
        for name in fitting:
            free[name].append(row)
    return bound, free


def unknown(found: objects.Inputs, only: str | None) -> str:
    """Return the problem of a choice that the input does not have; empty if there is none."""
    if only is None or only in found.nodes:
        return ""
    there = ", ".join(sorted(found.nodes)) or "none"
    return f"--node {only}: no Node of this name in the input, which has: {there}"
