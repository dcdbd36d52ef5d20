"""Answers to the container runtime, by bytes that are encoded apart from the product."""

from __future__ import annotations

import contextlib

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as some
from swapwarden.api import names, runtime_link
from swapwarden.api.runtime_link import FromPlugin
from swapwarden.nri import decide, frames, inventory, link, messages, orders, session

from tests.unit.nri import fake_runtime as runtime
from tests.unit.nri.driven import Driven, create, payload_of, value_set

DISABLED = {runtime.POLICY: "Disabled"}
NUMBER = decide.Hold("8192", at_most=False)


@pytest.fixture
def driven() -> Driven:
    return Driven()


@pytest.fixture
def ready() -> Driven:
    """Registered and synchronized, with no packet left to read."""
    made = Driven()
    made.become_ready()
    return made


def registered(answer: bytes) -> int:
    (mask,) = runtime.decoded(answer)[2]
    assert isinstance(mask, int)
    return mask


# --- registration ---


def test_a_whole_start(driven: Driven) -> None:
    driven.session.begin(messages.register("swapwarden", "90"))
    ((connection, stream, kind, body),) = driven.taken()
    assert (connection, stream, kind) == (runtime.RUNTIME, 1, runtime.REQUEST)
    assert runtime.one(body, 2) == b"RegisterPlugin"
    assert driven.session.due() == driven.now + session.REGISTER_SECONDS
    # The runtime may configure the plugin before it answers.
    answer = driven.ask("Configure", runtime.configure())
    assert registered(answer) == 0b100_1000_1101
    assert driven.session.due() is None
    assert driven.told(FromPlugin.RUNTIME) == [
        {
            "connected": True,
            "name": "containerd",
            "version": "v2.4.2",
            "nri": "v0.12.3",
            "requestTimeoutMs": 2000,
            "error": "",
        }
    ]
    assert driven.receive(runtime.response(1)) == []
    assert driven.ask("Synchronize", b"") == b""
    assert driven.told(FromPlugin.CONTAINERS) == [{"items": [], "more": False}]


def test_a_refused_registration_ends_the_session(driven: Driven) -> None:
    driven.session.begin(messages.register("swapwarden", "90"))
    with pytest.raises(session.SessionError, match="no plugins today"):
        driven.receive(runtime.response(1, error="no plugins today"))


def test_a_runtime_that_never_configures_the_plugin_is_given_up(driven: Driven) -> None:
    driven.session.begin(messages.register("swapwarden", "90"))
    driven.session.expire()
    driven.now += session.REGISTER_SECONDS
    with pytest.raises(session.SessionError):
        driven.session.expire()


def test_a_configuration_that_cannot_be_read_is_answered_with_the_events(driven: Driven) -> None:
    assert registered(driven.ask("Configure", b"\xff")) == 0b100_1000_1101  # none would subscribe to all
    assert driven.session.due() is None
    assert driven.known.counts["errors"] == 1


@pytest.mark.parametrize(
    ("name", "version", "nri", "can"),
    [
        ("containerd", "v2.4.2", "v0.12.3", True),
        ("another", "", "(devel)", True),
        ("containerd", "2.2.0+unknown", "", True),
        ("containerd", "v2.2.1-k3s1", "", True),
        ("containerd", "v2.10.0", "", True),
        ("containerd", "v2.1.5", "", False),
        ("containerd", "v1.34.0", "", False),
        ("containerd", "dev", "", False),
        ("containerd", f"2.{2:099}", "", False),
        ("cri-o", "1.34.0", "", True),
        ("cri-o", "1.33.4", "", False),
        ("another", "v9.9.9", "", False),
        ("", "", "", False),
    ],
)
def test_a_required_plugin_asks_for_validation_where_the_runtime_has_it(
    name: str, version: str, nri: str, *, can: bool
) -> None:
    """Without an answer to it the runtime refuses the container. Runtimes that have no such event refuse the plugin."""
    asked = runtime.configure(nri, name=name, version=version)
    assert registered(Driven(required=True).ask("Configure", asked)) == 0b100_1000_1101 | can << 13
    assert registered(Driven().ask("Configure", asked)) == 0b100_1000_1101


def test_a_required_plugin_that_cannot_read_the_configuration_asks_for_no_validation() -> None:
    assert registered(Driven(required=True).ask("Configure", b"\xff")) == 0b100_1000_1101


def test_the_list_of_containers_in_parts(driven: Driven) -> None:
    pods = [runtime.field(1, runtime.pod(f"uid-{each}", f"sandbox-{each}")) for each in range(3)]
    containers = [
        runtime.field(2, runtime.container(f"id-{each}", sandbox=f"sandbox-{each}", value=str(each)))
        for each in range(3)
    ]
    noted = runtime.field(
        2, runtime.container("noted", "other", sandbox="sandbox-0", annotations={runtime.ORIGINAL: "9"})
    )
    more = runtime.field(3, 1)
    assert runtime.decoded(driven.ask("Synchronize", pods[0] + containers[2] + containers[1] + more)) == {2: [1]}
    assert driven.packets == []
    assert driven.known.synchronized is False
    assert runtime.decoded(driven.ask("Synchronize", pods[1] + more)) == {2: [1]}
    assert driven.ask("Synchronize", pods[2] + containers[0] + noted) == b""
    (told,) = driven.told(FromPlugin.CONTAINERS)
    found = {(each["uid"], each["name"]): (each["id"], each["value"], each["original"]) for each in told["items"]}
    assert found == {
        **{(f"uid-{each}", ""): (f"sandbox-{each}", None, None) for each in range(3)},
        **{(f"uid-{each}", "app"): (f"id-{each}", str(each), None) for each in range(3)},
        ("uid-0", "other"): ("noted", None, "9"),
    }
    assert driven.known.synchronized is True


def test_400_pods_with_1200_containers(driven: Driven) -> None:
    pods = b"".join(runtime.field(1, runtime.pod(f"uid-{each}", f"sandbox-{each}")) for each in range(400))
    containers = b"".join(
        runtime.field(2, runtime.container(f"id-{each}", f"name-{each}", sandbox=f"sandbox-{each // 3}"))
        for each in range(1200)
    )
    driven.ask("Synchronize", pods + containers)
    told = driven.told(FromPlugin.CONTAINERS)
    assert sum(len(each["items"]) for each in told) == 1600
    assert driven.known.inventory.omitted == 0


def test_a_longer_list_than_a_node_can_have_is_cut(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "MAX_PODS", 2)
    monkeypatch.setattr(inventory, "MAX_ITEMS", 3)
    pods = b"".join(runtime.field(1, runtime.pod(f"uid-{each}", f"sandbox-{each}")) for each in range(3))
    containers = b"".join(
        runtime.field(2, runtime.container(f"id-{each}", f"n{each}", sandbox="sandbox-0")) for each in range(4)
    )
    driven.ask("Synchronize", pods + containers)
    assert len(list(driven.known.inventory.items())) == 3
    assert driven.known.counted()["omitted"] == 1 + 1 + 2


# --- containers ---


def test_disabled_container_gets_0_and_the_kubelets_number_as_annotation(ready: Driven) -> None:
    answer = ready.ask("CreateContainer", create(runtime.pod(annotations=DISABLED), runtime.container(value="1048576")))
    assert value_set(answer) == "0"
    assert runtime.entries(answer, 1, 2) == {runtime.ORIGINAL: "1048576"}
    assert ready.told(FromPlugin.CREATED) == [
        {"uid": "uid-1", "id": "container-1", "name": "app", "value": "0", "original": "1048576"}
    ]
    assert ("uid-1", "app", inventory.Item("container-1", "0", "1048576")) in ready.known.inventory.items()
    assert ready.known.counts["adjusted"] == 1


def test_a_container_without_a_number_of_the_kubelet(ready: Driven) -> None:
    answer = ready.ask("CreateContainer", create(runtime.pod(annotations=DISABLED), runtime.container()))
    assert (value_set(answer), runtime.entries(answer, 1, 2)) == ("0", {runtime.ORIGINAL: ""})
    (told,) = ready.told(FromPlugin.CREATED)
    assert (told["value"], told["original"]) == ("0", None)


def test_a_container_that_nobody_decided_about_is_left_alone(ready: Driven) -> None:
    assert ready.ask("CreateContainer", create(runtime.pod(), runtime.container(value="4096"))) == b""
    (told,) = ready.told(FromPlugin.CREATED)
    assert (told["value"], told["original"]) == ("4096", "4096")
    assert ready.known.counts["adjusted"] == 0


def test_the_agents_number_is_set(ready: Driven) -> None:
    ready.known.decisions.put({"uid-1": decide.PodHolds(None, {"app": NUMBER}, decided=True)})
    assert value_set(ready.ask("CreateContainer", create(runtime.pod(), runtime.container(value="max")))) == "8192"
    assert ready.ask("CreateContainer", create(runtime.pod(), runtime.container(name="other", value="max"))) == b""
    assert ready.ask("CreateContainer", create(runtime.pod("uid-2"), runtime.container(value="max"))) == b""


def test_a_plugin_beside_this_one_set_it_already(ready: Driven) -> None:
    request = create(
        runtime.pod(annotations=DISABLED), runtime.container(value="0", annotations={runtime.ORIGINAL: "4096"})
    )
    assert ready.ask("CreateContainer", request) == b""
    (told,) = ready.told(FromPlugin.CREATED)
    assert (told["value"], told["original"]) == ("0", "4096")
    assert ("uid-1", "app", inventory.Item("container-1", "0", "4096")) in ready.known.inventory.items()


@pytest.mark.parametrize("mode", [names.Mode.AUDIT, names.Mode.RESTORE])
def test_nothing_is_adjusted_in_other_modes(ready: Driven, mode: str) -> None:
    ready.known.mode = mode
    assert ready.ask("CreateContainer", create(runtime.pod(annotations=DISABLED), runtime.container(value="1"))) == b""
    assert ready.ask("UpdateContainer", resize(annotations=DISABLED, value="0", asked="1")) == b""


def test_nothing_is_adjusted_where_the_kernel_has_no_limit_of_swap() -> None:
    driven = Driven(adjusts=False)
    assert driven.ask("CreateContainer", create(runtime.pod(annotations=DISABLED), runtime.container(value="1"))) == b""
    assert driven.ask("UpdateContainer", resize(annotations=DISABLED, value="0", asked="1")) == b""


def resize(*, annotations: dict[str, str] | None = None, value: str | None, asked: str | None) -> bytes:
    both = create(runtime.pod(annotations=annotations), runtime.container(value=value))
    return both + runtime.field(3, runtime.resources(asked))


def test_a_resize_leaves_disabled_container_at_0(ready: Driven) -> None:
    ready.ask("CreateContainer", create(runtime.pod(annotations=DISABLED), runtime.container(value="4096")))
    answer = ready.ask("UpdateContainer", resize(annotations=DISABLED, value="0", asked="8192"))
    assert runtime.one(answer, 1, 1) == b"container-1"
    assert runtime.entries(answer, 1, 2, 1, 6) == {runtime.SWAP_MAX: "0"}
    assert ready.told(FromPlugin.RESIZED) == [{"id": "container-1", "value": "0"}]
    assert ready.known.counts["kept"] == 1


@pytest.mark.parametrize(
    ("value", "asked", "now"), [("4096", "8192", "8192"), ("4096", None, "4096"), (None, None, None)]
)
def test_a_resize_of_a_container_that_is_not_held_passes(
    ready: Driven, value: str | None, asked: str | None, now: str | None
) -> None:
    ready.ask("CreateContainer", create(runtime.pod(), runtime.container(value=value)))
    assert ready.ask("UpdateContainer", resize(annotations=DISABLED, value=value, asked=asked)) == b""
    assert ready.told(FromPlugin.RESIZED) == [{"id": "container-1", "value": now}]
    assert ("uid-1", "app", inventory.Item("container-1", now, None)) in ready.known.inventory.items()


@pytest.mark.parametrize("as_event", [False, True])
def test_removed_containers_and_sandboxes_are_forgotten(ready: Driven, *, as_event: bool) -> None:
    ready.agent = False
    ready.ask(*runtime.event("RunPodSandbox", runtime.pod(), as_event=as_event))
    ready.agent = True
    both = create(runtime.pod(), runtime.container())
    ready.ask("CreateContainer", both)
    assert len(list(ready.known.inventory.items())) == 2
    assert ready.ask(*runtime.event("RemoveContainer", runtime.pod(), runtime.container(), as_event=as_event)) == b""
    assert ready.told(FromPlugin.REMOVED) == [{"id": "container-1"}]
    assert [name for _, name, _ in ready.known.inventory.items()] == [inventory.SANDBOX]
    assert ready.ask(*runtime.event("RemovePodSandbox", runtime.pod(), as_event=as_event)) == b""
    assert ready.told(FromPlugin.REMOVED) == [{"id": "sandbox-1"}]
    assert list(ready.known.inventory.items()) == []


# --- the start of a pod ---


@pytest.mark.parametrize("as_event", [False, True])
def test_the_start_of_a_pod_waits_for_the_agent(ready: Driven, *, as_event: bool) -> None:
    method, payload = runtime.event("RunPodSandbox", runtime.pod(), as_event=as_event)
    assert ready.receive(runtime.request(11, method, payload)) == []
    (told,) = ready.told(FromPlugin.SANDBOX)
    assert {**told, "seq": 0} == {
        "seq": 0,
        "uid": "uid-1",
        "id": "sandbox-1",
        "cgroup": "/kubepods.slice/kubepods-poduid-1.slice",
    }
    # Other requests are answered meanwhile.
    assert ready.ask("CreateContainer", create(runtime.pod("uid-2"), runtime.container()), stream=13) == b""
    ready.session.sandbox_done(told["seq"] + 1)
    assert ready.taken() == []
    ready.session.sandbox_done(told["seq"])
    assert ready.taken() == [(runtime.PLUGIN, 11, runtime.RESPONSE, b"")]
    ready.session.sandbox_done(told["seq"])
    assert ready.taken() == []
    assert ready.session.due() is None
    assert ready.known.counts["late"] == 0


def test_the_start_of_a_pod_waits_no_longer_than_half_a_second(ready: Driven) -> None:
    ready.receive(runtime.request(11, "RunPodSandbox", runtime.field(1, runtime.pod())))
    assert ready.session.due() == ready.now + 0.5
    ready.now += 0.4
    ready.session.expire()
    assert ready.taken() == []
    ready.now += 0.1
    ready.session.expire()
    assert ready.taken() == [(runtime.PLUGIN, 11, runtime.RESPONSE, b"")]
    assert ready.known.counts["late"] == 1
    (told,) = ready.told(FromPlugin.SANDBOX)
    ready.session.sandbox_done(told["seq"])  # too late
    assert ready.taken() == []


def test_the_start_of_a_pod_does_not_wait_for_an_agent_that_is_away(ready: Driven) -> None:
    ready.receive(runtime.request(11, "RunPodSandbox", runtime.field(1, runtime.pod())))
    ready.session.agent_gone()
    assert ready.taken() == [(runtime.PLUGIN, 11, runtime.RESPONSE, b"")]
    ready.agent = False
    assert ready.ask("RunPodSandbox", runtime.field(1, runtime.pod())) == b""
    assert ready.session.due() is None


def test_the_start_of_a_pod_does_not_wait_in_audit_and_the_agent_knows_of_it(ready: Driven) -> None:
    ready.known.mode = names.Mode.AUDIT
    assert ready.ask("RunPodSandbox", runtime.field(1, runtime.pod())) == b""
    assert len(ready.told(FromPlugin.SANDBOX)) == 1


def test_the_number_of_pods_that_wait_is_bounded(ready: Driven) -> None:
    for stream in range(session.MAX_WAITING):
        assert ready.receive(runtime.request(stream, "RunPodSandbox", runtime.field(1, runtime.pod()))) == []
    assert ready.ask("RunPodSandbox", runtime.field(1, runtime.pod())) == b""


# --- orders of the agent ---


def asked_for(ready: Driven) -> tuple[int, dict[str, str]]:
    """Return stream and values of the one request to the runtime."""
    ((connection, stream, kind, body),) = ready.taken()
    assert (connection, kind) == (runtime.RUNTIME, runtime.REQUEST)
    assert runtime.one(body, 2) == b"UpdateContainers"
    found = {}
    for each in runtime.decoded(runtime.one(body, 3))[1]:
        assert isinstance(each, bytes)
        found[runtime.one(each, 1).decode()] = runtime.entries(each, 2, 1, 6)[runtime.SWAP_MAX]
    return stream, found


def test_running_containers_are_updated_in_parts(ready: Driven) -> None:
    values = {f"c{number}": str(number) for number in range(orders.PART + 2)}
    ready.ask("CreateContainer", create(runtime.pod(), runtime.container("c0", value="99")))
    ready.session.orders.accept(link.Update(5, values))
    first, some_values = asked_for(ready)
    assert some_values == dict(list(values.items())[: orders.PART])
    assert ready.session.due() == ready.now + orders.UPDATE_SECONDS
    assert ready.receive(runtime.response(first + 2)) == []  # of nobody
    ((_, second, _, _),) = ready.receive(runtime.response(first, runtime.field(1, runtime.field(1, "c3"))))
    assert second == first + 2
    assert ready.told(FromPlugin.UPDATED) == []
    assert ready.receive(runtime.response(second)) == []
    assert ready.told(FromPlugin.UPDATED) == [{"seq": 5, "failed": {"c3": orders.REFUSED}}]
    assert ("uid-1", "app", inventory.Item("c0", "0", None)) in ready.known.inventory.items()
    assert ready.session.due() is None


def test_an_answer_that_cannot_be_read_fails_for_each_container(ready: Driven) -> None:
    ready.ask("CreateContainer", create(runtime.pod(), runtime.container("c1", value="99")))
    ready.session.orders.accept(link.Update(5, {"c1": "0", "c2": "0"}))
    stream, _ = asked_for(ready)
    assert ready.receive(runtime.response(stream, payload=b"\xff")) == []
    (told,) = ready.told(FromPlugin.UPDATED)
    assert set(told["failed"]) == {"c1", "c2"}
    assert ("uid-1", "app", inventory.Item("c1", "99", None)) in ready.known.inventory.items()


def test_after_an_error_the_runtime_is_asked_for_each_container_by_itself(ready: Driven) -> None:
    ready.session.orders.accept(link.Update(5, {"c1": "0", "c2": "0"}))
    stream, _ = asked_for(ready)
    ready.session.receive(memoryview(runtime.response(stream, error="some failed")))
    stream, values = asked_for(ready)
    assert values == {"c1": "0"}
    ready.session.receive(memoryview(runtime.response(stream, error="no such container")))
    stream, values = asked_for(ready)
    assert values == {"c2": "0"}
    assert ready.receive(runtime.response(stream)) == []
    assert ready.told(FromPlugin.UPDATED) == [{"seq": 5, "failed": {"c1": "no such container"}}]


@pytest.mark.parametrize("nri", ["", "v0.12.0"])
def test_a_runtime_that_an_update_may_stop_gets_it_over_a_connection_of_its_own(driven: Driven, nri: str) -> None:
    driven.ask("Configure", runtime.configure(nri=nri))
    driven.ask("Synchronize", b"")
    driven.told(FromPlugin.RUNTIME)
    driven.session.orders.accept(link.Update(5, {"c1": "0", "c2": "0"}))
    assert driven.taken() == []
    assert driven.carried == [[("c1", "0"), ("c2", "0")]]
    assert driven.arrived is not None
    driven.arrived(["c2"])
    (told,) = driven.told(FromPlugin.UPDATED)
    assert set(told["failed"]) == {"c2"}


def test_an_update_that_is_not_answered_fails(ready: Driven) -> None:
    ready.session.orders.accept(link.Update(5, {"c1": "0"}))
    ready.session.orders.accept(link.Update(6, {"c2": "0"}))
    stream, _ = asked_for(ready)
    ready.now += orders.UPDATE_SECONDS
    ready.session.expire()
    assert [each["seq"] for each in ready.told(FromPlugin.UPDATED)] == [5]
    _, values = asked_for(ready)
    assert values == {"c2": "0"}
    ready.receive(runtime.response(stream))  # too late
    assert ready.told(FromPlugin.UPDATED) == []


def test_the_end_of_the_runtime_fails_all_orders(ready: Driven) -> None:
    ready.session.orders.accept(link.Update(5, {"c1": "0"}))
    ready.session.orders.accept(link.Update(6, {"c2": "0"}))
    ready.session.orders.fail()
    assert ready.told(FromPlugin.UPDATED) == [
        {"seq": 5, "failed": {"c1": orders.GONE}},
        {"seq": 6, "failed": {"c2": orders.GONE}},
    ]


def test_orders_before_the_registration_and_too_many_fail_at_once(driven: Driven) -> None:
    driven.session.orders.accept(link.Update(5, {"c1": "0"}))
    assert driven.told(FromPlugin.UPDATED) == [{"seq": 5, "failed": {"c1": orders.GONE}}]
    driven.become_ready()
    for seq in range(orders.MAX_ORDERS + 1):
        driven.session.orders.accept(link.Update(seq, {"c1": "0"}))
    (told,) = driven.told(FromPlugin.UPDATED)
    assert told == {"seq": orders.MAX_ORDERS, "failed": {"c1": orders.TOO_MANY}}


# --- it never harms ---


@pytest.mark.parametrize(
    "method", ["StopContainer", "Shutdown", "UpdatePodSandbox", "ValidateContainerAdjustment", "", "x" * 9999]
)
def test_unknown_methods_get_an_empty_answer(ready: Driven, method: str) -> None:
    assert ready.ask(method, b"\xff") == b""
    assert ready.known.counts["errors"] == 0


def test_an_event_of_an_unknown_number_gets_an_empty_answer(ready: Driven) -> None:
    assert ready.ask("StateChange", runtime.field(1, 99) + runtime.field(2, runtime.pod())) == b""
    assert ready.ask("StateChange", b"") == b""


@pytest.mark.parametrize(
    "method", ["CreateContainer", "UpdateContainer", "RunPodSandbox", "StateChange", "Synchronize"]
)
def test_a_malformed_request_gets_an_empty_answer_and_is_counted(ready: Driven, method: str) -> None:
    assert ready.ask(method, runtime.pod()[:-1] + b"\xff\xff") == b""
    assert ready.known.counts["errors"] == 1
    assert ready.packets == []


def test_a_request_that_is_none_gets_an_empty_answer(ready: Driven) -> None:
    ((_, stream, _, body),) = ready.receive(runtime.message(runtime.PLUGIN, 5, runtime.REQUEST, b"\xff"))
    assert (stream, body) == (5, b"")


def test_a_defect_of_the_decision_does_not_refuse_the_container(
    ready: Driven, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def defect(*_: object) -> None:
        raise RuntimeError("hunter2")

    monkeypatch.setattr(decide, "setting", defect)
    for _ in range(3):
        assert ready.ask("CreateContainer", create(runtime.pod(), runtime.container())) == b""
    assert ready.known.counts["errors"] == 3
    logged = capsys.readouterr().err
    assert logged.count("RuntimeError") == 1
    assert "defect" in logged
    assert "hunter2" not in logged


def test_a_defect_after_the_decision_reports_nothing_that_was_not_answered(
    ready: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object, **__: object) -> None:
        raise RuntimeError

    request = create(runtime.pod(annotations=DISABLED), runtime.container(value="1"))
    with monkeypatch.context() as patch:
        patch.setattr(messages, "adjustment", defect)
        assert ready.ask("CreateContainer", request) == b""
    with monkeypatch.context() as patch:
        patch.setattr(messages, "updated", defect)
        assert ready.ask("UpdateContainer", resize(annotations=DISABLED, value="0", asked="1")) == b""
    assert ready.packets == []
    assert list(ready.known.inventory.items()) == []
    assert ready.known.counts["adjusted"] == ready.known.counts["kept"] == 0


def test_responses_and_requests_where_there_can_be_none_are_ignored(ready: Driven) -> None:
    for connection, kind in (
        (runtime.RUNTIME, runtime.REQUEST),
        (runtime.PLUGIN, runtime.RESPONSE),
        (runtime.PLUGIN, 3),
    ):
        assert ready.receive(runtime.message(connection, 1, kind, b"x")) == []


BASES = [
    ("CreateContainer", create(runtime.pod(annotations=DISABLED), runtime.container(value="1"))),
    ("UpdateContainer", resize(annotations=DISABLED, value="0", asked="1")),
    ("RunPodSandbox", runtime.field(1, runtime.pod())),
    ("RemoveContainer", create(runtime.pod(), runtime.container())),
    ("StateChange", runtime.field(1, 1) + runtime.field(2, runtime.pod())),
    ("Synchronize", runtime.field(1, runtime.pod()) + runtime.field(2, runtime.container()) + runtime.field(3, 1)),
    ("Configure", runtime.configure()),
]
EDITS = some.lists(
    some.tuples(some.integers(0, 2000), some.integers(0, 255), some.integers(0, 3)), min_size=1, max_size=8
)


def edited(data: bytes, edits: list[tuple[int, int, int]]) -> bytes:
    made = bytearray(data)
    for place, byte, what in edits:
        at = place % (len(made) + 1)
        if what == 0:
            made[at : at + 1] = bytes([byte])
        elif what == 1:
            made.insert(at, byte)
        elif what == 2:
            del made[at : at + byte]
        else:
            made[at:at] = made[: byte + 1]
    return bytes(made)


@hypothesis.settings(max_examples=400)
@given(some.sampled_from(BASES), EDITS, some.integers(1, 4000), some.booleans(), some.booleans())
def test_each_mutated_request_gets_exactly_one_answer_without_an_error(
    base: tuple[str, bytes], edits: list[tuple[int, int, int]], frame: int, agent: bool, required: bool
) -> None:
    method, payload = base
    ready = Driven(agent=agent, required=required)
    ready.become_ready()
    sent = ready.receive(runtime.request(9, method, edited(payload, edits), frame=frame))
    ready.now += runtime_link.SANDBOX_SECONDS
    ready.session.expire()
    ((connection, stream, kind, body),) = sent + ready.taken()
    assert (connection, stream, kind) == (runtime.PLUGIN, 9, runtime.RESPONSE)
    answer = payload_of(body)
    if method == "CreateContainer":
        assert value_set(answer) in {None, "0"}
    elif method == "Configure":
        assert registered(answer)
    # And the next one is as if nothing had been.
    again = ready.ask("CreateContainer", create(runtime.pod(annotations=DISABLED), runtime.container(value="1")))
    assert value_set(again) == "0"


@given(some.sampled_from(BASES), EDITS)
def test_a_request_with_a_mutated_envelope_gets_one_answer(
    base: tuple[str, bytes], edits: list[tuple[int, int, int]]
) -> None:
    ready = Driven(agent=False)
    ready.become_ready()
    envelope = runtime.field(1, "nri.pkg.api.v1alpha1.Plugin") + runtime.field(2, base[0]) + runtime.field(3, base[1])
    sent = ready.receive(runtime.message(runtime.PLUGIN, 9, runtime.REQUEST, edited(envelope, edits)))
    assert [(stream, kind) for _, stream, kind, _ in sent] == [(9, runtime.RESPONSE)]


@given(EDITS)
def test_a_mutated_stream_raises_nothing_but_that_it_is_unusable(edits: list[tuple[int, int, int]]) -> None:
    ready = Driven()
    ready.become_ready()
    data = b"".join(runtime.request(9 + 2 * at, *each) for at, each in enumerate(BASES)) + runtime.response(3)
    with contextlib.suppress(frames.FrameError, session.SessionError):
        ready.session.receive(memoryview(edited(data, edits)))
    ready.taken()


@given(EDITS)
def test_mutated_answers_of_the_runtime_raise_nothing(edits: list[tuple[int, int, int]]) -> None:
    ready = Driven()
    ready.become_ready()
    ready.session.orders.accept(link.Update(1, {"c1": "0"}))
    stream, _ = asked_for(ready)
    status = runtime.field(1, runtime.field(1, 2) + runtime.field(2, "error"))
    body = edited(status + runtime.field(2, runtime.field(1, runtime.field(1, "c1"))), edits)
    assert ready.receive(runtime.message(runtime.RUNTIME, stream, runtime.RESPONSE, body)) == []
    assert [each["seq"] for each in ready.told(FromPlugin.UPDATED)] == [1]
