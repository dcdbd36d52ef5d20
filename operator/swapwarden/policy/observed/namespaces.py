"""Namespaces: the fields that are read, and the row that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from swapwarden.api import names

Labels = Mapping[str, Mapping[str, str]]
"""Labels of Namespaces, by their names."""

UNDEFAULTED: Final = frozenset({"kube-system", "swapwarden-system"})
"""The API server does not call the webhook for pods of these, so that they start without it: they get no default."""


class WireMeta(msgspec.Struct, frozen=True):
    """Metadata of a Namespace: the fields that are read."""

    name: str
    labels: dict[str, str] = {}


class WireNamespace(msgspec.Struct, frozen=True):
    """A Namespace as received from the API server or read from a file."""

    metadata: WireMeta


def project(wire: WireNamespace) -> dict[str, str]:
    """Reduce a Namespace to its labels; the label that the API server sets is always included."""
    return {**wire.metadata.labels, names.NAME_LABEL: wire.metadata.name}
