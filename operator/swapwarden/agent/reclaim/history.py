"""Records that outlive an agent: bytes moved within 24 hours, and the containers whose Startup has ended.

The file is in the agent's run folder, so both end with the boot. One that cannot be understood counts as none.
"""

from __future__ import annotations

import logging
import pathlib
from typing import Final

import msgspec

from swapwarden.agent.desired import reclaim
from swapwarden.agent.host import files
from swapwarden.agent.ledger import replaced_file

log = logging.getLogger(__name__)

FILE: Final = "reclaim"
_BYTES: Final = 1 << 20
MAX_DONE: Final = 512
"""Pods that are kept: with the next agent, others begin Startup again."""


class _Stored(msgspec.Struct, omit_defaults=True):
    """The content of the file."""

    slots: list[tuple[float, int]] = []
    done: dict[str, list[str]] = {}


class History:
    """For one thread."""

    def __init__(self, folder: pathlib.Path, now: float) -> None:
        """Read the file of an agent before. `now`: monotonic seconds, which a boot resets."""
        self.writes = reclaim.WriteBudget()
        self.done: dict[str, frozenset[str]] = {}
        """By pod UID: its containers when Startup ended."""
        self._file = replaced_file.ReplacedFile(folder / FILE, self._content, lambda: now)
        self._saved = b""
        try:
            found = msgspec.json.decode(files.whole(folder / FILE, _BYTES), type=_Stored)
        except FileNotFoundError:
            return
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.warning("the record of reclaim is lost: its writes of the last 24 hours do not count: %s", error)
            return
        if all(0 <= begin <= now and size >= 0 for begin, size in found.slots):
            self.writes.slots = sorted(found.slots)[-reclaim.MAX_SLOTS :]
            self.done = {uid: frozenset(ids) for uid, ids in list(found.done.items())[-MAX_DONE:]}
            self._saved = self._content()

    def save(self) -> None:
        """Write the changes; a full disk is logged, and stops nothing."""
        content = self._content()
        if content != self._saved and self._file.write_anew() is None:
            self._saved = content

    def close(self) -> None:
        """Close the file, which stays."""
        self._file.close()

    def _content(self) -> bytes:
        done = {uid: sorted(ids) for uid, ids in list(self.done.items())[-MAX_DONE:]}
        return msgspec.json.encode(_Stored(self.writes.slots, done))
