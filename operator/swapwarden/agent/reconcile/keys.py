"""Keys of the queue: a name in a directory, a cgroup, a file, or a task of the whole node."""

from __future__ import annotations

import enum
from typing import NamedTuple

from swapwarden.agent.host import inotify
from swapwarden.agent.inventory import layout, records


class Child(NamedTuple):
    """A name in a cgroup: behind it there may be another thing now, or nothing, than was known."""

    owner: inotify.Watched
    name: str
    found: bool = False
    """Whether a listing found it, and no event reported it."""

    def __str__(self) -> str:
        """For logs."""
        return f"{self.owner}/{self.name}"

    @property
    def pod(self) -> object:
        """The group by which keys take turns: a container's pod, or the cgroup itself."""
        return self.owner.pod if isinstance(self.owner, records.Container) else self.owner


class Task(enum.Enum):
    """Of the whole node."""

    TREE = "tree"
    """Find the cgroup above all pods."""
    UNITS = "units"
    SWEEP = "sweep"
    """End a full comparison."""
    CAUSES = "causes"
    """Find out why values were written over."""


Key = Child | Task | records.Level | records.Pod | records.Container | records.ControlFile


def whose(key: Key) -> tuple[str, str]:
    """Return the pod's UID and the container's id for a violation; `kubepods` and nothing if it is above all pods."""
    owner, name = (key.owner, key.name) if isinstance(key, Child) else (key, "")
    match owner:
        case records.Level() if uid := layout.pod_uid(name):
            return uid, ""
        case records.Pod():
            return owner.uid, layout.container_id(name) or ""
        case records.Container():
            return owner.pod.uid, owner.id
        case records.ControlFile(pod=records.Pod() as pod):
            return pod.uid, owner.container
    return "kubepods", ""
