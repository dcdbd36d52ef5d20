"""`swapwarden plan`: what every pod in a set of files would get, without a cluster."""

from __future__ import annotations

import argparse
import collections
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from swapwarden.api import names
from swapwarden.cli import documents, report
from swapwarden.cli.inputs import objects
from swapwarden.policy import plan
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.profile import compiled, requirements
from swapwarden.policy.swap import overcommit

BAD_INPUT: Final = 2
CANNOT_WRITE: Final = 1

_FORMATS: Final = ("table", "yaml", "json")

_EPILOG: Final = """\
Nodes, Namespaces, Pods, workloads (Deployments, StatefulSets, DaemonSets, ReplicaSets, ReplicationControllers, Jobs,
CronJobs), NodeSwapProfiles and NodeSwapStates count; other kinds are ignored. A node's swap and memory are those in
its status (nodeInfo.swap.capacity and capacity.memory), or those that the agent reported in a NodeSwapState of the same
name.

A pod counts for the node in its spec.nodeName. One that has none yet, and the pod that a workload would make, is
planned on each Node in the input that its nodeSelector allows, or on the one that --node names. With no Node in the
input, it is shown what each behavior of profiles would give it. docs/semantics.md explains the reasons.

Exit status: 0; 2 where the input is bad or there is nothing in it to plan; 1 where the output cannot be written.

  kubectl get nodes,ns,pods,nsp,nss -A -o yaml | swapwarden plan -f -
  swapwarden plan -f deployment.yaml -f profile.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `swapwarden plan`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        required=True,
        metavar="FILE",
        help="YAML or JSON file, directory of such files, or - for standard input; may be repeated",
    )
    parser.add_argument(
        "--node",
        metavar="NAME",
        help="plan only this Node of the input, and on it pods that have no node (default: all Nodes)",
    )
    parser.add_argument(
        "-o", "--output", choices=_FORMATS, default="table", help="what to print (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the plan of every node in the input; the exit status."""
    log = documents.Log()
    found = objects.collect(documents.read(arguments.filename, log), log)
    made = _Plan({}, (), [])
    problems = [str(problem) for problem in log.problems]
    if not problems:
        made, problem = _plan(found, arguments.node)
        problems = [problem] if problem else []
    for note in (*map(str, log.notes), *made.notes):
        print(f"note: {note}", file=sys.stderr)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return BAD_INPUT
    try:
        sys.stdout.write(report.rendered(arguments.output, made.plans, made.unplaced, found.profiles.values()))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, head perhaps, has seen enough. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CANNOT_WRITE
    return 0


class _Plan(NamedTuple):
    """The plans made from the input."""

    plans: dict[str, plan.Explanation]
    """By node."""
    unplaced: Sequence[pods.PodRow]
    """Where there is no node to plan them on."""
    notes: list[str]


def _plan(found: objects.Inputs, only: str | None) -> tuple[_Plan, str]:
    """Plan the input, on one node ONLY if that is named; and the error, if any."""
    notes = [
        f"pod {wire.metadata.namespace}/{wire.metadata.name} {sentence}"
        for wire in found.pods.values()
        if objects.is_not_created(wire)
        for sentence in (
            *(
                f"would be refused at admission: {path}: {reason}"
                for path, reason in objects.admission_errors(found, wire)
            ),
            *objects.warnings(found, wire),
        )
    ]
    if only is not None and only not in found.nodes:
        there = ", ".join(sorted(found.nodes)) or "none"
        return _Plan({}, (), notes), f"--node {only}: no Node of this name in the input, which has: {there}"
    rows = [row for row in objects.pod_rows(found) if not row.terminal]
    if not found.nodes:
        notes += ["no Node in the input: the limit by each behavior is shown"] if rows else []
        why = "" if rows else "nothing to plan: there is no Node, no pod and no workload in the input"
        return _Plan({}, rows, notes), why
    chosen = [only] if only is not None else [*found.nodes]
    bound, free = _placed(found, rows, only, notes)
    plans = {name: _of_node(found, name, bound[name], free[name], notes) for name in chosen}
    counted = sum(len(bound[name]) + len(free[name]) for name in chosen)
    return _Plan(plans, (), notes), f"none of {len(rows)} pods was planned" if rows and not counted else ""


_Placed = dict[str, list[pods.PodRow]]
"""Pods by node."""


def _placed(
    found: objects.Inputs, rows: Iterable[pods.PodRow], only: str | None, notes: list[str]
) -> tuple[_Placed, _Placed]:
    """Return the pods on the nodes, or on the chosen one, and the pods without a node that may be scheduled there."""
    chosen = found.nodes.keys() if only is None else {only}
    bound: _Placed = collections.defaultdict(list)
    free: _Placed = collections.defaultdict(list)
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
        selector = found.admission_view[f"{row.namespace}/{row.name}"].spec.node_selector or {}
        fitting = [name for name in sorted(chosen) if selector.items() <= found.nodes[name].labels.items()]
        if not fitting:
            notes.append(f"{pod}: no Node that it may be planned on has all labels of its spec.nodeSelector")
        for name in fitting:
            free[name].append(row)
    return bound, free


def _of_node(
    found: objects.Inputs, name: str, bound: list[pods.PodRow], free: list[pods.PodRow], notes: list[str]
) -> plan.Explanation:
    """Return the plan of a node, with each pod that is FREE to come as if it alone came."""
    selection = compiled.select(found.profiles.values(), found.nodes[name].labels)
    profile, facts = selection.profile, nodes.facts(found.nodes[name], found.facts.get(name))
    if selection.conflicts:
        ties = ", ".join((profile.name, *selection.conflicts))
        notes.append(f"node {name}: {ties} have the same priority; {profile.name} governs")
    notes += (f"node {name}: {missing}" for missing in _missing(profile, facts))
    absent = {row.namespace for row in (*bound, *free)} - found.namespaces.keys()
    if profile.needs_namespaces():
        notes += (
            f"no Namespace {each!r} in the input: overrides of {profile.name} are applied as if it had no labels"
            for each in sorted(absent)
        )
    known = {**found.namespaces, **{each: namespaces.project(_bare(each)) for each in absent}}
    if overcommit.budget(profile, facts) is None:
        return plan.explain_node(profile, facts, [*bound, *free], known)
    explained = plan.explain_node(profile, facts, bound, known)
    alone = [plan.explain_node(profile, facts, [*bound, row], known).pods for row in free]
    coming = [one for each, row in zip(alone, free, strict=True) for one in each if one.row.key == row.key]
    every = sorted((*explained.pods, *coming), key=lambda one: (one.row.namespace, one.row.name))
    return msgspec.structs.replace(explained, pods=tuple(every))


def _bare(namespace: str) -> namespaces.WireNamespace:
    return namespaces.WireNamespace(namespaces.WireMeta(namespace))


def _missing(profile: compiled.Profile, facts: nodes.NodeFacts) -> Iterator[str]:
    """Yield features that a node lacks, or may lack, although its profile needs them, with the consequence."""
    if profile.behavior in {names.Behavior.LIMITED_SWAP, names.Behavior.WORKLOAD_CONTROLLED} and not facts.swap_bytes:
        yield "no swap: its status.nodeInfo.swap.capacity and its NodeSwapState name none; its pods get 0"
    for requirement, found in (requirements.unmet(profile.require, facts) or {}).items():
        yield f"{profile.name} requires {requirement}, so its pods get 0: {found}"
    if profile.behavior == names.Behavior.LIMITED_SWAP and not facts.memory_bytes:
        yield "status.capacity.memory is not known: LimitedSwap gives 0 to its pods"
