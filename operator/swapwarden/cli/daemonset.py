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
from swapwarden.cli import profiles, uninstall
from swapwarden.kube import backoff, client, config, decoding, errors

POLL_SECONDS: Final = 1.0
BACKOFF_SECONDS: Final = (0.5, 5.0)
REQUEST_SECONDS: Final = 10.0
_NODE_FIELD: Final = "metadata.name"


class _Owner(msgspec.Struct, frozen=True):
    uid: str = ""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    generation: int = 0
    owner_references: list[_Owner] = []
    deletion_timestamp: str = ""


class _DaemonSetStatus(msgspec.Struct, frozen=True, rename="camel"):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0


class DaemonSet(msgspec.Struct, frozen=True):
    """A DaemonSet: the fields that are read."""

    metadata: _Metadata
    status: _DaemonSetStatus = _DaemonSetStatus()

    @property
    def is_seen(self) -> bool:
        """Whether its status is about it as it is."""
        return self.status.observed_generation >= self.metadata.generation

    @property
    def is_ready(self) -> bool:
        """Whether it has a ready pod on each of its nodes."""
        return self.is_seen and self.status.number_ready >= self.status.desired_number_scheduled


class _Field(msgspec.Struct, frozen=True):
    key: str = ""
    values: list[str] = []


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    match_fields: list[_Field] = []


class _Terms(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: list[_Term] = []


class _NodeAffinity(msgspec.Struct, frozen=True, rename="camel"):
    required_during_scheduling_ignored_during_execution: _Terms = _Terms()


class _Affinity(msgspec.Struct, frozen=True, rename="camel"):
    node_affinity: _NodeAffinity = _NodeAffinity()


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    affinity: _Affinity = _Affinity()


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str = ""


class _Status(msgspec.Struct, frozen=True):
    conditions: list[_Condition] = []


class DaemonPod(msgspec.Struct, frozen=True):
    """A Pod: the fields that are read."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def is_ready(self) -> bool:
        """Whether all of its containers are ready."""
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)

    @property
    def node(self) -> str:
        """Return its node; before it is scheduled, the one that it is for (k/k: pkg/controller/daemon/util)."""
        terms = self.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
        named = (
            value
            for term in terms.node_selector_terms
            for field in term.match_fields
            if field.key == _NODE_FIELD
            for value in field.values
        )
        return self.spec.node_name or next(named, "")


class Missing(msgspec.Struct, frozen=True):
    """Where a DaemonSet has no ready pod."""

    nodes: tuple[str, ...] = ()
    without_pod: int = 0
    """Nodes that have no pod of it at all."""

    def __bool__(self) -> bool:
        return bool(self.nodes or self.without_pod)


def missing(daemons: DaemonSet, pods: Iterable[DaemonPod]) -> Missing:
    """Return where the DaemonSet has no ready pod."""
    ours = [each for each in pods if any(owner.uid == daemons.metadata.uid for owner in each.metadata.owner_references)]
    ready = {each.node for each in ours if each.is_ready}
    waiting = {each.node for each in ours} - ready
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
        found = asyncio.run(_wait(cfg, arguments))
    except (errors.KubeError, msgspec.DecodeError) as error:
        print(f"it is not known on which nodes pods did {arguments.task}: {error}", file=sys.stderr)
        return 0
    for line in report(found, arguments.task):
        print(line)
    return 0


async def _wait(cfg: config.Config, arguments: argparse.Namespace) -> Missing | None:
    """Return where pods are missing; None if the DaemonSet's controller never saw it. KubeError only if out of time."""
    waits, deadline = backoff.Backoff(*BACKOFF_SECONDS), time.monotonic() + arguments.timeout
    base = f"/namespaces/{arguments.namespace}"
    path, pods = f"/apis/apps/v1{base}/daemonsets/{arguments.name}", f"/api/v1{base}/pods"
    async with client.Client(cfg, user_agent=f"swapwarden-await/{swapwarden.__version__}") as api:
        while True:
            late = time.monotonic() > deadline
            try:
                daemons = DAEMONS.decode(await api.get(path, timeout=REQUEST_SECONDS))
            except (errors.KubeError, msgspec.DecodeError):
                if late:
                    raise
                await asyncio.sleep(waits.next())
                continue
            if daemons.is_ready:
                return Missing()
            if late:
                # Once: on a large cluster all pods of a DaemonSet are much to read.
                found = await uninstall.read_all(api, pods, DaemonPod, {"labelSelector": arguments.selector})
                return missing(daemons, found) if daemons.is_seen else None
            await asyncio.sleep(POLL_SECONDS)


DAEMONS: Final = decoding.Decoder(DaemonSet)


def report(found: Missing | None, task: str) -> Iterator[str]:
    """Yield lines with the nodes whose pod did not do its task."""
    if found is None:
        yield f"no pod was made to {task}: the controller of DaemonSets does not answer"
    elif not found:
        yield f"all nodes did {task}"
    else:
        yield f"nodes that did not {task} ({len(found.nodes) + found.without_pod}):"
        yield from (f"  {name}" for name in found.nodes)
        if found.without_pod:
            yield f"  and {found.without_pod} without a pod"
