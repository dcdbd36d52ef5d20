"""The cgroup file system for the thread that reclaims memory, and for no other: it has a descriptor of its own."""

from __future__ import annotations

from typing import Final

from swapwarden.agent.host import cgroupfs

RECLAIM: Final = "memory.reclaim"
"""From Linux 5.19 on."""
PIECE_BYTES: Final = 4 << 20
"""Reclaimed by one write at most: it can end between two."""
SWAPPINESS: Final = "swappiness=200"
"""Anonymous memory before the page cache. Linux 6.9 and newer take it."""


class ReclaimFiles(cgroupfs.Cgroups):
    """Reads and reclaims."""

    def __init__(self, root: str, page: int) -> None:
        super().__init__(root, page)
        self.takes_swappiness: bool | None = None
        """Whether the kernel takes an argument; None: not tried yet."""

    def reclaim(self, path: str, size: int) -> None:
        """Have the kernel reclaim `size` bytes of a cgroup. It blocks. CgroupError; LessError if it found less."""
        name = cgroupfs.join(path, RECLAIM)
        if self.takes_swappiness is not False:
            try:
                self._write(name, f"{size} {SWAPPINESS}")
            except cgroupfs.ValueRefusedError:
                self.takes_swappiness = False
            except cgroupfs.LessError:
                self.takes_swappiness = True
                raise
            else:
                self.takes_swappiness = True
                return
        self._write(name, str(size))
