"""Keeps what the agent knows of the tree of pods in step with what is on disk, and tells what comes and goes."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Final, Protocol

from swapwarden.agent import cgroupfs, inotify, pods, targets, tree, watches
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PODS = metrics.gauge("swapwarden_agent_pods", "Pods of the node whose cgroups the agent looks after.")

_COME: Final = inotify.CREATE | inotify.MOVED_TO


class Listener(Protocol):
    """Who is told. What is told of is known to the mirror already, or still."""

    def pod_came(self, pod: pods.Pod, noticed: float) -> None: ...

    def pod_went(self, pod: pods.Pod) -> None: ...

    def container_came(self, container: pods.Container, noticed: float) -> None: ...

    def file_went(self, knob: pods.Knob) -> None: ...


class Mirror:
    """The tree: one root, levels, pods, their containers. It watches directories; files are watched on request."""

    def __init__(
        self, cgroups: cgroupfs.Cgroups, watching: watches.Watches, listener: Listener, *, own_uid: str, anchor: str
    ) -> None:
        self._fs = cgroups
        self._watches = watching
        self._listener = listener
        self._own_uid = own_uid
        self._anchor = anchor
        self._parent = pods.Parent()
        self._levels: dict[str, pods.Level] = {}
        self.root: pods.Knob | None = None
        """The file of the cgroup above all pods, once found."""
        self.pods: dict[str, pods.Pod] = {}
        """By path."""

    def knobs(self) -> Iterator[pods.Knob]:
        """All files, ancestors first."""
        if self.root is not None:
            yield self.root
        for pod in self.pods.values():
            yield from pod.knobs()

    def find(self) -> pods.Knob:
        """Search for the root; TreeError where there is none to work on. `enter` comes next."""
        path = tree.find(self._searchable, own_uid=self._own_uid, anchor=self._anchor)
        inode = self._fs.inode(path)
        if inode is None or not self._fs.has(path, cgroupfs.SWAP_MAX):
            raise tree.TreeError(
                "NoSwapController",
                f"/{path} has no memory.swap.max: boot the node with cgroup v2 and the memory controller "
                "(and without swapaccount=0)",
            )
        log.info("found the tree of pods", extra={"root": f"/{path}"})
        self.root = pods.Knob(path, inode, None)
        self._watches.watch(self._parent, self._fs.absolute(path.rpartition("/")[0]), inotify.CHILDREN)
        self.watch(self.root)
        return self.root

    def _searchable(self, path: str) -> list[str]:
        """As Cgroups.children; what the agent may not look into is not where its pods are."""
        try:
            return self._fs.children(path)
        except cgroupfs.DeniedError:
            return []

    def enter(self, root: pods.Knob, origin: targets.Origin, noticed: float) -> None:
        """Take in all pods below the root that are not known."""
        self._enter_level(root.path, origin, noticed)

    def lose(self) -> None:
        """Forget all of the tree."""
        for path in list(self.pods):
            self._untrack(path)
        for level in self._levels.values():
            self._watches.release(level)
        self._levels.clear()
        if self.root is not None:
            log.warning("the tree of pods is gone; searching for a new one", extra={"root": f"/{self.root.path}"})
            self._drop(self.root)
        self._watches.release(self._parent)
        self.root = None

    def is_there(self) -> bool:
        """Whether the root that was found still is."""
        return self.root is not None and self._fs.inode(self.root.path) == self.root.inode

    def prune(self) -> None:
        """Forget what is not on disk any more, or is there anew: to be made up for by `enter`."""
        for path in [path for path, level in self._levels.items() if self._fs.inode(path) != level.inode]:
            self._leave_level(path)
        for path, pod in list(self.pods.items()):
            if self._fs.inode(path) != pod.knob.inode:
                self._untrack(path)
                continue
            self._watches.watch(pod, self._fs.absolute(path), inotify.CHILDREN)
            there = set(self._fs.children(path))
            for name in [name for name in pod.containers if name not in there]:
                self._remove_container(pod, name)
            for name in there:
                self._add_container(pod, name)

    def watch(self, knob: pods.Knob) -> None:
        """Have the file's changes told, if they are not yet."""
        self._watches.watch(knob, self._fs.absolute(knob.path, cgroupfs.SWAP_MAX), inotify.CONTENT)

    def open(self, container: pods.Container) -> list[pods.Knob]:
        """Take a container's files in hand: its cgroup's, and that of crun's cgroup inside, once there is one.

        Gives those that are new. It may be called at any time: what could not be watched is tried again.
        """
        self._watches.watch(container, self._fs.absolute(container.path), inotify.CHILDREN)
        known = {knob.path for knob in container.knobs}
        new = [
            pods.Knob(path, inode, container.pod, container.id)
            for path in self.paths(container)
            if path not in known and (inode := self._fs.inode(path)) is not None
        ]
        container.knobs += new
        return new

    @staticmethod
    def paths(container: pods.Container) -> tuple[str, str]:
        """Where a container's files can be: its cgroup, and crun's inside of it."""
        return container.path, tree.join(container.path, tree.INNER)

    def take(self, owner: pods.Watched, event: inotify.Event, noticed: float) -> None:
        """Follow what happened in a directory."""
        if not event.mask & _COME:
            self._went(owner, event.name)
        elif isinstance(owner, pods.Container):
            if event.name == tree.INNER:
                self._listener.container_came(owner, noticed)
        elif not event.mask & inotify.ISDIR:
            return
        elif isinstance(owner, pods.Level):
            self._appeared(owner.path, event.name, targets.Origin.APPEARED, noticed)
        elif isinstance(owner, pods.Pod):
            container = self._add_container(owner, event.name, since=noticed)
            if container is not None:
                self._listener.container_came(container, noticed)

    def _went(self, owner: pods.Watched, name: str) -> None:
        if isinstance(owner, pods.Level):
            # Where a comparison was faster than the event, what is known is what has come in its place.
            path = tree.join(owner.path, name)
            inode = self._fs.inode(path)
            pod, level = self.pods.get(path), self._levels.get(path)
            if pod is not None and pod.knob.inode != inode:
                self._untrack(path)
            if level is not None and level.inode != inode:
                self._leave_level(path)
        elif isinstance(owner, pods.Pod):
            self._remove_container(owner, name)
        elif isinstance(owner, pods.Parent) and self.root is not None and name == self.root.path.rpartition("/")[2]:
            self.lose()

    # Levels

    def _enter_level(self, path: str, origin: targets.Origin, noticed: float) -> None:
        """Watch a level, then list it: what came before the watch is found, what comes after is told."""
        inode = self._fs.inode(path)
        if inode is None:  # gone again, and maybe to come anew
            return
        level = self._levels.setdefault(path, pods.Level(path, inode))
        self._watches.watch(level, self._fs.absolute(path), inotify.CHILDREN)
        for name in self._fs.children(path):
            self._appeared(path, name, origin, noticed)

    def _appeared(self, parent: str, name: str, origin: targets.Origin, noticed: float) -> None:
        path = tree.join(parent, name)
        uid = tree.pod_uid(name)
        if uid is not None:
            self._track(uid, path, origin, noticed)
        elif tree.is_level(name):
            self._enter_level(path, origin, noticed)

    def _leave_level(self, path: str) -> None:
        for pod in [pod for pod in self.pods if pod.startswith(f"{path}/")]:
            self._untrack(pod)
        for inner in [level for level in self._levels if level == path or level.startswith(f"{path}/")]:
            self._watches.release(self._levels.pop(inner))

    # Pods

    def _track(self, uid: str, path: str, origin: targets.Origin, noticed: float) -> None:
        inode = self._fs.inode(path)
        known = self.pods.get(path)
        if known is not None and known.knob.inode == inode:
            return
        self._untrack(path)
        if inode is None:
            return
        pod = pods.Pod(uid, path, inode, origin, noticed)
        self._watches.watch(pod, self._fs.absolute(path), inotify.CHILDREN)
        try:
            names = self._fs.children(path)
        except cgroupfs.CgroupError:  # it is taken in whole, or later
            self._watches.release(pod)
            raise
        self.pods[path] = pod
        PODS.set(len(self.pods))
        self.watch(pod.knob)
        for name in names:
            self._add_container(pod, name)
        self._listener.pod_came(pod, noticed)

    def _untrack(self, path: str) -> None:
        """Forget a pod."""
        pod = self.pods.pop(path, None)
        if pod is None:
            return
        PODS.set(len(self.pods))
        self._watches.release(pod)
        self._drop(pod.knob)
        for name in list(pod.containers):
            self._remove_container(pod, name)
        self._listener.pod_went(pod)

    def _add_container(self, pod: pods.Pod, name: str, *, since: float = -math.inf) -> pods.Container | None:
        container = tree.container_id(name)
        if container is None:
            return None
        return pod.containers.setdefault(name, pods.Container(pod, container, tree.join(pod.path, name), since))

    def _remove_container(self, pod: pods.Pod, name: str) -> None:
        container = pod.containers.pop(name, None)
        if container is None:
            return
        if container.ripe is not None:
            container.ripe.cancel()
        self._watches.release(container)
        for knob in container.knobs:
            self._drop(knob)

    def _drop(self, knob: pods.Knob) -> None:
        self._watches.release(knob)
        self._listener.file_went(knob)
