"""Decisions on a container, as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from swapwarden.api import names
from swapwarden.nri import decide, messages
from swapwarden.policy.swap import limits

ENFORCE = names.Mode.ENFORCE
DISABLED = names.Policy.DISABLED
ZERO = decide.Hold("0", at_most=False)
NUMBER = decide.Hold("8192", at_most=False)
CAP = decide.Hold("8192", at_most=True)


def holds(default: decide.Hold | None = None, *, decided: bool = True, **containers: decide.Hold) -> decide.PodHolds:
    return decide.PodHolds(default, containers, decided)


def request(
    policy: str | None = None,
    source: str | None = None,
    *,
    value: str | None = None,
    asked: str | None = None,
    original: str | None = None,
) -> messages.Event:
    pod = messages.PodSandbox("sandbox", "uid", policy, source, "")
    return messages.Event(pod, messages.RuntimeContainer("id", "sandbox", "app", value, original), asked)


FROM_NAMESPACE = names.SOURCE_NAMESPACE
CREATED = [
    # policy, its source, the agent's decision, the request's value, mode -> the value that is set
    (None, None, None, "4096", ENFORCE, None),
    (None, None, holds(), "4096", ENFORCE, None),
    (DISABLED, None, None, "4096", ENFORCE, "0"),
    (DISABLED, None, None, None, ENFORCE, "0"),
    (DISABLED, None, None, "0", ENFORCE, None),
    (DISABLED, None, None, "max", "", "0"),
    (DISABLED, None, None, "4096", names.Mode.AUDIT, None),
    (DISABLED, None, holds(ZERO), "4096", names.Mode.RESTORE, None),
    (DISABLED, None, holds(NUMBER), "4096", ENFORCE, "0"),
    ("disabled", None, None, "4096", ENFORCE, "0"),
    ("", None, None, "4096", ENFORCE, "0"),
    ("x" * 256, None, holds(NUMBER), "4096", ENFORCE, "0"),
    *((each, None, None, "4096", ENFORCE, None) for each in names.Policy if each != DISABLED),
    # a namespace's default holds until the agent has the pod's plan
    (DISABLED, FROM_NAMESPACE, None, "4096", ENFORCE, "0"),
    (DISABLED, FROM_NAMESPACE, holds(NUMBER, decided=False), "4096", ENFORCE, "0"),
    (DISABLED, FROM_NAMESPACE, holds(ZERO), "4096", ENFORCE, "0"),
    (DISABLED, FROM_NAMESPACE, holds(NUMBER), "4096", ENFORCE, "8192"),
    (DISABLED, FROM_NAMESPACE, holds(), "4096", ENFORCE, None),
    (DISABLED, "pod", holds(NUMBER), "4096", ENFORCE, "0"),
    # the agent's numbers
    (None, None, holds(NUMBER), "4096", ENFORCE, "8192"),
    (None, None, holds(NUMBER), "8192", ENFORCE, None),
    (None, None, holds(ZERO, app=NUMBER), "4096", ENFORCE, "8192"),
    (None, None, holds(NUMBER, other=ZERO), "4096", ENFORCE, "8192"),
    (None, None, holds(None, other=ZERO), "4096", ENFORCE, None),
    (None, None, holds(NUMBER), "4096", names.Mode.AUDIT, None),
    (None, None, holds(CAP), "4096", ENFORCE, None),
    (None, None, holds(CAP), "8192", ENFORCE, None),
    (None, None, holds(CAP), "8193", ENFORCE, "8192"),
    (None, None, holds(CAP), "max", ENFORCE, "8192"),
    (None, None, holds(CAP), None, ENFORCE, "8192"),
    (None, None, holds(CAP), "garbage", ENFORCE, "8192"),
    (None, None, holds(decide.Hold("max", at_most=True)), "4096", ENFORCE, None),
]


@pytest.mark.parametrize(("policy", "source", "decided", "value", "mode", "expected"), CREATED)
def test_created_container(
    policy: str | None,
    source: str | None,
    decided: decide.PodHolds | None,
    value: str | None,
    mode: str,
    expected: str | None,
) -> None:
    assert decide.created(request(policy, source, value=value), decided, mode) == expected


def test_two_plugins_of_ours_with_different_decisions_do_not_both_set_the_value() -> None:
    seen_by_the_second = request(DISABLED, value="4096", original="max")
    assert decide.created(seen_by_the_second, holds(NUMBER), ENFORCE) is None


KEPT = [
    # policy, decision, the runtime's value, what the update asks for, the kubelet's replaced value, mode -> the answer
    (DISABLED, None, "0", "4096", "4096", ENFORCE, "0"),
    (DISABLED, None, "0", "4096", None, ENFORCE, "0"),
    (DISABLED, None, "0", None, None, ENFORCE, "0"),
    (DISABLED, None, "0", "0", None, ENFORCE, None),
    (DISABLED, None, "4096", "8192", None, ENFORCE, None),
    (DISABLED, None, None, "8192", None, ENFORCE, None),
    (DISABLED, None, "0", "4096", "4096", names.Mode.RESTORE, None),
    (None, holds(NUMBER), "8192", "4096", None, ENFORCE, "8192"),
    (None, holds(NUMBER), "4096", "2048", None, ENFORCE, None),
    (None, holds(CAP), "8192", "max", None, ENFORCE, "8192"),
    (None, holds(CAP), "8192", "4096", None, ENFORCE, None),
    (None, holds(), "8192", "4096", "2048", ENFORCE, None),
    # no agent was here since an earlier plugin set it
    (None, None, "8192", "4096", "2048", ENFORCE, "8192"),
    (None, None, "8192", "4096", "2048", "", "8192"),
    (None, None, "8192", "4096", "", ENFORCE, "8192"),
    (None, None, "8192", "8192", "2048", ENFORCE, None),
    (None, None, "8192", "4096", "2048", names.Mode.AUDIT, None),
    (None, None, "2048", "4096", "2048", ENFORCE, None),
    (None, None, "2048", "4096", None, ENFORCE, None),
    (None, None, None, "4096", "2048", ENFORCE, None),
]


@pytest.mark.parametrize(("policy", "decided", "value", "asked", "original", "mode", "expected"), KEPT)
def test_updated_container(
    policy: str | None,
    decided: decide.PodHolds | None,
    value: str | None,
    asked: str | None,
    original: str | None,
    mode: str,
    expected: str | None,
) -> None:
    event = request(policy, value=value, asked=asked, original=original)
    assert decide.kept(event, decided, mode) == expected


VALUES = some.sampled_from((None, "0", "1", "4096", "max", "junk", "", "1e3", "²"))
HOLDS = some.builds(decide.Hold, some.sampled_from(("0", "4096", "max")), some.booleans())
PODS = some.builds(
    decide.PodHolds, some.none() | HOLDS, some.dictionaries(some.just("app"), HOLDS, max_size=1), some.booleans()
)
EVENTS = some.builds(
    request,
    some.sampled_from((None, "Disabled", "Avoid", "?")),
    some.sampled_from((None, "namespace", "pod")),
    value=VALUES,
    asked=VALUES,
    original=VALUES,
)
MODES = some.sampled_from((*(each.value for each in names.Mode), ""))


@given(EVENTS, some.none() | PODS, MODES)
def test_an_update_only_ever_keeps_a_value_that_the_runtime_has(
    event: messages.Event, decided: decide.PodHolds | None, mode: str
) -> None:
    kept = decide.kept(event, decided, mode)
    assert kept is None or (kept == event.container.value and kept != event.asked and decide.acts(mode))


@given(EVENTS, some.none() | PODS, MODES)
def test_an_own_policy_that_forbids_swap_gives_0_whatever_the_agent_decided(
    event: messages.Event, decided: decide.PodHolds | None, mode: str
) -> None:
    set_to = decide.created(event, decided, mode)
    if decide.forbids(event.pod.policy) and event.pod.source != FROM_NAMESPACE:
        assert set_to in {None, "0"}


@given(some.none() | some.text(max_size=12) | some.sampled_from([each.value for each in names.Policy]))
def test_the_same_policies_forbid_swap_as_in_plans(policy: str | None) -> None:
    assert decide.forbids(policy) == limits.forbids_swap(policy)
