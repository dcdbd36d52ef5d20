"""Frames and messages of the container runtime's protocol."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as some
from swapwarden.nri import frames

from tests.unit.nri import fake_runtime as runtime

CONNECTIONS = some.sampled_from((frames.PLUGIN, frames.RUNTIME))
MESSAGES = some.builds(
    frames.TtrpcMessage,
    CONNECTIONS,
    some.integers(0, 2**32 - 1),
    some.integers(0, 255),
    some.binary(max_size=100) | some.sampled_from((b"x" * 4078, b"x" * 4079, b"y" * 20_000)),
)


def read(data: bytes, *, step: int = 1 << 16) -> list[frames.TtrpcMessage]:
    reader = frames.FrameReader()
    return [each for at in range(0, len(data), step) for each in reader.feed(memoryview(data[at : at + step]))]


@given(MESSAGES)
def test_sent_frames_fit_the_buffer_of_the_runtimes_library(message: frames.TtrpcMessage) -> None:
    assert runtime.messages(frames.framed(message)) == [tuple(message)]


@given(some.lists(MESSAGES, max_size=4), some.integers(1, 60), some.integers(1, 5000))
def test_messages_are_found_however_they_are_cut(messages: list[frames.TtrpcMessage], step: int, frame: int) -> None:
    data = b"".join(
        runtime.message(*each[:3], bytes(each.payload), frame=max(frame, len(each.payload) // 20 + 1))
        for each in messages
    )
    assert read(data, step=step) == messages


def test_two_connections_interleave() -> None:
    one = runtime.message(frames.PLUGIN, 1, 1, b"first", frame=6)
    two = runtime.message(frames.RUNTIME, 3, 2, b"second", frame=6)
    parts = [each[at : at + 14] for at in range(0, 42, 14) for each in (one, two)]
    assert {(each.connection, each.payload) for each in read(b"".join(parts))} == {
        (frames.PLUGIN, b"first"), (frames.RUNTIME, b"second")
    }  # fmt: skip


def test_an_unknown_connection_is_skipped() -> None:
    unknown = runtime.message(0, 1, 1, b"?") + runtime.message(7, 1, 1, b"?" * 300)
    assert [each.payload for each in read(unknown + runtime.message(frames.PLUGIN, 1, 1, b"known"))] == [b"known"]


def test_a_message_of_4_mib_in_the_largest_frame_is_read() -> None:
    payload = bytes(frames.MAX_MESSAGE)
    data = runtime.message(frames.PLUGIN, 9, 1, payload, frame=frames.MAX_FRAME) + runtime.message(2, 1, 2, b"next")
    (connection, stream, kind, found), (_, _, _, following) = read(data)
    assert (connection, stream, kind, found == payload) == (frames.PLUGIN, 9, 1, True)
    assert following == b"next"


@given(some.integers(1 << 16, 1 << 17), some.sampled_from((4000, 65_536, 1 << 20)))
def test_large_messages_in_any_frames(size: int, frame: int) -> None:
    payload = (bytes(range(251)) * 1000)[:size]
    ((_, _, _, found),) = read(runtime.message(frames.PLUGIN, 9, 1, payload, frame=frame))
    assert bytes(found) == payload


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", frames.PLUGIN, frames.MAX_FRAME + 1),
        struct.pack(">II", 99, 2**32 - 1),
        struct.pack(">IIIIBB", frames.PLUGIN, 10, frames.MAX_MESSAGE + 1, 1, 1, 0),
    ],
)
def test_too_long_frames_and_messages_are_refused_by_their_header(data: bytes) -> None:
    with pytest.raises(frames.FrameError):
        read(data)


@given(some.binary(max_size=300))
def test_noise_raises_nothing_else(data: bytes) -> None:
    with contextlib.suppress(frames.FrameError):
        read(data, step=7)
