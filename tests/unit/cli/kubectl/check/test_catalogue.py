"""The remedy of each problem, judged by what people need of it."""

from __future__ import annotations

import pytest
from swapwarden.cli.kubectl.check import catalogue
from swapwarden.cli.kubectl.check.catalogue import Check, Severity, problem
from swapwarden.policy.verdict import words

REMEDIES = {
    **{str(check): remedy for check, (_, remedy) in catalogue.USUAL.items()},
    **{f"condition {kind}": remedy for kind, (_, remedy) in catalogue.CONDITIONS.items()},
    **{f"pod {reason}": text.remedy for reason, text in {**words.ENFORCEMENT, **words.SHORTFALL}.items()},
}


def test_each_check_has_an_entry() -> None:
    assert list(catalogue.USUAL) == list(Check)


@pytest.mark.parametrize("about", REMEDIES)
def test_a_remedy_can_be_read_at_a_glance(about: str) -> None:
    text = REMEDIES[about]
    assert text == text.strip()
    assert text.isprintable()
    assert not text.endswith(".")
    assert 2 <= len(text.split()) <= 40


def test_what_a_problem_does_not_say_is_as_usual() -> None:
    severity, remedy = catalogue.USUAL[Check.NO_LEADER]
    found = problem(Check.NO_LEADER, "lease/a", "nobody leads")
    assert found == catalogue.ClusterProblem(severity, Check.NO_LEADER, "NoLeader", "lease/a", "nobody leads", remedy)
    other = problem(Check.NO_LEADER, "lease/a", "x", reason="Late", severity=Severity.WARNING, remedy="wait")
    assert other == catalogue.ClusterProblem(Severity.WARNING, Check.NO_LEADER, "Late", "lease/a", "x", "wait")


@pytest.mark.parametrize("check", Check)
def test_the_namespace_of_the_release_stands_in_its_place(check: Check) -> None:
    found = problem(check, "node/a", "x", where="elsewhere")
    assert "{" not in found.remedy
    assert ("kubectl -n " not in found.remedy) or "kubectl -n elsewhere " in found.remedy
