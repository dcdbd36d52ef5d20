"""Read and write the part of Protocol Buffers that the container runtime's protocol needs (protobuf.dev: Encoding).

A reader names the fields to read; all others are skipped by their length. A tag is a field's number with its
type, as it stands before each field.

By hand: the plugin imports the standard library alone (docs/design/nri.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

Data = bytes | memoryview

MAX_VALUE: Final = 256
"""Bytes of a value in a map that are kept: no valid policy or limit is as long."""


class EncodingError(ValueError):
    """Bytes that are no Protocol Buffers."""


def section(number: int) -> int:
    """Return the tag of a text, a map's entry or a message in a message."""
    return number << 3 | _LENGTH


def integer(number: int) -> int:
    """Return the tag of an integer or a Boolean."""
    return number << 3 | _VARINT


def _varint(data: Data, at: int, end: int) -> tuple[int, int]:
    """Return a number and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise EncodingError("a number without an end")


def fields(data: Data, at: int, end: int, tags: Collection[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a message with these tags, between two places in `data`.

    Of a section: its tag, its begin and its end; of an integer: its tag, its value and 0. EncodingError if
    the message is malformed, also in other fields.
    """
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1, end)
        kind = tag & 7
        if kind == _LENGTH:
            length = data[at] if at < end else 0x80
            start = at + 1
            if length >= 0x80:
                # A length of two bytes needs no call: nearly all have one or two.
                short = start < end and data[start] < 0x80
                length, start = (length + (data[start] - 1 << 7), at + 2) if short else _varint(data, at, end)
            at = start + length
            if at > end:
                raise EncodingError("a field exceeds its message")
            if tag in tags:
                yield tag, start, at
        elif kind == _VARINT:
            value, at = _varint(data, at, end)
            if tag in tags:
                yield tag, value, 0
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
            if at > end:
                raise EncodingError("a number exceeds its message")
        else:
            raise EncodingError(f"unknown field type {kind}")


def text(data: Data, start: int, end: int, most: int) -> str:
    """Return the text between two places, at most so many bytes of it; invalid UTF-8 is replaced."""
    return str(data[start : min(end, start + most)], "utf-8", "replace")


_KEY: Final = section(1)
_VALUE: Final = section(2)
_ENTRY: Final = (_KEY, _VALUE)


def entry(data: Data, start: int, end: int, keys: Collection[bytes]) -> tuple[str, str] | None:
    """Return key and value of a map's entry, the value shortened; None if its key is none of `keys`."""
    if end - start >= 4 and data[start] == _KEY and data[start + 1] < 0x80:
        # As everybody writes it, a short key and then a short value, it is read in place.
        at = start + 2 + data[start + 1]
        if at + 2 <= end and data[at] == _VALUE and data[at + 1] < 0x80 and at + 2 + data[at + 1] == end:
            name = data[start + 2 : at]
            return (str(name, "utf-8"), text(data, at + 2, end, MAX_VALUE)) if name in keys else None
    key: Data = b""
    value = (0, 0)
    for tag, begin, stop in fields(data, start, end, _ENTRY):
        if tag == _KEY:
            key = data[begin:stop]
        else:
            value = (begin, stop)
    return (str(key, "utf-8"), text(data, *value, MAX_VALUE)) if key in keys else None


def encoded(number: int) -> bytes:
    """Encode a number, 0 or larger."""
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def field(number: int, value: bytes | str | int) -> bytes:
    """Encode a field: a text or a message, or an integer. The number is at most 15."""
    if isinstance(value, int):
        return bytes((integer(number),)) + encoded(value)
    content = value.encode("utf-8", "replace") if isinstance(value, str) else value
    size = len(content)
    if size < 0x80:
        return bytes((section(number), size)) + content
    return bytes((section(number),)) + encoded(size) + content
