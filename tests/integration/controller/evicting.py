"""`swapwarden` that evicts pods as if it had led for an hour, and whose requests for it fail as a test says.

The first argument is a file: while it says `lost`, a request is executed and its answer never arrives; while it says
`stuck`, requests wait; while it says `paused`, the controller waits once it has recorded a pod.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys

from swapwarden import __main__ as program
from swapwarden.api import state
from swapwarden.controller.pressure import budgets
from swapwarden.controller.term import Term
from swapwarden.controller.writers import victims
from swapwarden.kube import client, errors
from swapwarden.policy.observed import states
from swapwarden.policy.pressure import limits
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.policy.pressure.handling import EvictionAnswer

LOST, STUCK, PAUSED = "lost", "stuck", "paused"
LOOK_SECONDS = 0.05


def main(fault: pathlib.Path, arguments: list[str]) -> int:
    evict = budgets.evict

    def said() -> str:
        return fault.read_text(encoding="utf-8") if fault.exists() else ""

    async def faulty(api: client.Client, term: Term, pod: Candidate, grace: int) -> EvictionAnswer:
        how = said()
        while said() == STUCK:  # noqa: ASYNC110 another process removes the file
            await asyncio.sleep(LOOK_SECONDS)
        answer = await evict(api, term, pod, grace)
        if how == LOST:
            raise errors.Unreachable("no answer")
        return answer

    class Pausing(victims.VictimWriter):
        async def record(self, row: states.StateRow, victim: state.EvictedPod) -> None:
            await super().record(row, victim)
            while said() == PAUSED:  # noqa: ASYNC110 another process removes the file
                await asyncio.sleep(LOOK_SECONDS)

    budgets.evict = faulty
    evictions = limits.Evictions
    vars(limits).update(Evictions=lambda began: evictions(began - limits.HOUR))
    vars(victims).update(VictimWriter=Pausing)
    return program.main(arguments)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
