from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, state
from swapwarden.policy.node import labels
from swapwarden.policy.observed import nodes
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import requirements

from tests.unit import objects

NFD, OWN, VOUCHED = names.NFD_SWAP_LABEL, names.SWAP_LABEL, names.VOUCHED_LABEL
BEHAVIOR, BACKING, ENCRYPTED = names.BEHAVIOR_LABEL, names.BACKING_LABEL, names.ENCRYPTED_LABEL
VALID = re.compile(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
"""A label value (k/k: staging/src/k8s.io/apimachinery/pkg/util/validation)."""
KUBELET = objects.profile(names.Behavior.KUBELET)


def device(backing: str = "NVMe", *, encrypted: bool = False, name: str = "/dev/x") -> state.SwapDevice:
    return state.SwapDevice(name, "partition", 4096, backing=backing, encrypted=encrypted)


def desired(own: compiled.Profile, facts: nodes.NodeFacts, *, attested: bool | None) -> labels.Labels:
    return labels.desired(own.node, own.swap, facts, attested=attested)


def found(*devices: state.SwapDevice, attested: bool | None = None, **facts: Any) -> labels.Labels:
    return desired(KUBELET, objects.facts(devices=devices, **facts), attested=attested)


def node(**fields: Any) -> nodes.NodeRow:
    return nodes.NodeRow(**{"name": "n", "uid": "u", "labels": {}, "swap_bytes": 1, "memory_bytes": 1, **fields})


@pytest.mark.parametrize("behavior", names.Behavior)
def test_a_node_with_swap(behavior: names.Behavior) -> None:
    own = None if behavior is names.Behavior.NO_SWAP else "true"
    facts = objects.facts(devices=(device(encrypted=True),))
    assert desired(objects.profile(behavior), facts, attested=None) == {
        NFD: "true",
        OWN: own,
        BEHAVIOR: behavior,
        BACKING: "nvme",
        ENCRYPTED: "true",
        names.UNMET_LABEL: None,
        VOUCHED: None,
    }


def test_swap_that_pods_cannot_get() -> None:
    wanted = desired(objects.profile(names.Behavior.LIMITED_SWAP), objects.facts(compatible=False), attested=None)
    assert (wanted[NFD], wanted[OWN]) == ("true", None)
    assert wanted[BEHAVIOR] == "Kubelet", "nothing of the profile is in force"


def test_a_profile_that_is_only_tried_leaves_the_kubelets_behavior_in_force() -> None:
    profile = objects.profile(names.Behavior.LIMITED_SWAP, mode=names.Mode.AUDIT)
    assert desired(profile, objects.facts(), attested=None)[BEHAVIOR] == "Kubelet"


@pytest.mark.parametrize("behavior", names.Behavior)
@pytest.mark.parametrize("attested", [None, False, True])
def test_a_node_without_swap_has_none(behavior: names.Behavior, attested: bool | None) -> None:
    facts = objects.facts(swap_bytes=0, devices=(device(),))
    assert desired(objects.profile(behavior), facts, attested=attested) == dict.fromkeys(names.NODE_LABELS)


def test_labels_that_need_an_agents_report_stay_until_one_has_reported() -> None:
    def said(behavior: names.Behavior, swap_bytes: int, **fields: Any) -> labels.Labels:
        facts = objects.facts(swap_bytes=swap_bytes, reported=False)
        return desired(objects.profile(behavior, **fields), facts, attested=True)

    limited, no_swap = names.Behavior.LIMITED_SWAP, names.Behavior.NO_SWAP
    assert said(limited, 4096) == {NFD: "true", OWN: "true", BEHAVIOR: limited, names.UNMET_LABEL: None}
    assert said(limited, 0) == {names.UNMET_LABEL: None}, (
        "older kubelets do not report it, and swap may be newer than they are"
    )
    assert said(no_swap, 4096) == {NFD: "true", OWN: None, BEHAVIOR: no_swap, names.UNMET_LABEL: None}
    assert said(no_swap, 0) == {OWN: None, names.UNMET_LABEL: None}
    assert said(limited, 4096, require=requirements.Require(encrypted=True)) == {NFD: "true"}
    facts = objects.facts(reported=False)
    assert VOUCHED in desired(KUBELET, facts, attested=None), "nobody vouches for any node any more"
    assert labels.for_node_feature({NFD: "true"}) == {NFD: "true"}


@pytest.mark.parametrize(
    ("devices", "backing"),
    [
        ([], None),
        ([device("NVMe"), device("NVMe")], "nvme"),
        ([device("Zram"), device("NVMe")], "nvme_zram"),
        ([device("Mixed"), device("HDD")], "hdd_mixed"),
        ([device("of a newer agent")], "unknown"),
        ([device(each) for each in names.Backing], "_".join(sorted(each.lower() for each in names.Backing))),
    ],
)
def test_what_the_swap_is_on(devices: list[state.SwapDevice], backing: str | None) -> None:
    assert found(*devices)[BACKING] == backing


@pytest.mark.parametrize(
    ("devices", "encrypted"), [([], None), ([True], "true"), ([False], "false"), ([True, False], "false")]
)
def test_encrypted_is_swap_of_which_all_is(devices: list[bool], encrypted: str | None) -> None:
    assert found(*(device(encrypted=each) for each in devices))[ENCRYPTED] == encrypted


@pytest.mark.parametrize(
    ("attested", "encrypted", "value"),
    [(None, True, None), (True, True, "true"), (True, False, "false"), (False, True, "false"), (False, False, "false")],
)
def test_nobody_elses_word_is_enough(attested: bool | None, encrypted: bool, value: str | None) -> None:
    assert found(device(encrypted=encrypted), attested=attested)[VOUCHED] == value
    assert found(attested=attested)[VOUCHED] is None, "it is not known what the swap is on"


def test_for_which_nodes_an_administrator_vouches() -> None:
    key = "node-restriction.kubernetes.io/swap"
    required = {key: "encrypted", "a.node-restriction.kubernetes.io/b": ""}
    assert labels.is_attested({}, node(labels=required)) is None
    assert labels.is_attested(required, node(labels={**required, "x": "y"})) is True
    assert labels.is_attested(required, node(labels={key: "encrypted"})) is False
    assert labels.is_attested(required, node(labels={**required, key: "other"})) is False


@pytest.mark.parametrize(
    ("key", "restricted"),
    [
        ("node-restriction.kubernetes.io/a", True),
        ("example.com.node-restriction.kubernetes.io/a", True),
        ("node-restriction.kubernetes.io/", False),
        ("node-restriction.kubernetes.io", False),
        ("example-node-restriction.kubernetes.io/a", False),
        ("node-restriction.kubernetes.io.example.com/a", False),
        ("pool", False),
        ("", False),
        (VOUCHED, False),
    ],
)
def test_which_labels_a_kubelet_cannot_write(key: str, *, restricted: bool) -> None:
    assert labels.is_restricted(key) is restricted


def test_labels_that_nfd_keeps_are_left_to_it() -> None:
    wanted = found(device())
    assert labels.for_node(wanted, node(), features=False) == wanted
    left = labels.for_node(wanted, node(nfd=frozenset({NFD, BACKING})), features=False)
    assert left == {key: value for key, value in wanted.items() if key not in {NFD, BACKING}}


def test_with_nfd_the_node_itself_only_loses_unowned_labels() -> None:
    on, off = found(device(encrypted=True), attested=True), found(swap_bytes=0, attested=True)
    assert labels.for_node_feature(on) == {key: on[key] for key in names.PUBLIC_LABELS}
    assert labels.for_node(on, node(), features=True) == {VOUCHED: "true", names.UNMET_LABEL: None}
    assert labels.for_node(off, node(), features=True) == dict.fromkeys(names.NODE_LABELS)
    assert labels.for_node(off, node(nfd=frozenset(names.PUBLIC_LABELS)), features=True) == {VOUCHED: None}


DEVICES = st.builds(
    state.SwapDevice,
    name=st.text(),
    type=st.text(),
    size_bytes=st.integers(0),
    backing=st.one_of(st.text(), st.sampled_from(names.Backing)),
    encrypted=st.booleans(),
)


@given(
    st.lists(DEVICES, max_size=40),
    st.sampled_from(names.Behavior),
    st.sampled_from(names.Mode),
    st.integers(0, 1),
    st.booleans(),
    st.sampled_from([None, True, False]),
)
def test_all_values_are_valid_whatever_an_agent_says(
    devices: list[state.SwapDevice],
    behavior: names.Behavior,
    mode: names.Mode,
    swap_bytes: int,
    compatible: bool,
    attested: bool | None,
) -> None:
    facts = objects.facts(devices=tuple(devices), swap_bytes=swap_bytes, compatible=compatible)
    wanted = desired(objects.profile(behavior, mode=mode), facts, attested=attested)
    assert wanted.keys() == set(names.NODE_LABELS)
    assert all(value is None or VALID.fullmatch(value) for value in wanted.values())
    assert all(value is None for value in wanted.values()) is (swap_bytes == 0)
