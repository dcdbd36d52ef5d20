"""Brings one node's NodeSwapState and labels to what they should be, by as few writes as there are differences."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from swapwarden.api import names, state
from swapwarden.controller import cluster, nodelabels, rows, warnings
from swapwarden.kube import client, events
from swapwarden.policy import labels, nodes, plan
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PLANS = metrics.histogram("swapwarden_controller_plan_seconds", "Time to compute the plan of one node.")
WRITES = metrics.counter(
    "swapwarden_controller_writes_total",
    "Writes to the API server by object (state, labels, taint, profile) and result (ok, unreachable, or HTTP status).",
    labels=("object", "result"),
)
WRITE_SECONDS = metrics.histogram(
    "swapwarden_controller_write_seconds", "Time from a request to its answer, by object.", labels=("object",)
)

STATES: Final = f"/apis/{names.API_VERSION}/{names.STATE_PLURAL}"
NODES: Final = "/api/v1/nodes"
JSON_PATCH: Final = "application/json-patch+json"
FIELD_MANAGER: Final = {"fieldManager": "swapwarden-controller"}
WRITE_TIMEOUT: Final = 10.0
NO_FIELD_RECORDS: Final[list[dict[str, Any]]] = [{}]
"""As metadata.managedFields: keeps none (k/k: staging/src/k8s.io/apimachinery/pkg/util/managedfields). For a state that
changes with each pod they would be larger than the rest."""


class Deposed(Exception):  # noqa: N818 the name says what is the matter
    """The API server refused a write because a newer controller leads."""


class Reconciler:
    """Writes for one leadership term at a time."""

    def __init__(
        self,
        api: client.Client,
        known: cluster.Cluster,
        *,
        term: Callable[[], int | None],
        again: Callable[[str, float], None],
        recorder: events.Recorder,
        label_grace: float,
        untaint: bool = False,
    ) -> None:
        """`term` gives the epoch while this process leads; `again(node, delay)` has a node looked at once more."""
        self._api = api
        self._known = known
        self._term = term
        self._again = again
        self._recorder = recorder
        self._label_grace = label_grace
        self._untaint = untaint
        self._labels = nodelabels.Labels(label_grace)

    def begin_term(self) -> None:
        """Forget what an earlier term knew: others may have led, and swap may have been on, in between."""
        self._labels = nodelabels.Labels(self._label_grace)

    async def reconcile(self, name: str) -> None:
        """Look at one node. client.ApiError and client.Unreachable where it is to be tried again; Deposed."""
        term, node = self._term(), self._known.nodes.get(name)
        if node is None:
            self._labels.forget(name)
            return
        if term is None:
            return
        begun = time.perf_counter()
        spec = self._known.plan(name)
        PLANS.observe(time.perf_counter() - begun)
        row = self._known.state_of(name)
        if self._known.restoring:
            # A state that is gone has done its service, and so have labels.
            if row is not None:
                await self._write_state(node, row, spec, term)
            return
        if await self._write_state(node, row, spec, term):
            self._warn(name, row, spec)
        await self._write_labels(name)
        if self._untaint:
            await self._remove_startup_taint(name)

    async def _write_state(
        self, node: nodes.NodeRow, row: rows.StateRow | None, spec: state.StateSpec, term: int
    ) -> bool:
        """Make the node's state say `spec`, where `row` is what it was; whether that was a write, and was done."""
        if row is None:
            return await self._create(node, spec, term)
        patch = state_patch(row, node, spec, term)
        if patch is None:
            return False
        path, body = f"{STATES}/{node.name}", msgspec.json.encode(patch)
        try:
            answer = await counted(
                "state", self._api.merge_patch(path, body, params=FIELD_MANAGER, timeout=WRITE_TIMEOUT)
            )
        except client.ApiError as error:
            if error.status == 422 and state.EPOCH_REFUSAL in error.message:
                raise Deposed(f"the API server refused term {term} for node {node.name}") from error
            if error.status == 404:
                log.warning("the state of node %s is gone; making it anew", node.name)
                self._known.lost(node.name, row.uid)
            # Another object of that name, or a write at the same moment.
            elif error.status != 409 or not await self._look(node.name):
                raise
            self._again(node.name, 0.0)
            return False
        self._known.wrote(rows.decode(answer))
        return True

    async def _create(self, node: nodes.NodeRow, spec: state.StateSpec, term: int) -> bool:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.STATE_KIND,
            "metadata": {"name": node.name, "ownerReferences": _owners(node)},
            "spec": msgspec.structs.replace(spec, epoch=term),
        }
        try:
            answer = await counted(
                "state", self._api.post(STATES, msgspec.json.encode(body), params=FIELD_MANAGER, timeout=WRITE_TIMEOUT)
            )
        except client.ApiError as error:
            if error.status != 409 or not await self._look(node.name):
                raise
            self._again(node.name, 0.0)
            return False
        self._known.wrote(rows.decode(answer))
        return True

    async def _look(self, name: str) -> bool:
        """Read a node's state past the watch; whether it is another one than was known."""
        return self._known.wrote(rows.decode(await self._api.get(f"{STATES}/{name}", timeout=WRITE_TIMEOUT)))

    async def _write_labels(self, name: str) -> None:
        node = self._known.nodes.get(name)
        if node is None:  # gone while its state was written
            return
        desired = labels.desired(self._known.selection(name).profile, self._known.facts(name), nfd=node.nfd)
        change = self._labels.decide(name, desired, node.labels, time.monotonic())
        if change.again is not None:
            self._again(name, change.again)
        if not change.labels or self._term() is None:
            return
        patch = {"metadata": {"uid": node.uid, "labels": change.labels}}
        try:
            await counted(
                "labels",
                self._api.merge_patch(
                    f"{NODES}/{name}", msgspec.json.encode(patch), params=FIELD_MANAGER, timeout=WRITE_TIMEOUT
                ),
            )
        except client.ApiError as error:
            if error.status not in {404, 409}:  # the watch will say what became of the node
                raise
        else:
            self._known.labelled(name, node.uid, change.labels)
            log.info("labels changed", extra={"node": name, "labels": change.labels})

    async def _remove_startup_taint(self, name: str) -> None:
        """Let pods onto the node when its agent has applied a first state, or can do nothing there."""
        node, row = self._known.nodes.get(name), self._known.state_of(name)
        if node is None or node.startup_taint is None or row is None or not row.settled or self._term() is None:
            return
        try:
            await counted("taint", remove_startup_taint(self._api, node))
        except client.ApiError as error:
            if error.status not in {404, 409, 422}:  # another taint is there now: the watch will say so
                raise
        else:
            log.info("startup taint removed", extra={"node": name})

    def _warn(self, name: str, row: rows.StateRow | None, spec: state.StateSpec) -> None:
        """Tell the owners of pods, once for each pod and reason: what stood in the state before was told with it."""
        before = rows.spec(row) if row is not None else None
        told = before.pods if isinstance(before, state.StateSpec) else {}
        for warning in warnings.about(self._known.pods_on(name), spec):
            pod = warning.pod
            if pod.key not in told or told[pod.key].reason != warning.reason:
                regarding = events.Regarding("v1", "Pod", pod.namespace, pod.name, pod.uid)
                self._recorder.event(regarding, "Warning", warning.reason, warning.message)


async def counted(kind: str, request: Awaitable[bytes]) -> bytes:
    """Await a write of `kind`, and count and time it."""
    begun = time.perf_counter()
    try:
        answer = await request
    except client.ApiError as error:
        WRITES.inc(kind, str(error.status))
        raise
    except client.Unreachable:
        WRITES.inc(kind, "unreachable")
        raise
    WRITES.inc(kind, "ok")
    WRITE_SECONDS.observe(time.perf_counter() - begun, kind)
    return answer


async def remove_startup_taint(api: client.Client, node: nodes.NodeRow) -> bytes:
    """Remove the taint from where it stood; client.ApiError with status 422 where another one stands there now."""
    path = f"/spec/taints/{node.startup_taint}"
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": node.uid},
        {"op": "test", "path": f"{path}/key", "value": names.STARTUP_TAINT},
        {"op": "remove", "path": path},
    ]
    return await api.request(
        "PATCH",
        f"{NODES}/{node.name}",
        params=FIELD_MANAGER,
        body=msgspec.json.encode(patch),
        content_type=JSON_PATCH,
        timeout=WRITE_TIMEOUT,
    )


def _owners(node: nodes.NodeRow) -> list[dict[str, str]]:
    """The Node owns its state, so that the garbage collector removes it with the Node."""
    return [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}]


def state_patch(row: rows.StateRow, node: nodes.NodeRow, spec: state.StateSpec, term: int) -> dict[str, Any] | None:
    """The merge patch that makes `row` say `spec` in leadership term `term`; None where it does already."""
    patch = plan.spec_patch(rows.spec(row), spec)
    if patch is None and row.owner == node.uid:
        return None
    metadata: dict[str, Any] = {"uid": row.uid, "managedFields": NO_FIELD_RECORDS}
    if row.owner != node.uid:
        metadata["ownerReferences"] = _owners(node)
    return {"metadata": metadata, "spec": {**(patch or {}), "epoch": term}}
