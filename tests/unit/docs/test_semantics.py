"""Examples in docs/ show the program's current output."""

from __future__ import annotations

import pathlib
from typing import get_args

import pytest
import yaml
from swapwarden import __main__ as program
from swapwarden.api import names, profile

ROOT = pathlib.Path(__file__).parents[3]
SEMANTICS = (ROOT / "docs/semantics.md").read_text()


def test_the_examples_are_understood(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert program.main(["plan", "-f", "examples"]) == 0
    out, err = capsys.readouterr()
    assert [line for line in err.splitlines() if line.startswith("note: pod")] == []
    assert "InvalidPolicy" not in out
    for workload in ("swap-examples/deployment/worker", "swap-examples/deployment/database"):
        assert workload in out


def test_the_overrides_that_are_shown_are_accepted() -> None:
    _, found, rest = SEMANTICS.partition("## Overrides")
    assert found
    shown_spec = yaml.safe_load(rest.partition("```yaml\n")[2].partition("```")[0])["spec"]
    spec = profile.spec.ProfileSpec.model_validate({"nodeSelector": {}, **shown_spec})
    assert [(entry.swap.policy, entry.swap.limit) for entry in spec.overrides if entry.swap] == [
        ("Disabled", None),
        (None, "2Gi"),
    ]


@pytest.mark.parametrize(
    "enumeration",
    [names.Reason, names.Behavior, names.Policy, names.Mode, names.Guarantee],
    ids=lambda one: one.__name__,
)
def test_every_value_that_people_meet_is_explained(enumeration: type[names.Reason]) -> None:
    unexplained = [value for value in enumeration if f"`{value}`" not in SEMANTICS and f": {value}`" not in SEMANTICS]
    assert not unexplained


def test_both_values_of_before_plan_are_explained() -> None:
    assert {"NoSwap", "Unmanaged"} == set(get_args(profile.spec.BeforePlanChoice))
    assert "`beforePlan: NoSwap`" in SEMANTICS
    assert "`beforePlan: Unmanaged`" in SEMANTICS
