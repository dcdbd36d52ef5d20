"""Keeps the records of those files of memory, in pods' cgroups and those above, that are set or on record."""

from __future__ import annotations

from collections.abc import Iterator

from swapwarden.agent.host import cgroup_files, cgroupfs, inotify
from swapwarden.agent.inventory import inventory, records


def above_pods(known: inventory.Inventory) -> Iterator[records.ControlFile]:
    """Yield the files of the cgroups above pods, ancestors first."""
    if known.root is not None:
        yield known.root
    for level in known.levels.values():
        yield from level.own


class OwnFiles:
    """Of all pods and levels."""

    def __init__(self, cgroups: cgroupfs.Cgroups, watching: inotify.WatchRegistry) -> None:
        self._fs = cgroups
        self._watches = watching

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
