"""All that the plugin knows and counts, whichever connection it is from."""

from __future__ import annotations

import time
from typing import Final

from swapwarden.api import names
from swapwarden.api.runtime_link import FromPlugin
from swapwarden.nri import decide, inventory, link, logs, messages

COUNTED: Final = ("requests", "adjusted", "kept", "errors", "late", "lost", "dropped")
"""Requests of the runtime; containers that were adjusted; updates in which a value was kept; requests that got an empty
answer because of an exception; pods whose start did not wait longer for the agent; connections to the runtime that were
lost; those of them that the runtime ended and still listened."""
LOG_SECONDS: Final = 60.0


class Knowledge:
    """The plugin's state and counts, which both connections read and write."""

    def __init__(self, *, adjusts: bool, required: bool = False) -> None:
        """`adjusts`: whether this node's kernel can limit swap; `required`: whether starts fail without an answer."""
        self.adjusts = adjusts
        self.required = required
        self.mode: str = names.Mode.ENFORCE
        self.decisions = decide.Decisions()
        self.inventory = inventory.RuntimeInventory()
        self.counts = dict.fromkeys(COUNTED, 0)
        self.runtime: messages.Runtime | None = None
        self.away = ""
        """Why no runtime is connected; empty before the first attempt."""
        self.synchronized = False
        """Whether the runtime listed its containers."""
        self._logged: dict[str, float] = {}

    def described(self) -> bytes:
        """Return the packet about the runtime."""
        runtime = self.runtime or messages.Runtime("", "", "", 0)
        return link.encode(
            FromPlugin.RUNTIME,
            connected=self.runtime is not None,
            name=runtime.name,
            version=runtime.version,
            nri=runtime.nri,
            requestTimeoutMs=runtime.request_timeout_ms,
            error="" if self.runtime else self.away,
        )

    def counted(self) -> dict[str, int]:
        """Return all counts."""
        return {**self.counts, "omitted": self.inventory.omitted}

    def failed(self, method: str, error: Exception) -> None:
        """Count a request that could not be handled; log one of each method in a minute."""
        self.counts["errors"] += 1
        now = time.monotonic()
        kind = method if method in messages.METHODS else ""
        if now - self._logged.get(kind, -LOG_SECONDS) >= LOG_SECONDS:
            self._logged[kind] = now
            logs.error("runtime", f"a request got an empty answer: {logs.raised(error)}", method=kind)
