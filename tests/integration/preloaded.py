"""The product's programs, forked from a process that has imported their modules: that saves a second of each start."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import functools
import importlib
import json
import os
import pkgutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from testbed.base import paths, process
from testbed.product import part
from tests.integration import fork_server

_SET_CHILD_SUBREAPER = 36
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fork-server")
"""Starts the servers: they end with the thread that does, and process.Process has its only one wait for them."""
_WRAPPERS = Path(__file__).with_name("controller")
_WRAPPER: Final = process.dying_with_this(())[:-1]
"""How commands begin that end with this process, up to its id."""


@dataclasses.dataclass(frozen=True)
class _Group:
    """Programs that are forked from one process."""

    programs: tuple[tuple[str, ...], ...]
    """How they begin, after the interpreter."""
    modules: tuple[str, ...]
    """Their imports, with all that is below these but `without`."""
    without: tuple[str, ...]
    hidden: str
    """A module that they do not find: who imports it can do without."""


_GROUPS: Final = (
    # kopf imports the official client if it can: see testbed/product/installed.py.
    _Group(
        (
            part.INSTALLED,
            *((str(_WRAPPERS / f"{name}.py"),) for name in ("clocks", "earlier", "evicting", "sooner")),
            *(("-m", "swapwarden", command) for command in ("uninstall", "profiles")),
            ("-m", "swapwarden.cli.kubectl"),
        ),
        ("kopf", "uvloop", "swapwarden"),
        ("swapwarden.agent", "swapwarden.nri"),
        "kubernetes",
    ),
    # The agent hides it from msgspec: see swapwarden.lazily.
    _Group((("-m", "swapwarden", "agent"),), ("swapwarden.agent",), (), "typing_extensions"),
)


def _modules(group: _Group) -> Iterator[str]:
    for root in group.modules:
        yield root
        if root.startswith("swapwarden"):
            for found in pkgutil.walk_packages(importlib.import_module(root).__path__, f"{root}."):
                if not found.name.endswith("__main__") and not found.name.startswith(group.without):
                    yield found.name


class _Server:
    """Starts programs as children of this process, each in a session of its own."""

    def __init__(self, group: _Group) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self._lock = threading.Lock()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed by _stop
        with theirs:
            number = theirs.fileno()
            argv = [sys.executable, "-P", fork_server.__file__, str(number), str(os.getpid()), group.hidden]
            self._process = _STARTER.submit(
                subprocess.Popen,
                process.dying_with_this([*argv, *_modules(group)]),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": f"{paths.OPERATOR}:{paths.ROOT}"},
                pass_fds=(number,),
                start_new_session=True,
            ).result()
        atexit.register(self._stop)

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._link.close()
        self._log.close()

    def fork(self, program: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Start a program with three standard streams; return its process id."""
        try:
            with self._lock:
                socket.send_fds(self._link, [json.dumps(program).encode()], streams)
                return int(self._link.recv(20))
        except (OSError, ValueError) as error:
            self._log.seek(0)
            said = process.last_lines(self._log.read().decode(errors="replace"))
            raise process.ProcessError(f"the fork server: {error}\n{said}") from error


_server = functools.cache(_Server)


def _found(argv: Sequence[str]) -> tuple[_Group, Sequence[str]] | None:
    """Return the group of a program, and what Python is given after its own options; None if it is of no group."""
    begin = len(_WRAPPER)
    bare = list(argv[begin + 1 :] if argv[:begin] == _WRAPPER else argv)
    for group in _GROUPS:
        for program in group.programs:
            if bare[: 1 + len(program)] == [sys.executable, *program]:
                return group, bare[2:] if program[0] == "-P" else bare[1:]
    return None


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python reads at its start, but for the path."""
    names = {name for name in environment if name.startswith(("PYTHON", "LC_", "LANG"))} - {"PYTHONPATH"}
    return {name: environment[name] for name in names}


class _Forked(subprocess.Popen[bytes]):
    """One of the programs, forked. All three streams are redirected."""

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        # Popen's own hook, after it has made the pipes.
        cwd, env, pipes = others[4], others[5], others[9:15]
        found = _found(args)
        assert found
        program = {"argv": found[1], "env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd())}
        self.pid = _server(found[0]).fork(program, (pipes[0], pipes[3], pipes[5]))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # the standard library's types leave it out


def popen(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program with all three streams redirected, like subprocess.Popen; fork it if it is one of those."""
    environment = os.environ if options.get("env") is None else options["env"]
    is_forked = _found(argv) is not None and _at_start(environment) == _at_start(os.environ)
    return (_Forked if is_forked else subprocess.Popen)(argv, **options)


def run(
    argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one of the programs to its end, like process.run."""
    with popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        try:
            said, complaint = (text.decode() for text in running.communicate(timeout=timeout))
        except BaseException:
            running.kill()
            raise
    if check and running.returncode:
        end = process.last_lines(complaint or said)
        raise process.ProcessError(f"{' '.join(argv)}: exit status {running.returncode}\n{end}")
    return subprocess.CompletedProcess(argv, running.returncode, said, complaint)
