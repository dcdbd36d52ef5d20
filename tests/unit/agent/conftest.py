"""Nodes for the tests of the agent's parts."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Iterator

import pytest
from swapwarden.agent.host import faults

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
    """What tests before it logged leaves nothing of this one out."""
    monkeypatch.setattr(faults, "_tracebacks", faults.Lines(1))
    monkeypatch.setattr(faults, "_lines", faults.Lines(faults.LOG_LINES))


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    """What the agent survives by its last resort is a mistake all the same."""
    counter = faults.FAULTS  # a test may put another in its place
    before = counter.value()
    yield
    assert counter.value() == before
