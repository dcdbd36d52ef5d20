"""Nodes for the tests of the agent's parts."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Iterator

import pytest
from swapwarden.agent.host import faults

from tests.unit.agent import fake_plugin
from tests.unit.agent.agent_node import Node


@pytest.fixture(params=["systemd", "cgroupfs", "kind"])
async def node(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    made = Node(tmp_path, request.param)
    yield made
    made.stop()


@pytest.fixture
async def plain(tmp_path: pathlib.Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log lines of earlier tests do not use up this one's budget."""
    monkeypatch.setattr(faults, "_tracebacks", faults.Lines(1))
    monkeypatch.setattr(faults, "_lines", faults.Lines(faults.LOG_LINES))


@pytest.fixture(autouse=True)
def _plugins() -> Iterator[None]:
    yield
    for each in fake_plugin.MADE:
        each.close()
    fake_plugin.MADE.clear()


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    """An unexpected error that the agent survives is a mistake all the same."""
    counter = faults.FAULTS  # a test may put another in its place
    before = counter.value()
    yield
    assert counter.value() == before
