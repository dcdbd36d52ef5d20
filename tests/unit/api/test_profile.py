import pydantic
import pytest
from swapwarden.api import names, profile


def spec(**fields: object) -> profile.ProfileSpec:
    return profile.ProfileSpec.model_validate({"nodeSelector": {}, **fields})


def test_defaults_are_those_of_a_fresh_install() -> None:
    made = spec()
    assert (made.priority, made.mode, made.on_unknown_pod) == (100, "Enforce", "Deny")
    assert made.swap.behavior is names.Behavior.KUBELET
    assert made.swap.system_reserved is None


@pytest.mark.parametrize("text", ["0", "1Gi", "1.5G", "10%", "0%", "100%", "1e9", "512Mi", 1024])
def test_reserves_that_are_understood(text: object) -> None:
    assert spec(swap={"systemReserved": text}).swap.system_reserved == str(text)


@pytest.mark.parametrize("text", ["101%", "-1Gi", "10 %", "1.5%", "lots", "1gi", "", "1" * 40, -5, True])
def test_reserves_that_are_not(text: object) -> None:
    with pytest.raises(pydantic.ValidationError, match="systemReserved"):
        spec(swap={"systemReserved": text})


@pytest.mark.parametrize(
    "requirement",
    [
        {"key": "pool", "operator": "In"},
        {"key": "pool", "operator": "NotIn", "values": []},
        {"key": "pool", "operator": "Exists", "values": ["a"]},
    ],
)
def test_selector_values_must_fit_the_operator(requirement: dict[str, object]) -> None:
    with pytest.raises(pydantic.ValidationError, match="In and NotIn need values"):
        profile.LabelSelector.model_validate({"matchExpressions": [requirement]})


def test_bounds_without_their_behavior_are_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="set the behavior or remove the bounds"):
        spec(swap={"behavior": "LimitedSwap", "workloadControlled": {"maxPerPod": "1Gi"}})


@pytest.mark.parametrize(
    ("field", "value"),
    [("mode", "Restore"), ("onUnknownPod", "deny"), ("priority", 1_000_001), ("guarantee", "Strict"), ("swapp", {})],
)
def test_unknown_fields_and_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(pydantic.ValidationError, match=field):
        spec(**{field: value})
