"""Run programs so that none is left behind, however the testbed ends."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Self

# The kernel sends the parent-death signal when the *thread* that forked ends. One thread that lives as long as the
# interpreter forks all children, so that a child of a short-lived thread is not killed with it.
_FORKER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="testbed-forker")
_CHILD = Path(__file__).with_name("child.py")
_TAIL_LINES = 30
# Below the kernel's range of client ports: while the API server is down, no client may take its port.
_PORTS = range(20000, 32000)


class Managed:
    """Starts on entering and stops on leaving, also if the start fails."""

    def start(self) -> None:
        """Start; by default it runs already."""

    def stop(self) -> object:
        """Stop, and remove everything; also after half a start."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ProcessError(Exception):
    """A program failed, ended early or took too long; the text has the end of its output."""


def last_lines(text: str, count: int = _TAIL_LINES) -> str:
    """Return the end of TEXT, indented, for an error message."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-count:])


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    check: bool = True,
    text: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with TEXT on its stdin.

    Raise ProcessError if it takes longer than TIMEOUT seconds or, with CHECK, if it fails.
    """
    try:
        result = subprocess.run(
            argv, input=text or "", capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd, env=env
        )
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"{' '.join(argv)}: not done after {timeout:.0f} s") from error
    except FileNotFoundError as error:
        raise ProcessError(f"{argv[0]}: no such program") from error
    if check and result.returncode != 0:
        said = last_lines(result.stderr or result.stdout)
        raise ProcessError(f"{' '.join(argv)}: exit status {result.returncode}\n{said}")
    return result


def output(argv: Sequence[str], timeout: float = 30) -> str:
    """Return what a program prints; nothing if there is no such program, or it fails."""
    try:
        return run(argv, timeout=timeout).stdout
    except (ProcessError, OSError):
        return ""


def status(pid: int, field: str) -> int:
    """Return a field of /proc/PID/status; kB as bytes."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    number, *unit = text.partition(f"\n{field}:")[2].partition("\n")[0].split()
    return int(number) * 1024 if unit else int(number)


def resident(pid: int) -> int:
    """Return the bytes of memory that a process holds."""
    return status(pid, "VmRSS")


def dying_with_this(argv: Sequence[str]) -> list[str]:
    """Return the command line that runs ARGV as a child which the kernel kills when the thread that started it ends."""
    return [sys.executable, "-I", "-S", str(_CHILD), str(os.getpid()), *argv]


class Program:
    """A program in the background: its name, and the file that gets its output."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        raise NotImplementedError

    def check_alive(self) -> None:
        """Raise ProcessError with the end of its output if it has ended."""
        if (status := self.poll()) is not None:
            raise ProcessError(f"{self.name} ended with status {status}. The end of {self.log}:\n{self.tail()}")

    def output(self) -> str:
        """Return all its output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the end of its output, indented."""
        return last_lines(self.output(), lines)


class Process(Program, Managed):
    """A program that is killed when its parent dies."""

    POPEN: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        super().__init__(name, log)
        with log.open("ab") as output:
            # A session of its own: Ctrl-C reaches the testbed, which stops its children in the right order.
            self._popen = _FORKER.submit(
                self.POPEN,
                dying_with_this(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            ).result()

    @property
    def pid(self) -> int:
        """The process id; the program replaces the wrapper, so it is the program's own."""
        return self._popen.pid

    def poll(self) -> int | None:
        return self._popen.poll()

    def wait(self, timeout: float) -> int:
        """Wait for the end; ProcessError after TIMEOUT seconds."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise ProcessError(f"{self.name}: still running after {timeout:.0f} s\n{self.tail()}") from error

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        self._popen.send_signal(number)

    def stop(self, timeout: float = 10.0) -> int:
        """End it: SIGTERM, and SIGKILL after TIMEOUT seconds. Return the exit status."""
        for number, patience in ((signal.SIGTERM, timeout), (signal.SIGKILL, 60.0)):
            self.send_signal(signal.SIGCONT)  # A stopped process does not handle SIGTERM.
            self.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._popen.wait(patience)
        raise ProcessError(f"{self.name}: process {self.pid} survives SIGKILL")

    def kill(self) -> int:
        """End it at once, as a crash would."""
        self.send_signal(signal.SIGKILL)
        return self._popen.wait(60.0)


def until(
    holds: Callable[[], object],
    what: str,
    timeout: float,
    *,
    running: Sequence[Program] = (),
    said: Callable[[], str] = str,
    poll: float = 0.05,
) -> None:
    """Wait until HOLDS, while all of RUNNING run; after TIMEOUT seconds, raise ProcessError with WHAT and SAID."""
    deadline = time.monotonic() + timeout
    while not holds():
        for each in running:
            each.check_alive()
        if time.monotonic() > deadline:
            raise ProcessError(f"not within {timeout:.0f} s: {what}\n{said()}")
        time.sleep(poll)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 without a listener."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ProcessError(f"no free TCP port between {_PORTS.start} and {_PORTS.stop}")


def exit_on_sigterm() -> None:
    """Let SIGTERM and SIGHUP unwind the program like Ctrl-C, so that every context manager cleans up."""

    def leave(number: int, _frame: types.FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)
