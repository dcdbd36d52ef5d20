"""Fields that are read of every kind of object."""

from __future__ import annotations

import msgspec


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata, as far as they are read."""

    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None
    generation: int = 0


class Named(msgspec.Struct, frozen=True):
    """An object of which only the metadata are read."""

    metadata: Meta
