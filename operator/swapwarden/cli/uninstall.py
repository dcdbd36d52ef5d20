"""`swapwarden uninstall`: has all nodes restore earlier values, and removes all objects and labels of an installation.

The chart's hook runs it before the release is removed. Without the chart, run it before `kubectl delete`.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import functools
import re
import sys
import time
import types
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

import swapwarden
from swapwarden.api import decoding, names, runtime_link
from swapwarden.api.conditions import AppliedReason
from swapwarden.cli import profiles, wire
from swapwarden.controller.watches import node_features, restore_request
from swapwarden.controller.writers import fenced, finalizers
from swapwarden.controller.writers import nodes as node_writer
from swapwarden.kube import backoff, client, config, errors, paging
from swapwarden.policy.node import taints
from swapwarden.policy.observed import nodes, states
from swapwarden.policy.observed.new_pods import WirePodMeta
from swapwarden.policy.observed.pods import WirePod, WirePodSpec, WirePodStatus

T = TypeVar("T")

NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"
LABELS: Final = names.NODE_LABELS
POLL_SECONDS: Final = 1.0
REQUEST_SECONDS: Final = 30.0
PLUGINS_SECONDS: Final = 60.0
"""How long to wait for the end of the pods beside the container runtimes; on a node that is down they never end."""
PARALLEL: Final = 16
ROUNDS: Final = 6
ENDED: Final = frozenset({"Succeeded", "Failed"})
ALL_RESTORED: Final = "all agents have restored the earlier values"
NOT_ORDERED: Final = "no controller has ordered it"
WITHDRAWN: Final = "the order to restore was withdrawn meanwhile"
KEEPS_MARKS: Final = "keeps labels, taints or an extended resource of ours"
MOST_NAMED: Final = 50
"""Pods that a line names."""
KEEPS_FINALIZER: Final = f"keeps the finalizer {names.PROFILE_FINALIZER}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `swapwarden uninstall`."""
    parser.add_argument("--namespace", default="swapwarden-system", help="where Swapwarden is (default: %(default)s)")
    parser.add_argument("--owner", default="", help="also delete this release's profiles (default: keep all profiles)")
    parser.add_argument(
        "--remove-startup-taint", action="store_true", help=f"also remove {names.STARTUP_TAINT} from all nodes"
    )
    parser.add_argument(
        "--nri-daemonset",
        default="",
        metavar="NAME",
        help="also delete this DaemonSet, of the processes beside the container runtimes, and wait for their end",
    )
    parser.add_argument("--node-features", action="store_true", help="also delete the NodeFeatures that ask for labels")
    profiles.add_connection(parser, patience=120.0, patience_help="how long to wait for the agents (default: 120)")


def run(arguments: argparse.Namespace) -> int:
    """Return the exit status. It is 0 also if nodes have not answered: they are listed, and the removal continues."""
    try:
        cfg = config.load(arguments.kubeconfig)
        return asyncio.run(_run(cfg, arguments))
    except (errors.KubeError, msgspec.DecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


async def _run(cfg: config.Config, arguments: argparse.Namespace) -> int:
    async with client.Client(cfg, user_agent=f"swapwarden-uninstall/{swapwarden.__version__}") as api:
        order = f"/api/v1/namespaces/{arguments.namespace}/configmaps/{restore_request.CONFIG_MAP}"
        body = msgspec.json.encode({"data": {restore_request.KEY: restore_request.YES}})
        try:
            await _tried(lambda: api.merge_patch(order, body))
        except errors.ApiError as error:
            if error.status == 404:
                print(f"error: {error}: --namespace must name the namespace of Swapwarden", file=sys.stderr)
                return 1
            raise
        silent = await _wait(api, order, arguments.timeout)
        if silent is None:
            print(f"error: {WITHDRAWN}, so nothing is removed", file=sys.stderr)
            return 1
        if arguments.nri_daemonset:
            # Before the agents end, which then take away the mode that they left for it: without that it would enforce.
            daemons = f"/apis/apps/v1/namespaces/{arguments.namespace}/daemonsets/{arguments.nri_daemonset}"
            if await remove_plugins(api, daemons):
                await asyncio.sleep(runtime_link.GONE_SECONDS + POLL_SECONDS)
        unended = [each for each in await read_all(api, PODS, WirePod, keep=_lean) if each.status.phase not in ENDED]
        pods = [each for each in unended if each.spec.node_name]
        for line in (*report(silent, pods), *requiring(unended)):
            print(line)
        held = labels_in_use(pods)
        if arguments.node_features:
            # First: as long as they exist, labels that are removed from nodes are added again.
            await release_features(api, node_features.collection(arguments.namespace), held)
        await release_nodes(api, held, untaint=arguments.remove_startup_taint)
        await release_profiles(api)
        await _remove_objects(api, arguments.owner)
    return 0


async def _wait(api: client.Client, order: str, seconds: float) -> list[states.StateRow] | None:
    """Wait until all agents have restored earlier values; return the states of those that have not within SECONDS.

    None if the ORDER (the path of its ConfigMap) was withdrawn.
    """

    async def read() -> list[states.StateRow] | None:
        if not await _stands(api, order):
            return None
        known = await read_all(api, names.STATES_PATH, states.WireState)
        return [row for row in map(states.project, known) if not has_restored(row)]

    deadline = time.monotonic() + seconds
    while True:
        silent = await profiles.persist(read, deadline)
        if not silent or time.monotonic() > deadline:
            return silent
        await asyncio.sleep(POLL_SECONDS)


async def _stands(api: client.Client, order: str) -> bool:
    """Whether the order to restore still stands. A deleted ConfigMap does not withdraw it."""
    try:
        return restore_request.is_order(await api.get(order, timeout=REQUEST_SECONDS))
    except errors.ApiError as error:
        if error.status == 404:
            return True
        raise


async def remove_plugins(api: client.Client, path: str, seconds: float = PLUGINS_SECONDS) -> bool:
    """Delete the DaemonSet at PATH, and wait until its pods have ended; say so if they have not within SECONDS.

    Return whether they have ended in this time.
    """
    waits, deadline = backoff.Backoff(*profiles.BACKOFF_SECONDS), time.monotonic() + seconds
    body = msgspec.json.encode({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"})
    why = "pods of it have not ended"
    is_deleted = False
    while True:
        try:
            if is_deleted:
                await api.get(path, timeout=REQUEST_SECONDS)
            else:
                await api.delete(path, body, timeout=REQUEST_SECONDS)
                is_deleted = True
        except errors.ApiError as error:
            if error.status == 404:
                return is_deleted
            why = str(error)
        except errors.KubeError as error:
            why = str(error)
        if time.monotonic() > deadline:
            print(f"{path} is still there: {why}")
            return False
        await asyncio.sleep(POLL_SECONDS if is_deleted else waits.next())


def has_restored(row: states.StateRow) -> bool:
    """Return whether a node's agent reports that it has restored earlier values, or none ever ran.

    The leading controller has not reached a state in another mode yet: it would recreate the state and the labels.
    """
    if not _is_ordered(row):
        return False
    if not row.observed:
        return True
    is_done = row.applied or row.unapplied.startswith(AppliedReason.INCOMPATIBLE)
    return is_done and row.observed >= row.generation


def _is_ordered(row: states.StateRow) -> bool:
    return states.spec_view(row).mode == names.Mode.RESTORE


def _lean(pod: WirePod) -> WirePod:
    """Return the fields of a pod that the following functions read: a cluster may have 150,000 pods."""
    meta, spec, key = pod.metadata, pod.spec, runtime_link.REQUIRED_ANNOTATION
    plugins = {key: meta.annotations[key]} if key in meta.annotations else {}
    return WirePod(
        WirePodMeta(name=meta.name, namespace=meta.namespace, annotations=plugins),
        WirePodSpec(node_name=spec.node_name, node_selector=spec.node_selector, affinity=spec.affinity),
        WirePodStatus(phase=pod.status.phase),
    )


def report(silent: Iterable[states.StateRow], pods: Iterable[WirePod]) -> Iterator[str]:
    """Yield lines with the nodes that have not answered, and the number of PODS that keep their limits there."""
    running = collections.Counter(each.spec.node_name for each in pods)
    left = sorted(silent, key=lambda each: each.name)
    if not left:
        yield ALL_RESTORED
        return
    yield f"nodes that have not answered ({len(left)}); cgroups of their pods keep their values until the pods end:"
    for each in left:
        ordered = "" if _is_ordered(each) else f"; {NOT_ORDERED}"
        yield f"  {each.name}: up to {running[each.name]} pods{ordered}"


def requiring(pods: Iterable[WirePod]) -> Iterator[str]:
    """Yield lines with the pods that require the process beside the runtime, if there are any.

    The runtime reads a pod's annotations once, when it makes the sandbox: only a new pod is without them.
    """
    named = re.compile(rf"(?<![\w.-]){re.escape(runtime_link.PLUGIN)}(?![\w.-])")
    requirers = sorted(
        f"{each.metadata.namespace}/{each.metadata.name}"
        for each in pods
        if named.search(each.annotations.get(runtime_link.REQUIRED_ANNOTATION, ""))
    )
    if not requirers:
        return
    yield f"pods that require the process beside the runtime, which is removed ({len(requirers)}):"
    more = f" and {len(requirers) - MOST_NAMED} more" if len(requirers) > MOST_NAMED else ""
    yield f"  {', '.join(requirers[:MOST_NAMED])}{more}"
    yield (
        "  Where the runtime's validator is on, their containers do not start again (CreateContainerError). Delete"
        " these pods once Swapwarden is removed: new ones do not have the annotation (docs/nri.md)."
    )


async def release_features(api: client.Client, path: str, held: dict[tuple[str, str], set[str]]) -> None:
    """Delete all NodeFeatures of ours below PATH, or reduce them to HELD labels; list failures."""

    def gone(row: node_features.FeatureRow) -> set[str]:
        return {key for key in row.labels if (row.name.removeprefix(node_features.object_name("")), key) not in held}

    async def ours() -> list[node_features.FeatureRow]:
        listed = await read_all(api, path, node_features.WireFeature, node_features.SELECTOR)
        return [row for row in map(node_features.project, listed) if gone(row) or not row.labels]

    async def release(row: node_features.FeatureRow) -> None:
        if gone(row) == row.labels.keys():
            await profiles.delete(api, f"{path}/{row.name}")
        else:
            body = {"metadata": {"uid": row.uid}, "spec": {"labels": dict.fromkeys(gone(row))}}
            await api.merge_patch(f"{path}/{row.name}", msgspec.json.encode(body))

    for row, error in await retry_rounds(ours, release):
        print(f"{path}/{row.name} is still there: {error}")


class _NodeRelease(NamedTuple):
    """Labels and taints to remove from one node."""

    row: nodes.NodeRow
    labels: Sequence[str]
    taints: Sequence[str]


async def release_nodes(api: client.Client, held: dict[tuple[str, str], set[str]], *, untaint: bool) -> None:
    """Remove labels, taints and the extended resource from all nodes; list failures.

    It works in rounds, since others change nodes at the same time. A deleted node is not in the next round.
    """
    for (node, key), pods in sorted(held.items()):
        print(f"node {node} keeps the label {key}, which running pods select (a restarting kubelet fails them):")
        print(f"  {', '.join(sorted(pods))}")

    writes = fenced.Writes(api)
    keys = [names.SWAP_TAINT, names.PRESSURE_TAINT, *([names.STARTUP_TAINT] if untaint else [])]

    async def marked() -> list[_NodeRelease]:
        releases = []
        for row in map(nodes.project, await read_all(api, NODES, nodes.WireNode)):
            ours = [key for key in LABELS if key in row.labels and key not in row.nfd and (row.name, key) not in held]
            tainted = [key for key in keys if row.place(key) is not None]
            if ours or tainted or row.swap_resource is not None:
                releases.append(_NodeRelease(row, ours, tainted))
        return releases

    async def release(each: _NodeRelease) -> None:
        # One at a time, since each removal moves the others. The next round finds the rest.
        patch = taints.remove(each.row, each.taints[0]) if each.taints else None
        if patch:
            await node_writer.change_taints(writes, each.row.name, patch)
        if each.labels:
            await node_writer.change_labels(writes, each.row.name, each.row.uid, dict.fromkeys(each.labels))
        if each.row.swap_resource is not None:
            await node_writer.offer(writes, each.row.name, each.row.uid, None)

    for each, error in await retry_rounds(marked, release):
        print(f"node {each.row.name} {KEEPS_MARKS}: {error}")


def labels_in_use(pods: Iterable[WirePod]) -> dict[tuple[str, str], set[str]]:
    """Return the pods (namespace/name) that select their node by one of our labels, by node and label."""
    held: dict[tuple[str, str], set[str]] = {}
    for pod in pods:
        keys = {one.key for term in pod.required_terms for one in term.match_expressions or ()}
        for key in {*(pod.spec.node_selector or ()), *keys} & {*LABELS}:
            held.setdefault((pod.spec.node_name, key), set()).add(f"{pod.metadata.namespace}/{pod.metadata.name}")
    return held


async def release_profiles(api: client.Client) -> None:
    """Remove our finalizer from all profiles, also from those of users; list failures.

    Without a controller, nobody else removes it, and neither the profiles nor their definition could be deleted.
    """
    writes = fenced.Writes(api)

    async def ours() -> list[finalizers.ProfileMetadata]:
        listed = [each.metadata for each in await read_all(api, names.PROFILES_PATH, finalizers.Finalized)]
        return [each for each in listed if names.PROFILE_FINALIZER in each.finalizers]

    for each, error in await retry_rounds(ours, functools.partial(finalizers.release, writes)):
        print(f"profile {each.name} {KEEPS_FINALIZER}: {error}")


async def _remove_objects(api: client.Client, owner: str) -> None:
    """Delete all states, and the profiles of OWNER if one is given; list failures."""

    async def owned() -> list[str]:
        listed = await read_all(api, names.PROFILES_PATH, wire.Named) if owner else []
        ours = [each.metadata for each in listed if profiles.is_owned(each.metadata.labels, owner)]
        return [f"{names.PROFILES_PATH}/{each.name}" for each in ours]

    async def states() -> list[str]:
        return [
            f"{names.STATES_PATH}/{each.metadata.name}" for each in await read_all(api, names.STATES_PATH, wire.Named)
        ]

    for left in (owned, states):
        for path, error in await retry_rounds(left, functools.partial(profiles.delete, api)):
            print(f"{path} is still there: {error}")


async def retry_rounds(
    left: Callable[[], Awaitable[list[T]]], do: Callable[[T], Awaitable[object]]
) -> list[tuple[T, str]]:
    """Call `do` with each item that `left` returns until it is empty; after ROUNDS, return the rest with reasons."""
    waits = backoff.Backoff(*profiles.BACKOFF_SECONDS)
    failed: dict[int, str] = {}
    # Not left to the client: the time in which a request waits for its turn there counts as its own.
    free = asyncio.Semaphore(PARALLEL)

    async def one(number: int, each: T) -> None:
        async with free:
            try:
                await do(each)
            except errors.KubeError as error:
                failed[number] = str(error)

    for _ in range(ROUNDS):
        items = await left()
        if not items:
            return []
        if failed:
            await asyncio.sleep(waits.next())
        failed = {}
        await asyncio.gather(*(one(number, each) for number, each in enumerate(items)))
    return [(each, failed.get(number, "it comes back")) for number, each in enumerate(await left())]


async def read_all(
    api: client.Client,
    path: str,
    kind: type[T],
    selector: Mapping[str, str] = types.MappingProxyType({}),
    *,
    keep: Callable[[T], T] = lambda one: one,
) -> list[T]:
    """Return all objects of a collection, read in pages; none if the API server does not know the kind.

    Invalid ones are left out, with a line on standard error. `keep` returns the part of an object to hold in memory.
    """
    objects: list[T] = []
    decoder = decoding.Decoder(kind)

    async def get(path: str, /, *, params: Mapping[str, str], accept: str) -> bytes:
        return await _tried(lambda: api.get(path, params=params, accept=accept, timeout=REQUEST_SECONDS))

    def take(body: bytes) -> decoding.ListMetadata:
        page = decoding.page(body)
        for item in page.items or ():
            try:
                objects.append(keep(decoder.decode(item)))
            except msgspec.DecodeError as error:
                _left_out(path, decoding.identity(item), str(error))
        return page.metadata

    try:
        await paging.read(get, path, take, selector)
    except errors.ApiError as error:
        if error.status != 404:
            raise
    return objects


@functools.cache
def _left_out(path: str, one: decoding.Identity, why: str) -> None:
    """Print a line for an object, once: each round lists it again."""
    name = decoding.shown(f"{one.namespace}/{one.name}" if one.namespace else one.name)
    print(f"{path.rpartition('/')[2]} {name} is left out: invalid: {why}", file=sys.stderr)


async def _tried(request: Callable[[], Awaitable[bytes]]) -> bytes:
    """Await a repeatable request, with some retries: the API server may be busy, or rights be new."""
    waits = backoff.Backoff(*profiles.BACKOFF_SECONDS)
    for _ in range(5):
        try:
            return await request()
        except errors.TooLarge:
            raise
        except errors.Unreachable:
            pass
        except errors.ApiError as error:
            if (error.status not in {403, 409, 429} and error.status < 500) or paging.is_too_deep(error):
                raise
        await asyncio.sleep(waits.next())
    return await request()
