"""`swapwarden plan`: what every pod in a set of files would get, without a cluster."""

from __future__ import annotations

import argparse
import collections
import os
import sys
from collections.abc import Iterator
from typing import Final

from swapwarden.api import names
from swapwarden.cli import documents, inputs, report
from swapwarden.policy import namespaces, nodes, plan, pods, profiles, requirements

BAD_INPUT: Final = 2
CANNOT_WRITE: Final = 1

_FORMATS: Final = {"table": report.to_table, "yaml": report.to_yaml, "json": report.to_json}

_EPILOG: Final = """\
Nodes, Namespaces, Pods, NodeSwapProfiles and NodeSwapStates count; other kinds are passed over. A pod counts for the
node in its spec.nodeName. A node's swap and memory are those in its status (nodeInfo.swap.capacity and
capacity.memory), or those that the agent reported in a NodeSwapState of the same name. docs/semantics.md explains the
reasons. Exit status: 0; 2 where the input is bad; 1 where the output cannot be written.

  kubectl get nodes,ns,pods,nsp,nss -A -o yaml | swapwarden plan -f -
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
        "-o", "--output", choices=list(_FORMATS), default="table", help="what to print (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the plan of every node in the input; the exit status."""
    log = documents.Log()
    found = inputs.collect(documents.read(arguments.filename, log), log)
    notes = [str(note) for note in log.notes]
    plans: dict[str, plan.Explanation] = {}
    if not log.problems:
        plans, more = _plan(found)
        notes += more
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    for problem in log.problems:
        print(f"error: {problem}", file=sys.stderr)
    if log.problems:
        return BAD_INPUT
    try:
        sys.stdout.write(_FORMATS[arguments.output](plans))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, head perhaps, has seen enough. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CANNOT_WRITE
    return 0


def _plan(found: inputs.Inputs) -> tuple[dict[str, plan.Explanation], list[str]]:
    """Plans by node, and what is worth knowing about them."""
    notes = [] if found.nodes else ["no Node in the input: nothing to plan"]
    notes += [
        f"pod {wire.metadata.namespace}/{wire.metadata.name} would be refused at admission: {path}: {reason}"
        for wire in found.pods.values()
        if inputs.is_awaited(wire)
        for path, reason in inputs.refusals(found, wire)
    ]
    by_node: dict[str, list[pods.PodRow]] = collections.defaultdict(list)
    for row in inputs.pod_rows(found):
        pod = f"pod {row.namespace}/{row.name} is left out"
        if not row.node:
            notes.append(f"{pod}: spec.nodeName says of no node that the pod is on it")
        elif row.node not in found.nodes:
            notes.append(f"{pod}: no Node {row.node!r} (its spec.nodeName) in the input")
        else:
            by_node[row.node].append(row)
    plans = {}
    for name, node in found.nodes.items():
        selection = profiles.select(found.profiles.values(), node.labels)
        facts = nodes.facts(node, found.facts.get(name))
        if selection.conflicts:
            ties = ", ".join((selection.profile.name, *selection.conflicts))
            notes.append(f"node {name}: {ties} have the same priority; {selection.profile.name} governs")
        notes += (f"node {name}: {missing}" for missing in _missing(selection.profile, facts))
        absent = {row.namespace for row in by_node[name]} - found.namespaces.keys()
        if selection.profile.needs_namespaces():
            notes += (
                f"no Namespace {each!r} in the input: overrides of {selection.profile.name} are applied as if it had no"
                " labels"
                for each in sorted(absent)
            )
        known = {**found.namespaces, **{each: namespaces.project(_bare(each)) for each in absent}}
        plans[name] = plan.explain_node(selection.profile, facts, by_node[name], known)
    return plans, notes


def _bare(namespace: str) -> namespaces.WireNamespace:
    return namespaces.WireNamespace(namespaces.WireMeta(namespace))


def _missing(profile: profiles.Profile, facts: nodes.NodeFacts) -> Iterator[str]:
    """What a node does not have, or is not known to have, although its profile needs it, and what comes of it."""
    if profile.behavior in {names.Behavior.LIMITED_SWAP, names.Behavior.WORKLOAD_CONTROLLED} and not facts.swap_bytes:
        yield "no swap: its status.nodeInfo.swap.capacity and its NodeSwapState name none; its pods get 0"
    for requirement, found in (requirements.unmet(profile, facts) or {}).items():
        yield f"{profile.name} requires {requirement}, so its pods get 0: {found}"
    if profile.behavior == names.Behavior.LIMITED_SWAP and not facts.memory_bytes:
        yield "status.capacity.memory is not known: LimitedSwap gives 0 to its pods"
