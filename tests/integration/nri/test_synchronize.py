"""A large node's pods and containers at once, as the runtime hands them to a plugin that connects."""

from __future__ import annotations

import pathlib
from typing import Final

from swapwarden.api import runtime_link
from swapwarden.api.runtime_link import ORIGINAL_ANNOTATION, SWAP_MAX, FromPlugin

from testbed.standin.runtime import REQUEST_TIMEOUT, Container, Pod, Runtime
from tests.integration.nri.conftest import StartPlugin
from tests.integration.nri.fake_agent import FakeAgent
from tests.integration.nri.plugin_process import PLUGIN

PODS: Final = 400
CONTAINERS: Final = 1200
MOST_MEMORY: Final = 32 << 20
"""Bytes that the process may use at most with them; it used 20 MiB."""


def test_a_large_node_costs_little_time_and_memory(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    pods = [Pod(f"{at:064x}", f"uid-{at}", {"team": "shop"}) for at in range(PODS)]
    containers = [
        Container(
            f"{PODS + at:064x}",
            pods[at % PODS].id,
            f"app-{at}",
            {SWAP_MAX: "0"} if at % 2 else {},
            {ORIGINAL_ANNOTATION: "4096"} if at % 2 else {},
            # Some 12 kB each, so that the library must send parts of at most 4 MiB.
            env=200,
            mounts=30,
        )
        for at in range(CONTAINERS)
    ]
    runtime.populate(pods, containers)
    with FakeAgent(folder / "link") as agent:
        plugin = start_plugin(runtime)
        seen = runtime.wait_for("synchronized", containers=CONTAINERS, pods=PODS, error="", updates=0)
        assert seen["seconds"] < REQUEST_TIMEOUT
        agent.wait_for(FromPlugin.CONTAINERS, more=False)
        items = {each["id"]: each for part in agent.seen(FromPlugin.CONTAINERS) for each in part["items"]}
        assert items.keys() == {each.id for each in pods} | {each.id for each in containers}
        for at, each in enumerate(containers):
            told = items[each.id]
            assert (told["uid"], told["name"]) == (f"uid-{at % PODS}", f"app-{at}")
            assert (told["value"], told["original"]) == (("0", "4096") if at % 2 else (None, None))
        assert agent.largest <= runtime_link.MAX_PACKET
        assert plugin.peak < MOST_MEMORY
        # A second agent, as after a restart of the first, gets all of it again.
    with FakeAgent(folder / "link") as agent:
        agent.wait_connected()
        agent.wait_for(FromPlugin.CONTAINERS, more=False)
        assert sum(len(part["items"]) for part in agent.seen(FromPlugin.CONTAINERS)) == PODS + CONTAINERS
    assert len(runtime.seen("connected", plugin=PLUGIN)) == 1
