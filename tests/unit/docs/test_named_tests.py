"""Tests that the documentation names are there."""

from __future__ import annotations

import re

import pytest

from hack.docs import commands
from testbed.base import paths

DEFINED = {
    name for path in (paths.ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
}


@pytest.mark.parametrize("page", commands.pages())
def test_they_are_there(page: str) -> None:
    text = (paths.ROOT / page).read_text()
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)`", text)
    assert [path for path in named if not (paths.ROOT / path).exists()] == []
    assert set(re.findall(r"`(test_\w+)`", text)) <= DEFINED


def test_failure_modes_name_some() -> None:
    assert len(set(re.findall(r"`(test_\w+)`", (paths.ROOT / "docs/failure-modes.md").read_text()))) > 10
