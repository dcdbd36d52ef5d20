import re
from typing import get_args

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, profile, quantity
from swapwarden.api.quantity import MAX_LENGTH, SYNTAX


def spec(**fields: object) -> profile.spec.ProfileSpec:
    return profile.spec.ProfileSpec.model_validate({"nodeSelector": {}, **fields})


def test_defaults_are_those_of_a_fresh_install() -> None:
    made = spec()
    assert (made.priority, made.mode, made.guarantee, made.swap.before_plan) == (100, "Enforce", "Standard", "NoSwap")
    assert made.swap.behavior is names.Behavior.KUBELET
    assert made.swap.reserved is None
    assert made.system_units == []


def test_a_number_of_bytes_is_kept_as_text() -> None:
    assert spec(swap={"reserved": 1024}).swap.reserved == "1024"


@pytest.mark.parametrize("text", ["1.5%", 1.5, True, []])
def test_reserves_that_are_not(text: object) -> None:
    with pytest.raises(pydantic.ValidationError, match=r"reserved\n.*such as 512Mi or 2G, or percents from 0% to 100%"):
        spec(swap={"reserved": text})


def test_what_can_be_required_is_what_an_agent_reports() -> None:
    reported = set(names.Backing) - {names.Backing.UNKNOWN, names.Backing.MIXED, names.Backing.LOOP}
    assert set(get_args(profile.spec.BackingChoice)) == reported
    required = {requirement.lower() for requirement in get_args(profile.spec.RequirementChoice)}
    assert required == {one.value.lower() for one in names.Requirement} - {names.Requirement.BACKING}


@given(st.from_regex(re.compile(SYNTAX, re.ASCII), fullmatch=True).filter(lambda text: len(text) <= MAX_LENGTH))
def test_a_quantity_that_is_accepted_is_understood(text: str) -> None:
    assert quantity.capped(text) >= 0
