"""`swapwarden` that evicts pods as if it had led for an hour, and whose requests for it fail as a test says.

The first argument is a file: while it says `lost`, a request is executed and its answer never arrives; while it says
`stuck`, requests wait.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys

from swapwarden import __main__ as program
from swapwarden.controller.pressure import budgets
from swapwarden.controller.term import Term
from swapwarden.kube import client, errors
from swapwarden.policy.pressure import limits
from swapwarden.policy.pressure.candidates import Candidate

LOST, STUCK = "lost", "stuck"


def main(fault: pathlib.Path, arguments: list[str]) -> int:
    evict = budgets.evict

    def said() -> str:
        return fault.read_text(encoding="utf-8") if fault.exists() else ""

    async def faulty(api: client.Client, term: Term, pod: Candidate, grace: int) -> budgets.EvictionAnswer:
        how = said()
        while said() == STUCK:  # noqa: ASYNC110 another process removes the file
            await asyncio.sleep(0.05)
        answer = await evict(api, term, pod, grace)
        if how == LOST:
            raise errors.Unreachable("no answer")
        return answer

    budgets.evict = faulty
    evictions = limits.Evictions
    vars(limits).update(Evictions=lambda began: evictions(began - limits.HOUR))
    return program.main(arguments)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
