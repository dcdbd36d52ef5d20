"""Finds the files of a container: that of its own cgroup, and with crun that of the cgroup inside."""

from __future__ import annotations

from collections.abc import Collection

from swapwarden.agent.host import cgroup_files, cgroupfs, inotify
from swapwarden.agent.inventory import records


def paths(container: records.Container) -> tuple[str, str]:
    """Return the cgroups that can have a container's files: its own, and crun's inside of it."""
    return container.path, cgroupfs.join(container.path, records.INNER)


class ContainerFiles:
    """Of all containers."""

    def __init__(self, cgroups: cgroupfs.Cgroups, watching: inotify.WatchRegistry) -> None:
        self._fs = cgroups
        self._watches = watching

    def open(
        self,
        container: records.Container,
        wanted: Collection[cgroup_files.CgroupFile],
        gone: list[records.ControlFile],
    ) -> None:
        """Update `container.files` with those `wanted`, and append those that no longer exist to `gone`.

        Callers may repeat it at any time: it retries what failed to be watched. New files have no desired value yet.
        TransientError if the cgroup inside has no process yet; DeniedError if its owner keeps the agent out.
        """
        own, inner = paths(container)
        if self._open(container, own, wanted, gone, counts=True):
            self._watches.release(container)
        watched = self._watches.watch(container, self._fs.absolute(own), inotify.CHILDREN)
        self._open(container, inner, [each for each in wanted if each.inner], gone, counts=False)
        if not watched:
            raise cgroupfs.DeniedError(f"{own}: cannot be watched")

    def _open(
        self,
        container: records.Container,
        path: str,
        wanted: Collection[cgroup_files.CgroupFile],
        gone: list[records.ControlFile],
        *,
        counts: bool,
    ) -> bool:
        """Update one cgroup's files; return whether the known ones are gone. `counts`: even if it is not in use."""
        inode = self._fs.inode(path)
        known = [file for file in container.files if file.path == path]
        same = bool(known) and known[0].inode == inode
        if not (known or wanted):
            return False
        if same and {file.spec for file in known}.issuperset(wanted):
            return False
        if not same:
            gone += known
            container.files = [file for file in container.files if file not in known]
        there = {file.spec for file in known} if same else set()
        if inode is not None and (counts or same or self._is_in_use(path)):
            container.files += (
                records.ControlFile(path, inode, container.pod, container.id, spec=each)
                for each in wanted
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
