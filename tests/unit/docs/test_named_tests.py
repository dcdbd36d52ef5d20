"""Tests that the documentation names are there."""

from __future__ import annotations

import re

import pytest

from testbed import commands

DEFINED = {
    name for path in (commands.ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
}


@pytest.mark.parametrize("page", commands.pages())
def test_they_are_there(page: str) -> None:
    text = (commands.ROOT / page).read_text()
    paths = re.findall(r"`(tests/[\w/]+(?:\.py)?)`", text)
    assert [path for path in paths if not (commands.ROOT / path).exists()] == []
    assert set(re.findall(r"`(test_\w+)`", text)) <= DEFINED


def test_failure_modes_name_some() -> None:
    assert len(set(re.findall(r"`(test_\w+)`", (commands.ROOT / "docs/failure-modes.md").read_text()))) > 10
