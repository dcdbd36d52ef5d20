"""`swapwarden plan --as-kubelet`: the values that a kubelet would write itself, on every node of the input."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from swapwarden.cli import documents, objects
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy.memory import kubelet
from swapwarden.policy.observed import nodes

_KIND: Final = "KubeletConfiguration"
_VERSION: Final = re.compile(r"v?(?P<minor>1\.[0-9]{1,4})(\.[0-9]{1,4})?", re.ASCII)
_COLUMNS: Final = ("NODE", "CGROUP", "QOS", "MEMORY.MIN", "MEMORY.LOW", "MEMORY.HIGH", "MEMORY.SWAP.MAX")
_NOTHING: Final = "-"
_MAX_SHOWN: Final = 64
_FAULTS: Final = {
    kubelet.Fault.NO_KUBEPODS_LOW: "memory.low of Burstable pods has no effect: this kubelet writes none on kubepods",
    kubelet.Fault.HARD_FOR_BURSTABLE: "memory.min of kubepods includes Burstable pods: what they do not use protects"
    " the page cache of others, so that the kernel may OOM-kill instead",
    kubelet.Fault.CONTAINER_MIN: "memory.min of Guaranteed containers is their limit: one that fills it with page"
    " cache is OOM-killed",
}


class Printed(NamedTuple):
    """A text for standard output, with notes for standard error; or a problem in place of both."""

    text: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""


def settings(version: str | None, file: str | None, log: documents.Log) -> kubelet.KubeletSettings | None:
    """Return the settings of the kubelet that the options ask for. None without such options, or with a problem."""
    known = " or ".join(kubelet.Version)
    if version is None:
        if file is not None:
            log.problem(documents.Place("--kubelet-config"), f"needs --as-kubelet with the kubelet's version: {known}")
        return None
    match = _VERSION.fullmatch(version)
    if match is None or match["minor"] not in frozenset[str](kubelet.Version):
        text = f"the values of this version are not known: use {known}"
        log.problem(documents.Place(f"--as-kubelet {version[:_MAX_SHOWN]}"), text)
        return None
    minor = kubelet.Version(match["minor"])
    return kubelet.read(minor, {}) if file is None else _read(minor, file, log)


def _read(version: kubelet.Version, file: str, log: documents.Log) -> kubelet.KubeletSettings | None:
    document = documents.read_one(file, log)
    if document is None:
        return None
    kind = document.object.get("kind", _KIND)
    if kind != _KIND:
        log.problem(document.place.below("kind"), f"expected {_KIND}, got {str(kind)[:_MAX_SHOWN]!r}")
        return None
    try:
        return kubelet.read(version, document.object)
    except kubelet.KubeletConfigError as refused:
        path, reason = refused.args
        log.problem(document.place.below(path), f"kubelet {version} refuses this: {reason}")
        return None


def printed(form: str, config: kubelet.KubeletSettings, inputs: objects.Inputs, only: str | None) -> Printed:
    """Return the values on each node, or on the `only` one, in one of the forms of `swapwarden plan`."""
    if problem := objects.unknown(inputs, only):
        return Printed(problem=problem)
    if not inputs.nodes:
        problem = "--as-kubelet needs a Node in the input: its status.capacity.memory and nodeInfo.swap.capacity count"
        return Printed(problem=problem)
    notes: list[str] = []
    rows = [row for row in objects.pod_rows(inputs) if not row.terminal]
    bound, free = objects.place(inputs, rows, only, notes)
    planned = {}
    for name in sorted(inputs.nodes if only is None else [only]):
        facts = nodes.facts(inputs.nodes[name], inputs.facts.get(name))
        each = [*bound[name], *free[name]]
        faults = (*_missing(config, facts), *(_FAULTS[fault] for fault in kubelet.faults(config, each)))
        notes += (f"node {name}: {text}" for text in faults)
        planned[name] = _floored(kubelet.node_files(config, facts, each, inputs.allocatable.get(name)), facts.page_size)
    if form == "table":
        lines = [_COLUMNS, *(line for name, files in planned.items() for line in _lines(name, files))]
        text = tables.grid(lines)
    else:
        items = [_item(name, files) for name, files in planned.items()]
        text = tables.serialized(form, {"apiVersion": "v1", "kind": "List", "items": items})
    return Printed(text, tuple(notes))


def _missing(config: kubelet.KubeletSettings, facts: nodes.NodeFacts) -> Iterator[str]:
    if not facts.compatible:
        yield "no cgroup v2 with the swap controller: the kubelet writes no memory.swap.max, on cgroup v1 none of these"
    if facts.swap_bytes and config.fail_swap_on:
        yield "failSwapOn is true, so the kubelet does not start while the node has swap: the values are those without"
    if not facts.memory_bytes:
        yield "status.capacity.memory is not known: no memory.high for containers without a limit, and no swap"


def _floored(files: kubelet.NodeFiles, page: int) -> kubelet.NodeFiles:
    return kubelet.NodeFiles(
        files.kubepods.floored(page),
        files.burstable.floored(page),
        tuple(
            kubelet.PodFiles(
                one.row, one.files.floored(page), {name: each.floored(page) for name, each in one.containers.items()}
            )
            for one in files.pods
        ),
    )


def _item(node: str, files: kubelet.NodeFiles) -> dict[str, Any]:
    pods = {
        f"{one.row.namespace}/{one.row.name}": {
            **msgspec.to_builtins(one.files),
            "containers": msgspec.to_builtins(one.containers),
        }
        for one in files.pods
    }
    above = {"kubepods": msgspec.to_builtins(files.kubepods), "burstable": msgspec.to_builtins(files.burstable)}
    return {"node": node, **above, "pods": pods}


def _lines(node: str, files: kubelet.NodeFiles) -> Iterator[tuple[str, ...]]:
    yield node, "(kubepods)", _NOTHING, *_values(files.kubepods)
    yield node, "(burstable)", _NOTHING, *_values(files.burstable)
    for one in files.pods:
        yield node, f"{one.row.namespace}/{one.row.name}", one.row.qos, *_values(one.files)
        for name, each in one.containers.items():
            yield "", f"  {name}", "", *_values(each)


def _values(files: kubelet.MemoryFiles) -> tuple[str, ...]:
    return tuple(each or _NOTHING for each in (files.minimum, files.low, files.high, files.swap_max))
