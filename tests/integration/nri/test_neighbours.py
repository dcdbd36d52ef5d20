"""`swapwarden nri` beside a second one, beside other plugins, and as a plugin that pods require."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest
from swapwarden.api import names, runtime_link
from swapwarden.api.runtime_link import SWAP_MAX

from testbed.standin.runtime import VERSIONS, Container, Outcome, Pod, Runtime, plugin
from tests.integration.nri.conftest import StartPlugin
from tests.integration.nri.fake_agent import FakeAgent, decision, value
from tests.integration.nri.plugin_process import PLUGIN

DISABLED = {names.POLICY_ANNOTATION: names.Policy.DISABLED.value}
REQUIRED = {runtime_link.REQUIRED_ANNOTATION: json.dumps([runtime_link.PLUGIN])}
KUBELET = "69943296"


def create(runtime: Runtime, uid: str, annotations: dict[str, str]) -> Outcome:
    runtime.sandbox(Pod(f"sandbox-{uid}", uid, annotations))
    return runtime.create(Container(f"container-{uid}", f"sandbox-{uid}", unified={SWAP_MAX: KUBELET}))


def test_two_of_it_side_by_side_refuse_no_container(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    with FakeAgent(folder / "link", {"uid-2": decision(value("4096"))}) as agent:
        start_plugin(runtime)
        start_plugin(runtime)
        agent.wait_connected(2)
        first, second, third = (
            create(runtime, "uid-1", DISABLED),
            create(runtime, "uid-2", {}),
            create(runtime, "uid-3", {}),
        )
        assert [each.error for each in (first, second, third)] == ["", "", ""]
        assert (first.unified[SWAP_MAX], second.unified[SWAP_MAX]) == ("0", "4096")
        assert third.adjusted == {}
        resized = runtime.update("container-uid-1", memory_swap_max=KUBELET)
        assert (resized.error, resized.unified[SWAP_MAX]) == ("", "0")


@pytest.mark.parametrize("options", [(), ("--required",)])
def test_a_rolling_update_leaves_no_container_unasked(
    runtime: Runtime, start_plugin: StartPlugin, options: tuple[str, ...]
) -> None:
    old = start_plugin(runtime, *options)
    start_plugin(runtime, *options)
    assert create(runtime, "uid-1", DISABLED).unified[SWAP_MAX] == "0"
    old.stop()
    runtime.wait_for("disconnected", plugin=PLUGIN)
    for number in range(2, 6):
        assert create(runtime, f"uid-{number}", DISABLED).unified[SWAP_MAX] == "0"


def test_another_plugins_same_value_is_left_to_it(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    with plugin(folder, "memory-qos", "50", "0", version=runtime.version):
        runtime.connected("50-memory-qos")
        start_plugin(runtime)
        made = create(runtime, "uid-1", DISABLED)
        assert (made.error, made.unified[SWAP_MAX], made.annotations) == ("", "0", {})


def test_another_plugins_other_value_is_a_refusal_that_names_both(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    with plugin(folder, "memory-qos", "50", "8192", version=runtime.version):
        runtime.connected("50-memory-qos")
        start_plugin(runtime)
        refused = create(runtime, "uid-1", DISABLED)
        assert all(each in refused.error for each in (PLUGIN, "50-memory-qos", SWAP_MAX))
        # A pod that swapwarden has no say in starts as the other one wants.
        assert create(runtime, "uid-2", {}).unified[SWAP_MAX] == "8192"


@pytest.fixture(params=VERSIONS)
def validating(request: pytest.FixtureRequest, folder: pathlib.Path) -> Callable[[], Runtime]:
    """Make a runtime with the default validator."""
    return lambda: Runtime(folder, str(request.param), validator=True)


def test_a_pod_that_requires_it_starts_with_it_and_waits_without_it(
    validating: Callable[[], Runtime], start_plugin: StartPlugin
) -> None:
    with validating() as runtime:
        runtime.start()
        waits = create(runtime, "uid-1", DISABLED | REQUIRED)
        assert runtime_link.PLUGIN in waits.error
        assert create(runtime, "uid-2", DISABLED).error == ""
        first = start_plugin(runtime)
        assert create(runtime, "uid-1", DISABLED | REQUIRED).unified[SWAP_MAX] == "0"
        assert create(runtime, "uid-3", REQUIRED).unified[SWAP_MAX] == KUBELET
        first.kill()
        runtime.wait_for("disconnected", plugin=PLUGIN)
        # Before 0.12.4 the first request after a death still counts the dead one as asked.
        create(runtime, "uid-4", {})
        assert runtime_link.PLUGIN in create(runtime, "uid-5", DISABLED | REQUIRED).error
        start_plugin(runtime)
        assert create(runtime, "uid-5", DISABLED | REQUIRED).unified[SWAP_MAX] == "0"
