"""Plans in the forms in which `swapwarden plan` prints them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from swapwarden.api import names
from swapwarden.cli import behaviors
from swapwarden.policy import plan
from swapwarden.policy.observed import pods
from swapwarden.policy.profile import compiled

Json = dict[str, Any]
Plans = Mapping[str, plan.Explanation]
"""By node."""

Unplaced = Sequence[pods.PodRow]
"""Pods without a node if the input has none: they are shown by behavior."""

_COLUMNS = ("NODE", "POD", "QOS", "POLICY", "REASON", "SWAP.MAX")
_BY_BEHAVIOR = ("POD", "QOS", "POLICY", "BEHAVIOR", "SWAP")
_NOTHING = "-"


def as_list(plans: Plans, unplaced: Unplaced = ()) -> Json:
    """Return a List of NodeSwapStates: reports, with all containers and reasons, not objects to apply."""
    items = [_state(node, plans[node]) for node in sorted(plans)]
    by_behavior = {"byBehavior": [_unplaced(row) for row in _sorted(unplaced)]} if unplaced else {}
    return {"apiVersion": "v1", "kind": "List", "items": items, **by_behavior}


def rendered(form: str, plans: Plans, unplaced: Unplaced, known: Iterable[compiled.Profile]) -> str:
    """Return the List as JSON or YAML, or a table, which names behind each behavior the KNOWN profiles that have it.

    The table has one line for each node, pod and container.
    """
    if form == "json":
        return json.dumps(as_list(plans, unplaced), indent=2, ensure_ascii=False) + "\n"
    if form == "yaml":
        return yaml.safe_dump(as_list(plans, unplaced), sort_keys=False, allow_unicode=True, width=2**16)
    tables = []
    if plans or not unplaced:
        tables.append(_table([_COLUMNS, *(row for node in sorted(plans) for row in _rows(node, plans[node]))]))
    if unplaced:
        of = {each: sorted(one.name for one in known if one.behavior is each) for each in names.Behavior}
        lines = (line for row in _sorted(unplaced) for line in _by_behavior(row, of))
        tables.append(_table([_BY_BEHAVIOR, *lines]))
    return "\n".join(tables)


def _sorted(rows: Unplaced) -> list[pods.PodRow]:
    return sorted(rows, key=lambda row: (row.namespace, row.name))


def _table(lines: Iterable[Iterable[str]]) -> str:
    """Return a table whose columns are as wide as their content."""
    rows = [tuple(line) for line in lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _by_behavior(row: pods.PodRow, known: Mapping[names.Behavior, list[str]]) -> Iterator[Iterable[str]]:
    policy = _NOTHING if row.policy is None else _printable(row.policy)
    head: Iterable[str] = (f"{row.namespace}/{row.name}", row.qos, policy)
    reason = behaviors.refused(row)
    if reason is not None:
        yield *head, "(any)", f"no swap: {reason}"
        return
    for one in behaviors.each(row):
        of = f" ({', '.join(known[one.behavior])})" if known[one.behavior] else ""
        yield *head, f"{one.behavior}{of}", one.text
        head = ("", "", "")


def _unplaced(row: pods.PodRow) -> Json:
    reason = behaviors.refused(row)
    given = (
        {"swapMax": "0", "reason": reason.value}
        if reason
        else {"behaviors": msgspec.to_builtins([*behaviors.each(row)])}
    )
    stated = {} if row.policy is None else {"policy": row.policy}
    return {"namespace": row.namespace, "name": row.name, "qos": row.qos.value, **stated, **given}


def _state(node: str, explanation: plan.Explanation) -> Json:
    header = explanation.header
    written = msgspec.to_builtins(header)  # without what holds its default; a report says it all the same
    spec = {
        "profileRef": written["profileRef"],
        "mode": header.mode.value,
        "guarantee": header.guarantee.value,
        "beforePlan": header.before_plan.value,
        **{part: written[part] for part in ("kubepods", "units", "kernelSettings") if part in written},
        **({"refused": dict(explanation.refused)} if explanation.refused else {}),
        **({} if explanation.unmet is None else {"unmet": dict(explanation.unmet)}),
        **({} if explanation.extended_resource is None else {"extendedResource": str(explanation.extended_resource)}),
        "pods": {one.row.key: _decision(one) for one in explanation.pods},
    }
    return {"apiVersion": names.API_VERSION, "kind": names.STATE_KIND, "metadata": {"name": node}, "spec": spec}


def _decision(pod: plan.ExplainedPod) -> Json:
    decision = pod.decision
    containers = {one.name: _entry(one.swap_max, one.reason) for one in decision.containers}
    override = {} if pod.override is None else {"override": pod.override}
    return {**_entry(decision.swap_max, decision.reason), **override, "containers": containers}


def _entry(swap_max: str | None, reason: names.Reason) -> Json:
    written = {} if swap_max is None else {"swapMax": swap_max}
    return {**written, "reason": reason.value}


def _printable(value: str) -> str:
    """Return a user's text on one line and without control characters: in quotes unless it is a plain word."""
    return value if value.isprintable() and value.strip() == value != "" else json.dumps(value)


def _rows(node: str, explanation: plan.Explanation) -> Iterator[Iterable[str]]:
    header = explanation.header
    profile = header.profile_ref.name
    governed = f"profile {profile}" if header.mode == names.Mode.ENFORCE else f"profile {profile} ({header.mode})"
    kubepods = (header.kubepods.swap_max if header.kubepods else None) or _NOTHING
    resource = explanation.extended_resource
    of_node = [("all pods", kubepods), *([(names.SWAP_RESOURCE, str(resource))] if resource is not None else [])]
    for what, value in (*of_node, *plan.of_units(header), *header.kernel_settings.items()):
        yield node, f"({what})", _NOTHING, _NOTHING, governed, value
    for setting, why in explanation.refused.items():
        yield node, f"({setting})", _NOTHING, _NOTHING, why, _NOTHING
    for one in explanation.pods:
        row, decision = one.row, one.decision
        policy = _NOTHING if row.policy is None else _printable(row.policy)
        pod = f"{row.namespace}/{row.name}"
        place = "" if one.override is None else f" (overrides[{one.override}])"
        yield node, pod, row.qos, policy, f"{decision.reason}{place}", decision.swap_max or _NOTHING
        for container in decision.containers:
            yield "", f"  {container.name}", "", "", container.reason, container.swap_max or _NOTHING
