"""Writes into the spec of NodeSwapStates which pod is evicted from the node; the plan has no part in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from swapwarden.api import names, state
from swapwarden.controller.writers.fenced import Fenced
from swapwarden.controller.writers.states import NO_FIELD_RECORDS, STRICT
from swapwarden.policy.observed import states


class VictimWriter:
    """Writes the evicted pod into NodeSwapStates within one term."""

    def __init__(self, writes: Fenced, wrote: Callable[[states.StateRow], object]) -> None:
        """`wrote` takes in the API server's answer."""
        self._writes = writes
        self._wrote = wrote

    async def ready(self) -> None:
        """Wait until the rate allows a write."""
        await self._writes.ready()

    async def record(self, row: states.StateRow, victim: state.EvictedPod) -> None:
        """Write the pod into the state `row`.

        Raise Deposed if the state has a later term, and ApiError: 404 if the state was deleted, 409 if it is another
        one, or another version of it: that may have the pod of an earlier leader.
        """
        await self._write(row, {"resourceVersion": str(row.version)}, {"victim": victim})

    async def clear(self, row: states.StateRow, evicted_at: Sequence[str]) -> None:
        """Remove the pod from the state `row`, which then has these times of evictions; raise as record() does."""
        await self._write(row, {}, {"victim": None, "evictedAt": evicted_at or None})

    async def _write(self, row: states.StateRow, version: dict[str, str], evictions: dict[str, Any]) -> None:
        metadata: dict[str, Any] = {"uid": row.uid, "managedFields": NO_FIELD_RECORDS, **version}
        body = {"metadata": metadata, "spec": {"epoch": self._writes.term.epoch, "pressure": evictions}}
        await self._writes.ready()
        answer = await self._writes.merge_patch("state", f"{names.STATES_PATH}/{row.name}", body, **STRICT)
        self._wrote(states.decode(answer))
