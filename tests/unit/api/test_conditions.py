"""Types of conditions and reasons of violations are spelled in one place."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest
import swapwarden
from swapwarden.api import conditions, violations

SOURCES = pathlib.Path(swapwarden.__file__).parent
WORDS = {*conditions.ConditionType, *violations.ViolationReason} - {conditions.ConditionType.READY}
"""Ready is also what Kubernetes calls a pod's condition."""
OTHER_MEANINGS = {
    **{("crd.py", word): "a column's title" for word in ("Applied", "Conflicted", "Degraded", "Drifted")},
    ("profile_status.py", "Applied"): "a reason of the condition Ready, and of events",
    ("profile_status.py", "Conflicted"): "a reason of events",
    **{(f"{name}.py", "MemoryQoS"): "a feature gate" for name in ("kubelet", "kubelet_config", "preflight")},
    ("states.py", "Strict"): "of Kubernetes' fieldValidation",
}


def spelled(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield texts that are such a word, with their lines; values of enums and of types are named there."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.ClassDef) and any("StrEnum" in ast.unparse(base) for base in child.bases):
            continue
        if isinstance(child, ast.Subscript) and ast.unparse(child.value) == "Literal":
            continue
        if isinstance(child, ast.Constant) and child.value in WORDS:
            yield child.lineno, str(child.value)
        yield from spelled(child)


def test_nobody_spells_a_condition_or_a_violation_again() -> None:
    found = {
        (file.name, word): f"{file.relative_to(SOURCES)}:{line}"
        for file in SOURCES.rglob("*.py")
        for line, word in spelled(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert {place: line for place, line in found.items() if place not in OTHER_MEANINGS} == {}


@pytest.mark.parametrize("kind", list(conditions.ABNORMAL_STATUS))
def test_a_condition_is_abnormal_by_one_status(kind: str) -> None:
    assert [conditions.is_abnormal(kind, status, "Any") for status in ("True", "False", "Unknown")].count(True) == 1


def test_what_systemd_writes_over_is_not_abnormal() -> None:
    assert not conditions.is_abnormal(conditions.ConditionType.DRIFTED, "True", conditions.REWRITTEN)
    assert conditions.is_abnormal(conditions.ConditionType.DRIFTED, "True", "OtherWriter")


def test_a_condition_that_only_reports_progress_is_not_abnormal() -> None:
    for status in ("True", "False", "Unknown"):
        assert not conditions.is_abnormal(conditions.ConditionType.APPLIED, status, "Draining")
