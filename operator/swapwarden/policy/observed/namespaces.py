"""Namespaces: the part of the object that is read, and what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from swapwarden.api import names

Labels = Mapping[str, Mapping[str, str]]
"""Labels of Namespaces, by their names."""

UNDEFAULTED: Final = frozenset({"kube-system", "swapwarden-system"})
"""The webhook is not asked about pods of these, so that they start without it: no namespace default reaches them."""


class WireMeta(msgspec.Struct, frozen=True):
    """Metadata of a Namespace, as far as it is read."""

    name: str
    labels: dict[str, str] = {}


class WireNamespace(msgspec.Struct, frozen=True):
    """A Namespace as it comes from the API server or from a file."""

    metadata: WireMeta


def project(wire: WireNamespace) -> dict[str, str]:
    """Reduce a Namespace to its labels; the one that the API server sets is there, whatever a file says."""
    return {**wire.metadata.labels, names.NAME_LABEL: wire.metadata.name}
