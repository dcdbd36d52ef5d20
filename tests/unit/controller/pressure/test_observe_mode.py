from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.api.notices import Notice
from swapwarden.controller.pressure import handler
from swapwarden.kube import errors, events, transport
from swapwarden.policy.fleet import cluster
from swapwarden.policy.observed import states
from swapwarden.policy.pressure import handling, thresholds
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.policy.pressure.handling import EvictionAnswer
from swapwarden.policy.pressure.limits import HoldReason

from tests.unit.controller.known import Led, term
from tests.unit.objects import node, state_row

MI = 2**20
THRESHOLDS = state.PressureSettings(
    state.HeadroomThresholds(400 * MI, 800 * MI, 5000), state.StallThresholds(400, 10_000)
)
SPEC = state.StateSpec(state.ProfileRef("p"), default_reason=names.Reason.PROFILE_NO_SWAP, pressure=THRESHOLDS)
OWNER = {"kind": "ReplicaSet", "controller": True}


def running(name: str, **spec: Any) -> dict[str, Any]:
    """A pod, as the API server lists it."""
    return {
        "metadata": {"name": name, "namespace": "a", "uid": f"uid-{name}", "ownerReferences": [OWNER]},
        "spec": {"containers": [], **spec},
        "status": {"phase": "Running"},
    }


class Cluster:
    """A node n with these pods, the observer, and what it did."""

    def __init__(self, *listed: object, ask: dict[str, EvictionAnswer | Exception] | None = None) -> None:
        self.known = cluster.Cluster()
        self.read: list[dict[str, str]] = []
        self.asked: list[str] = []
        self.events: list[Notice] = []
        self.listed = list(listed)
        self.now = 0.0
        self.led = Led()
        self._answers = ask
        self.known.node_changed("n", node("n"))
        reader, recorder = cast("transport.Reader", self), cast("events.Recorder", self)
        asks = self._ask if ask is not None else None
        leads = term(led=self.led)
        self.handler = handler.PressureHandler(
            self.known, reader, leads, recorder, cast("Any", None), ask=asks, evict=None, now=lambda: self.now
        )

    async def get(self, _: str, *, params: dict[str, str], accept: str) -> bytes:
        assert accept == "application/json"
        self.read.append(params)
        return msgspec.json.encode({"items": self.listed, "metadata": {}})

    def post(self, *notices: Notice) -> None:
        self.events += notices

    async def _ask(self, pod: Candidate) -> EvictionAnswer:
        assert self._answers is not None
        self.asked.append(pod.name)
        answer = self._answers[pod.name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def reports(self, seq: int, name: str = "n", /, **sizes: int) -> None:
        """Let an agent report the memory of pods in MiB; without any, that there is no pressure."""
        found = [state.PressuredPod(f"uid-{pod}", size * MI) for pod, size in sizes.items()]
        report = state.PressureReport(seq, "Headroom", "Node", 310 * MI, since="s", pods=found) if sizes else None
        self.takes(name, state_row(name, seq + 1, SPEC, observed=1, pressure=report))

    def takes(self, name: str, row: states.StateRow) -> None:
        old = self.known.inventory.state_of(name)
        self.known.state_changed(name, old, row)
        self.handler.state_changed(name, old, row)

    def decides(self) -> str:
        """Decide on node n; the reason why nothing is evicted."""
        before = {str(reason): handler.HOLDS.value(reason) for reason in (handling.OBSERVE, *HoldReason)}
        asyncio.run(self.handler.handle("n"))
        [reason] = [each for each in before if handler.HOLDS.value(each) > before[each]] or [""]
        return reason


def waiting(one: Cluster) -> int:
    return len(one.handler.queue)


def pressed(*listed: object, **fields: Any) -> Cluster:
    """A node that came under pressure while this instance led, by its two pods x and y."""
    one = Cluster(*listed, **fields)
    one.reports(1)
    one.reports(2, x=900, y=800)
    return one


def test_a_new_report_is_decided_on_once() -> None:
    one = Cluster()
    one.reports(1)
    assert waiting(one) == 0
    one.reports(2, x=900)
    assert waiting(one) == 1


def test_pods_are_read_only_of_the_node_and_only_running_ones() -> None:
    one = pressed(running("x"))
    assert one.decides() == "Observe"
    [params] = one.read
    assert params["fieldSelector"] == "spec.nodeName=n,status.phase=Running"


def test_pods_that_the_api_server_would_not_evict_are_not_asked_again_for_a_minute() -> None:
    answers: dict[str, EvictionAnswer | Exception] = {"x": EvictionAnswer.BUDGET, "y": EvictionAnswer.ALLOWED}
    one = pressed(running("x"), running("y"), ask=answers)
    assert one.decides() == "Observe"
    assert one.asked == ["x", "y"]
    assert [each.regarding.name for each in one.events] == ["n", "y"]
    one.reports(3, x=900, y=800)
    one.now = 59.0
    one.decides()
    assert one.asked == ["x", "y", "y"]
    one.now = 60.0
    one.decides()
    assert one.asked == ["x", "y", "y", "x", "y"]


def test_pods_are_asked_about_again_once_the_pressure_has_ended() -> None:
    one = pressed(running("x"), ask={"x": EvictionAnswer.BUDGET})
    for seq in (2, 4):
        one.reports(seq, x=900)
        assert one.decides() == "Blocked"
        one.reports(seq + 1)
    assert one.asked == ["x", "x"]


def test_pods_that_can_never_be_evicted_do_not_hide_one_that_can() -> None:
    names = [f"x{number}" for number in range(state.MAX_PRESSURED)]
    answers: dict[str, EvictionAnswer | Exception] = dict.fromkeys(names, EvictionAnswer.SEVERAL_BUDGETS)
    answers[names[-1]] = EvictionAnswer.ALLOWED
    one = Cluster(*map(running, names), ask=answers)
    one.reports(1)
    sizes = {name: 2000 - number for number, name in enumerate(names)}
    decisions = []
    for number in range(int(handling.BLOCKED_SECONDS // thresholds.REPORT_SECONDS)):
        one.now = float(number * thresholds.REPORT_SECONDS)
        one.reports(number + 2, **sizes)
        decisions.append(one.decides())
    assert (decisions[0], decisions[-1]) == ("Blocked", "Observe")


def test_where_all_are_blocked_the_node_has_the_reason() -> None:
    one = pressed(running("x"), ask={"x": EvictionAnswer.SEVERAL_BUDGETS})
    assert one.decides() == "Blocked"
    assert [each.reason for each in one.events] == ["MemoryPressureObserved"]
    assert one.events[0].message.startswith("node headroom 310Mi < 400Mi; the API server would evict none")


def test_an_overloaded_api_server_is_left_alone() -> None:
    error = errors.ApiError(429, "TooManyRequests", "busy", 7.0)
    one = pressed(running("x"), ask={"x": error})
    with pytest.raises(errors.ApiError):
        one.decides()
    assert one.asked == ["x"]
    assert one.events == []


def test_a_report_of_an_earlier_term_counts_after_its_next() -> None:
    one = Cluster(running("x"))
    one.reports(4, x=900)
    assert one.decides() == "Stale"
    assert one.read == []
    one.reports(5, x=900)
    assert one.decides() == "Observe"


def test_another_change_of_the_status_is_no_new_report() -> None:
    one = Cluster(running("x"))
    one.reports(4, x=900)
    one.reports(4, x=900)
    assert one.decides() == "Stale"


def test_a_node_whose_agent_is_away_holds() -> None:
    one = pressed(running("x"))
    row = one.known.inventory.state_of("n")
    assert row is not None
    one.known.state_changed("n", row, msgspec.structs.replace(row, version=99, observed=0))
    assert one.decides() == "Stale"


def test_where_most_nodes_are_under_pressure_no_pods_are_read() -> None:
    one = pressed(running("x"))
    for name in ("n2", "n3"):
        one.known.node_changed(name, node(name))
        one.reports(1, name)
        one.reports(2, name, z=900)
    assert one.decides() == "Widespread"
    assert one.read == []


def test_nodes_are_counted_once_a_second_and_by_profile() -> None:
    one = pressed(running("x"))
    assert one.decides() == "Observe"
    for name in ("n2", "n3", "n4"):
        one.known.node_changed(name, node(name))
        one.reports(1, name)
        one.reports(2, name, z=900)
    one.now = 0.9
    assert one.decides() == "Observe"
    one.now = 1.0
    assert one.decides() == "Widespread"
    other = msgspec.structs.replace(SPEC, profile_ref=state.ProfileRef("other"))
    for name in ("n3", "n4"):
        row = one.known.inventory.state_of(name)
        assert row is not None
        one.takes(name, msgspec.structs.replace(row, version=99, profile=other.profile_ref))
    one.now = 2.0
    assert one.decides() == "Observe"


def ends(one: Cluster) -> None:
    one.led.seconds = 0.0


def goes_off(one: Cluster) -> None:
    one.reports(3)


def is_turned_off(one: Cluster) -> None:
    row = one.known.inventory.state_of("n")
    assert row is not None
    spec = msgspec.json.encode(msgspec.structs.replace(SPEC, pressure=None))
    one.takes("n", msgspec.structs.replace(row, version=99, spec=spec))


def node_goes(one: Cluster) -> None:
    one.known.node_changed("n", None)


@pytest.mark.parametrize("change", [ends, goes_off, is_turned_off, node_goes])
def test_nothing_is_decided_after(change: Callable[[Cluster], None]) -> None:
    one = pressed(running("x"))
    change(one)
    assert one.decides() == ""
    assert one.events == []


def test_a_pod_that_cannot_be_read_hides_no_other() -> None:
    broken = running("x", containers=[{"name": "c", "resources": {"requests": {"memory": "lots"}}}])
    one = pressed(broken, {"metadata": 7}, running("y"))
    assert one.decides() == "Observe"
    assert one.events[-1].regarding.name == "y"


def test_two_leaders_and_later_reports_post_one_event() -> None:
    first, second = pressed(running("x")), pressed(running("x"))
    first.decides()
    second.decides()
    first.reports(3, x=901)
    first.decides()
    keys = [[(each.regarding.kind, each.key) for each in one.events] for one in (first, second)]
    assert keys[0] == keys[1] * 2
    assert all(key for _, key in keys[1])
