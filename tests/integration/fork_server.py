"""A process that has imported modules and becomes programs that use them, which saves what the imports cost.

    python -P fork_server.py SOCKET PARENT HIDDEN MODULE...

Each message on the socket is a program to run: its arguments as after Python's own options (a script, or -m and a
module), its environment and its folder, with its three standard streams. The answer is its process id. It is a child of
the process PARENT, which must be a subreaper (prctl(2)), and in a session of its own. HIDDEN is a module that cannot be
imported here.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
from typing import Any

from testbed.base import child

LARGEST = 1 << 17
"""Bytes of a message."""


def forked(parent: int) -> int:
    """Fork a child of PARENT; its process id here, and 0 in it."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        made = os.fork()
        if made:
            os.write(write, b"%d" % made)
            signal.raise_signal(signal.SIGKILL)
        while os.getppid() == between:
            os.sched_yield()
        os.close(read)
        os.close(write)
        child.die_with(parent)
        os.setsid()
        return 0
    os.close(write)
    os.waitpid(between, 0)
    with os.fdopen(read, "rb") as told:
        return int(told.read())


def asked(link: socket.socket, parent: int) -> Any:
    """Serve; return in each child what it has to run, and None at the end."""
    while True:
        content, streams, _, _ = socket.recv_fds(link, LARGEST, 3)
        if not content:
            return None
        made = forked(parent)
        if made == 0:
            link.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
        for stream in streams:
            os.close(stream)
        if made == 0:
            return json.loads(content)
        link.send(b"%d" % made)


def main(descriptor: int, parent: int, hidden: str, modules: list[str]) -> None:
    """Be the server, and then each of the programs."""
    sys.modules[hidden] = None  # type: ignore[assignment]  # the import system's own way (importlib, "sys.modules")
    for name in modules:
        importlib.import_module(name)
    assert threading.active_count() == 1
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()
    program = asked(socket.socket(fileno=descriptor), parent)
    if program is None:
        return
    del sys.modules[hidden]
    os.environ.clear()
    os.environ.update(program["env"])
    os.chdir(program["cwd"])
    first, *others = program["argv"]
    if first == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *others]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
