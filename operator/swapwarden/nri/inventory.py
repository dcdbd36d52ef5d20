"""The containers that the runtime has, for an agent that connects later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

from swapwarden.nri import messages

_T = TypeVar("_T")

MAX_PODS: Final = 4096
MAX_CONTAINERS: Final = 256
"""Limit of a pod's containers that are remembered; more are only counted."""
MAX_ITEMS: Final = 16_384
"""Limit of a node's containers and sandboxes."""

SANDBOX: Final = ""
"""The name under which a pod has its sandbox: no container has it."""


class Item(NamedTuple):
    """A container, or a sandbox."""

    id: str
    value: str | None
    """The value of memory.swap.max in the runtime; None if it has none for the container."""
    original: str | None
    """The kubelet's value, if a plugin replaced it; empty if it had none."""


def extend(items: list[_T], more: list[_T], most: int) -> int:
    """Append items up to `most` in all; return how many were left out."""
    room = most - len(items)
    items += more[:room]
    return max(0, len(more) - room)


class RuntimeInventory:
    """Containers by pod and name. Of a name a pod has one container: an earlier one ended."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, Item]] = {}
        self._size = 0
        self.omitted = 0
        """How often a container or sandbox was not remembered, for lack of room or of its pod."""

    def put(self, uid: str, name: str, item: Item) -> None:
        """Remember a container, or replace the pod's container of that name."""
        pod = self._pods.get(uid, {})
        new = name not in pod
        full = self._size >= MAX_ITEMS or len(pod) >= MAX_CONTAINERS or (not pod and len(self._pods) >= MAX_PODS)
        if new and full:
            self.omitted += 1
            return
        self._size += new
        pod[name] = item
        self._pods[uid] = pod

    def set_value(self, container: str, value: str) -> None:
        """Record a container's new value."""
        for pod in self._pods.values():
            for name, item in pod.items():
                if item.id == container:
                    pod[name] = item._replace(value=value)
                    return

    def remove(self, uid: str, name: str, container: str) -> None:
        """Forget a container, unless another one has its name already. A sandbox ends its pod."""
        pod = self._pods.get(uid, {})
        if name in pod and pod[name].id == container:
            gone = list(pod) if name == SANDBOX else [name]
            for each in gone:
                del pod[each]
            self._size -= len(gone)
            if not pod:
                del self._pods[uid]

    def replace(self, pods: list[messages.PodSandbox], containers: list[messages.RuntimeContainer]) -> None:
        """Replace all pods and containers with the runtime's list."""
        self._pods.clear()
        self._size = 0
        uids = {pod.id: pod.uid for pod in pods}
        for pod in pods:
            self.put(pod.uid, SANDBOX, Item(pod.id, None, None))
        for each in containers:
            if (uid := uids.get(each.sandbox)) is None:
                self.omitted += 1
            else:
                self.put(uid, each.name, Item(each.id, each.value, each.original))

    def items(self) -> Iterator[tuple[str, str, Item]]:
        """Yield pod UID, name and container."""
        for uid, pod in self._pods.items():
            for name, item in pod.items():
                yield uid, name, item
