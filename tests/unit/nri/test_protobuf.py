"""Protocol Buffers, against an encoder and a decoder of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from swapwarden.nri import protobuf

from tests.unit.nri import fake_runtime as runtime

NUMBERS = some.integers(1, 15)
VALUES = some.integers(0, 2**64 - 1) | some.binary(max_size=300)
WANTED = tuple(make(number) for number in range(16) for make in (protobuf.section, protobuf.integer))


@given(some.lists(some.tuples(NUMBERS, VALUES)))
def test_fields_are_read_as_they_were_written(fields: list[tuple[int, int | bytes]]) -> None:
    data = b"".join(runtime.field(number, value) for number, value in fields)
    found = [
        (tag >> 3, data[start:end] if tag & 7 else start)
        for tag, start, end in protobuf.fields(data, 0, len(data), WANTED)
    ]
    assert found == fields
    assert b"".join(protobuf.field(number, value) for number, value in fields) == data


@given(some.integers(16, 2**29 - 1), some.binary(max_size=200))
def test_fields_that_are_not_wanted_are_skipped(number: int, value: bytes) -> None:
    fixed = b"\x09" + bytes(8) + b"\x0d" + bytes(4)
    data = runtime.field(number, value) + fixed + runtime.field(number, len(value)) + runtime.field(2, b"here")
    ((_, start, end),) = protobuf.fields(data, 0, len(data), (protobuf.section(2),))
    assert data[start:end] == b"here"


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # no length
        b"\x0a\x02x",  # longer than the message
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # much longer
        b"\x08",  # no number
        b"\x08" + b"\x80" * 11,  # a number without an end
        b"\x80",  # a tag without an end
        b"\x09\x01",  # half of a fixed number
        b"\x0d\x01",
        b"\x0b",  # a group, which the language no longer has
        b"\x0f",
    ],
)
def test_malformed_fields_are_refused_also_if_they_are_not_wanted(data: bytes) -> None:
    with pytest.raises(protobuf.EncodingError):
        list(protobuf.fields(data, 0, len(data), ()))


def test_a_field_may_not_reach_beyond_the_message_that_it_is_in() -> None:
    data = b"\x0a\x05" + b"x" * 20
    with pytest.raises(protobuf.EncodingError):
        list(protobuf.fields(data, 0, 4, (protobuf.section(1),)))


@given(some.binary(max_size=100))
def test_noise_raises_nothing_else(data: bytes) -> None:
    try:
        for tag, start, end in protobuf.fields(data, 0, len(data), WANTED):
            assert start >= 0
            assert tag & 7 == 0 or start <= end <= len(data)
    except protobuf.EncodingError:
        pass


@given(some.text(), some.text())
def test_entries_of_maps(key: str, value: str) -> None:
    data = runtime.field(1, key) + runtime.field(2, value)
    shown = value.encode()[: protobuf.MAX_VALUE].decode(errors="replace")
    for each in (data, runtime.field(2, value) + runtime.field(1, key)):
        assert protobuf.entry(each, 0, len(each), (key.encode(),)) == (key, shown)
        assert protobuf.entry(each, 0, len(each), (key.encode() + b"?",)) is None


@given(
    some.lists(some.tuples(some.sampled_from((1, 2)), some.sampled_from(("", "a", "k" * 26, "x" * 200))), max_size=4)
)
def test_of_an_entry_the_last_key_and_the_last_value_count(fields: list[tuple[int, str]]) -> None:
    data = b"".join(runtime.field(number, text) for number, text in fields)
    key, value = (([""] + [text for number, text in fields if number == wanted])[-1] for wanted in (1, 2))
    assert protobuf.entry(data, 0, len(data), (key.encode(),)) == (key, value)
    assert protobuf.entry(data, 0, len(data), (b"other",)) is None


def test_a_key_whose_length_has_more_bytes_than_it_needs_is_found() -> None:
    value = "v" * 125 + "\x12\x00"  # ends as the entry would if the first byte were all of the key's length
    data = b"\x0a\x83\x00key" + runtime.field(2, value)
    assert protobuf.entry(data, 0, len(data), (b"key",)) == ("key", value)


def test_invalid_utf_8_is_replaced() -> None:
    assert protobuf.text(b"a\xffb", 0, 3, 10) == "a\ufffdb"
    assert protobuf.text("aä".encode(), 0, 3, 2) == "a\ufffd"
