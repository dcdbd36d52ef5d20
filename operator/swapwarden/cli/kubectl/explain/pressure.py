"""Whether a pod would be evicted while its node is under memory pressure. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import msgspec

from swapwarden.api import quantity, state
from swapwarden.cli.kubectl.explain.planned import PlannedPod
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.pressure import candidates, ranking, words
from swapwarden.policy.pressure.ranking import Ranked, Spared


class PodPressure(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The place of a pod among those that would be evicted. Sizes in bytes."""

    text: str
    rank: int | None = None
    """Among the pods that may be evicted, from 1; absent if the pod is spared, or if the others are not known."""
    spared: Spared | None = None
    usage: int | None = None
    """Working set and swap; absent if the agent did not measure the pod."""
    request: int = 0
    swap: int = 0
    """The swap that it may use."""


def of_pod(
    planned: PlannedPod, node_uid: str, found: state.NodeSwapState | None, neighbours: Iterable[WirePod] | None
) -> PodPressure | None:
    """Return the decision on a pod; None if its node is not under pressure, or if its profile does not ask.

    `found` is the state of the node; `neighbours` are its other pods, None if they are not known.
    """
    if found is None or found.spec is None or found.spec.pressure is None or found.status.pressure is None:
        return None
    report, spec, uid = found.status.pressure, found.spec, planned.pod.metadata.uid

    def read() -> Iterator[candidates.Candidate]:
        for wire in (planned.pod, *(neighbours or ())):
            with contextlib.suppress(quantity.QuantityError):
                one = candidates.read(wire, planned.facts, node_uid, spec.pods)
                if one is not None:
                    yield one

    ranked = ranking.rank(read(), report, planned.facts.memory_bytes, planned.profile.eviction)
    own = next((one for one in ranked if one.pod.uid == uid), None)
    if own is None:
        return None
    able = [one.pod.uid for one in ranked if one.spared is None]
    rank = able.index(own.pod.uid) + 1 if own.spared is None and neighbours is not None else None
    victim = found.spec.pressure.victim
    goes = victim is not None and victim.uid == uid
    what = "this pod is being evicted" if goes else _would(own, rank, len(able))
    text = f"{words.pressure(report, found.spec.pressure)}; {what}"
    if own.measured is not None:
        text += f": {words.arithmetic(own)}"
    usage = None if own.measured is None else own.usage
    return PodPressure(text, rank, own.spared, usage, own.pod.request, own.pod.swap)


def _would(own: Ranked, rank: int | None, able: int) -> str:
    if own.spared is not None:
        return f"this pod would not be evicted: {words.WHY_SPARED[own.spared]}"
    if rank is None:
        return "this pod may be evicted"
    return (
        "this pod would be evicted first" if rank == 1 else f"this pod is number {rank} of {able} that may be evicted"
    )
