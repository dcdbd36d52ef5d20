import msgspec
import pytest
from swapwarden.api import names, state


def test_an_entry_holds_no_defaults() -> None:
    entry = state.PodSettings(reason=names.Reason.POLICY_DISABLED, swap_max="0")
    assert msgspec.json.encode(entry) == b'{"swapMax":"0","reason":"PolicyDisabled"}'


def test_a_state_survives_the_wire() -> None:
    spec = state.StateSpec(
        profile_ref=state.ProfileRef(name="batch", generation=3),
        epoch=7,
        kubepods=state.CgroupSettings(swap_max="4096"),
        pods={
            "u": state.PodSettings(
                reason=names.Reason.LIMITED_SWAP,
                swap_max="max",
                containers={"app": state.ContainerSettings(id="c" * 13, swap_at_most="8192")},
            )
        },
    )
    assert msgspec.json.decode(msgspec.json.encode(spec), type=state.StateSpec) == spec


@pytest.mark.parametrize("value", ["-1", "1Gi", "01", "", "MAX", "9" * 20])
def test_values_that_the_kernel_would_not_take_are_refused(value: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode({"reason": "PolicyDisabled", "swapMax": value}), type=state.PodSettings)


def test_fields_of_a_newer_version_are_passed_over() -> None:
    text = b'{"profileRef":{"name":"a"},"guarantee":"Strict"}'
    assert msgspec.json.decode(text, type=state.StateSpec).profile_ref.name == "a"
