"""`swapwarden uninstall`: has every node put back what was there, and takes away what an installation left in the API.

The chart's hook runs it before the release is removed. Without the chart, run it before `kubectl delete`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

import msgspec

import swapwarden
from swapwarden.api import names, state
from swapwarden.cli import hooks, profiles
from swapwarden.controller import reconciler, restoring
from swapwarden.kube import backoff, client, config
from swapwarden.policy import nodes

T = TypeVar("T")

STATES: Final = f"/apis/{names.API_VERSION}/{names.STATE_PLURAL}"
NODES: Final = "/api/v1/nodes"
LABELS: Final = (names.NFD_SWAP_LABEL, names.SWAP_LABEL)
BACKOFF_SECONDS: Final = (0.5, 5.0)
POLL_SECONDS: Final = 1.0
REQUEST_SECONDS: Final = 30.0
PAGE: Final = "500"
ENDED: Final = frozenset({"Succeeded", "Failed"})


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw]
    metadata: _ListMetadata = _ListMetadata()


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    observed_generation: int = 0
    conditions: list[state.Condition] = []


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    mode: str = names.Mode.ENFORCE
    pods: dict[str, msgspec.Raw] = {}


class State(msgspec.Struct, frozen=True):
    """A NodeSwapState, as far as it is read here."""

    metadata: state.ObjectMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Expression(msgspec.Struct, frozen=True):
    key: str


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    match_expressions: list[_Expression] = []


class _Required(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: list[_Term] = []


class _NodeAffinity(msgspec.Struct, frozen=True, rename="camel"):
    required_during_scheduling_ignored_during_execution: _Required = _Required()


class _Affinity(msgspec.Struct, frozen=True, rename="camel"):
    node_affinity: _NodeAffinity = _NodeAffinity()


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: _Affinity | None = None


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class _PodMetadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""


class Pod(msgspec.Struct, frozen=True):
    """A Pod, as far as it is read here."""

    metadata: _PodMetadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `swapwarden uninstall`."""
    parser.add_argument("--namespace", default="swapwarden-system", help="where Swapwarden is (default: %(default)s)")
    parser.add_argument("--owner", default="", help="delete this release's profiles, too (default: leave all profiles)")
    parser.add_argument(
        "--remove-startup-taint", action="store_true", help=f"take {names.STARTUP_TAINT} off all nodes, too"
    )
    parser.add_argument("--kubeconfig", default=None, help="default: in-cluster, $KUBECONFIG, ~/.kube/config")
    parser.add_argument(
        "--timeout",
        type=hooks.seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long to wait for the agents (default: 120)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do it; the exit status. 0 also where nodes have not answered: they are listed, and the removal goes on."""
    try:
        cfg = config.load(arguments.kubeconfig)
        return asyncio.run(_run(cfg, arguments))
    except (client.ApiError, client.Unreachable, config.ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


async def _run(cfg: config.Config, arguments: argparse.Namespace) -> int:
    async with client.Client(cfg, user_agent=f"swapwarden-uninstall/{swapwarden.__version__}") as api:
        before = await _list(api, STATES, State)
        order = f"/api/v1/namespaces/{arguments.namespace}/configmaps/{restoring.CONFIG_MAP}"
        body = msgspec.json.encode({"data": {restoring.KEY: restoring.YES}})
        try:
            await _tried(api.merge_patch, order, body)
        except client.ApiError as error:
            if error.status == 404:
                print(f"error: {error}: where Swapwarden is, --namespace says", file=sys.stderr)
                return 1
            raise
        silent = await _wait(api, arguments.timeout)
        for line in report(silent, before):
            print(line)
        await _release_nodes(api, untaint=arguments.remove_startup_taint)
        await _remove_objects(api, arguments.owner)
    return 0


async def _wait(api: client.Client, seconds: float) -> list[State]:
    """Wait until all agents have put back what was there; the states of those that have not within SECONDS."""
    waits, deadline = backoff.Backoff(*BACKOFF_SECONDS), time.monotonic() + seconds
    while True:
        try:
            silent = [each for each in await _list(api, STATES, State) if not answered(each)]
        except (client.ApiError, client.Unreachable):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(waits.next())
            continue
        if not silent or time.monotonic() > deadline:
            return silent
        await asyncio.sleep(POLL_SECONDS)


def answered(found: State) -> bool:
    """Whether a node's agent says that it has put back what was there. Where none ever ran, nothing is to be said."""
    if not found.status.observed_generation:
        return True
    applied = next((each for each in found.status.conditions if each.type == "Applied"), None)
    return (
        found.spec.mode == names.Mode.RESTORE
        and found.status.observed_generation >= found.metadata.generation
        and applied is not None
        and (applied.status == "True" or applied.reason == "Incompatible")
    )


def report(silent: Iterable[State], before: Iterable[State]) -> Iterator[str]:
    """Say which nodes have not answered, and what is left there. BEFORE are the states as they were in force."""
    planned = {each.metadata.name: len(each.spec.pods) for each in before}
    left = sorted(each.metadata.name for each in silent)
    if not left:
        yield "all agents have put back what was there"
        return
    yield f"nodes that have not answered ({len(left)}); their pods' cgroups keep what they hold, until the pods end:"
    for name in left:
        yield f"  {name}: up to {planned.get(name, 0)} pods"


async def _release_nodes(api: client.Client, *, untaint: bool) -> None:
    held = held_labels(await _list(api, "/api/v1/pods", Pod))
    for node in await _list(api, NODES, nodes.WireNode):
        row = nodes.project(node)
        ours = [key for key in LABELS if key in row.labels and not (key == names.NFD_SWAP_LABEL and row.nfd)]
        kept = {key: held[row.name, key] for key in ours if (row.name, key) in held}
        for key, pods in kept.items():
            print(
                f"node {row.name} keeps the label {key}, which running pods select (a restarting kubelet fails them):"
            )
            print(f"  {', '.join(sorted(pods))}")
        if untaint and row.startup_taint is not None:
            await _tried(reconciler.remove_startup_taint, api, row)
        if gone := {key: None for key in ours if key not in kept}:
            body = msgspec.json.encode({"metadata": {"uid": row.uid, "labels": gone}})
            await _tried(api.merge_patch, f"{NODES}/{row.name}", body)


def held_labels(pods: Iterable[Pod]) -> dict[tuple[str, str], set[str]]:
    """Labels that running pods select nodes by: the pods (namespace/name), by node and label."""
    held: dict[tuple[str, str], set[str]] = {}
    for pod in pods:
        if not pod.spec.node_name or pod.status.phase in ENDED:
            continue
        keys = set(pod.spec.node_selector)
        if pod.spec.affinity:
            required = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
            keys |= {each.key for term in required.node_selector_terms for each in term.match_expressions}
        for key in keys & set(LABELS):
            held.setdefault((pod.spec.node_name, key), set()).add(f"{pod.metadata.namespace}/{pod.metadata.name}")
    return held


async def _remove_objects(api: client.Client, owner: str) -> None:
    if owner:
        for profile in await _list(api, profiles.PROFILES, profiles.Profile):
            if profiles.is_owned(profile.metadata.labels, owner):
                await _tried(hooks.delete, api, f"{profiles.PROFILES}/{profile.metadata.name}")
    for each in await _list(api, STATES, State):
        await _tried(hooks.delete, api, f"{STATES}/{each.metadata.name}")


async def _list(api: client.Client, path: str, kind: type[T]) -> list[T]:
    """All objects of a collection, page by page."""
    found: list[T] = []
    params = {"limit": PAGE}
    while True:
        page = msgspec.json.decode(await _tried(_get, api, path, params), type=_Page)
        found += [msgspec.json.decode(item, type=kind) for item in page.items]
        if not page.metadata.continue_:
            return found
        params = {"limit": PAGE, "continue": page.metadata.continue_}


async def _get(api: client.Client, path: str, params: dict[str, str]) -> bytes:
    return await api.get(path, params=params, timeout=REQUEST_SECONDS)


async def _tried(request: Any, *arguments: Any) -> Any:
    """Await a request that may be made again, some times: the API server may be busy, or rights be new."""
    waits = backoff.Backoff(*BACKOFF_SECONDS)
    for _ in range(5):
        try:
            return await request(*arguments)
        except client.Unreachable:
            pass
        except client.ApiError as error:
            if error.status not in {403, 409, 429} and error.status < 500:
                raise
        await asyncio.sleep(waits.next())
    return await request(*arguments)
