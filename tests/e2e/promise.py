"""What a recorder saw of a pod that is to have no swap, held against what agents published of it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from testbed.nodevm import Sample
from tests.e2e.cgroups import Window
from tests.e2e.release import Exposed

NOTICE_SECONDS = 0.05
"""So much of each time above 0 may be missing in what is published: the agent counts from when it hears of a write, for
which it needs the CPU. Seen on an idle node with one CPU: 2 ms. Repairs on a busy one are to take 50 ms at p99."""


def broken(
    seen: Sequence[Window], used: Sequence[Sample], published: Exposed, alone_since: float | None = None
) -> Iterator[str]:
    """Yield what of the promise does not hold; nothing where all of it does.

    `seen` are the times above 0, `used` all samples of the pod's own cgroup, in order. From `alone_since` on nobody can
    publish how long exposures lasted, but how many there were is told by the next agent.
    """
    for each in seen:
        if each.end is None:
            yield f"above 0 without an end: {each}"
    if len(seen) > published.count:
        yield f"{len(seen)} times above 0, of which {published.count} are published"
    watched = [each for each in seen if alone_since is None or (each.end is not None and each.end < alone_since)]
    # Each counts for what it surely lasted, so that short ones make no room for a long one.
    lasted = sum(max(0.0, each.unlimited - NOTICE_SECONDS) for each in watched)
    if lasted > published.seconds:
        told = f"of which {published.seconds:.3f} s are published"
        yield f"without any limit for {lasted:.3f} s at least, beyond the time to notice, {told}"
    unseen = 0
    for before, after in grown(used):
        if not any(each.start <= after.at and (each.end is None or before.at <= each.end) for each in seen):
            unseen += after.current_bytes - before.current_bytes
    if unseen and published.count <= len(seen):
        yield f"{unseen} bytes went to swap while it was at 0, and all exposures were seen"
    elif unseen > published.bytes:
        yield f"{unseen} bytes went to swap while it was seen at 0, and {published.bytes} are published"


def grown(used: Sequence[Sample]) -> Iterator[tuple[Sample, Sample]]:
    """Between which samples more swap came into use."""
    for before, after in itertools.pairwise(used):
        if after.event != "gone" and after.current_bytes > before.current_bytes:
            yield before, after
