from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.controller import notices
from swapwarden.policy.observed import states
from swapwarden.policy.verdict import pod_events

from tests.unit.objects import container, pod

PODS = {
    "x": state.PodSettings(reason=names.Reason.POLICY_DISABLED, swap_max="0"),
    "y": state.PodSettings(reason=names.Reason.LIMITED_SWAP, swap_max="0"),
}


def told(since: str = "boot", **swapped: int) -> states.StateRow:
    """A state of a node whose agent reports swap of these pods above their limits, in bytes, since it counts."""
    exposed: list[dict[str, Any]] = [
        {
            "pod": key,
            "swapBytes": size,
            "causes": ["Reload", "Resize"],
            "milliseconds": 7,
            "since": since,
        }
        for key, size in swapped.items()
    ]
    body = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"profileRef": {"name": "p"}, "pods": PODS},
        "status": {"exposures": exposed},
    }
    return states.decode(msgspec.json.encode(body))


class Teller:
    def __init__(self) -> None:
        self.exposures = pod_events.Exposures()

    def __call__(self, row: states.StateRow, there: str = "xyz") -> list[str]:
        """Names of the reported pods, where these are on the node."""
        known = [pod(container(), key=key, name=f"pod-{key}") for key in there]
        self.last = list(self.exposures.notices(row, known))
        return [each.regarding.name for each in self.last]


def test_only_pods_that_must_not_swap_and_did_are_reported() -> None:
    tell = Teller()
    assert tell(told(x=4096, y=4096, z=4096)) == ["pod-x"]
    (news,) = tell.last
    assert news.message.startswith("4096 bytes of this pod")
    assert "(Reload, Resize), for 7 ms in all since boot;" in news.message


def test_the_report_has_the_present_limit() -> None:
    def message(*others: dict[str, Any], causes: Sequence[str] = ("Reload",)) -> str:
        exposed = [{"pod": "x", "swapBytes": 8192, "causes": causes}]
        body = {
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
            "spec": {"profileRef": {"name": "p"}, "pods": PODS},
            "status": {"violations": [{"pod": "x", **each} for each in others], "exposures": exposed},
        }
        tell = Teller()
        assert tell(states.decode(msgspec.json.encode(body))) == ["pod-x"]
        return tell.last[0].message

    back = "; the limit is in force again"
    assert message().startswith("8192 bytes")
    assert message().endswith(back)
    assert message(causes=["Reload", "AgentDown"]).startswith("at most 8192 bytes")
    draining = {"reason": "Draining", "desired": "0", "swapBytes": 4096}
    assert "; 4096 bytes are still in use" in message(draining)
    failed = {"reason": "WriteFailed", "desired": "0"}
    assert not any(back in said for said in (message(draining), message(failed)))


def test_each_growth_is_reported_once() -> None:
    tell = Teller()
    assert tell(told()) == []
    assert tell(told(x=4096)) == ["pod-x"]
    assert tell(told(x=4096)) == []
    assert tell(told()) == [], "ten quiet minutes"
    assert tell(told(x=4096)) == [], "exposed once more, and nothing was taken"
    assert tell(told(x=8192)) == ["pod-x"]


def test_sums_that_begin_again_are_news_below_the_earlier_ones() -> None:
    tell = Teller()
    assert tell(told(x=8192)) == ["pod-x"]
    first = tell.last[0].key
    assert tell(told(since="restart", x=4096)) == ["pod-x"]
    assert tell(told(since="restart", x=4096)) == []
    assert tell(told(since="restart", x=8192)) == ["pod-x"]
    assert tell.last[0].key != first


def test_the_same_growth_has_the_same_key_for_the_next_leader() -> None:
    first, second = Teller(), Teller()
    assert first(told(x=4096)) == second(told(x=4096)) == ["pod-x"]
    assert first.last == second.last
    first.exposures.sums.clear()
    assert first(told(x=4096)) == ["pod-x"]


def test_swap_that_was_allowed_when_it_was_taken_is_not_reported_later() -> None:
    tell = Teller()
    assert tell(told(y=4096)) == []
    before = PODS["y"]
    PODS["y"] = state.PodSettings(reason=names.Reason.POLICY_DISABLED, swap_max="0")
    try:
        assert tell(told(y=4096)) == []
        assert tell(told(y=8192)) == ["pod-y"]
    finally:
        PODS["y"] = before


def test_pods_and_nodes_that_are_gone_are_forgotten() -> None:
    tell = Teller()
    tell(told(x=4096, y=4096))
    assert tell(told(y=4096), there="yz") == []
    assert tell.exposures.sums == {"n": {"y": ("boot", 4096)}}
    assert tell(told(), there="z") == []
    assert tell.exposures.sums == {}
    tell(told(x=4096))
    tell.exposures.forget("n")
    assert tell.exposures.sums == {}


def test_a_pod_that_is_not_known_yet_is_reported_once_it_is() -> None:
    tell = Teller()
    assert tell(told(x=4096), there="") == []
    assert tell(told(x=4096)) == ["pod-x"]


def test_what_took_no_swap_or_has_no_cause_yet_is_no_news() -> None:
    body: dict[str, Any] = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"profileRef": {"name": "p"}, "pods": PODS},
        "status": {
            "exposures": [{"pod": "x", "causes": ["Reload"]}, {"pod": "x", "swapBytes": 5}],
            "violations": [{"pod": "x", "reason": "Draining", "swapBytes": 5}],
        },
    }
    assert states.decode(msgspec.json.encode(body)).exposed_pods == ()


def holding(*violations: dict[str, Any], node: str = "n") -> states.StateRow:
    body = {
        "metadata": {"name": node, "uid": "u", "resourceVersion": "1"},
        "spec": {"profileRef": {"name": "p"}, "pods": PODS},
        "status": {"violations": [{"reason": "Draining", "desired": "0", **each} for each in violations]},
    }
    return states.decode(msgspec.json.encode(body))


def test_what_disabled_pods_hold_in_swap_is_published() -> None:
    notices.measure_swap(
        "holder",
        holding(
            {"pod": "x", "swapBytes": 8192},
            {"pod": "x", "swapBytes": 4096, "container": "part of the pod's"},
            {"pod": "y", "swapBytes": 4096},
            {"pod": "not in the spec", "swapBytes": 4096},
        ),
    )
    assert notices.HELD.value("holder") == 8192


@pytest.mark.parametrize(
    "row",
    [
        holding({"pod": "y", "swapBytes": 4096}),
        holding({"pod": "x", "swapBytes": 4096, "desired": "4096"}),
        holding({"pod": "x", "swapBytes": 4096, "reason": "Yielded"}),
        holding(),
        None,
    ],
    ids=["not by its policy", "a limit above 0", "not in use now", "nothing", "no state"],
)
def test_a_node_without_such_pods_has_no_series(row: states.StateRow | None) -> None:
    notices.measure_swap("was", holding({"pod": "x", "swapBytes": 4096}))
    assert ("node", "was") in [label for sample in notices.HELD.samples() for label in sample.labels]
    notices.measure_swap("was", row)
    assert ("node", "was") not in [label for sample in notices.HELD.samples() for label in sample.labels]
