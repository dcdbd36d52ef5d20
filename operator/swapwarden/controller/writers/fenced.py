"""The controller's writes: under its own name, counted, within its term and its rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import msgspec

from swapwarden.api import names
from swapwarden.controller.term import Deposed, Outcome, Term, TermOver, outcome
from swapwarden.kube import client, errors, ratelimit, transport
from swapwarden.policy.observed import nodes
from swapwarden.telemetry import metrics

WRITES = metrics.counter(
    "swapwarden_controller_writes_total",
    "Writes to the API server by object (state, labels, feature, taint, resource, profile, finalizer, revision,"
    " pod_condition) and result (ok, unreachable, HTTP status, or over: the leader's time ended before the answer).",
    labels=("object", "result"),
)
WRITE_SECONDS = metrics.histogram(
    "swapwarden_controller_write_seconds", "Time from a write to its answer, by object.", labels=("object",)
)

TIMEOUT: Final = 10.0
"""Bound of one write in seconds."""
JSON_PATCH: Final = "application/json-patch+json"


class Writes:
    """Writes of the controller, also in a process that does not lead. `kind` is the object's name in metrics.

    All raise errors.ApiError and errors.Unreachable.
    """

    def __init__(self, api: client.Client) -> None:
        self._api = api

    async def create(self, kind: str, path: str, body: object, **params: str) -> bytes:
        """Create an object in its collection (POST); return the answer."""
        return await self._send(kind, "POST", path, body, content_type=transport.JSON, params=params)

    async def delete(self, kind: str, path: str, uid: str) -> bytes:
        """Delete the object with this UID. Raise ApiError (409) if it is another one."""
        return await self._send(kind, "DELETE", path, {"preconditions": {"uid": uid}}, content_type=transport.JSON)

    async def merge_patch(self, kind: str, path: str, body: object, **params: str) -> bytes:
        """Send a JSON merge patch (RFC 7386)."""
        return await self._send(kind, "PATCH", path, body, content_type=client.MERGE_PATCH, params=params)

    async def json_patch(self, kind: str, path: str, body: object) -> bytes:
        """Send a JSON patch (RFC 6902). Raise ApiError (422) if one of its tests fails."""
        return await self._send(kind, "PATCH", path, body, content_type=JSON_PATCH)

    async def strategic_patch(self, kind: str, path: str, body: object) -> bytes:
        """Send a strategic merge patch."""
        return await self._send(kind, "PATCH", path, body, content_type=client.STRATEGIC_MERGE_PATCH)

    async def _send(
        self,
        kind: str,
        method: str,
        path: str,
        body: object,
        *,
        content_type: str,
        params: Mapping[str, str] | None = None,
    ) -> bytes:
        request = self._api.request(
            method,
            path,
            params={"fieldManager": names.FIELD_MANAGER, **(params or {})},
            body=msgspec.json.encode(body),
            content_type=content_type,
            timeout=TIMEOUT,
        )
        begun = time.perf_counter()
        try:
            answer = await self._guarded(request)
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

    async def _guarded(self, request: Coroutine[Any, Any, bytes]) -> bytes:
        return await request


class Fenced(Writes):
    """Writes that were decided in one term. Raise TermOver if it ends before the answer.

    Each counts towards the writes of a second. The API server may ask for a pause.
    """

    def __init__(self, api: client.Client, term: Term, limit: ratelimit.Throttle) -> None:
        super().__init__(api)
        self.term: Final = term
        self._limit = limit

    def delay(self, *, reserve: float = 0.0) -> float:
        """Return the seconds until the next write may begin, with this share of a second's writes left to others."""
        return self._limit.delay(reserve=reserve)

    async def ready(self) -> None:
        """Wait until the rate allows another write."""
        await asyncio.sleep(self.delay())

    async def merge_patch(self, kind: str, path: str, body: object, **params: str) -> bytes:
        """Send a JSON merge patch (RFC 7386). Raise Deposed if the object was written in a later term."""
        try:
            return await super().merge_patch(kind, path, body, **params)
        except errors.ApiError as error:
            if outcome(error) is Outcome.DEPOSED:
                name = path.rpartition("/")[2]
                raise Deposed(self.term, f"the API server refused term {self.term.epoch} for node {name}") from error
            raise

    async def _guarded(self, request: Coroutine[Any, Any, bytes]) -> bytes:
        self._limit.acquire()
        try:
            return await self.term.write(request)
        except errors.ApiError as error:
            if outcome(error) is Outcome.OVERLOADED:
                self._limit.pause(error.retry_after)
            raise


async def unless_superseded(write: Coroutine[Any, Any, bytes], *, tested: bool = False) -> bytes | None:
    """Await a write; return None if the object changed before, or was deleted: then a watch will report it.

    `tested`: it is a JSON patch with tests of the former value.
    """
    try:
        return await write
    except errors.ApiError as error:
        if outcome(error, tested=tested) not in {Outcome.GONE, Outcome.CHANGED}:
            raise
        return None


def owned_by(node: nodes.NodeRow) -> list[dict[str, str]]:
    """Return the ownerReferences of an object that must be deleted with a Node."""
    return [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}]
