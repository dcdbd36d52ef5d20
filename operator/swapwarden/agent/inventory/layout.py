"""Finds the tree of pods in the cgroup file system.

Pure: the caller passes the function that lists directories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import records

Listing = Callable[[str], Sequence[str]]
"""Names of the child directories of a directory, given relative to the root of the cgroup file system ("")."""

MAX_DEPTH: Final = 24
"""Deepest level that the search visits. The kernel allows any; real trees, clusters in clusters too, have fewer."""

NO_POD_TREE: Final = "NoPodTree"
"""Reason of a TreeError: no tree exists."""


class PodCgroup(msgspec.Struct, frozen=True):
    """A pod's cgroup."""

    uid: str
    path: str


class TreeError(Exception):
    """No single tree of pods was found; the message says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def levels(list_dirs: Listing, root: str) -> Iterator[str]:
    """Yield the root of pods and each cgroup between it and pods: new pods appear there."""
    yield root
    for name in list_dirs(root):
        if records.is_level(name):
            yield from levels(list_dirs, cgroupfs.join(root, name))


def pods(list_dirs: Listing, root: str) -> Iterator[PodCgroup]:
    """Yield the pods of one node, without searching inside pods."""
    for level in levels(list_dirs, root):
        for name in list_dirs(level):
            uid = records.pod_uid(name)
            if uid is not None:
                yield PodCgroup(uid, cgroupfs.join(level, name))


def roots(list_dirs: Listing, start: str = "", *, inside: bool = False, depth: int = MAX_DEPTH) -> Iterator[str]:
    """Yield the roots of pods at or below `start`; those of clusters that run inside a pod only with `inside`."""
    is_root = records.is_root(start.rpartition("/")[2])
    if is_root:
        yield start
    if depth > 0 and (inside or not is_root):
        for name in list_dirs(start):
            yield from roots(list_dirs, cgroupfs.join(start, name), inside=inside, depth=depth - 1)


def find(list_dirs: Listing, *, own_uid: str = "", anchor: str = "") -> str:
    """Return the root of the pods that this agent manages. TreeError unless exactly one tree fits.

    With `own_uid`, the UID of the agent's own pod, it is the tree with that pod, even inside a pod of another cluster.
    Without it, the only tree at or below `anchor` that is not inside a pod.
    """
    outer = list(roots(list_dirs, anchor))
    if own_uid:
        for candidates in (outer, roots(list_dirs, anchor, inside=True)):
            for root in candidates:
                if any(pod.uid == own_uid for pod in pods(list_dirs, root)):
                    return root
        raise TreeError(
            "OwnPodNotFound",
            f"no pod cgroup carries the UID {own_uid} (POD_UID): mount the node's whole /sys/fs/cgroup, "
            "or name the cgroup to search in with --cgroup-anchor and unset POD_UID",
        )
    if len(outer) == 1:
        return outer[0]
    if outer:
        raise TreeError(
            "AmbiguousTree",
            f"several cgroups hold pods ({', '.join(outer[:4])}): set POD_UID to the UID of the agent's own pod, "
            "or name the cgroup to search in with --cgroup-anchor",
        )
    raise TreeError(
        NO_POD_TREE, f"no kubepods cgroup below /{anchor}: it appears when the kubelet starts with --cgroups-per-qos"
    )
