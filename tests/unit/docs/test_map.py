"""The map in CONTRIBUTING names files, folders, functions, classes and targets that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from testbed.base import paths

PRODUCT = paths.ROOT / "operator/swapwarden"
ROWS = re.findall(r"^\| (.+\?) \| (.+) \|$", (paths.ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)


def missing(answer: str) -> Iterator[str]:
    """Names in backticks that lead nowhere; a plain one must be defined in a file that the same answer names."""
    named = re.findall(r"`([^`]+)`", answer)
    files = [file for each in named for root in (paths.ROOT, PRODUCT) if (file := root / each).is_file()]
    defined = {name for file in files for name in re.findall(r"^(?:def|class) (\w+)", file.read_text(), re.MULTILINE)}
    targets = re.findall(r"^([a-z0-9-]+):", (paths.ROOT / "Makefile").read_text(), re.MULTILINE)
    known = defined | {f"make {target}" for target in targets}
    for each in named:
        if each not in known and not (
            re.search(r"[/.]", each) and any((root / each).exists() for root in (paths.ROOT, PRODUCT))
        ):
            yield each


@pytest.mark.parametrize(("question", "answer"), ROWS)
def test_each_place_of_an_answer_exists(question: str, answer: str) -> None:
    assert list(missing(answer)) == [], question


def test_ten_questions_are_answered() -> None:
    assert len(ROWS) == 10


def test_places_that_do_not_exist_are_found() -> None:
    answer = "`policy/plan.py` (`plan_node`, `gone`), `policy/gone.py`, `make lint`, `make gone`"
    assert list(missing(answer)) == ["gone", "policy/gone.py", "make gone"]
