"""Decode the API server's answers, with objects by any writer.

msgspec and json recurse, also over fields that they skip, and fail at a depth that the API server still stores: about
990 levels with Python 3.11, 9,990 with 3.13, against 10,000 (sigs.k8s.io/json, maxNestingDepth). Every user who may
write an object can put any JSON into its `metadata.managedFields`, which no part reads. An object that is too deep is
therefore decoded without managedFields. If it is still too deep, a scanner that does not recurse takes it apart, so
that one object hides no other one.

Whatever the input, everything here raises msgspec.DecodeError (ValidationError included) and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

LONGEST_SHOWN: Final = 317
"""Characters of a namespace, a slash and a name."""

SCANNED: Final = re.compile(
    rb"""[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+(?:([\[{]++)|([\]}]++))""", re.DOTALL
)
"""Anything but brackets, whole strings, up to one or more brackets of a kind. Possessive: in linear time."""
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^\s,\[\]{}:\"]++")
_BLANK: Final = re.compile(rb"[ \t\r\n]*+")
_MANAGED_FIELDS: Final = re.compile(rb'(?<!\\)"managedFields"[ \t\r\n]*+:[ \t\r\n]*+(?=\[)')
"""The key. Within a string, a backslash would stand before its first quote."""


class ListMetadata(msgspec.Struct, frozen=True, rename={"resource_version": "resourceVersion", "next": "continue"}):
    """Metadata of one page of a list."""

    resource_version: str = ""
    next: str = ""
    """The token for the next page; empty on the last page."""


class Page(msgspec.Struct, frozen=True):
    """One page of a list, with its objects undecoded."""

    items: Sequence[msgspec.Raw] | None
    metadata: ListMetadata = ListMetadata()


class Identity(msgspec.Struct, frozen=True, rename="camel"):
    """The identity of an object; a field is empty if it is missing."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Identified(msgspec.Struct, frozen=True):
    metadata: Identity


class Decoder(Generic[T]):
    """Decode JSON to one type, without managedFields if decoding fails with them."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def decode(self, body: bytes | msgspec.Raw) -> T:
        """Decode BODY. msgspec.ValidationError if it is of another type, DecodeError if it is no usable JSON."""
        try:
            return self._decode(body)
        except msgspec.ValidationError:
            raise
        except (RecursionError, ValueError) as error:
            shorter = without_managed_fields(bytes(body))
            if shorter == bytes(body):
                raise _undecodable(error) from error
        return self.decode(shorter)


_TEXTS: Final = Decoder(str)
_PAGES: Final = Decoder(Page)
_METADATA: Final = Decoder(ListMetadata)
_IDENTIFIED: Final = Decoder(_Identified)


def decode(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode BODY once. Use Decoder for a type that is decoded often."""
    return Decoder(kind).decode(body)


def page(body: bytes) -> Page:
    """Take one page of a list apart without decoding its objects."""
    try:
        return _PAGES.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        parts = members(body)
        if "items" not in parts:
            raise
        items = [msgspec.Raw(item) for item in elements(parts["items"])]
        return Page(items, _METADATA.decode(parts.get("metadata", b"{}")))


def identity(body: bytes | msgspec.Raw) -> Identity:
    """Return an object's name, namespace and version, whatever else it holds."""
    try:
        return _IDENTIFIED.decode(body).metadata
    except msgspec.DecodeError:
        parts = members(members(bytes(body)).get("metadata", b""))
        texts = (parts.get(key, b'""') for key in ("name", "namespace", "resourceVersion"))
        return Identity(*(_TEXTS.decode(text) for text in texts))


def version(body: bytes | msgspec.Raw) -> str:
    """Return an object's resourceVersion; msgspec.DecodeError if it has none."""
    number = identity(body).resource_version
    if not number:
        raise msgspec.DecodeError("it has no resourceVersion")
    return number


def shown(name: str) -> str:
    """Shorten and escape a name for a log line."""
    text = name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}..."
    return text if text.isprintable() else ascii(text)[1:-1]


def without_managed_fields(body: bytes) -> bytes:
    """Empty all arrays of the name managedFields."""
    kept: list[bytes] = []
    end = 0
    while match := _MANAGED_FIELDS.search(body, end):
        kept += (body[end : match.end()], b"[]")
        end = _end(body, match.end())
    return b"".join([*kept, body[end:]])


def members(body: bytes) -> dict[str, bytes]:
    """Split a JSON object into the texts of its members, without recursion. Of equal keys, the last counts."""
    return {_TEXTS.decode(key): body[begin:end] for key, begin, end in _parts(body, b"{", b"}")}


def elements(body: bytes) -> list[bytes]:
    """Split a JSON array (or null, which has no elements) into the texts of its elements, without recursion."""
    return [] if body.strip() == b"null" else [body[begin:end] for _, begin, end in _parts(body, b"[", b"]")]


def _parts(body: bytes, opening: bytes, closing: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the spans between two brackets: the key (empty in an array), and the start and end of its value."""
    at = _blank(body, 0)
    if body[at : at + 1] != opening:
        raise msgspec.DecodeError(f"JSON does not begin with {opening.decode()}")
    at = _blank(body, at + 1)
    if body[at : at + 1] == closing:
        return
    while True:
        key = b""
        if opening == b"{":
            match = _STRING.match(body, at)
            at = _blank(body, match.end()) if match else at
            if match is None or body[at : at + 1] != b":":
                raise _malformed(at)
            key, at = match[0], _blank(body, at + 1)
        end = _end(body, at)
        yield key, at, end
        at = _blank(body, end)
        following = body[at : at + 1]
        if following == closing:
            return
        if following != b",":
            raise _malformed(at)
        at = _blank(body, at + 1)


def _end(body: bytes, begin: int) -> int:
    """Return the end of the JSON value that begins there."""
    first = body[begin : begin + 1]
    if first not in {b"[", b"{"}:
        match = (_STRING if first == b'"' else _SCALAR).match(body, begin)
        if match is None:
            raise _malformed(begin)
        return match.end()
    at, depth = begin, 0
    # One step for each run of brackets; the pattern skips the rest. The decoder checks that they match.
    while brackets := SCANNED.match(body, at):
        at = brackets.end()
        opened, closed = brackets.span(1), brackets.span(2)
        if opened[0] >= 0:
            depth += opened[1] - opened[0]
        elif closed[1] - closed[0] >= depth:
            return closed[0] + depth
        else:
            depth -= closed[1] - closed[0]
    raise _malformed(at)


def _blank(body: bytes, at: int) -> int:
    """Return the position of the next character that is not blank."""
    match = _BLANK.match(body, at)
    return match.end() if match else at


def _malformed(at: int) -> msgspec.DecodeError:
    return msgspec.DecodeError(f"JSON is malformed (byte {at})")


def _undecodable(error: Exception) -> msgspec.DecodeError:
    """Turn a msgspec error into the matching error of this module."""
    if isinstance(error, msgspec.DecodeError):
        return error
    if isinstance(error, RecursionError):
        return msgspec.DecodeError("JSON is nested too deeply")
    return msgspec.DecodeError(str(error))
