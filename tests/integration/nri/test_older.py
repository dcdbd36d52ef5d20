"""`swapwarden nri` in front of versions of the library before 0.10: of CRI-O up to 1.33, and of containerd 2.0 and 2.1.

They have no event ValidateContainerAdjustment; 0.6 hands over all containers in one message.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from swapwarden.api import names
from swapwarden.api.runtime_link import ORIGINAL_ANNOTATION, SWAP_MAX, FromPlugin

from testbed.standin.runtime import OLDER, Container, Pod, Runtime
from tests.integration.nri.conftest import StartPlugin
from tests.integration.nri.fake_agent import FakeAgent, decision, value
from tests.integration.nri.test_synchronize import CONTAINERS, PODS

DISABLED = {names.POLICY_ANNOTATION: names.Policy.DISABLED.value}
KUBELET, RESIZED = "69943296", "139886592"


@pytest.fixture(params=OLDER)
def runtime(request: pytest.FixtureRequest, folder: pathlib.Path) -> Iterator[Runtime]:
    """A runtime that listens, of each older version."""
    with Runtime(folder, str(request.param)) as running:
        yield running.start()


def test_new_containers_get_their_values_and_keep_them_at_a_resize(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    with FakeAgent(folder / "link", {"uid-planned": decision(value("4096"))}) as agent:
        start_plugin(runtime)
        agent.wait_connected()
        told = agent.wait_for(FromPlugin.RUNTIME, connected=True)
        assert (told["name"], told["nri"]) == (("containerd" if runtime.version == "0.8.0" else "cri-o"), "")
        for pod, annotations, expected in (
            ("disabled", DISABLED, "0"),
            ("planned", {}, "4096"),
            ("free", {}, KUBELET),
        ):
            runtime.sandbox(Pod(f"sandbox-{pod}", f"uid-{pod}", annotations))
            assert agent.wait_for(FromPlugin.SANDBOX, uid=f"uid-{pod}")["id"] == f"sandbox-{pod}"
            made = runtime.create(Container(pod, f"sandbox-{pod}", unified={SWAP_MAX: KUBELET}))
            assert (made.error, made.unified[SWAP_MAX]) == ("", expected)
            assert made.annotations == ({} if expected == KUBELET else {ORIGINAL_ANNOTATION: KUBELET})
            resized = runtime.update(pod, memory_swap_max=RESIZED)
            assert (resized.error, resized.unified[SWAP_MAX]) == ("", RESIZED if expected == KUBELET else expected)
        runtime.remove("free")
        agent.wait_for(FromPlugin.REMOVED, id="free")


def test_a_large_node_is_listed_and_its_containers_come_under_the_hold(
    runtime: Runtime, start_plugin: StartPlugin, folder: pathlib.Path
) -> None:
    pods = [Pod(f"{at:064x}", f"uid-{at}", DISABLED) for at in range(PODS)]
    # 2 kB each, as 0.6 sends one message, of at most 4 MiB. Later ones send two of 5 kB each.
    env, mounts = (20, 8) if runtime.version == "0.6.1" else (60, 16)
    containers = [
        Container(f"{PODS + at:064x}", pods[at % PODS].id, f"app-{at}", {SWAP_MAX: KUBELET}, env=env, mounts=mounts)
        for at in range(CONTAINERS)
    ]
    runtime.populate(pods, containers)
    with FakeAgent(folder / "link") as agent:
        start_plugin(runtime)
        runtime.wait_for("synchronized", containers=CONTAINERS, pods=PODS, error="", updates=0)
        agent.wait_for(FromPlugin.CONTAINERS, more=False)
        items = {each["id"]: each for part in agent.seen(FromPlugin.CONTAINERS) for each in part["items"]}
        assert items.keys() == {each.id for each in pods} | {each.id for each in containers}
        held = [each.id for each in containers[:3]]
        assert agent.update(dict.fromkeys(held, "0"))["failed"] == {}
        specs = runtime.specs()
        assert [specs[each]["unified"][SWAP_MAX] for each in held] == ["0"] * 3
        # From now on a resize leaves it in place.
        assert runtime.update(held[0], memory_swap_max=RESIZED).unified[SWAP_MAX] == "0"


def test_a_required_plugin_registers_although_nobody_validates(runtime: Runtime, start_plugin: StartPlugin) -> None:
    """These libraries refuse a plugin that wants to. So containers start without one that dies."""
    doomed = start_plugin(runtime, "--required")
    runtime.populate([Pod("sandbox-1", "uid-1", DISABLED)], [])
    wanted = Container("container-1", "sandbox-1", unified={SWAP_MAX: KUBELET})
    assert runtime.create(wanted).unified[SWAP_MAX] == "0"
    doomed.pause()
    answer = runtime.begin("create", container=wanted.to_json())
    doomed.kill()
    made = answer.result(10)
    assert ("error" in made, made["unified"]) == (False, {SWAP_MAX: KUBELET})
