from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, state
from swapwarden.policy import plan
from swapwarden.policy.node import labels, taints
from swapwarden.policy.observed import nodes
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits, requirements

from tests.unit.objects import GI, container, facts, make_override, pod, profile, swap

ALL = requirements.Require(encrypted=True, tmpfs_noswap=True, backing=("NVMe", "Zram"), dedicated_device=True)
NAMES = ["encrypted", "tmpfsNoswap", "backing", "dedicatedDevice"]


def device(name: str = "/dev/nvme1n1", **fields: Any) -> state.SwapDevice:
    """One that meets ALL."""
    good: dict[str, Any] = {"backing": "NVMe", "encrypted": True, "dedicated": True}
    return state.SwapDevice(name, "partition", 4096, **{**good, **fields})


def node(*devices: state.SwapDevice, **fields: Any) -> nodes.NodeFacts:
    return facts(**{"devices": devices, "kernel_release": "6.8.0", "tmpfs_noswap": True, **fields})


def requiring(require: requirements.Require | None = ALL, **fields: Any) -> compiled.Profile:
    return profile(names.Behavior.WORKLOAD_CONTROLLED, require=require, **fields)


def unmet(found: nodes.NodeFacts, require: requirements.Require = ALL) -> dict[str, str]:
    told = requirements.unmet(require, found)
    assert told is not None
    assert requirements.first_unmet(require, found) == next(iter(told), None)
    return told


def test_a_node_that_has_everything() -> None:
    assert unmet(node(device(), device("/dev/zram0", backing="Zram"))) == {}


def test_nothing_is_required() -> None:
    bare = node(device(encrypted=False), tmpfs_noswap=False)
    assert requirements.unmet(None, bare) is None
    assert requirements.first_unmet(None, bare) is None
    assert plan.explain_node(requiring(None), bare, []).unmet is None
    assert plan.explain_node(requiring(), node(device()), []).unmet == {}


@pytest.mark.parametrize(
    ("fields", "name", "found", "remedy"),
    [
        ({"encrypted": False}, "encrypted", "/dev/sda2: not known to be encrypted", "dm-crypt"),
        ({"backing": "HDD"}, "backing", "/dev/sda2 is HDD", "NVMe or Zram"),
        ({"backing": "Unknown"}, "backing", "/dev/sda2 is Unknown", "NVMe or Zram"),
        ({"backing": "of a newer agent"}, "backing", "/dev/sda2 is of a newer agent", "NVMe or Zram"),
        ({"dedicated": False}, "dedicatedDevice", "/dev/sda2: on a disk with the node's file systems", "of its own"),
        ({"dedicated": None}, "dedicatedDevice", "/dev/sda2: not known which disks are under it", "of its own"),
    ],
)
def test_one_device_that_lacks_something_is_enough(fields: dict[str, Any], name: str, found: str, remedy: str) -> None:
    ((which, text),) = unmet(node(device(), device("/dev/sda2", **fields))).items()
    assert which == name
    assert text.startswith(found)
    assert remedy in text


def test_tmpfs() -> None:
    found = node(device(), tmpfs_noswap=False, kernel_release="6.1.0-25-amd64")
    assert list(unmet(found)) == ["tmpfsNoswap"]
    assert "on kernel 6.1.0-25-amd64 tmpfs volumes" in unmet(found)["tmpfsNoswap"]
    assert "use Linux 6.4 or newer" in unmet(found)["tmpfsNoswap"]


def test_unknown_facts_count_as_missing() -> None:
    told = unmet(facts())
    assert list(told) == NAMES
    assert "the node's agent" in told["encrypted"]
    assert "kernel" in told["tmpfsNoswap"]


def test_swap_that_is_not_on_yet_is_not_trusted_beforehand() -> None:
    off = node(device(), swap_bytes=0)
    assert list(unmet(off)) == ["encrypted", "backing", "dedicatedDevice"]
    assert unmet(off)["backing"].startswith("no swap is on")
    kubelet = profile(names.Behavior.KUBELET, require=ALL)
    assert limits.decide(kubelet.swap, off, pod(container())).swap_max == "0"
    assert labels.desired(kubelet.node, kubelet.swap, off, attested=None) == dict.fromkeys(names.NODE_LABELS), (
        "there is no swap to report"
    )


@given(
    st.lists(
        st.builds(
            device,
            st.text(max_size=256),
            encrypted=st.booleans(),
            backing=st.text(max_size=32),
            dedicated=st.none() | st.booleans(),
        ),
        max_size=state.MAX_DEVICES,
    ),
    st.text(max_size=128),
)
def test_messages_about_requirements_are_short(devices: list[state.SwapDevice], kernel: str) -> None:
    told = unmet(node(*devices, kernel_release=kernel, tmpfs_noswap=False))
    assert all(0 < len(text) <= 512 for text in told.values())


class TestUnmet:
    FACTS = node(device(encrypted=False))

    @pytest.mark.parametrize("behavior", names.Behavior)
    @pytest.mark.parametrize(
        ("fields", "override", "reason"),
        [
            ({}, None, "RequirementUnmet"),
            ({"swap_limit": "1Gi"}, None, "RequirementUnmet"),
            ({"critical": True}, None, "RequirementUnmet"),
            ({"policy": "Required"}, make_override(swap_limit=GI), "RequirementUnmet"),
            ({"policy": "Disabled"}, None, "PolicyDisabled"),
            ({"policy": "x"}, None, "InvalidPolicy"),
            ({}, make_override(policy=names.Policy.DISABLED), "OverrideDisabled"),
        ],
    )
    def test_no_pod_has_swap(
        self, behavior: names.Behavior, fields: dict[str, Any], override: compiled.Override | None, reason: str
    ) -> None:
        row = pod(container(request=GI, swap_limit="1Gi"), **fields)
        decision = limits.decide(
            swap(behavior, require=ALL), self.FACTS, row, None if override is None else override.swap
        )
        assert (decision.swap_max, decision.reason) == ("0", reason)
        assert not any(one.write for one in decision.containers)

    def test_nothing_is_written_where_nothing_can_be(self) -> None:
        found = node(device(encrypted=False), compatible=False)
        assert limits.decide(requiring().swap, found, pod(container())).swap_max is None

    def test_a_pod_that_is_not_known_yet_has_none_either(self) -> None:
        allowing = requiring(before_plan=names.BeforePlan.UNMANAGED)
        assert plan.plan_node(allowing, self.FACTS, []).before_plan is names.BeforePlan.NO_SWAP
        assert plan.plan_node(allowing, node(device()), []).before_plan is names.BeforePlan.UNMANAGED

    def test_placement_does_not_count_on_the_node(self) -> None:
        row = nodes.NodeRow(name="n", uid="u", labels={}, swap_bytes=1, memory_bytes=1)
        giving = requiring(taint_effect=names.TaintEffect.NO_SCHEDULE, extended_resource=True)
        for found, gives in ((self.FACTS, False), (node(device()), True)):
            wanted = labels.desired(giving.node, giving.swap, found, attested=None)
            assert wanted[names.SWAP_LABEL] == ("true" if gives else None)
            assert wanted[names.UNMET_LABEL] == (None if gives else "encrypted")
            assert wanted[names.BEHAVIOR_LABEL] == ("WorkloadControlled" if gives else "NoSwap")
            assert wanted[names.NFD_SWAP_LABEL] == "true"
            assert (taints.desired(giving.node, giving.swap, found, row, enforced=True) is not None) is gives
            assert (labels.swap_resource_capacity(giving.node, giving.swap, found) is not None) is gives
