"""What the kernel gives a process that asks for short slices: in one of its own, for it stays so."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys

import pytest
from swapwarden.agent import timeslice

ASK = """
import ctypes, threading
from swapwarden.agent import timeslice

def slice_of_thread():
    data = ctypes.create_string_buffer(timeslice._ATTRIBUTES.size)
    number = timeslice._NUMBERS[timeslice.platform.machine()] + 1  # sched_getattr
    assert ctypes.CDLL(None).syscall(number, 0, data, len(data), 0) == 0
    _, policy, _, nice, _, runtime, _, _ = timeslice._ATTRIBUTES.unpack(data.raw)
    found.append((policy, nice, runtime))

found = []
assert timeslice.shorten()
slice_of_thread()
thread = threading.Thread(target=slice_of_thread)
thread.start()
thread.join()
print(found)
"""
GIVEN = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2]) >= (6, 12)


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="sched_getattr has another number")
def test_the_agent_and_its_threads_get_short_slices_and_nothing_else_of_them_changes() -> None:
    argv = ["nice", "-n", "3", sys.executable, "-c", ASK]
    told = subprocess.run(argv, check=True, capture_output=True, text=True).stdout  # noqa: S603 our own
    runtime = timeslice.NANOSECONDS if GIVEN else 0
    assert told.strip() == str([(0, 3, runtime)] * 2)


def test_a_kernel_that_refuses_is_no_reason_not_to_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(timeslice, "_NUMBERS", {platform.machine(): 100_000})
    assert not timeslice.shorten()
    assert "no short slices" in caplog.text
    monkeypatch.setattr(timeslice, "_NUMBERS", {})
    assert not timeslice.shorten()
