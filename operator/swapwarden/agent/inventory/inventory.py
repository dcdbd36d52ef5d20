"""Keeps the records of the tree of pods up to date with the cgroup file system, and records each change."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Collection, Iterator

import msgspec

from swapwarden.agent.desired import resolve
from swapwarden.agent.host import cgroup_files, cgroupfs, inotify
from swapwarden.agent.inventory import layout, records
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PODS = metrics.gauge("swapwarden_agent_pods", "Pods of the node whose cgroups the agent manages.")


class TreeChange(msgspec.Struct, frozen=True):
    """A cgroup or file that appeared, and is on record now, or was removed, and is not any more."""

    what: records.Level | records.Pod | records.Container | records.ControlFile
    """A container appears again when a cgroup in it may have."""
    came: bool
    denied: str = ""
    """Why the cgroups in a new pod are unknown, or empty."""


class Inventory:
    """The tree: one root, levels, pods, their containers. It watches directories; files are watched on request."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        watching: inotify.WatchRegistry,
        *,
        own_uid: str,
        anchor: str,
    ) -> None:
        self._fs = cgroups
        self.page = cgroups.page
        """Bytes of a page: the kernel floors limits to it."""
        self._watches = watching
        self._own_uid = own_uid
        self._anchor = anchor
        self._parent = records.Parent()
        self.levels: dict[str, records.Level] = {}
        """Levels by path, the root's own first."""
        self.root: records.ControlFile | None = None
        """The file of the cgroup above all pods, once found."""
        self.pods: dict[str, records.Pod] = {}
        """Pods by the path of their cgroup."""
        self.containers: dict[str, records.Container] = {}
        """Containers by id."""
        self._changes: list[TreeChange] = []
        self.file_records = FileRecords(cgroups, watching)

    def changes(self) -> list[TreeChange]:
        """Return the changes since the last call, in their order."""
        taken, self._changes = self._changes, []
        return taken

    @property
    def root_path(self) -> str | None:
        """The cgroup above all pods, once it is found."""
        return None if self.root is None else self.root.path

    def inode(self, path: str) -> int | None:
        """Return the inode of a cgroup, as Cgroups.inode does; None if it is gone. CgroupError."""
        return self._fs.inode(path)

    def files(self) -> Iterator[records.ControlFile]:
        """Yield all files, ancestors first."""
        if self.root is not None:
            yield self.root
        for level in self.levels.values():
            yield from level.own
        for pod in self.pods.values():
            yield from pod.own
            for container in pod.containers.values():
                yield from container.files

    def find(self) -> records.Level:
        """Search for the root and return its level, to `enter` next. TreeError if no single root is found."""

        def searchable(path: str) -> list[str]:
            try:
                return self._fs.children(path)
            except cgroupfs.DeniedError:  # its pods are not where the agent may not look
                return []

        path = layout.find(searchable, own_uid=self._own_uid, anchor=self._anchor)
        inode = self._fs.inode(path)
        if inode is None or not self._fs.has(path, cgroupfs.SWAP_MAX):
            raise layout.TreeError(
                "NoSwapController",
                f"/{path} has no memory.swap.max: boot the node with cgroup v2 and the memory controller "
                "(and without swapaccount=0)",
            )
        self.root = records.ControlFile(path, inode, None)
        self._watches.watch(self._parent, self._fs.absolute(path.rpartition("/")[0]), inotify.CHILDREN)
        self._watches.watch(self.root, self._fs.absolute(self.root.name), inotify.CONTENT)
        self.levels[path] = records.Level(path, inode)
        return self.levels[path]

    def enter(self, level: records.Level) -> list[str]:
        """Watch a level, then list it: the list has earlier cgroups, events report later ones."""
        self._watches.watch(level, self._fs.absolute(level.path), inotify.CHILDREN)
        return self._fs.children(level.path)

    def lose(self) -> None:
        """Forget the whole tree."""
        for path in list(self.pods):
            self._untrack(path)
        for path in list(self.levels):
            self._leave_level(path)
        if self.root is not None:
            log.warning("the tree of pods is gone; searching for a new one", extra={"root": f"/{self.root.path}"})
            self._drop(self.root)
        self._watches.release(self._parent)
        self.root = None

    def is_there(self) -> bool:
        """Return whether the root that was found still exists."""
        return self.root is not None and self._fs.inode(self.root.path) == self.root.inode

    def prune_levels(self) -> None:
        """Forget levels that were removed or recreated; the parent's list shows new ones.

        An unreadable level stays: entering it reports why.
        """
        for path, level in list(self.levels.items()):
            with contextlib.suppress(cgroupfs.CgroupError):
                if self._fs.inode(path) != level.inode:
                    self._leave_level(path)

    def refresh(self, pod: records.Pod, noticed: float) -> bool:
        """Compare a pod with its cgroup. Return whether it is still the same one. CgroupError if it is unreadable."""
        inode = self._fs.inode(pod.path)
        if inode != pod.file.inode:
            self._track(pod.uid, pod.path, resolve.Origin.APPEARED, noticed)
            return False
        self._watches.watch(pod, self._fs.absolute(pod.path), inotify.CHILDREN)
        there = set(self._fs.children(pod.path))
        for name in [name for name in pod.containers if name not in there]:
            self._remove_container(pod, name)
        for name in there:
            self._add_container(pod, name)
        return True

    def open(self, container: records.Container, needed: Collection[cgroup_files.CgroupFile]) -> None:
        """Take a container's files in hand, as FileRecords does."""
        gone: list[records.ControlFile] = []
        try:
            self.file_records.open(container, needed, gone)
        finally:
            for file in gone:
                self._drop(file)

    def observe(self, owner: inotify.Watched, name: str, origin: resolve.Origin, noticed: float) -> None:
        """Examine the current cgroup of a name, whatever the event was: events may be late."""
        if isinstance(owner, records.Level):
            if self.levels.get(owner.path) is owner:
                self._observe_in_level(owner, name, origin, noticed)
        elif isinstance(owner, records.Pod):
            if self.pods.get(owner.path) is not owner:
                return
            if self._fs.inode(cgroupfs.join(owner.path, name)) is None:
                self._remove_container(owner, name)
            elif (container := self._add_container(owner, name, since=noticed)) is not None:
                self._changes.append(TreeChange(container, came=True))
        elif isinstance(owner, records.Container):
            if owner in owner.pod.containers.values():
                self._changes.append(TreeChange(owner, came=True))
        elif isinstance(owner, records.Parent) and self.root is not None and not self.is_there():
            self.lose()

    def _observe_in_level(self, parent: records.Level, name: str, origin: resolve.Origin, noticed: float) -> None:
        path = cgroupfs.join(parent.path, name)
        uid = records.pod_uid(name)
        if uid is not None:
            self._track(uid, path, origin, noticed)
        elif records.is_level(name):
            inode = self._fs.inode(path)
            known = self.levels.get(path)
            if known is not None and known.inode != inode:
                self._leave_level(path)
            if inode is not None and path not in self.levels:
                level = self.levels[path] = records.Level(path, inode)
                self._changes.append(TreeChange(level, came=True))

    # Levels

    def _leave_level(self, path: str) -> None:
        for pod in [pod for pod in self.pods if pod.startswith(f"{path}/")]:
            self._untrack(pod)
        for inner in [level for level in self.levels if level == path or level.startswith(f"{path}/")]:
            left = self.levels.pop(inner)
            self._watches.release(left)
            for file in left.own:
                self._drop(file)

    # Pods

    def _track(self, uid: str, path: str, origin: resolve.Origin, noticed: float) -> None:
        inode = self._fs.inode(path)
        known = self.pods.get(path)
        if known is not None and known.file.inode == inode:
            return
        self._untrack(path)
        if inode is None:
            return
        pod = records.Pod(path, uid, inode, origin, noticed)
        self._watches.watch(pod, self._fs.absolute(path), inotify.CHILDREN)
        names, denied = [], ""
        try:
            names = self._fs.children(path)
        except cgroupfs.DeniedError as error:  # this may last, and the pod's own limit can be set all the same
            denied = str(error)
        except cgroupfs.CgroupError:  # the pod is recorded as a whole, or later
            self._watches.release(pod)
            raise
        self.pods[path] = pod
        for file in pod.own:
            self._watches.watch(file, self._fs.absolute(file.name), inotify.CONTENT)
        for name in names:
            self._add_container(pod, name)
        self._changes.append(TreeChange(pod, came=True, denied=denied))

    def _untrack(self, path: str) -> None:
        """Forget a pod."""
        pod = self.pods.pop(path, None)
        if pod is None:
            return
        self._watches.release(pod)
        for file in pod.own:
            self._drop(file)
        for name in list(pod.containers):
            self._remove_container(pod, name)
        self._changes.append(TreeChange(pod, came=False))

    def _add_container(self, pod: records.Pod, name: str, *, since: float = -math.inf) -> records.Container | None:
        container = records.container_id(name)
        if container is None:
            return None
        made = records.Container(cgroupfs.join(pod.path, name), pod, container, since)
        known = pod.containers.setdefault(name, made)
        self.containers[container] = known
        return known

    def _remove_container(self, pod: records.Pod, name: str) -> None:
        container = pod.containers.pop(name, None)
        if container is None:
            return
        if self.containers.get(container.id) is container:
            del self.containers[container.id]
        self._changes.append(TreeChange(container, came=False))
        self._watches.release(container)
        for file in container.files:
            self._drop(file)

    def _drop(self, file: records.ControlFile) -> None:
        self._watches.release(file)
        self._changes.append(TreeChange(file, came=False))


def above_pods(known: Inventory) -> Iterator[records.ControlFile]:
    """Yield the files of the cgroups above pods, ancestors first."""
    if known.root is not None:
        yield known.root
    for level in known.levels.values():
        yield from level.own


def container_paths(container: records.Container) -> tuple[str, str]:
    """Return the cgroups that can have a container's files: its own, and crun's inside of it."""
    return container.path, cgroupfs.join(container.path, records.INNER)


class FileRecords:
    """Makes and removes the records of files: of containers, and of memory files of pods and the cgroups above them.

    A container has files in its own cgroup, and with crun in the cgroup inside. A memory file has a record if it is set
    or on record.
    """

    def __init__(self, cgroups: cgroupfs.Cgroups, watching: inotify.WatchRegistry) -> None:
        self._fs = cgroups
        self._watches = watching

    def open(
        self,
        container: records.Container,
        needed: Collection[cgroup_files.CgroupFile],
        gone: list[records.ControlFile],
    ) -> None:
        """Update `container.files` with those `needed`, and append those that no longer exist to `gone`.

        Callers may repeat it at any time: it retries what failed to be watched. New files have no desired value yet.
        TransientError if the cgroup inside has no process yet; DeniedError if its owner keeps the agent out.
        """
        own, inner = container_paths(container)
        if self._open(container, own, needed, gone, counts=True):
            self._watches.release(container)
        watched = self._watches.watch(container, self._fs.absolute(own), inotify.CHILDREN)
        self._open(container, inner, [each for each in needed if each.inner], gone, counts=False)
        if not watched:
            raise cgroupfs.DeniedError(f"{own}: cannot be watched")

    def _open(
        self,
        container: records.Container,
        path: str,
        needed: Collection[cgroup_files.CgroupFile],
        gone: list[records.ControlFile],
        *,
        counts: bool,
    ) -> bool:
        """Update one cgroup's files; return whether the known ones are gone. `counts`: even if it is not in use."""
        inode = self._fs.inode(path)
        known = [file for file in container.files if file.path == path]
        same = bool(known) and known[0].inode == inode
        if not (known or needed):
            return False
        if same and {file.spec for file in known}.issuperset(needed):
            return False
        if not same:
            gone += known
            container.files = [file for file in container.files if file not in known]
        there = {file.spec for file in known} if same else set()
        if inode is not None and (counts or same or self._is_in_use(path)):
            container.files += (
                records.ControlFile(path, inode, container.pod, container.id, spec=each)
                for each in needed
                if each not in there
            )
        return bool(known) and not same

    def _is_in_use(self, inner: str) -> bool:
        """Return whether it is crun's: the container's processes are in it. A container may make any other."""
        try:
            populated = self._fs.counts(inner, cgroupfs.CGROUP_EVENTS).get("populated", 0)
        except cgroupfs.GoneError:
            return False
        if not populated:
            raise cgroupfs.TransientError(f"{inner}: no process is in it")
        return self._fs.has(inner, cgroupfs.SWAP_MAX)

    def add(self, cgroup: records.Pod | records.Level, spec: cgroup_files.CgroupFile) -> records.ControlFile | None:
        """Have a record of one more of a cgroup's own files, and watch it. Return it if it is new."""
        if any(file.spec is spec for file in cgroup.own):
            return None
        pod = cgroup if isinstance(cgroup, records.Pod) else None
        inode = cgroup.file.inode if isinstance(cgroup, records.Pod) else cgroup.inode
        made = records.ControlFile(cgroup.path, inode, pod, spec=spec)
        cgroup.own = tuple(sorted((*cgroup.own, made), key=lambda file: cgroup_files.OF_PODS.index(file.spec)))
        self._watches.watch(made, self._fs.absolute(made.name), inotify.CONTENT)
        return made

    def remove(self, cgroup: records.Pod | records.Level, file: records.ControlFile) -> None:
        """Forget a file that must hold nothing any more."""
        cgroup.own = tuple(each for each in cgroup.own if each is not file)
        self._watches.release(file)
