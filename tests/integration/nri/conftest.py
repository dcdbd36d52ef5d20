"""A runtime on the library of each version, and our plugin in front of it."""

from __future__ import annotations

import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

from testbed.standin.runtime import NEWEST, VERSIONS, Runtime
from tests.integration.nri.plugin_process import PLUGIN, Plugin

StartPlugin = Callable[..., Plugin]


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """A folder with a path that is short enough for sockets; pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="swapwarden-nri-") as name:
        (path := pathlib.Path(name)).joinpath("link").mkdir()
        yield path


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """A version of the library."""
    return str(request.param)


@pytest.fixture
def runtime(folder: pathlib.Path, version: str) -> Iterator[Runtime]:
    """A runtime that listens, of each version."""
    with Runtime(folder, version) as running:
        yield running.start()


@pytest.fixture(params=[next(iter(VERSIONS)), NEWEST])
def oldest_and_newest(folder: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """A runtime that listens, of two versions: for tests that take seconds."""
    with Runtime(folder, str(request.param)) as running:
        yield running.start()


@pytest.fixture
def newest(folder: pathlib.Path) -> Iterator[Runtime]:
    """A runtime that listens, of the newest version: for what does not depend on it."""
    with Runtime(folder, NEWEST) as running:
        yield running.start()


@pytest.fixture
def start_plugin(folder: pathlib.Path) -> Iterator[StartPlugin]:
    """Start a plugin; wait until the runtime, if one is given, has it."""
    started: list[Plugin] = []

    def start(connects: Runtime | None = None, *options: str) -> Plugin:
        before = len(connects.seen("connected", plugin=PLUGIN)) if connects else 0
        started.append(made := Plugin(folder, *options, name=f"plugin-{len(started)}"))
        deadline = time.monotonic() + 20
        while connects and len(connects.seen("connected", plugin=PLUGIN)) == before:
            made.check_alive()
            assert time.monotonic() < deadline, "the plugin does not connect"
            time.sleep(0.005)
        return made

    yield start
    for each in started:
        each.kill()
        sys.stdout.write(f"{each.name}: the end of its output\n{each.tail()}\n")
