import re
from typing import get_args

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, profile
from swapwarden.policy import quantity


def spec(**fields: object) -> profile.ProfileSpec:
    return profile.ProfileSpec.model_validate({"nodeSelector": {}, **fields})


def test_defaults_are_those_of_a_fresh_install() -> None:
    made = spec()
    assert (made.priority, made.mode, made.guarantee, made.on_unknown_pod) == (100, "Enforce", "Standard", "Deny")
    assert made.swap.behavior is names.Behavior.KUBELET
    assert made.swap.system_reserved is None


@pytest.mark.parametrize("text", ["0", "1Gi", "1.5G", "10%", "0%", "100%", "1e9", "512Mi", 1024])
def test_reserves_that_are_understood(text: object) -> None:
    assert spec(swap={"systemReserved": text}).swap.system_reserved == str(text)


@pytest.mark.parametrize(
    "text", ["101%", "-1Gi", "10 %", "1.5%", "lots", "1gi", "", "1" * 40, "1Gi\n", "\u0661", -5, 1.5, True, []]
)
def test_reserves_that_are_not(text: object) -> None:
    with pytest.raises(
        pydantic.ValidationError, match=r"systemReserved\n.*such as 512Mi or 2G, or percents from 0% to 100%"
    ):
        spec(swap={"systemReserved": text})


@pytest.mark.parametrize("text", ["10%", "1GB", -1])
def test_bounds_that_are_not(text: object) -> None:
    with pytest.raises(pydantic.ValidationError, match=r"maxPerPod\n.*such as 512Mi, 2G or 1073741824"):
        spec(swap={"behavior": "WorkloadControlled", "workloadControlled": {"maxPerPod": text}})


def test_the_extended_resource_needs_a_behavior_that_follows_it() -> None:
    asks = {"extendedResource": True}
    assert spec(scheduling=asks, swap={"behavior": "WorkloadControlled"}).scheduling.extended_resource
    for swap in ({}, {"behavior": "LimitedSwap"}):
        with pytest.raises(pydantic.ValidationError, match=r"extendedResource needs swap\.behavior WorkloadControlled"):
            spec(scheduling=asks, swap=swap)
    assert not spec(scheduling={"extendedResource": False}).scheduling.extended_resource


@pytest.mark.parametrize(
    "require",
    [{"encrypted": True}, {"tmpfsNoswap": True}, {"dedicatedDevice": True, "encrypted": False}, {"backing": ["zram"]}],
)
def test_requirements(require: dict[str, object]) -> None:
    assert spec(swap={"require": require}).swap.require


@pytest.mark.parametrize("require", [{}, {"encrypted": False}, {"encrypted": False, "dedicatedDevice": False}])
def test_requirements_of_nothing(require: dict[str, object]) -> None:
    with pytest.raises(pydantic.ValidationError, match="require asks for nothing: set encrypted"):
        spec(swap={"require": require})


@pytest.mark.parametrize("backing", [[], ["unknown"], ["mixed"], ["nvme"] * 8])
def test_kinds_of_devices_that_cannot_be_required(backing: list[str]) -> None:
    with pytest.raises(pydantic.ValidationError, match="backing"):
        spec(swap={"require": {"backing": backing}})


def test_what_can_be_required_is_what_an_agent_tells() -> None:
    told = set(names.Backing) - {names.Backing.UNKNOWN, names.Backing.MIXED, names.Backing.LOOP}
    assert set(get_args(profile.RequiredBacking)) == told
    assert len(told) == profile.MAX_BACKINGS
    aliases = {field.alias for field in profile.Require.model_fields.values()}
    assert aliases == set(names.Requirement)


@given(
    st.from_regex(re.compile(profile.QUANTITY_PATTERN, re.ASCII), fullmatch=True).filter(
        lambda text: len(text) <= profile.QUANTITY_LENGTH
    )
)
def test_a_quantity_that_is_let_in_is_understood(text: str) -> None:
    assert quantity.capped(text) >= 0


@pytest.mark.parametrize("key", ["pool", "example.com/pool", "a", "a/B_c.d", "x" * 63])
def test_keys_of_labels(key: str) -> None:
    made = profile.LabelSelector.model_validate(
        {"matchLabels": {key: "x"}, "matchExpressions": [{"key": key, "operator": "Exists"}]}
    )
    assert list(made.match_labels) == [made.match_expressions[0].key] == [key]


@pytest.mark.parametrize("key", ["", "po ol", "/pool", "Example.com/pool", "a/b/c", "-a", "a-", "pool\n", "a" * 318])
def test_what_is_no_key_of_a_label(key: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=r"matchLabels\n.*must be that of a label"):
        profile.LabelSelector.model_validate({"matchLabels": {key: "x"}})
    with pytest.raises(pydantic.ValidationError, match="key"):
        profile.LabelSelector.model_validate({"matchExpressions": [{"key": key, "operator": "Exists"}]})


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
    [("mode", "Restore"), ("onUnknownPod", "deny"), ("priority", 1_000_001), ("guarantee", "strict"), ("swapp", {})],
)
def test_unknown_fields_and_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(pydantic.ValidationError, match=field):
        spec(**{field: value})


@pytest.mark.parametrize(
    "entry",
    [
        {"podSelector": {}, "policy": "Disabled"},
        {"namespaceSelector": {"matchLabels": {"team": "a"}}, "swapLimit": "1Gi"},
        {"namespaceSelector": {}, "podSelector": {}, "policy": "NoPreference", "swapLimit": "1Gi"},
        *({"podSelector": {}, "policy": "Disabled", "swapLimit": zero} for zero in (0, "0", "0Gi", "0k")),
    ],
)
def test_overrides_that_say_something(entry: dict[str, object]) -> None:
    assert len(spec(overrides=[entry]).overrides) == 1


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"policy": "Disabled"}, "needs a namespaceSelector or a podSelector; podSelector: {} selects all"),
        ({"podSelector": {}}, "needs a policy or a swapLimit: without both it changes nothing"),
        *(
            ({"podSelector": {}, "policy": "Disabled", "swapLimit": some}, "remove the swapLimit, or the policy")
            for some in (1, "1Gi", "0.5Gi", "1e-2", "10")
        ),
        ({"podSelector": {}, "policy": "Required"}, "policy"),
        ({"podSelector": {}, "swapLimit": "10%"}, "must be a quantity"),
        ({"podSelector": {"matchLabels": {"a b": "x"}}, "policy": "Disabled"}, "must be that of a label"),
        ({"podSelector": {}, "policy": "Disabled", "nodeSelector": {}}, "nodeSelector"),
    ],
)
def test_overrides_that_are_refused(entry: dict[str, object], says: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=says.replace("{}", r"\{\}")):
        spec(overrides=[entry])


def test_overrides_are_bounded() -> None:
    entry = {"podSelector": {}, "policy": "Disabled"}
    assert len(spec(overrides=[entry] * profile.MAX_OVERRIDES).overrides) == profile.MAX_OVERRIDES
    with pytest.raises(pydantic.ValidationError, match="at most 32"):
        spec(overrides=[entry] * (profile.MAX_OVERRIDES + 1))


def test_units_that_are_to_have_no_swap() -> None:
    made = spec(system={"disableSwap": True, "slices": ["system.slice", "a-b.slice"], "services": ["kubelet.service"]})
    assert made.system.slices == ["system.slice", "a-b.slice"]
    assert not spec(system={"disableSwap": False}).system.disable_swap


@pytest.mark.parametrize("target", ["1ms", "25ms", "10000ms", "1s", "10s"])
def test_units_whose_io_is_to_go_first(target: str) -> None:
    made = spec(system={"ioLatencyTarget": target, "ioWeight": 800, "services": ["kubelet.service"]})
    assert (made.system.io_latency_target, made.system.io_weight) == (target, 800)
    assert not made.system.disable_swap


@pytest.mark.parametrize(
    ("system", "says"),
    [
        ({"disableSwap": True}, "disableSwap, ioLatencyTarget and ioWeight need slices or services"),
        ({"ioLatencyTarget": "25ms"}, "need slices or services"),
        ({"ioWeight": 800}, "need slices or services"),
        *(
            ({"ioLatencyTarget": target, "slices": ["system.slice"]}, "must be whole milliseconds or seconds, from 1ms")
            for target in ("0ms", "0.5ms", "10001ms", "11s", "25", "25000us", "1m", "", "-1s", "1s\n")
        ),
        ({"ioWeight": 0, "slices": ["system.slice"]}, "greater than or equal to 1"),
        ({"ioWeight": 10001, "slices": ["system.slice"]}, "less than or equal to 10000"),
        ({"slices": ["system.slice"]}, "no effect without disableSwap: true"),
        ({"disableSwap": True, "slices": ["kubepods.slice"]}, "must not be a slice of pods"),
        *(
            ({"disableSwap": True, "slices": [name]}, "must be the name of a systemd slice, such as system.slice")
            for name in (
                "-.slice",
                "a/b.slice",
                "../a.slice",
                "a--b.slice",
                "system",
                "a.slice\n",
                "a" * 128 + ".slice",
            )
        ),
        *(
            ({"disableSwap": True, "services": [name]}, "must be the name of a systemd service")
            for name in ("system.slice", "a/b.service", ".service", "..service", "a b.service")
        ),
    ],
)
def test_units_that_are_refused(system: dict[str, object], says: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=says):
        spec(system=system)
