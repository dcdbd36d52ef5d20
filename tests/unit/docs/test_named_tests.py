"""Tests that the documentation names exist, and so do pages that messages name."""

from __future__ import annotations

import ast
import re

import pytest

from hack.docs import commands
from testbed.base import paths

DEFINED = {
    name for path in (paths.ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
}


@pytest.mark.parametrize("page", commands.pages())
def test_named_tests_exist(page: str) -> None:
    text = (paths.ROOT / page).read_text()
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)`", text)
    assert [path for path in named if not (paths.ROOT / path).exists()] == []
    assert set(re.findall(r"`(test_\w+)`", text)) <= DEFINED


def test_failure_modes_name_some() -> None:
    assert len(set(re.findall(r"`(test_\w+)`", (paths.ROOT / "docs/failure-modes.md").read_text()))) > 10


def test_pages_and_headings_in_strings_of_the_product_exist() -> None:
    named = {
        (page, anchor)
        for path in (paths.ROOT / "operator").rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
        for page, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", each.value)
    }
    assert ("docs/semantics.md", "") in named
    pages = {page: (paths.ROOT / page).read_text() for page, _ in named if (paths.ROOT / page).exists()}
    assert {page for page, _ in named} == set(pages)
    assert [(page, anchor) for page, anchor in named if anchor and anchor not in anchors(pages[page])] == []


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the forge and the site make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).strip().replace(" ", "-") for each in headings}


def test_anchors_are_made_of_headings() -> None:
    assert anchors("# The agent\n## `kubectl swap`, in short\ntext # no\n") == {"the-agent", "kubectl-swap-in-short"}
