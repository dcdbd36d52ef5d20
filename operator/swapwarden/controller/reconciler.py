"""Brings one node's NodeSwapState and labels to what they should be, by as few writes as there are differences."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from swapwarden.api import names, state
from swapwarden.controller import cluster, crdfields, enforcement, features, rows, throttle
from swapwarden.controller.notices import pod_plan
from swapwarden.controller.term import Term, TermOver
from swapwarden.kube import client, decoding, errors, events
from swapwarden.policy import extended, labels, nodes, plan, taints
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PLANS = metrics.histogram("swapwarden_controller_plan_seconds", "Time to compute the plan of one node.")
WRITES = metrics.counter(
    "swapwarden_controller_writes_total",
    "Writes to the API server by object (state, labels, feature, taint, resource, profile, pod condition) and result"
    " (ok, unreachable, HTTP status, or over: the leader's time ended before the answer came).",
    labels=("object", "result"),
)
WRITE_SECONDS = metrics.histogram(
    "swapwarden_controller_write_seconds", "Time from a write to its answer, by object.", labels=("object",)
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

    def __init__(self, term: Term, message: str) -> None:
        super().__init__(message)
        self.term = term


class Reconciler:
    """Writes for one leadership term at a time."""

    def __init__(
        self,
        api: client.Client,
        known: cluster.Cluster,
        *,
        term: Callable[[], Term | None],
        again: Callable[[str, float], None],
        recorder: events.Recorder,
        published: features.Features,
        writes: throttle.Throttle,
        waits: enforcement.Enforcement,
        vouched: Mapping[str, str] | None = None,
        untaint: bool = False,
        extended_resource: bool = False,
    ) -> None:
        """`term` gives the one in which this process leads; `again(node, delay)` has a node looked at once more.

        `writes` is told of each write, `waits` of the pods that a state has. That there may be one is for the caller to
        see to.
        `extended_resource`: there is the right to write the status of nodes.
        `vouched` are the labels of nodes for which an administrator vouches.
        """
        self._api = api
        self._known = known
        self._term = term
        self._again = again
        self._recorder = recorder
        self._writes = writes
        self._waits = waits
        self._untaint = untaint
        self._extended_resource = extended_resource
        self._published = published
        self._vouched = dict(vouched or {})
        self._fields = crdfields.CrdFields()
        # By node: what the API server stored, and what of it was to be stored.
        self._dropped: dict[str, tuple[state.StateSpec | dict[str, Any], state.StateSpec]] = {}

        # By node: pods that the API server refused, for as long as it is not asked again.
        self._refused: dict[str, frozenset[str]] = {}

    async def reconcile(self, name: str) -> None:
        """Look at one node. errors.KubeError where it is to be tried again; Deposed, TermOver."""
        term, node = self._term(), self._known.nodes.get(name)
        if term is None:
            return
        if node is None:
            term.labels.forget(name)
            term.asked.forget(name)
            term.left_out.forget(name)
            self._dropped.pop(name, None)
            self._refused.pop(name, None)
            return
        if self._known.lacks_namespaces(name):
            return
        begun, came = time.perf_counter(), self._waits.now()
        spec, left_out = self._known.plan_all(name)
        spec = self._without_refused(name, spec)
        PLANS.observe(time.perf_counter() - begun)
        row = self._known.state_of(name)
        if self._known.restoring:
            # A state that is gone has done its service, and so have labels.
            if row is not None:
                row = await self._write_state(node, row, spec, term)
            self._waits.planned(name, row, spec.pods, came)
            return
        written = await self._write_state(node, row, spec, term)
        if written is not None:
            self._waits.planned(name, written, spec.pods, came)
            # The watch may have told of the agent's answer before the API server answered the write.
            self._waits.observed(name, self._known.state_of(name))
            if written is not row:
                self._warn(name, row, spec)
        for notice in term.left_out.notices(name, spec.profile.name, left_out):
            self._recorder.post(notice)
        await self._write_labels(name, term)
        await self._write_taint(name, term)
        if self._extended_resource:
            await self._write_resource(name, term)
        if self._untaint:
            await self._remove_startup_taint(name, term)

    async def _write_state(
        self, node: nodes.NodeRow, row: rows.StateRow | None, spec: state.StateSpec, term: Term
    ) -> rows.StateRow | None:
        """Make the node's state say `spec`, where `row` is what it was; what it is now, None where that failed."""
        if row is None:
            return await self._create(node, spec, term)
        patch = state_patch(row, node, spec, term.epoch)
        if patch is None:
            return row
        fields = self._fields.params()
        if (left := self._fields.left()) and self._dropped.get(node.name) == (rows.spec(row), spec):
            self._again(node.name, left)
            return row
        path, body = f"{STATES}/{node.name}", msgspec.json.encode(patch)
        params = {**FIELD_MANAGER, **fields}
        try:
            answer = await self._counted(
                term, "state", self._api.merge_patch(path, body, params=params, timeout=WRITE_TIMEOUT)
            )
        except errors.ApiError as error:
            if self._is_older(error, node.name, spec):
                self._again(node.name, 0.0)
                return None
            if error.status == 422 and state.EPOCH_REFUSAL in error.message:
                raise Deposed(term, f"the API server refused term {term.epoch} for node {node.name}") from error
            if error.status == 404:
                log.warning("the state of node %s is gone; making it anew", node.name)
                self._known.lost(node.name, row.uid)
            # Another object of that name, or a write at the same moment.
            elif error.status != 409 or not await self._look(node.name):
                raise
            self._again(node.name, 0.0)
            return None
        return self._wrote(answer, spec, fields)

    async def _create(self, node: nodes.NodeRow, spec: state.StateSpec, term: Term) -> rows.StateRow | None:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.STATE_KIND,
            "metadata": {"name": node.name, "ownerReferences": _owners(node)},
            "spec": msgspec.structs.replace(spec, epoch=term.epoch),
        }
        fields = self._fields.params()
        params = {**FIELD_MANAGER, **fields}
        try:
            answer = await self._counted(
                term, "state", self._api.post(STATES, msgspec.json.encode(body), params=params, timeout=WRITE_TIMEOUT)
            )
        except errors.ApiError as error:
            if self._is_older(error, node.name, spec):
                self._again(node.name, 0.0)
                return None
            if error.status != 409 or not await self._look(node.name):
                raise
            self._again(node.name, 0.0)
            return None
        return self._wrote(answer, spec, fields)

    def _is_older(self, error: errors.ApiError, name: str, spec: state.StateSpec) -> bool:
        """Whether a write was refused by an older definition, and another one can do with less."""
        if self._fields.refused(error):
            return True
        keys = self._fields.refused_pods(error) & spec.pods.keys()
        if keys:
            self._refused[name] = self._refused.get(name, frozenset()) | keys
        return bool(keys)

    def _without_refused(self, name: str, spec: state.StateSpec) -> state.StateSpec:
        """Leave out the pods that were refused a short while ago: for them, all others would have no plan."""
        refused, left = self._refused.get(name), self._fields.left()
        if not refused:
            return spec
        if not left:
            del self._refused[name]
            return spec
        self._again(name, left)
        return msgspec.structs.replace(spec, pods={key: pod for key, pod in spec.pods.items() if key not in refused})

    def _wrote(self, answer: bytes, spec: state.StateSpec, fields: Mapping[str, str]) -> rows.StateRow:
        row = rows.decode(answer)
        self._fields.written(fields)
        if self._fields.left() and plan.spec_patch(stored := rows.spec(row), spec) is not None:
            self._dropped[row.name] = stored, spec
            self._again(row.name, self._fields.left())
        else:
            self._dropped.pop(row.name, None)
        self._known.wrote(row)
        return row

    async def _look(self, name: str) -> bool:
        """Read a node's state past the watch; whether it is another one than was known."""
        return self._known.wrote(rows.decode(await self._api.get(f"{STATES}/{name}", timeout=WRITE_TIMEOUT)))

    async def _write_labels(self, name: str, term: Term) -> None:
        """Have the node carry its labels, or its NodeFeature ask for them."""
        node, by_feature = self._known.nodes.get(name), self._published.serves(name)
        if node is None or by_feature is None:  # gone while its state was written
            return
        profile, facts = self._known.in_force(name), self._known.facts(name)
        wanted = labels.desired(profile, facts, vouched=labels.is_vouched(self._vouched, node))
        if by_feature:
            await self._write_feature(node, labels.by_feature(wanted), term)
        await self._write_node_labels(node, labels.by_hand(wanted, node, features=by_feature), term)

    async def _write_node_labels(self, node: nodes.NodeRow, wanted: labels.Labels, term: Term) -> None:
        name, change = node.name, term.labels.decide(node.name, wanted, node.labels, time.monotonic())
        if change.again is not None:
            self._again(name, change.again)
        if not change.labels:
            return
        patch = {"metadata": {"uid": node.uid, "labels": change.labels}}
        try:
            await self._counted(
                term,
                "labels",
                self._api.merge_patch(
                    f"{NODES}/{name}", msgspec.json.encode(patch), params=FIELD_MANAGER, timeout=WRITE_TIMEOUT
                ),
            )
        except errors.ApiError as error:
            if error.status not in {404, 409}:  # the watch will say what became of the node
                raise
        else:
            self._known.labelled(node, change.labels)
            log.info("labels changed", extra={"node": name, "labels": change.labels})

    async def _write_feature(self, node: nodes.NodeRow, wanted: labels.Labels, term: Term) -> None:
        """Have the node's NodeFeature ask for its labels; errors.ApiError where it became another one meanwhile."""
        row = self._published.of(node.name)
        change = term.asked.decide(node.name, wanted, row.labels if row else {}, time.monotonic())
        if change.again is not None:
            self._again(node.name, change.again)
        if not (change.labels or (row and row.owner != node.uid)):
            return
        if row is None:
            request = self._api.post(
                self._published.path,
                msgspec.json.encode(features.made(node, _owners(node), change.labels)),
                params=FIELD_MANAGER,
                timeout=WRITE_TIMEOUT,
            )
        else:
            patch = {
                "metadata": {"uid": row.uid, "ownerReferences": _owners(node)},
                "spec": {"labels": change.labels},
            }
            request = self._api.merge_patch(
                f"{self._published.path}/{row.name}",
                msgspec.json.encode(patch),
                params=FIELD_MANAGER,
                timeout=WRITE_TIMEOUT,
            )
        try:
            answer = await self._counted(term, "feature", request)
        except errors.ApiError as error:
            if error.status == 404 and row is not None:
                self._published.lost(row)  # the watch may have told of that before the answer to an earlier write came
            raise
        self._published.wrote(features.decode(answer))
        log.info("labels asked for", extra={"node": node.name, "labels": change.labels})

    async def _remove_startup_taint(self, name: str, term: Term) -> None:
        """Let pods onto the node when its agent has applied a first state, or can do nothing there."""
        node, row = self._known.nodes.get(name), self._known.report_of(name)
        if node is None or row is None or not row.settled:
            return
        if await self._patch_taints(node, taints.remove(node, names.STARTUP_TAINT), term):
            log.info("startup taint removed", extra={"node": name})

    async def _write_taint(self, name: str, term: Term) -> None:
        """Have the node carry the taint that its profile gives to nodes with swap, or not."""
        node = self._known.nodes.get(name)
        if node is None:
            return
        profile, facts = self._known.in_force(name), self._known.facts(name)
        effect = taints.desired(profile, facts, node, applied=self._known.is_applied(name))
        if await self._patch_taints(node, taints.change(node, effect), term):
            log.info("taint changed", extra={"node": name, "effect": effect})

    async def _write_resource(self, name: str, term: Term) -> None:
        """Have the node offer the extended resource, as its profile says, or not."""
        node = self._known.nodes.get(name)
        if node is None:
            return
        profile, facts, applied = self._known.in_force(name), self._known.facts(name), self._known.is_applied(name)
        amount = extended.desired(profile, facts, node, self._known.pods_on(name), applied=applied)
        if amount == node.swap_resource:
            return
        try:
            await self._counted(term, "resource", offer(self._api, name, node.uid, amount))
        except errors.ApiError as error:
            if error.status not in {404, 409}:  # the watch will say what became of the node
                raise
        else:
            self._known.offered(node, amount)
            log.info("extended resource changed", extra={"node": name, "bytes": amount})

    async def _patch_taints(self, node: nodes.NodeRow, patch: taints.Patch | None, term: Term) -> bool:
        """Whether a patch was needed, and done."""
        if patch is None:
            return False
        try:
            answer = await self._counted(term, "taint", patch_node(self._api, node.name, patch))
        except errors.ApiError as error:
            if error.status not in {404, 409, 422}:  # others are there now, or the node is gone: the watch will say so
                raise
            return False
        written = decoding.decode(answer, nodes.WireNode)
        self._known.tainted(node, tuple(written.spec.taints))
        return True

    async def _counted(self, term: Term, kind: str, request: Coroutine[Any, Any, bytes]) -> bytes:
        return await throttled(self._writes, term, kind, request)

    def _warn(self, name: str, row: rows.StateRow | None, spec: state.StateSpec) -> None:
        """Tell the owners of pods, once for each pod and reason: what stood in the state before was told with it."""
        before = rows.told(row) if row is not None else rows.Told()
        for notice in pod_plan.notices(before, self._known.pods_on(name), spec):
            self._recorder.post(notice)


async def throttled(writes: throttle.Throttle, term: Term, kind: str, request: Coroutine[Any, Any, bytes]) -> bytes:
    """Await a write of `kind` that was decided in `term`; TermOver where that ends before the answer comes.

    The API server may ask that no more are made for a while.
    """
    writes.spend()
    try:
        return await counted(kind, term.write(request))
    except errors.ApiError as error:
        if error.status == 429:
            writes.pause(error.retry_after)
        raise


async def counted(kind: str, request: Coroutine[Any, Any, bytes]) -> bytes:
    """Await a write of `kind`, and count and time it."""
    begun = time.perf_counter()
    try:
        answer = await request
    except errors.ApiError as error:
        WRITES.inc(kind, str(error.status))
        raise
    except errors.Unreachable:
        WRITES.inc(kind, "unreachable")
        raise
    except TermOver:
        WRITES.inc(kind, "over")
        raise
    WRITES.inc(kind, "ok")
    WRITE_SECONDS.observe(time.perf_counter() - begun, kind)
    return answer


async def patch_node(api: client.Client, name: str, patch: taints.Patch) -> bytes:
    """Change a Node; errors.ApiError with status 422 where one of the patch's tests does not hold."""
    return await api.request(
        "PATCH",
        f"{NODES}/{name}",
        params=FIELD_MANAGER,
        body=msgspec.json.encode(patch),
        content_type=JSON_PATCH,
        timeout=WRITE_TIMEOUT,
    )


async def offer(api: client.Client, name: str, uid: str, amount: int | None) -> bytes:
    """Have a Node offer `amount` bytes of the extended resource, or have none of it (None), and nothing else changed.

    errors.ApiError with status 409 where the Node has another uid.
    """
    capacity = {names.SWAP_RESOURCE: None if amount is None else str(amount)}
    return await api.merge_patch(
        f"{NODES}/{name}/status",
        msgspec.json.encode({"metadata": {"uid": uid}, "status": {"capacity": capacity}}),
        params=FIELD_MANAGER,
        timeout=WRITE_TIMEOUT,
    )


def _owners(node: nodes.NodeRow) -> list[dict[str, str]]:
    """The Node owns its state, so that the garbage collector removes it with the Node."""
    return [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}]


def state_patch(row: rows.StateRow, node: nodes.NodeRow, spec: state.StateSpec, term: int) -> dict[str, Any] | None:
    """The merge patch that makes `row` say `spec` in leadership term `term`; None where it does already.

    One that an earlier Node of the name owns is not taken over: when it is collected, the node gets one of its own.
    """
    patch = plan.spec_patch(rows.spec(row), spec)
    if patch is None and row.owner:
        return None
    metadata: dict[str, Any] = {"uid": row.uid, "managedFields": NO_FIELD_RECORDS}
    if not row.owner:
        metadata["ownerReferences"] = _owners(node)
    return {"metadata": metadata, "spec": {**(patch or {}), "epoch": term}}
