"""In which order files may be written: none is raised while one below it is yet to be lowered."""

from __future__ import annotations

from swapwarden.agent.inventory import records
from swapwarden.api.violations import ViolationReason


class WriteOrder:
    """Of all files."""

    def __init__(self) -> None:
        self._unlowered: set[records.ControlFile] = set()
        """What is to be lowered, and was not seen to be."""
        self._barred: set[records.ControlFile] = set()
        """What waits for one of these."""

    def lower_first(self, file: records.ControlFile) -> None:
        """The file is to be lowered: until `lowered`, those above it are not raised."""
        self._unlowered.add(file)

    def is_barred(self, file: records.ControlFile) -> bool:
        """Whether a file is not to be raised yet, because one below it cannot be written.

        What is to hold less there would have what this one is given. It waits until the other is written, or gone, or
        to hold something else: of too little swap no promise is broken, and the status tells of the other.
        """
        barred = any(each.path.startswith(f"{file.path}/") and _bars(each, file) for each in self._unlowered)
        (self._barred.add if barred else self._barred.discard)(file)
        return barred

    def lowered(self, file: records.ControlFile) -> list[records.ControlFile]:
        """The file no longer bars any: gives those that waited for it, and are to be tried again."""
        if file not in self._unlowered:
            return []
        self._unlowered.remove(file)
        waited = [each for each in self._barred if file.path.startswith(f"{each.path}/")]
        self._barred.difference_update(waited)
        return waited

    def drop(self, file: records.ControlFile) -> None:
        """The file is gone: it waits for none."""
        self._barred.discard(file)


def _bars(low: records.ControlFile, high: records.ControlFile) -> bool:
    """Whether a file may not be raised while one below it is not lowered: not where that keeps other pods from more.

    A container is bounded by its pod's own limit, which is not raised. And a mistake of the agent's about one pod is
    that pod's: it may use what its file holds, as before, and its violation says so. What the kernel refuses to lower
    bars all above it: that is no pod's doing, and of too little swap no promise is broken.
    """
    return high.pod is low.pod or not (low.is_tenants or low.status.reason is ViolationReason.INTERNAL_ERROR)
