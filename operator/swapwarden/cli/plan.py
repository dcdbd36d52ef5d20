"""`swapwarden plan`: what every pod in a set of files would get, without a cluster."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from swapwarden.api import names, state
from swapwarden.cli import as_kubelet, behaviors, documents, objects
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy import plan
from swapwarden.policy.memory import qos
from swapwarden.policy.node import observations
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits, requirements

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
  swapwarden plan --as-kubelet=1.37 --kubelet-config=config.yaml -f cluster.yaml
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
    parser.add_argument(
        "--as-kubelet",
        metavar="VERSION",
        help="print the values that a kubelet of this minor version would write itself, in place of the plan: "
        "1.36 or 1.37",
    )
    parser.add_argument(
        "--kubelet-config",
        metavar="FILE",
        help="with --as-kubelet, its KubeletConfiguration (default: that version's defaults)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the plan of every node in the input; the exit status."""
    log = documents.Log()
    inputs = objects.collect(documents.read(arguments.filename, log), log)
    kubelet = as_kubelet.settings(arguments.as_kubelet, arguments.kubelet_config, log)
    printed = as_kubelet.Printed()
    if not log.problems:
        if kubelet is None:
            printed = _printed(arguments.output, inputs, arguments.node)
        else:
            printed = as_kubelet.printed(arguments.output, kubelet, inputs, arguments.node)
    problems = [*map(str, log.problems), *([printed.problem] if printed.problem else [])]
    for note in (*map(str, log.notes), *printed.notes):
        print(f"note: {note}", file=sys.stderr)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return BAD_INPUT
    try:
        sys.stdout.write(printed.text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, head perhaps, has seen enough. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CANNOT_WRITE
    return 0


def _printed(form: str, inputs: objects.Inputs, only: str | None) -> as_kubelet.Printed:
    made, problem = _plan(inputs, only)
    text = "" if problem else rendered(form, made.plans, made.unplaced, inputs.profiles.values())
    return as_kubelet.Printed(text, tuple(made.notes), problem)


class _Plan(NamedTuple):
    """The plans made from the input."""

    plans: dict[str, plan.Explanation]
    """The plan of each node."""
    unplaced: Sequence[pods.PodRow]
    """Pods without a node to plan them on."""
    notes: list[str]


def _plan(inputs: objects.Inputs, only: str | None) -> tuple[_Plan, str]:
    """Plan the input, on one node ONLY if that is named; and the error, if any."""
    notes: list[str] = []
    for wire in filter(objects.is_not_created, inputs.pods.values()):
        refusals, warnings = objects.admission_of(inputs, wire)
        pod = f"pod {wire.metadata.namespace}/{wire.metadata.name}"
        notes += (f"{pod} would be refused at admission: {path}: {reason}" for path, reason in refusals)
        notes += (f"{pod} {warning}" for warning in warnings)
    if unknown := objects.unknown(inputs, only):
        return _Plan({}, (), notes), unknown
    rows = [row for row in objects.pod_rows(inputs) if not row.terminal]
    if not inputs.nodes:
        notes += ["no Node in the input: the limit by each behavior is shown"] if rows else []
        why = "" if rows else "nothing to plan: there is no Node, no pod and no workload in the input"
        return _Plan({}, rows, notes), why
    chosen = [only] if only is not None else [*inputs.nodes]
    bound, free = objects.place(inputs, rows, only, notes)
    plans = {name: _of_node(inputs, name, bound[name], free[name], notes) for name in chosen}
    notes += (f"node {name}: {observations.OVERCOMMITTED}" for name in chosen if plans[name].protection.overcommitted)
    counted = sum(len(bound[name]) + len(free[name]) for name in chosen)
    return _Plan(plans, (), notes), f"none of {len(rows)} pods was planned" if rows and not counted else ""


def _of_node(
    inputs: objects.Inputs, name: str, bound: list[pods.PodRow], free: list[pods.PodRow], notes: list[str]
) -> plan.Explanation:
    """Return the plan of a node, with each pod that is FREE to come as if it alone came."""
    selection = compiled.select(inputs.profiles.values(), inputs.nodes[name].labels)
    profile, facts = selection.profile, nodes.facts(inputs.nodes[name], inputs.facts.get(name))
    if selection.conflicts:
        ties = ", ".join((profile.name, *selection.conflicts))
        notes.append(f"node {name}: {ties} have the same priority; {profile.name} governs")
    notes += (f"node {name}: {missing}" for missing in _missing(profile, facts))
    absent = {row.namespace for row in (*bound, *free)} - inputs.namespaces.keys()
    if profile.needs_namespaces():
        notes += (
            f"no Namespace {each!r} in the input: overrides of {profile.name} are applied as if it had no labels"
            for each in sorted(absent)
        )
    bare = (namespaces.WireNamespace(namespaces.WireMeta(each)) for each in absent)
    known = {**inputs.namespaces, **{each.metadata.name: namespaces.project(each) for each in bare}}
    if limits.overcommit_budget(profile.swap, facts) is None:
        return plan.explain_node(profile, facts, [*bound, *free], known)
    explained = plan.explain_node(profile, facts, bound, known)
    alone = [plan.explain_node(profile, facts, [*bound, row], known).pods for row in free]
    coming = [one for each, row in zip(alone, free, strict=True) for one in each if one.row.key == row.key]
    every = sorted((*explained.pods, *coming), key=lambda one: (one.row.namespace, one.row.name))
    return msgspec.structs.replace(explained, pods=tuple(every))


def _missing(profile: compiled.Profile, facts: nodes.NodeFacts) -> Iterator[str]:
    """Yield features that a node lacks, or may lack, although its profile needs them, with the consequence."""
    behavior = profile.swap.behavior
    if behavior in {names.Behavior.LIMITED_SWAP, names.Behavior.WORKLOAD_CONTROLLED} and not facts.swap_bytes:
        yield "no swap: its status.nodeInfo.swap.capacity and its NodeSwapState name none; its pods get 0"
    for requirement, why in (requirements.unmet(profile.swap.require, facts) or {}).items():
        yield f"{profile.name} requires {requirement}, so its pods get 0: {why}"
    if behavior == names.Behavior.LIMITED_SWAP and not facts.memory_bytes:
        yield "status.capacity.memory is not known: LimitedSwap gives 0 to its pods"


# Printing

Plans = Mapping[str, plan.Explanation]
"""The plan of each node."""

Unplaced = Sequence[pods.PodRow]
"""Pods without a node if the input has none: they are shown by behavior."""

_COLUMNS = ("NODE", "POD", "QOS", "POLICY", "REASON", "SWAP.MAX")
_MEMORY_COLUMNS = ("MEMORY.MIN", "MEMORY.LOW", "PROTECTION", "MEMORY.HIGH", "THROTTLING")
"""Only where a pod has memory QoS."""
_RECLAIM_COLUMNS = ("RECLAIM",)
"""Only where a profile offers reclaim, or a pod asks for it."""
_BY_BEHAVIOR = ("POD", "QOS", "POLICY", "BEHAVIOR", "SWAP")
_NOTHING = "-"
_KUBELETS = "kubelet's"
"""The kubelet and systemd decide."""


def rendered(form: str, plans: Plans, unplaced: Unplaced, known: Iterable[compiled.Profile]) -> str:
    """Return a List of NodeSwapStates as JSON or YAML (reports, with all containers and reasons, not objects to apply).

    Or a table with one line for each node, pod and container; behind each behavior stand the KNOWN profiles that have
    it.
    """
    unplaced = sorted(unplaced, key=lambda row: (row.namespace, row.name))
    if form in {"json", "yaml"}:
        items = [_state(node, plans[node]) for node in sorted(plans)]
        by_behavior = {"byBehavior": [_unplaced(row) for row in unplaced]} if unplaced else {}
        return tables.serialized(form, {"apiVersion": "v1", "kind": "List", "items": items, **by_behavior})
    shown = []
    if plans or not unplaced:
        shown.append(_planned(plans))
    if unplaced:
        of = {each: sorted(one.name for one in known if one.swap.behavior is each) for each in names.Behavior}
        shown.append([_BY_BEHAVIOR, *(line for row in unplaced for line in _by_behavior(row, of))])
    return "\n".join(map(tables.grid, shown))


def _planned(plans: Plans) -> list[Iterable[str]]:
    """Return the lines of the table of nodes, with the columns of memory QoS and of reclaim if any pod has it."""
    pods = [one for explanation in plans.values() for one in explanation.pods]
    memory = any(one.memory is not None for one in pods)
    reclaim = any(one.reclaim is not None for one in pods)
    every = (
        _Line(_COLUMNS, _MEMORY_COLUMNS, _RECLAIM_COLUMNS),
        *(line for node in sorted(plans) for line in _rows(node, plans[node])),
    )
    return [(*line.row, *(line.memory if memory else ()), *(line.reclaim if reclaim else ())) for line in every]


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


def _unplaced(row: pods.PodRow) -> documents.Json:
    reason = behaviors.refused(row)
    stated = {} if row.policy is None else {"policy": row.policy}
    known = {"namespace": row.namespace, "name": row.name, "qos": row.qos.value, **stated}
    if reason:
        return {**known, "swapMax": "0", "reason": reason.value}
    return {**known, "behaviors": msgspec.to_builtins([*behaviors.each(row)])}


def _state(node: str, explanation: plan.Explanation) -> documents.Json:
    header = explanation.header
    written = msgspec.to_builtins(header)  # without what holds its default; a report says it all the same
    spec = {
        "profileRef": written["profileRef"],
        "mode": header.mode.value,
        "guarantee": header.guarantee.value,
        "beforePlan": header.before_plan.value,
        **{part: written[part] for part in ("kubepods", "burstable", "units", "kernelSettings") if part in written},
        **({"refused": dict(explanation.refused)} if explanation.refused else {}),
        **({} if explanation.unmet is None else {"unmet": dict(explanation.unmet)}),
        **({} if explanation.extended_resource is None else {"extendedResource": str(explanation.extended_resource)}),
        "pods": {one.row.key: _decision(one) for one in explanation.pods},
    }
    return {"apiVersion": names.API_VERSION, "kind": names.STATE_KIND, "metadata": {"name": node}, "spec": spec}


def _decision(pod: plan.ExplainedPod) -> documents.Json:
    override = {} if pod.override is None else {"override": pod.override}
    containers = {one.name: {**_entry(one), **_memory(own)} for one, own in _containers(pod)}
    return {**_entry(pod.decision), **_memory(pod.memory), **_reclaim(pod), **override, "containers": containers}


def _containers(pod: plan.ExplainedPod) -> Iterator[tuple[limits.ContainerDecision, qos.ContainerMemory | None]]:
    """Return the decisions on each container: swap, and memory QoS."""
    swap = pod.decision.containers
    memory: Iterable[qos.ContainerMemory | None] = [None] * len(swap) if pod.memory is None else pod.memory.containers
    return zip(swap, memory, strict=True)


def _reclaim(pod: plan.ExplainedPod) -> documents.Json:
    """Return when idle memory is moved to swap, with the reason; nothing where the profile offers none."""
    if pod.reclaim is None:
        return {}
    return {"reclaim": pod.reclaim.mode.value, "reclaimReason": pod.reclaim.reason.value}


def _memory(memory: qos.PodMemory | qos.ContainerMemory | None) -> documents.Json:
    """Return memory.min, low and high as a NodeSwapState has them, with the reasons, also of absent ones."""
    if memory is None:
        return {}
    amounts = {
        "memoryMin": memory.minimum if isinstance(memory, qos.PodMemory) else None,
        "memoryLow": memory.low,
        "memoryHigh": memory.high,
    }
    reasons = {"protectionReason": memory.protection.value, "throttlingReason": memory.throttling.value}
    return {**{name: str(amount) for name, amount in amounts.items() if amount is not None}, **reasons}


def _entry(decision: limits.PodDecision | limits.ContainerDecision) -> documents.Json:
    """Return a limit as a NodeSwapState has it."""
    named = zip(("swapMax", "swapAtMost"), limits.as_settings(decision), strict=True)
    return {**{name: limit for name, limit in named if limit is not None}, "reason": decision.reason.value}


def _limit(decision: limits.PodDecision | limits.ContainerDecision) -> str:
    swap_max, at_most = limits.as_settings(decision)
    if at_most is not None:
        return f"at most {at_most}"
    return _KUBELETS if decision.cap and swap_max is None else swap_max or _NOTHING


def _printable(value: str) -> str:
    """Return a user's text on one line and without control characters: in quotes unless it is a plain word."""
    return value if value.isprintable() and value.strip() == value != "" else json.dumps(value)


_BLANK: Final = ("", "", "", "", "")


class _Line(NamedTuple):
    """The cells of a line, and those about memory QoS and reclaim."""

    row: Iterable[str]
    memory: Iterable[str] = _BLANK
    reclaim: Iterable[str] = ("",)


def _rows(node: str, explanation: plan.Explanation) -> Iterator[_Line]:
    header = explanation.header
    profile = header.profile_ref.name
    governed = f"profile {profile}" if header.mode == names.Mode.ENFORCE else f"profile {profile} ({header.mode})"
    kubepods = header.kubepods or state.CgroupSettings()
    head = (node, "(all pods)", _NOTHING, _NOTHING, governed, kubepods.swap_max or _NOTHING)
    yield _Line(head, _cells(kubepods.memory_min, kubepods.memory_low))
    if header.burstable is not None:
        line = (node, "(Burstable pods)", _NOTHING, _NOTHING, governed, _NOTHING)
        yield _Line(line, _cells(None, header.burstable.memory_low))
    resource = explanation.extended_resource
    of_node = [(names.SWAP_RESOURCE, str(resource))] if resource is not None else []
    for what, value in (*of_node, *plan.of_units(header), *header.kernel_settings.items()):
        yield _Line((node, f"({what})", _NOTHING, _NOTHING, governed, value))
    for setting, why in explanation.refused.items():
        yield _Line((node, f"({setting})", _NOTHING, _NOTHING, why, _NOTHING))
    for one in explanation.pods:
        yield from _pod_rows(node, one)


def _pod_rows(node: str, one: plan.ExplainedPod) -> Iterator[_Line]:
    row, decision, memory = one.row, one.decision, one.memory
    policy = _NOTHING if row.policy is None else _printable(row.policy)
    place = "" if one.override is None else f" (overrides[{one.override}])"
    line = (node, f"{row.namespace}/{row.name}", row.qos, policy, f"{decision.reason}{place}", _limit(decision))
    cells = _BLANK if memory is None else _cells(memory.minimum, memory.low, memory, memory.high)
    reclaim = _NOTHING if one.reclaim is None else f"{one.reclaim.mode} ({one.reclaim.reason})"
    yield _Line(line, cells, (reclaim,))
    for container, own in _containers(one):
        cells = _BLANK if own is None else _cells(None, own.low, own, own.high)
        yield _Line(("", f"  {container.name}", "", "", container.reason, _limit(container)), cells)


def _cells(
    minimum: int | str | None,
    low: int | str | None,
    why: qos.PodMemory | qos.ContainerMemory | None = None,
    high: int | None = None,
) -> tuple[str, ...]:
    protection, throttling = (_NOTHING, _NOTHING) if why is None else (why.protection, why.throttling)
    values = (_NOTHING if value is None else str(value) for value in (minimum, low, high))
    shown_min, shown_low, shown_high = values
    return shown_min, shown_low, protection, shown_high, throttling
