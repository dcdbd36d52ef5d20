"""Writes into the spec of NodeSwapStates which pod is evicted from the node; the plan has no part in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from swapwarden.api import names, state
from swapwarden.controller.term import Deposed
from swapwarden.controller.writers.fenced import Fenced
from swapwarden.controller.writers.states import NO_FIELD_RECORDS, STRICT
from swapwarden.kube import errors
from swapwarden.policy.observed import states


class VictimWriter:
    """Writes within one term."""

    def __init__(self, writes: Fenced, wrote: Callable[[states.StateRow], object]) -> None:
        """`wrote` takes in the API server's answer."""
        self._writes = writes
        self._wrote = wrote

    async def ready(self) -> None:
        """Wait until the rate allows a write."""
        await self._writes.ready()

    async def record(self, row: states.StateRow, victim: state.EvictedPod) -> states.StateRow:
        """Write the pod into the state `row`; return the state as the API server has it.

        Raise Deposed if the state has a later term, and ApiError: 404 if the state was deleted, 409 if it is another
        one, or another version of it: that may have the pod of an earlier leader.
        """
        return await self._write(row, {"resourceVersion": str(row.version)}, {"victim": victim})

    async def clear(self, row: states.StateRow, evicted_at: Sequence[str]) -> states.StateRow:
        """Remove the pod from the state `row`, which then has these times of evictions; raise as record() does."""
        return await self._write(row, {}, {"victim": None, "evictedAt": evicted_at or None})

    async def _write(self, row: states.StateRow, version: dict[str, str], evictions: dict[str, Any]) -> states.StateRow:
        epoch = self._writes.term.epoch
        metadata: dict[str, Any] = {"uid": row.uid, "managedFields": NO_FIELD_RECORDS, **version}
        body = {"metadata": metadata, "spec": {"epoch": epoch, "pressure": evictions}}
        await self._writes.ready()
        try:
            answer = await self._writes.merge_patch("state", f"{names.STATES_PATH}/{row.name}", body, **STRICT)
        except errors.ApiError as error:
            if error.status == 422 and state.EPOCH_REFUSAL in error.message:
                raise Deposed(self._writes.term, f"the API server refused term {epoch} for node {row.name}") from error
            raise
        written = states.decode(answer)
        self._wrote(written)
        return written
