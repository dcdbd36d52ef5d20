"""Requests and responses, against bytes that the runtime's own library sent or accepted.

inputs/requests.txt has what the library of two versions of NRI sent over a relay to a plugin that held a
container at 0: the version, the method and the request in each line.
"""

from __future__ import annotations

import pathlib

import pytest
from swapwarden.nri import frames, messages, protobuf

from tests.unit.nri import fake_runtime as runtime

REGISTER = (
    "0000000200000053"
    "00000049000000010100"
    "0a1c6e72692e706b672e6170692e7631616c706861312e52756e74696d65"
    "120e5265676973746572506c7567696e"
    "1a190a0a7377617077617264656e120239301a0776302e31322e35"
)
"""A registration that containerd 2.4 accepted; without a timeout."""
ADJUSTMENT = "0a1a3218121632140a0f6d656d6f72792e737761702e6d6178120130"
"""An answer to CreateContainer that set memory.swap.max to 0, as Go's protobuf encodes it; without annotations."""


def test_the_registration_has_the_bytes_that_a_runtime_accepted() -> None:
    body = messages.request("RegisterPlugin", messages.register("swapwarden", "90"), timeout=0)
    without_timeout = body.removesuffix(bytes((protobuf.integer(4), 0)))
    sent = frames.framed(frames.TtrpcMessage(frames.RUNTIME, 1, frames.REQUEST, without_timeout))
    assert sent.hex() == REGISTER


RECORDED = [
    line.split() for line in (pathlib.Path(__file__).parent / "inputs/requests.txt").read_text("ascii").splitlines()
]


def cgroup(uid: str) -> str:
    return f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice"


@pytest.mark.parametrize("nri", ["0.11.0", "0.12.5"])
def test_what_the_runtimes_library_sends_is_understood(nri: str) -> None:
    asked = [messages.read_request(bytes.fromhex(request)) for version, _, request in RECORDED if version == nri]
    assert [method for method, _ in asked] == [method for version, method, _ in RECORDED if version == nri]
    (_, configure), (_, synchronize), sandbox, (_, create), (_, update), remove = asked
    # Before 0.12 the library does not report its version, and some events have one message in common.
    reported, one_for_all = ("v0.12.5", False) if nri == "0.12.5" else ("", True)
    assert messages.read_configure(configure) == messages.Runtime("containerd", "v2.2.0", reported, 2000)
    listed = messages.read_synchronize(synchronize)
    old = messages.RuntimeContainer("old-0", "pod-0", "app", "4096", "8192")
    assert list(listed.pods) == [messages.PodSandbox("pod-0", "uid-0", "Disabled", None, cgroup("uid_0"))]
    assert (list(listed.containers), listed.more) == ([old], False)
    pod = messages.PodSandbox("pod-1", "uid-1", "Disabled", None, cgroup("uid_1"))
    made = messages.read_event(create)
    assert (made.pod, made.container) == (pod, messages.RuntimeContainer("new-1", "pod-1", "app", "4096", None))
    held = messages.RuntimeContainer("new-1", "pod-1", "app", "0", "4096")
    assert messages.read_event(update) == messages.Event(pod, held, "8192")
    for (method, payload), name in ((sandbox, "RunPodSandbox"), (remove, "RemoveContainer")):
        if one_for_all:
            assert method == "StateChange"
            change = messages.read_state_change(payload)
            assert change.event == runtime.EVENTS[name]
            event = change.request
        else:
            assert method == name
            event = messages.read_event(payload)
        assert event.pod == pod
        assert name == "RunPodSandbox" or event.container == held


def test_a_call_has_its_timeout_in_nanoseconds() -> None:
    assert runtime.decoded(messages.request("X", b"", timeout=1.5))[4] == [1_500_000_000]


def test_the_adjustment_has_the_bytes_that_a_runtime_accepted_and_an_annotation() -> None:
    annotation = runtime.mapping(2, {runtime.ORIGINAL: "4096"})
    recorded = bytes.fromhex(ADJUSTMENT)
    assert messages.adjustment("0", "4096") == runtime.field(1, annotation + recorded[2:])


def test_the_mask_has_a_bit_for_each_event() -> None:
    assert messages.configured([4, 8]) == b"\x10\x88\x01"
    assert messages.configured([4, 8], required=True) == b"\x10\x88\x01\x1a\x02\x08\x01"
    assert messages.configured(messages.EVENTS.values()) == runtime.field(2, 1 | 4 | 8 | 128 | 1024)


def test_no_field_beside_the_wanted_ones_is_kept() -> None:
    data = runtime.field(1, runtime.pod(annotations={runtime.POLICY: "Avoid", "other": "secret"})) + runtime.field(
        2, runtime.container(value="5", annotations={runtime.ORIGINAL: "7", "other": "secret"}, env=300)
    )
    event = messages.read_event(data)
    assert event.pod == messages.PodSandbox(
        "sandbox-1", "uid-1", "Avoid", None, "/kubepods.slice/kubepods-poduid-1.slice"
    )
    assert event.container == messages.RuntimeContainer("container-1", "sandbox-1", "app", "5", "7")
    assert event.asked is None


def test_the_value_that_an_update_asks_for() -> None:
    data = runtime.field(2, runtime.container(value="0")) + runtime.field(3, runtime.resources("4096"))
    event = messages.read_event(data)
    assert (event.container.value, event.asked) == ("0", "4096")


def test_identifiers_and_values_are_shortened() -> None:
    long = "x" * 100_000
    pod = messages.read_event(runtime.field(1, runtime.pod(uid=long, annotations={runtime.POLICY: long}))).pod
    assert (len(pod.uid), len(pod.policy or ""), len(pod.cgroup)) == (
        messages.MAX_ID, protobuf.MAX_VALUE, messages.MAX_PATH
    )  # fmt: skip


def test_updates_of_the_runtime() -> None:
    update = runtime.field(1, "a") + runtime.field(2, runtime.field(1, runtime.mapping(6, {runtime.SWAP_MAX: "max"})))
    assert messages.updates([("a", "max")]) == runtime.field(1, update) == messages.updated("a", "max")
    assert messages.read_failed(runtime.field(1, update) + runtime.field(1, runtime.field(1, "b"))) == ["a", "b"]


def test_responses() -> None:
    assert messages.read_response(runtime.field(2, b"yes")) == messages.CallOutcome(None, b"yes")
    failed = runtime.field(1, runtime.field(1, 2) + runtime.field(2, "no " + "x" * 9999))
    assert messages.read_response(failed).error == ("no " + "x" * 9999)[: messages.MAX_TEXT]
    assert messages.read_response(runtime.field(1, runtime.field(1, 13))).error
    assert messages.read_response(runtime.field(1, b"")) == messages.CallOutcome(None, b"")
