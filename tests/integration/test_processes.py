"""Programs that the testbed starts end with it, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.base.process import Process, ProcessError

PARENT = """
import pathlib, signal, sys, threading, time
from testbed.base import process
process.exit_on_sigterm()
signal.signal(signal.SIGINT, signal.default_int_handler)
log = pathlib.Path(sys.argv[1])
started = []
starter = threading.Thread(target=lambda: started.append(process.Process("sleep", ["sleep", "1000"], log=log)))
starter.start()
starter.join()
with started[0]:
    print(started[0].pid, flush=True)
    time.sleep(1000)
"""


def _gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_child_does_not_outlive_the_testbed(number: signal.Signals, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:  # noqa: S603 - our own words
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        # The thread that started the child is over; that alone must not kill it.
        os.kill(child, 0)
        assert not _gone(child)
        parent.send_signal(number)
        try:
            assert parent.wait(20) != 0
        finally:
            parent.kill()
    deadline = time.monotonic() + 20
    while not _gone(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stopped_program_can_still_be_ended(tmp_path: Path) -> None:
    running = Process("sleep", ["sleep", "1000"], log=tmp_path / "log")
    running.send_signal(signal.SIGSTOP)
    assert running.stop() == -signal.SIGTERM


def test_an_early_end_is_reported_with_the_last_output(tmp_path: Path) -> None:
    running = Process("shell", ["sh", "-c", "echo not today >&2; exit 3"], log=tmp_path / "log")
    assert running.wait(20) == 3
    with pytest.raises(ProcessError, match=r"shell ended with status 3.*\n    not today"):
        running.check_alive()
