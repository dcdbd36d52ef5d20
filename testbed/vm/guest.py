"""Run inside the kernel VM and serve testbed.vm.kernelvm. Standard library only; started as a plain script.

It calls the host back, shows a secret, and then answers one JSON object per line with another: `{"id", "op", ...}` with
`{"id", "ok": ...}` or `{"id", "errno", "text"}`. Every request has its own thread, so that slow ones delay no others.
"""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_OUTPUT_LIMIT = 8 * 1024 * 1024
_PIECE = 64 * 1024


class Guest:
    """The operations; each takes the request and returns the value of `ok`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.Lock()
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._operations: dict[str, Callable[[dict[str, Any]], Any]] = {
            "run": self._run,
            "spawn": self._spawn,
            "wait": self._wait,
            "signal": self._signal,
            "read": lambda request: _read(request["path"]),
            "write": lambda request: _write(request["path"], request["text"]),
            "listdir": lambda request: sorted(found.name for found in Path(request["path"]).iterdir()),
            "mkdir": lambda request: Path(request["path"]).mkdir(parents=True, exist_ok=True),
            "rmdir": lambda request: Path(request["path"]).rmdir(),
            "exists": lambda request: Path(request["path"]).exists(),
        }

    def serve(self) -> None:
        """Answer until the host hangs up."""
        for line in self._connection.makefile("rb"):
            threading.Thread(target=self._answer, args=(json.loads(line),), daemon=True).start()

    def _answer(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request["id"]}
        try:
            answer["ok"] = self._operations[request["op"]](request)
        except OSError as error:
            answer |= {"errno": error.errno, "text": error.strerror}
        except subprocess.TimeoutExpired as error:
            answer |= {"errno": None, "text": f"not done after {error.timeout:.0f} s"}
        with self._writing:
            self._connection.sendall(json.dumps(answer).encode() + b"\n")

    @staticmethod
    def _run(request: dict[str, Any]) -> dict[str, Any]:
        done = subprocess.run(
            request["argv"],
            input=request["input"].encode(),
            capture_output=True,
            timeout=request["timeout"],
            check=False,
            cwd="/",
            env=os.environ | request["env"],
        )
        return {"rc": done.returncode, "stdout": _text(done.stdout), "stderr": _text(done.stderr)}

    def _spawn(self, request: dict[str, Any]) -> int:
        with Path(request["log"]).open("ab", buffering=0) as log:
            spawned = subprocess.Popen(
                request["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=os.environ | request["env"],
                start_new_session=True,
            )
        self._spawned[spawned.pid] = spawned
        return spawned.pid

    def _wait(self, request: dict[str, Any]) -> int | None:
        spawned = self._spawned[request["pid"]]
        return spawned.wait(request["timeout"]) if request["timeout"] else spawned.poll()

    def _signal(self, request: dict[str, Any]) -> None:
        self._spawned[request["pid"]].send_signal(request["number"])


def _text(output: bytes) -> str:
    return output[-_OUTPUT_LIMIT:].decode(errors="replace")


def _read(path: str) -> str:
    content = b""
    with Path(path).open("rb", buffering=0) as file:
        # In moderate pieces: /proc/sys has no memory for a read of megabytes.
        while piece := file.read(_PIECE):
            content += piece
            if len(content) > _OUTPUT_LIMIT:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return content.decode(errors="replace")


def _write(path: str, text: str) -> None:
    # One write call: the kernel's control files require it.
    with Path(path).open("wb", buffering=0) as file:
        file.write(text.encode())


def main(host: str, port: str, secret: str) -> None:
    """Call the host and serve it."""
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(secret.encode() + b"\n")
        Guest(connection).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
