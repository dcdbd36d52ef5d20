"""The behaviour of the runtimes' own library that our plugin relies on, in each version that the testbed has."""

from __future__ import annotations

import json
import pathlib

from testbed.standin.runtime import REQUEST_TIMEOUT, Container, Pod, Runtime, plugin
from tests.integration.nri.plugin_process import pause

SWAP_MAX = "memory.swap.max"


def test_two_plugins_that_set_one_key_are_a_refusal(runtime: Runtime, folder: pathlib.Path) -> None:
    runtime.populate([Pod("sandbox-1", "uid-1")], [])
    with (
        plugin(folder, "one", "50", "1", version=runtime.version),
        plugin(folder, "two", "60", "2", version=runtime.version),
    ):
        runtime.connected("50-one").connected("60-two")
        refused = runtime.create(Container("container-1", "sandbox-1"))
    assert all(each in refused.error for each in ("50-one", "60-two", SWAP_MAX))
    assert runtime.specs() == {}


def test_a_plugin_without_an_answer_is_dropped_and_the_container_starts(runtime: Runtime, folder: pathlib.Path) -> None:
    runtime.populate([Pod("sandbox-1", "uid-1")], [])
    with plugin(folder, "one", "50", "1", version=runtime.version) as stopped:
        runtime.connected("50-one")
        assert runtime.create(Container("container-1", "sandbox-1")).unified == {SWAP_MAX: "1"}
        pause(stopped)
        late = runtime.create(Container("container-2", "sandbox-1"))
        assert (late.error, late.unified, late.seconds >= REQUEST_TIMEOUT) == ("", {}, True)
        assert runtime.create(Container("container-3", "sandbox-1")).seconds < REQUEST_TIMEOUT / 2


def test_the_validator_refuses_pods_whose_required_plugin_is_away(folder: pathlib.Path, version: str) -> None:
    required = {"required-plugins.noderesource.dev": json.dumps(["one"])}
    with Runtime(folder, version, validator=True) as runtime:
        runtime.start().populate([Pod("sandbox-1", "uid-1", required), Pod("sandbox-2", "uid-2")], [])
        assert "one" in runtime.create(Container("container-1", "sandbox-1")).error
        assert runtime.create(Container("container-2", "sandbox-2")).error == ""
        with plugin(folder, "one", "50", "1", version=version):
            runtime.connected("50-one")
            assert runtime.create(Container("container-1", "sandbox-1")).error == ""
