"""An agent on a directory tree, and the API that it speaks with."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.agent.agent_process import AgentProcess, Start
from tests.integration.agent.fake_api import FakeApi
from tests.unit.agent.cgroup_tree import CgroupTree


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> CgroupTree:
    return CgroupTree(tmp_path)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi("n1") as running:
        yield running


@pytest.fixture
def start(tmp_path: pathlib.Path, tree: CgroupTree, api: FakeApi) -> Iterator[Start]:
    started: list[AgentProcess] = []

    def begin(*options: str, **how: Any) -> AgentProcess:
        agent = AgentProcess(tmp_path, tree.root, tree.proc, api.kubeconfig(tmp_path), *options, **how)
        started.append(agent)
        return agent

    yield begin
    for agent in started:
        agent.kill()
        log = agent.log.read_text()
        sys.stdout.write(log[-6000:])
        assert "unexpected error" not in log
        assert "Traceback" not in log
