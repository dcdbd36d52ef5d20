"""How a profile's earlier specs are kept in its status: as JSON, or compressed where that is long. No I/O.

All of an object is one value in etcd, so there is room for them only as far as the profile itself leaves it.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

MAX_PLAIN: Final = 16384
"""Characters that people can read; what is longer is compressed (zlib, base64)."""
MAX_SPEC: Final = 3 * 2**20
"""Bytes of a spec as JSON: as much as an API server takes (k/k: staging/src/k8s.io/apiserver/pkg/server/config.go,
MaxRequestBodyBytes)."""
MAX_OBJECT: Final = 1_470_000
"""Bytes of a profile with its status: less than etcd takes in one request (1.5 MiB, --max-request-bytes), with room for
its key, and for the record of who wrote the status."""


class Kept(msgspec.Struct, frozen=True):
    """Revisions as a status has them."""

    written: tuple[dict[str, Any], ...]
    """The newest first; where there is no room for what one says, it is empty."""
    omitted: tuple[int, ...]
    """Generations that are needed, and that there is no room for."""


def packed(spec: object) -> str:
    """A spec as a status keeps it."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return text if len(text) <= MAX_PLAIN else base64.b64encode(zlib.compress(text.encode())).decode()


def unpacked(text: object) -> Any:
    """A spec from a status. ValueError where it is none that packed() made: it may be anybody's."""
    if not isinstance(text, str):
        raise ValueError("not text")  # noqa: TRY004 it is all the same to who reads it
    try:
        if not text.startswith("{"):
            reader = zlib.decompressobj()
            text = reader.decompress(base64.b64decode(text, validate=True), MAX_SPEC).decode()
            if not reader.eof:
                raise ValueError("cut off, or longer than any spec")
        return json.loads(text)
    except (binascii.Error, zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from error


def stored_bytes(found: object) -> int:
    """How many bytes the API server stores for it, at most: Go's JSON writes <, > and & as six characters."""
    text = json.dumps(found, separators=(",", ":"))
    return len(text) + 5 * sum(map(text.count, "<>&"))


def keep(wanted: Iterable[tuple[int, str]], spare: Iterable[tuple[int, str]], room: int) -> Kept:
    """Keep as many as there is room for, in bytes. Those `wanted` come first, in this order, then those to `spare`.

    Each is a generation and what packed() made of it. What is wanted is always named; what is spare is left out.
    """
    written: list[dict[str, Any]] = []
    omitted: list[int] = []
    for needed, found in ((True, wanted), (False, spare)):
        for generation, text in found:
            entry = {"generation": generation, "spec": text}
            size = stored_bytes(entry) + 1
            if size > room:
                if not needed:
                    continue
                omitted.append(generation)
                entry = {"generation": generation, "spec": ""}
                size = stored_bytes(entry) + 1
            room -= size
            written.append(entry)
    written.sort(key=lambda entry: -int(entry["generation"]))
    return Kept(tuple(written), tuple(sorted(omitted)))


def told(status: Mapping[str, Any]) -> dict[int, object]:
    """What a status keeps, by generation; what is no revision is passed over: another version may have written it."""
    found = status.get("revisions")
    entries = found if isinstance(found, list) else []
    return {
        entry["generation"]: entry.get("spec")
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("generation"), int)
    }
