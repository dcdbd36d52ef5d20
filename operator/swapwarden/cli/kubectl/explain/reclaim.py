"""Words for moving a pod's idle memory to swap: the decision is the planner's, the amounts are the agent's. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from swapwarden.api import names, state
from swapwarden.api.sizes import rounded
from swapwarden.cli.kubectl.explain.memory import MemoryLine
from swapwarden.cli.kubectl.explain.planned import PlannedPod
from swapwarden.policy.reclaim import decisions

Reason = names.ReclaimReason
HOLDS: Final[dict[str, str]] = {
    names.ReclaimHold.STEP: "steps go on",
    names.ReclaimHold.WAITS: "it waits for its next step",
    names.ReclaimHold.FIRST_LOOK: "it waits for its next step",
    names.ReclaimHold.DONE: "Startup has ended",
    names.ReclaimHold.STALLED: "the pod waits for memory",
    names.ReclaimHold.REFAULTS: "the pod needed swapped memory again",
    names.ReclaimHold.SMALL: "too little memory is in use",
    names.ReclaimHold.PROTECTED: "the rest is protected",
    names.ReclaimHold.SWAP_LIMIT: "the swap limit of the pod, or of a cgroup above it, is reached",
    names.ReclaimHold.SWAP_KEPT: "the node keeps the rest of its swap free (reclaim.keepSwapFree)",
    names.ReclaimHold.WRITES: "the writes of 24 hours are spent (reclaim.writesPerDay)",
    names.ReclaimHold.NODE_PRESSURE: "the node is short of memory",
    names.ReclaimHold.UNREADABLE: "the kernel does not show how the pod does",
}


def lines(planned: PlannedPod, found: state.NodeSwapState | None = None) -> Iterator[MemoryLine]:
    """Yield whether idle memory of a pod is moved to swap, and how much was; nothing if nobody asks.

    `found` is its node's state, if known.
    """
    row, override = planned.row, planned.override
    given = None if override is None else override.reclaim
    if row.reclaim is None and given is None:
        return
    decided = decisions.decide(planned.profile.reclaim, row, planned.trace.decision, given)
    why = _words(planned)[decided.reason]
    yield MemoryLine("reclaim", f"{decided.mode.value}: {why}", reason=decided.reason.value)
    if found is None or decided.mode is names.ReclaimMode.OFF:
        return
    if found.spec is not None and found.spec.mode is not names.Mode.ENFORCE:
        yield MemoryLine("moved", f"mode {found.spec.mode}: nothing is moved", reason=found.spec.mode.value)
        return
    listed = next((each for each in found.status.reclaimed if each.pod == row.key), None)
    if listed is not None:
        last = HOLDS.get(listed.hold, f"the agent reports {listed.hold}")
        text = (
            f"{rounded(listed.moved_bytes)} to swap by it, in {listed.milliseconds / 1000:.1f} s;"
            f" {rounded(listed.refaulted_bytes)} of swapped memory soon came back; {last}"
        )
        yield MemoryLine("moved", text, reason=listed.hold, milliseconds=listed.milliseconds)


def _words(planned: PlannedPod) -> dict[Reason, str]:
    profile, override = planned.profile, planned.override_name
    offer = f"set reclaim.mode in {profile.name}"
    if profile.name == names.BUILT_IN_PROFILE:
        offer = "no profile selects the node; one with reclaim does"
    return {
        Reason.ANNOTATION: f"annotation {names.RECLAIM_ANNOTATION}",
        Reason.OVERRIDE: f"{override} of {profile.name}",
        Reason.STARTUP_ONLY: f"{profile.name} offers no more; its reclaim.mode Continuous does",
        Reason.NO_SWAP: "the pod has no swap",
        Reason.POD_ENDS: "the pod was deleted",
        Reason.NOT_ASKED: "nobody asks for it",
        Reason.POD_REFUSES: "an annotation of the pod refuses it, or is invalid",
        Reason.OVERRIDE_REFUSES: f"refused: remove reclaim from {override} of {profile.name}",
        Reason.NOT_OFFERED: f"not offered: {offer}",
    }
