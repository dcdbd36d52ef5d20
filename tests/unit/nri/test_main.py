"""The process: flags, signals, the watchdog, and what it loads."""

from __future__ import annotations

import argparse
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from swapwarden import __main__ as program
from swapwarden.api import runtime_link
from swapwarden.nri import main, runtime_side

from tests.unit.nri import fake_runtime as runtime
from tests.unit.nri.driven import create, value_set

STARTED = "import sys; from swapwarden import __main__ as m; sys.exit(m.main())"


class Started:
    """A process with a runtime that listens."""

    def __init__(self, folder: pathlib.Path, code: str = STARTED) -> None:
        (folder / runtime_link.SWAP_MAX).touch()
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(str(folder / runtime_side.SOCKET))
        self.listening.listen()
        self.listening.settimeout(60)
        flags = ["--socket-dir", str(folder), "--link-dir", str(folder), "--cgroup-root", str(folder)]
        self.process = subprocess.Popen(  # noqa: S603 our own words
            [sys.executable, "-c", code, "nri", *flags, "--log-format", "text"], stderr=subprocess.PIPE, text=True
        )
        self.peer, _ = self.listening.accept()
        self.peer.settimeout(60)

    def ask(self, stream: int, method: str, payload: bytes) -> bytes:
        self.peer.sendall(runtime.request(stream, method, payload))
        ((_, answered, _, body),) = runtime.messages(self.peer.recv(1 << 16))
        assert answered == stream
        return runtime.one(body, 2) if body else b""

    def ended(self) -> tuple[int, str]:
        """Return the exit status and the logs."""
        _, logs = self.process.communicate(timeout=60)
        return self.process.returncode, logs

    def close(self) -> None:
        self.peer.close()
        self.listening.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def started(tmp_path: pathlib.Path) -> Iterator[Started]:
    made = Started(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_the_runtime_until_it_is_ended(started: Started, number: int) -> None:
    assert runtime.messages(started.peer.recv(1 << 16))
    started.ask(1, "Configure", runtime.configure())
    started.ask(3, "Synchronize", b"")
    request = create(runtime.pod(annotations={runtime.POLICY: "Disabled"}), runtime.container(value="4096"))
    assert value_set(started.ask(5, "CreateContainer", request)) == "0"
    started.process.send_signal(number)
    status, logs = started.ended()
    assert status == 0
    assert started.peer.recv(1) == b""
    assert "hunter2" not in logs


def test_a_loop_that_is_stuck_ends_the_process(tmp_path: pathlib.Path) -> None:
    code = (
        "import sys; from swapwarden import __main__ as m; from swapwarden.nri import main, runtime_side\n"
        "def stuck(*_):\n"
        "    while True: pass\n"
        "main.WATCHDOG_SECONDS = 0.2\n"
        "runtime_side.RuntimeSide.readable = stuck\n"
        "sys.exit(m.main())"
    )
    made = Started(tmp_path, code)
    try:
        made.peer.sendall(b"x")
        status, logs = made.ended()
    finally:
        made.close()
    assert status == main.STUCK
    assert "stuck" in logs


class Idle:
    """A side without a socket, that wants to be called again at a time."""

    socket = None
    waits = False

    def __init__(self, at: float | None) -> None:
        self.at = at

    def due(self) -> float | None:
        return self.at

    def tick(self) -> None: ...

    def readable(self) -> None: ...

    def writable(self) -> None: ...


@pytest.mark.parametrize(
    ("times", "wait"), [([None, None], None), ([None, 1007.0], 7.0), ([1005.0, 1007.0], 5.0), ([900.0, None], 0.0)]
)
def test_the_loop_waits_until_a_side_is_due_and_is_not_stuck_then(
    times: list[float | None], wait: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []

    def selected(*given: object) -> tuple[list[object], list[object], list[object]]:
        steps.append((given[3], signals.is_waiting))
        signals.ended = True
        return [], [], []

    signals = main.Signals()
    monkeypatch.setattr(select, "select", selected)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    main.loop(signals, *map(Idle, times))
    assert steps == [(wait, True)]
    assert (signals.turns, signals.is_waiting) == (1, False)
    signals.close()


def test_no_heavy_module_is_loaded() -> None:
    code = "import sys, swapwarden.__main__, swapwarden.nri.main; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True).stdout  # noqa: S603 our own words
    heavy = {
        "asyncio",
        "msgspec",
        "logging",
        "pathlib",
        "datetime",
        "dataclasses",
        "inspect",
        "threading",
        "ssl",
        "shutil",
    }
    assert heavy & set(said.split()) == set()


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    return parser.parse_args(flags)


def test_flags_have_the_names_that_both_sides_share() -> None:
    given = parsed()
    assert (given.link_dir, given.name, given.index) == (
        runtime_link.FOLDER, runtime_link.PLUGIN, runtime_link.INDEX
    )  # fmt: skip


@pytest.mark.parametrize(
    "flags", [["--index", "9"], ["--index", "9x"], ["--index", "²9"], ["--name", "a b"], ["--name", ""]]
)
def test_names_that_a_runtime_refuses(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*flags)
    assert flags[0] in capsys.readouterr().err


def test_the_command_is_listed() -> None:
    assert program.COMMANDS["nri"][0] == main.__name__


def test_a_node_whose_kernel_cannot_limit_swap_is_logged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "loop", lambda *_: None)
    assert (
        main.run(parsed("--cgroup-root", str(tmp_path), "--link-dir", str(tmp_path), "--socket-dir", str(tmp_path)))
        == 0
    )
    assert runtime_link.SWAP_MAX in capsys.readouterr().err
