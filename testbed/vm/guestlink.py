"""Requests to testbed.vm.guest in a VM: run programs, read and write files, start and end processes."""

import contextlib
import dataclasses
import json
import os
import queue
import re
import secrets
import shlex
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.base import process

_ANSWER_GRACE = 60.0
_FILE_TIMEOUT = 60.0
_POLL = 0.05


class VMError(process.ProcessError):
    """The VM, or something in it, failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Completed:
    """The result of a program in the guest: its exit status (negative: the signal) and its output."""

    rc: int
    stdout: str
    stderr: str


class GuestProcess(process.Program):
    """A program in the guest's background."""

    def __init__(self, vm: "GuestLink", name: str, pid: int, log: Path) -> None:
        super().__init__(name, log)
        self._vm = vm
        self.pid = pid

    def poll(self) -> int | None:
        status: int | None = self._vm.call("wait", pid=self.pid, timeout=None)
        return status

    def wait(self, timeout: float) -> int:
        """Wait for the end; VMError after TIMEOUT seconds."""
        try:
            status: int = self._vm.call("wait", pid=self.pid, timeout=timeout, patience=timeout)
        except VMError as error:
            raise VMError(f"{self.name}: {error}\n{self.tail()}") from error
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        self._vm.call("signal", pid=self.pid, number=int(number))

    def stop(self, timeout: float = 60.0) -> int:
        """Send SIGTERM, and SIGKILL after TIMEOUT seconds. Return the exit status."""
        self.send_signal(signal.SIGTERM)
        with contextlib.suppress(VMError):
            return self.wait(timeout)
        self.send_signal(signal.SIGKILL)
        return self.wait(timeout)


class GuestLink(process.Managed):
    """A VM with its files in FOLDER, and the host's view of it. Several threads may call the methods.

    A subclass boots the VM: it starts `machine`, and calls `accept`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        """Both sides have this folder at the same path."""
        self.shared.mkdir()
        self.console_file = folder / "console.log"
        """The guest's console is written to it."""
        self.machine: process.Process | None = None
        self.accelerator = ""
        self._connection: socket.socket | None = None
        self._receiver: threading.Thread | None = None
        self._lock = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._count = 0
        self._gone = False

    def start(self) -> None:
        self._boot()

    def stop(self) -> None:
        """End the VM, like pulling the plug, and remove its files."""
        if self.machine:
            self.machine.kill()
        self.hang_up()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _boot(self) -> None:
        raise NotImplementedError

    def accept(self, listener: socket.socket, secret: str, qemu: process.Process, patience: float) -> None:
        """Wait for the guest to call and show SECRET; ProcessError if QEMU ends or the guest is too late.

        LISTENER has a short timeout, to detect QEMU's end.
        """
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                qemu.check_alive()
            except process.ProcessError as error:
                raise process.ProcessError(f"{error}\n{self.console()}") from error
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(10)
                said = connection.makefile("rb", buffering=0).readline(len(secret) + 1)
                if secrets.compare_digest(said.strip(), secret.encode()):
                    connection.settimeout(None)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._connection, self._gone = connection, False
                    self._receiver = threading.Thread(
                        target=self._receive, args=(connection,), name="testbed-vm", daemon=True
                    )
                    self._receiver.start()
                    return
                connection.close()
        qemu.kill()
        raise process.ProcessError(f"the VM is not up after {patience:.0f} s\n{self.console()}")

    def hang_up(self) -> None:
        """Close the connection; requests that still wait fail."""
        if self._connection:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()
        if self._receiver:
            self._receiver.join(_ANSWER_GRACE)

    def console(self, lines: int = 30) -> str:
        """Return the end of the guest kernel's output, indented."""
        with contextlib.suppress(OSError):
            text = self.console_file.read_text(encoding="utf-8", errors="replace")
            return "  the VM's console:\n" + process.last_lines(
                re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc", "", text), lines
            )
        return "  the VM's console: nothing"

    def _receive(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for line in connection.makefile("rb"):
                answer = json.loads(line)
                with self._lock:
                    waiting = self._answers.pop(answer["id"], None)
                if waiting:
                    waiting.put(answer)
        with self._lock:
            self._gone = True
            left, self._answers = self._answers, {}
        for waiting in left.values():
            waiting.put({"errno": None, "text": "the VM went away"})

    def call(self, op: str, *, patience: float = _FILE_TIMEOUT, path: str | None = None, **arguments: Any) -> Any:
        """Send one request to the guest. An error of the guest's system raises the same OSError here."""
        answered: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            if self._gone or not self._connection:
                raise VMError(f"{op}: the VM is not running\n{self.console()}")
            self._count += 1
            self._answers[self._count] = answered
            request = {"id": self._count, "op": op, "path": path, **arguments}
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        what = path or arguments.get("argv") or op
        try:
            answer = answered.get(timeout=patience + _ANSWER_GRACE)
        except queue.Empty:
            raise VMError(f"{what}: no answer from the VM\n{self.console()}") from None
        if "ok" in answer:
            return answer["ok"]
        if answer["errno"] is None:
            raise VMError(f"{what}: {answer['text']}\n{self.console()}")
        raise OSError(answer["errno"], answer["text"], path)

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        timeout: float,
        text: str = "",
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Completed:
        """Run a program in the guest to its end, with TEXT on its stdin; VMError after TIMEOUT seconds.

        ENV is added to the guest's environment. With CHECK, a program that fails also raises VMError.
        """
        words = [os.fspath(word) for word in argv]
        done = Completed(
            **self.call("run", patience=timeout, argv=words, input=text, timeout=timeout, env=dict(env or {}))
        )
        if check and done.rc != 0:
            said = process.last_lines(done.stderr or done.stdout)
            raise VMError(f"{shlex.join(words)}: exit status {done.rc} in the VM\n{said}")
        return done

    def spawn(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        log: str,
        env: Mapping[str, str] | None = None,
    ) -> GuestProcess:
        """Start a program in the guest's background; its output is written to a file named LOG in the shared folder."""
        words = [os.fspath(word) for word in argv]
        file = self.shared / f"{log}.log"
        pid = self.call("spawn", argv=words, log=str(file), env=dict(env or {}))
        return GuestProcess(self, log, pid, file)

    def read(self, path: str | os.PathLike[str]) -> str:
        """Return the content of a file in the guest."""
        return str(self.call("read", path=os.fspath(path)))

    def write(self, path: str | os.PathLike[str], text: str) -> None:
        """Write a file in the guest, in one write call."""
        self.call("write", path=os.fspath(path), text=text)

    def listdir(self, path: str | os.PathLike[str]) -> list[str]:
        """Return the names in a folder of the guest, sorted."""
        return list(self.call("listdir", path=os.fspath(path)))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Make a folder in the guest, and its parents; an existing one is fine."""
        self.call("mkdir", path=os.fspath(path))

    def rmdir(self, path: str | os.PathLike[str]) -> None:
        """Remove an empty folder, or a cgroup without processes and children, in the guest."""
        self.call("rmdir", path=os.fspath(path))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Return whether PATH exists in the guest."""
        return bool(self.call("exists", path=os.fspath(path)))

    def wait_for(self, path: str | os.PathLike[str], predicate: Callable[[str], bool], timeout: float) -> str:
        """Return the content of a guest's file once it exists and PREDICATE holds for it; VMError after the timeout."""
        deadline = time.monotonic() + timeout
        content: str | None = None
        while True:
            with contextlib.suppress(FileNotFoundError):
                content = self.read(path)
                if predicate(content):
                    return content
            if time.monotonic() > deadline:
                raise VMError(f"{os.fspath(path)}: still {content!r} after {timeout:.0f} s")
            time.sleep(_POLL)
