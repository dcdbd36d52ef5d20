"""Whose idle memory is moved to swap, and in which bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names
from swapwarden.api import profile as profiles
from swapwarden.api.profile import memory as api
from swapwarden.policy import plan
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.profile import compiled
from swapwarden.policy.reclaim.decisions import Reclaim

from tests.unit.objects import GI, container, facts, make_override, pod, profile

Mode, Reason = names.ReclaimMode, names.ReclaimReason
OFF, STARTUP, CONTINUOUS = Mode.OFF, Mode.STARTUP, Mode.CONTINUOUS
MODES = (None, OFF, STARTUP, CONTINUOUS)
NODE = facts(memory_bytes=8 * GI, swap_bytes=8 * GI)


def asks(mode: names.ReclaimMode | None, **fields: Any) -> pods.PodRow:
    return pod(container(request=GI, limit=2 * GI), reclaim=mode, **fields)


def plans(
    row: pods.PodRow, offered: names.ReclaimMode, given: names.ReclaimMode | None = None, **fields: Any
) -> plan.ExplainedPod:
    """Return the decision on a pod; `given` by an override that selects it."""
    own = None if offered is OFF else Reclaim(offered)
    overrides = () if given is None else (make_override(name="one", reclaim=given),)
    found = profile(names.Behavior.LIMITED_SWAP, reclaim=own, overrides=overrides, **fields)
    return plan.explain_node(found, NODE, [row]).pods[0]


@pytest.mark.parametrize(
    ("offered", "given", "asked", "mode", "reason"),
    [
        (STARTUP, None, None, OFF, Reason.NOT_ASKED),
        (STARTUP, None, STARTUP, STARTUP, Reason.ANNOTATION),
        (STARTUP, None, CONTINUOUS, STARTUP, Reason.STARTUP_ONLY),
        (CONTINUOUS, None, STARTUP, STARTUP, Reason.ANNOTATION),
        (CONTINUOUS, None, CONTINUOUS, CONTINUOUS, Reason.ANNOTATION),
        (CONTINUOUS, None, OFF, OFF, Reason.POD_REFUSES),
        (CONTINUOUS, OFF, CONTINUOUS, OFF, Reason.OVERRIDE_REFUSES),
        (CONTINUOUS, OFF, None, OFF, Reason.OVERRIDE_REFUSES),
        (CONTINUOUS, CONTINUOUS, None, CONTINUOUS, Reason.OVERRIDE),
        (CONTINUOUS, CONTINUOUS, STARTUP, STARTUP, Reason.ANNOTATION),
        (CONTINUOUS, CONTINUOUS, OFF, OFF, Reason.POD_REFUSES),
        (STARTUP, CONTINUOUS, None, STARTUP, Reason.STARTUP_ONLY),
    ],
)
def test_profile_offers_override_refuses_and_the_pod_decides(
    offered: names.ReclaimMode,
    given: names.ReclaimMode | None,
    asked: names.ReclaimMode | None,
    mode: names.ReclaimMode,
    reason: names.ReclaimReason,
) -> None:
    found = plans(asks(asked), offered, given)
    assert found.reclaim is not None
    assert (found.reclaim.mode, found.reclaim.reason) == (mode, reason)
    alone = plans(asks(asked), offered)
    assert (found.override == "one") == (found.reclaim != alone.reclaim)


def test_pods_without_swap_or_that_end_have_none() -> None:
    def reason(**fields: Any) -> names.ReclaimReason:
        found = plans(asks(CONTINUOUS, **fields), CONTINUOUS)
        assert found.reclaim is not None
        assert found.reclaim.mode is OFF
        return found.reclaim.reason

    assert reason(policy="Disabled") is Reason.NO_SWAP
    assert reason(critical=True) is Reason.NO_SWAP
    assert reason(ending=True) is Reason.POD_ENDS


@given(st.sampled_from(MODES), st.sampled_from(MODES), st.sampled_from([STARTUP, CONTINUOUS]))
def test_nobody_has_more_than_was_offered_or_asked(
    asked: names.ReclaimMode | None, given_mode: names.ReclaimMode | None, offered: names.ReclaimMode
) -> None:
    found = plans(asks(asked), offered, given_mode)
    assert found.reclaim is not None
    order = [OFF, STARTUP, CONTINUOUS]
    most = min(order.index(offered), order.index(asked or given_mode or OFF))
    assert order.index(found.reclaim.mode) <= most


def state_of(row: pods.PodRow, own: Reclaim | None, node: nodes.NodeFacts = NODE) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(
        plan.plan_node(profile(names.Behavior.LIMITED_SWAP, reclaim=own), node, [row])
    )
    return found


def test_a_state_has_the_bounds_and_the_modes() -> None:
    found = state_of(asks(STARTUP), Reclaim(CONTINUOUS, keep_swap_free="25%", writes_per_day=7 * GI))
    assert found["reclaim"] == {
        "maxStallPermille": 1,
        "intervalSeconds": 6,
        "stepPercent": 1,
        "keepSwapFreeBytes": 2 * GI,
        "writesPerDayBytes": 7 * GI,
    }
    assert found["pods"]["uid-1"]["reclaim"] == "Startup"


def test_a_state_has_nothing_of_it_where_it_is_off() -> None:
    """Also for pods that ask: each byte of a state counts."""
    assert "reclaim" not in state_of(asks(CONTINUOUS), None)
    assert "reclaim" not in state_of(asks(CONTINUOUS), None)["pods"]["uid-1"]
    assert "reclaim" not in state_of(asks(None), Reclaim(CONTINUOUS))["pods"]["uid-1"]


def test_off_is_the_same_as_nothing() -> None:
    def of(model: api.ReclaimSpec | None) -> Reclaim | None:
        spec = {"nodeSelector": {}, **({} if model is None else {"reclaim": model})}
        return compiled.compile_profile(profiles.NodeSwapProfile.model_validate({"spec": spec})).reclaim

    assert of(None) is None
    assert of(api.ReclaimSpec()) is None
    assert of(api.ReclaimSpec(mode=STARTUP)) == Reclaim(STARTUP)


def test_an_invalid_annotation_asks_for_nothing() -> None:
    def read(text: str) -> names.ReclaimMode | None:
        metadata = {"name": "a", "annotations": {"swapwarden.dev/reclaim": text}}
        return pods.project(msgspec.convert({"metadata": metadata, "spec": {"containers": []}}, WirePod)).reclaim

    assert [read(text) for text in ("startup", "", "Startup")] == [OFF, OFF, STARTUP]
