"""Identifies other writers of the agent's files, as far as that is possible without privileges.

The evidence is the level in the tree, the value, the other files of the cgroup, and the rhythm. Known tools:

- wasp-agent writes to each container of CRI-O, past systemd, the kubelet's LimitedSwap number or 0, all of them every
  20 seconds (openshift-virtualization/wasp-agent: pkg/wasp/limited-swap-manager).
- The memory-qos plugin of NRI has the runtime give a container `max`, and memory.high below its memory.max
  (containers/nri-plugins: cmd/plugins/memory-qos). The runtime writes both again with each update of the container.
- koordlet writes memory.min, low and high, and files of one vendor's kernel, but no memory.swap.max
  (koordinator-sh/koordinator: pkg/koordlet/util/system), so it is never that writer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs

RECENT_SECONDS: Final = 600.0
"""How long the status reports another writer after its last write."""
BATCH_SECONDS: Final = 5.0
"""Writes closer than this are one beat of a rhythm."""
BEATS: Final = 3
"""Equal intervals in a row that make a rhythm."""
TOLERANCE: Final = 0.15
"""Share by which intervals may differ and still be equal."""
WASP_SECONDS: Final = 20.0

_CRIO: Final = "crio-"
_PLACES: Final = {
    "pod": "pods",
    "container": "containers",
    "kubepods": "kubepods",
    "system": "slices and services of the node",
}
"""Words for kinds."""


class ObservedWrite(msgspec.Struct, frozen=True):
    """One external write."""

    kind: str
    """pod, container, kubepods or system."""
    path: str
    found: int
    high_below_max: bool
    """Whether the cgroup's memory.high is below its memory.max."""
    quiet: bool = False
    """Whether to report it only if a known tool writes so: systemd may have written its own value for the cgroup, and a
    container may write any value to a cgroup inside."""


def is_crio(path: str) -> bool:
    """Return whether CRI-O made the container's cgroup, or the one around crun's."""
    return any(part.startswith(_CRIO) for part in path.split("/")[-2:])


class _Trace:
    """Recent writes of one value to one kind of cgroup."""

    __slots__ = ("beats", "count", "crio", "high", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last = float("-inf")
        self.beats: list[float] = []
        self.crio = self.high = True


class OtherWriters:
    """Recent external writes. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._traces: dict[tuple[str, str, bool], _Trace] = {}

    def note(self, write: ObservedWrite, now: float) -> None:
        """Note an external write."""
        value = cgroupfs.render(write.found) if write.found in {0, cgroupfs.NO_LIMIT} else "a number of bytes"
        key = write.kind, value, write.quiet
        trace = self._traces.get(key)
        if trace is None or now - trace.last > RECENT_SECONDS:
            trace = self._traces[key] = _Trace()
        if trace.count and now - trace.last > BATCH_SECONDS:
            trace.beats = [*trace.beats, now - trace.last][-BEATS:]
        trace.count += 1
        trace.last = now
        trace.crio = trace.crio and is_crio(write.path)
        trace.high = trace.high and write.high_below_max

    def described(self, now: float) -> str:
        """Return a sentence for each kind of recent external writes, or an empty string."""
        recent = {key: trace for key, trace in self._traces.items() if now - trace.last <= RECENT_SECONDS}
        sentences = (_sentence(*key, recent[key]) for key in sorted(recent))
        return "; ".join(dict.fromkeys(sentence for sentence in sentences if sentence))


def _sentence(kind: str, value: str, quiet: bool, trace: _Trace) -> str:  # noqa: FBT001 a part of the key
    """Describe one kind of external writes; empty if systemd may be the writer and no known tool fits."""
    beat = _rhythm(trace.beats)
    rhythm = f" every {beat:.0f} s" if beat else ""
    who = _who(kind, value, trace, beat)
    return "" if quiet and not who else f"another writer gives {value} to {_PLACES[kind]}{rhythm}{who}"


def _who(kind: str, value: str, trace: _Trace, beat: float) -> str:
    if kind != "container":
        return ""
    if value != "max" and trace.crio and abs(beat - WASP_SECONDS) <= WASP_SECONDS * TOLERANCE:
        return ", as wasp-agent does with CRI-O's containers: run only one of the two on a node"
    if value == "max" and trace.high:
        return ", and they have memory.high, as with the memory-qos plugin of NRI: take its class from these pods"
    return ""


def _rhythm(beats: list[float]) -> float:
    """Return the interval in seconds that all share; 0 without one."""
    if len(beats) < BEATS:
        return 0.0
    mean = sum(beats) / len(beats)
    return mean if all(abs(beat - mean) <= mean * TOLERANCE for beat in beats) else 0.0
