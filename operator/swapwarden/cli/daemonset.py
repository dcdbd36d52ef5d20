"""`swapwarden await-daemonset`: waits until a DaemonSet's pods are ready, and lists the nodes on which they are not.

The chart's hook runs it after the DaemonSet that removes systemd's drop-in files: a pod is ready once it has. It ends
in time and with 0 whatever it finds, so that nothing keeps a release from being removed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

import swapwarden
from swapwarden.api import decoding
from swapwarden.cli import profiles, uninstall, wire
from swapwarden.kube import client, config, errors
from swapwarden.policy.observed.pods import WirePod

POLL_SECONDS: Final = 1.0
REQUEST_SECONDS: Final = 10.0


class _DaemonSetStatus(msgspec.Struct, frozen=True, rename="camel"):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0


class DaemonSet(wire.Named, frozen=True):
    """A DaemonSet: the fields that are read."""

    status: _DaemonSetStatus = _DaemonSetStatus()

    @property
    def is_seen(self) -> bool:
        """Whether its status is about it as it is."""
        return self.status.observed_generation >= self.metadata.generation

    @property
    def is_ready(self) -> bool:
        """Whether it has a ready pod on each of its nodes."""
        return self.is_seen and self.status.number_ready >= self.status.desired_number_scheduled


def _node_of(pod: WirePod) -> str:
    """Return its node; before it is scheduled, the one that it is for (k/k: pkg/controller/daemon/util)."""
    named = (
        value
        for term in pod.required_terms
        for field in term.match_fields or ()
        if field.key == "metadata.name"
        for value in field.values or ()
    )
    return pod.spec.node_name or next(named, "")


class Missing(msgspec.Struct, frozen=True):
    """Nodes on which a DaemonSet has no ready pod."""

    nodes: tuple[str, ...] = ()
    without_pod: int = 0
    """Nodes that have no pod of it at all."""

    def __bool__(self) -> bool:
        return bool(self.nodes or self.without_pod)


def missing(daemons: DaemonSet, pods: Iterable[WirePod]) -> Missing:
    """Return where the DaemonSet has no ready pod."""
    ours = [each for each in pods if any(owner.uid == daemons.metadata.uid for owner in each.metadata.owner_references)]
    ready = {_node_of(each) for each in ours if each.status.is_ready}
    waiting = set(map(_node_of, ours)) - ready
    return Missing(tuple(sorted(waiting)), max(0, daemons.status.desired_number_scheduled - len(ready) - len(waiting)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `swapwarden await-daemonset`."""
    parser.add_argument("--namespace", required=True, help="where it is")
    parser.add_argument("--name", required=True, help="its name")
    parser.add_argument("--selector", required=True, help="label selector of its pods")
    parser.add_argument("--task", default="be ready", help="what its pods should do, for the report")
    profiles.add_connection(parser, patience=120.0, patience_help="how long to wait for the pods (default: 120)")


def run(arguments: argparse.Namespace) -> int:
    """Wait, and print the nodes without a ready pod; return 0."""
    try:
        cfg = config.load(arguments.kubeconfig)
        missing_pods = asyncio.run(_wait(cfg, arguments))
    except (errors.KubeError, msgspec.DecodeError) as error:
        print(f"it is not known on which nodes pods did {arguments.task}: {error}", file=sys.stderr)
        return 0
    for line in report(missing_pods, arguments.task):
        print(line)
    return 0


async def _wait(cfg: config.Config, arguments: argparse.Namespace) -> Missing | None:
    """Return where pods are missing; None if the DaemonSet's controller never saw it. KubeError only if out of time."""
    deadline = time.monotonic() + arguments.timeout
    base = f"/namespaces/{arguments.namespace}"
    path, pods = f"/apis/apps/v1{base}/daemonsets/{arguments.name}", f"/api/v1{base}/pods"
    async with client.Client(cfg, user_agent=f"swapwarden-await/{swapwarden.__version__}") as api:

        async def read() -> DaemonSet:
            return DAEMONS.decode(await api.get(path, timeout=REQUEST_SECONDS))

        while True:
            late = time.monotonic() > deadline
            daemons = await profiles.persist(read, deadline)
            if daemons.is_ready:
                return Missing()
            if late:
                # Once: on a large cluster all pods of a DaemonSet are much to read.
                pods_of_set = await uninstall.read_all(api, pods, WirePod, {"labelSelector": arguments.selector})
                return missing(daemons, pods_of_set) if daemons.is_seen else None
            await asyncio.sleep(POLL_SECONDS)


DAEMONS: Final = decoding.Decoder(DaemonSet)


def report(missing_pods: Missing | None, task: str) -> Iterator[str]:
    """Yield lines with the nodes whose pod did not do its task."""
    if missing_pods is None:
        yield f"no pod was made to {task}: the controller of DaemonSets does not answer"
    elif not missing_pods:
        yield f"all nodes did {task}"
    else:
        yield f"nodes that did not {task} ({len(missing_pods.nodes) + missing_pods.without_pod}):"
        yield from (f"  {name}" for name in missing_pods.nodes)
        if missing_pods.without_pod:
            yield f"  and {missing_pods.without_pod} without a pod"
