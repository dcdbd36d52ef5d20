"""Values in the runtime's spec of a container after `swapwarden nri` was asked about it."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from swapwarden.api import names, runtime_link
from swapwarden.api.runtime_link import ORIGINAL_ANNOTATION, SWAP_MAX, FromPlugin

from testbed.standin.runtime import Container, Outcome, Pod, Runtime
from tests.integration.nri.conftest import StartPlugin
from tests.integration.nri.fake_agent import FakeAgent, decision, value

POLICY, SOURCE = names.POLICY_ANNOTATION, names.POLICY_SOURCE_ANNOTATION
DISABLED = {POLICY: names.Policy.DISABLED.value}
DEFAULTED = DISABLED | {SOURCE: names.SOURCE_NAMESPACE}
KUBELET = "69943296"
"""The kubelet's value under LimitedSwap."""


def create(
    runtime: Runtime, uid: str, annotations: dict[str, str], *, name: str = "app", asked: str | None = KUBELET
) -> Outcome:
    """Create a pod and one container in it."""
    runtime.sandbox(Pod(f"sandbox-{uid}", uid, annotations))
    unified = {} if asked is None else {SWAP_MAX: asked}
    return runtime.create(Container(f"container-{uid}-{name}", f"sandbox-{uid}", name, unified))


def test_a_pod_that_forbids_swap_gets_0_from_its_annotation_alone(runtime: Runtime, start_plugin: StartPlugin) -> None:
    start_plugin(runtime)
    for number, (written, expected) in enumerate(
        [
            (DISABLED, "0"),
            ({POLICY: "disabled"}, "0"),
            ({POLICY: ""}, "0"),
            ({POLICY: "x" * 10_000}, "0"),
            (DEFAULTED, "0"),
            ({}, KUBELET),
            ({POLICY: names.Policy.NO_PREFERENCE.value}, KUBELET),
            ({POLICY: names.Policy.REQUIRED.value}, KUBELET),
            ({"other": names.Policy.DISABLED.value}, KUBELET),
        ]
    ):
        made = create(runtime, f"uid-{number}", written)
        assert made.error == ""
        assert made.unified[SWAP_MAX] == expected, written
        # Nothing else of the container is touched.
        assert made.adjusted == ({} if expected == KUBELET else {SWAP_MAX: "0"})
        assert made.annotations == ({} if expected == KUBELET else {ORIGINAL_ANNOTATION: KUBELET})


@pytest.mark.parametrize("asked", [None, "max", "1", KUBELET])
def test_the_kubelets_number_is_kept_in_the_containers_annotation(
    newest: Runtime, start_plugin: StartPlugin, asked: str | None
) -> None:
    start_plugin(newest)
    made = create(newest, "uid-1", DISABLED, asked=asked)
    assert made.unified == {SWAP_MAX: "0"}
    assert made.annotations == {ORIGINAL_ANNOTATION: asked or ""}


def test_a_container_that_has_the_value_is_left_alone(newest: Runtime, start_plugin: StartPlugin) -> None:
    start_plugin(newest)
    made = create(newest, "uid-1", DISABLED, asked="0")
    assert (made.unified, made.adjusted, made.annotations) == ({SWAP_MAX: "0"}, {}, {})


@pytest.fixture
def agent(folder: pathlib.Path) -> Iterator[FakeAgent]:
    with FakeAgent(folder / "link") as running:
        yield running


def test_the_agents_decisions_go_by_name_then_by_the_pods_default(
    runtime: Runtime, start_plugin: StartPlugin, agent: FakeAgent
) -> None:
    start_plugin(runtime)
    agent.wait_connected()
    agent.decide(
        {
            "uid-1": decision(value("1048576"), app=value("4096"), free=value("max")),
            "uid-2": decision(None, app=value("0")),
            "uid-3": decision(),
        }
    )
    for uid, name, expected in (
        ("uid-1", "app", "4096"),
        ("uid-1", "free", "max"),
        ("uid-1", "sidecar", "1048576"),
        ("uid-2", "app", "0"),
        ("uid-2", "sidecar", KUBELET),
        ("uid-3", "app", KUBELET),
        ("uid-4", "app", KUBELET),
    ):
        made = create(runtime, uid, {}, name=name)
        assert (made.error, made.unified[SWAP_MAX]) == ("", expected), (uid, name)
    agent.forget("uid-1")
    assert create(runtime, "uid-1", {}).unified[SWAP_MAX] == KUBELET


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, "4096"), ("max", "4096"), ("8192", "4096"), ("4096", "4096"), ("0", "0")]
)
def test_a_value_at_most_never_raises_a_limit(
    newest: Runtime, start_plugin: StartPlugin, agent: FakeAgent, asked: str | None, expected: str
) -> None:
    start_plugin(newest)
    agent.wait_connected().decide({"uid-1": decision(value("4096", at_most=True))})
    assert create(newest, "uid-1", {}, asked=asked).unified == {SWAP_MAX: expected}


def test_the_state_lifts_a_namespaces_default_and_never_the_pods_own_choice(
    newest: Runtime, start_plugin: StartPlugin, agent: FakeAgent
) -> None:
    start_plugin(newest)
    agent.wait_connected().decide({f"uid-{number}": decision(app=value("4096")) for number in (1, 2)})
    agent.decide({"uid-3": decision()})
    assert create(newest, "uid-1", DEFAULTED).unified[SWAP_MAX] == "4096"
    assert create(newest, "uid-2", DISABLED).unified[SWAP_MAX] == "0"
    assert create(newest, "uid-3", DEFAULTED).unified[SWAP_MAX] == KUBELET


def test_an_annotation_makes_no_pod_another_one(newest: Runtime, start_plugin: StartPlugin, agent: FakeAgent) -> None:
    """The UID of a static pod in the runtime is its hash already; anybody can write that annotation on another pod."""
    start_plugin(newest)
    agent.wait_connected().decide({"uid-1": decision(value("4096")), "hash-1": decision(value("max"))})
    made = create(newest, "uid-1", {names.CONFIG_HASH_ANNOTATION: "hash-1"})
    assert made.unified[SWAP_MAX] == "4096"
    assert agent.wait_for(FromPlugin.CREATED)["uid"] == "uid-1"


@pytest.mark.parametrize("mode", [names.Mode.AUDIT, names.Mode.RESTORE])
def test_nothing_is_adjusted_unless_the_mode_enforces(
    newest: Runtime, start_plugin: StartPlugin, agent: FakeAgent, mode: names.Mode
) -> None:
    start_plugin(newest)
    agent.wait_connected().set_mode(mode)
    made = create(newest, "uid-1", DISABLED)
    assert (made.error, made.adjusted, made.annotations) == ("", {}, {})
    agent.set_mode(names.Mode.ENFORCE)
    assert create(newest, "uid-2", DISABLED).unified[SWAP_MAX] == "0"
    # A state that did not arrive yet suspends no promise.
    agent.set_mode("")
    assert create(newest, "uid-3", DISABLED).unified[SWAP_MAX] == "0"


def test_the_mode_is_read_from_its_file_while_no_agent_runs(
    newest: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    (folder / "link" / runtime_link.MODE_FILE).write_text(names.Mode.AUDIT)
    start_plugin(newest)
    assert create(newest, "uid-1", DISABLED).adjusted == {}


def test_decisions_stay_while_the_agent_is_away(
    newest: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    start_plugin(newest)
    with FakeAgent(folder / "link", {"uid-1": decision(value("4096"))}) as agent:
        agent.wait_connected()
    assert create(newest, "uid-1", {}).unified[SWAP_MAX] == "4096"
    # The next agent has other decisions: what the first had is forgotten.
    with FakeAgent(folder / "link", {"uid-2": decision(value("8192"))}) as agent:
        agent.wait_connected()
        assert create(newest, "uid-1", {}).unified[SWAP_MAX] == KUBELET
        assert create(newest, "uid-2", {}).unified[SWAP_MAX] == "8192"


def test_nothing_is_adjusted_on_a_node_without_memory_swap_max(
    newest: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    (empty := folder / "no-swap-controller").mkdir()
    start_plugin(newest, f"--cgroup-root={empty}")
    made = create(newest, "uid-1", DISABLED)
    assert (made.error, made.adjusted, made.annotations) == ("", {}, {})


def test_the_agent_learns_what_each_container_got(
    runtime: Runtime, start_plugin: StartPlugin, agent: FakeAgent
) -> None:
    start_plugin(runtime)
    agent.wait_connected()
    create(runtime, "uid-1", DISABLED)
    create(runtime, "uid-2", {}, asked=None)
    set_, unset = agent.wait_for(FromPlugin.CREATED, uid="uid-1"), agent.wait_for(FromPlugin.CREATED, uid="uid-2")
    assert (set_["id"], set_["name"], set_["value"], set_["original"]) == ("container-uid-1-app", "app", "0", KUBELET)
    assert (unset["value"], unset["original"]) == (None, None)
    sandbox = agent.wait_for(FromPlugin.SANDBOX, uid="uid-1")
    assert (sandbox["id"], sandbox["cgroup"].endswith("poduid_1.slice")) == ("sandbox-uid-1", True)
    told = agent.wait_for(FromPlugin.RUNTIME, connected=True)
    assert (told["name"], told["requestTimeoutMs"]) == ("containerd", 2000)
