"""Writes into the spec of NodeSwapStates which pod is evicted from the node; the plan has no part in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from swapwarden.api import state
from swapwarden.controller.inventory import states
from swapwarden.controller.term import Deposed
from swapwarden.controller.writers.fenced import Fenced
from swapwarden.controller.writers.states import NO_FIELD_RECORDS, STATES
from swapwarden.kube import errors

_STRICT: Final = {"fieldValidation": "Strict"}
"""An older definition would drop the pod without notice."""


class VictimWriter:
    """Writes within one term."""

    def __init__(self, writes: Fenced, wrote: Callable[[states.StateRow], object]) -> None:
        """`wrote` takes in the API server's answer."""
        self._writes = writes
        self._wrote = wrote

    async def ready(self) -> None:
        """Wait until the rate allows a write."""
        await self._writes.ready()

    async def write(self, row: states.StateRow, victim: state.EvictedPod | None) -> states.StateRow:
        """Write the pod into the state `row`, or remove it (None); return the state as the API server has it.

        Raise Deposed if the state has a later term, and ApiError: 404 if the state was deleted, 409 if it is another
        one, or a pod would be written into another version of it.
        """
        epoch = self._writes.term.epoch
        metadata: dict[str, Any] = {"uid": row.uid, "managedFields": NO_FIELD_RECORDS}
        if victim is not None:
            # Another version may have the pod of an earlier leader.
            metadata["resourceVersion"] = str(row.version)
        body = {"metadata": metadata, "spec": {"epoch": epoch, "pressure": {"victim": victim}}}
        await self._writes.ready()
        try:
            answer = await self._writes.merge_patch("state", f"{STATES}/{row.name}", body, **_STRICT)
        except errors.ApiError as error:
            if error.status == 422 and state.EPOCH_REFUSAL in error.message:
                raise Deposed(self._writes.term, f"the API server refused term {epoch} for node {row.name}") from error
            raise
        written = states.decode(answer)
        self._wrote(written)
        return written
