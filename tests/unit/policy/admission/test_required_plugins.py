"""The annotation by which a runtime refuses containers while its plugin is away."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies
from swapwarden.api import names, runtime_link
from swapwarden.policy.admission import required_plugins
from swapwarden.webhook import review

from tests.unit.policy.admission import required_lists
from tests.unit.webhook import reviews

KEY = required_plugins.KEY
POLICY = names.POLICY_ANNOTATION
DISABLED = {POLICY: "Disabled"}


def admitted(pod: reviews.Json, default: names.Policy | None = None, *, on: bool = True) -> dict[str, str]:
    """The annotations of a pod after admission."""
    response = review.answer(review.decode(reviews.raw(pod)), default, require_plugin=on)
    found: dict[str, str] = reviews.patched(pod, response)["metadata"].get("annotations") or {}
    return found


def test_a_disabled_pod_needs_the_plugin_only_if_that_is_asked_for() -> None:
    assert admitted(reviews.pod(DISABLED)) == {**DISABLED, KEY: required_lists.OURS}
    assert admitted(reviews.pod(DISABLED), on=False) == DISABLED
    assert json.loads(required_lists.OURS) == [runtime_link.PLUGIN]


@pytest.mark.parametrize("policy", [each for each in names.Policy if each is not names.Policy.DISABLED])
def test_pods_with_other_policies_and_without_do_not(policy: names.Policy) -> None:
    assert KEY not in admitted(reviews.pod({POLICY: policy.value}))
    assert KEY not in admitted(reviews.pod({}), policy)
    assert KEY not in admitted(reviews.pod(None))


@pytest.mark.parametrize("own", [None, {}, {"a": "b"}])
def test_a_default_of_the_namespace_counts_as_the_pods_own(own: dict[str, str] | None) -> None:
    found = admitted(reviews.pod(own), names.Policy.DISABLED)
    assert found == {
        **(own or {}),
        **DISABLED,
        names.POLICY_SOURCE_ANNOTATION: "namespace",
        KEY: required_lists.OURS,
    }


@pytest.mark.parametrize(("before", "after"), required_lists.CASES.items())
def test_a_list_keeps_its_plugins(before: str, after: str) -> None:
    assert admitted(reviews.pod({**DISABLED, KEY: before}))[KEY] == after
    if after != before:
        assert yaml.safe_load(after) == [runtime_link.PLUGIN, *(yaml.safe_load(before) or [])]


def test_the_more_specific_lists_have_it_also_and_other_keys_do_not() -> None:
    lists = {f"{KEY}/pod": "[a]", f"{KEY}/container.app": "[]", f"{KEY}.example": "[]", "b": "[]"}
    assert admitted(reviews.pod({**DISABLED, **lists})) == {
        **DISABLED,
        **lists,
        KEY: required_lists.OURS,
        f"{KEY}/pod": '["swapwarden", a]',
        f"{KEY}/container.app": required_lists.OURS,
    }


@pytest.mark.parametrize(
    ("of_daemon_set", "host_network", "needs"),
    [(True, True, False), (True, False, True), (True, None, True), (False, True, True)],
)
def test_pods_that_may_bring_the_network_of_the_node_do_not_wait_for_the_plugin(
    of_daemon_set: bool, host_network: bool | None, needs: bool
) -> None:
    pod = reviews.pod(DISABLED)
    pod["spec"]["hostNetwork"] = host_network
    if of_daemon_set:
        pod["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "controller": True}]
    assert (KEY in admitted(pod)) is needs


def test_mirror_pods_are_left_alone() -> None:
    mirror = {**DISABLED, names.CONFIG_MIRROR_ANNOTATION: "0123"}
    assert admitted(reviews.pod(mirror)) == mirror


@hypothesis.given(
    strategies.one_of(
        strategies.text(max_size=30),
        strategies.text("[]\"', \nswapwarden-", max_size=30),
        strategies.lists(strategies.sampled_from(["a", runtime_link.PLUGIN, "b-c"]), max_size=4).map(json.dumps),
    )
)
def test_asking_again_adds_nothing_and_no_list_loses_a_plugin(text: str) -> None:
    once = required_plugins.with_plugin(text)
    assert required_plugins.with_plugin(once) == once
    before: Any = None
    try:
        before = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    if isinstance(before, list) and before and all(isinstance(each, str) for each in before) and text.startswith("["):
        assert set(yaml.safe_load(once)) == {runtime_link.PLUGIN, *before}
