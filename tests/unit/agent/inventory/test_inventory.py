"""Cgroups that come, go, and are others than they were."""

from __future__ import annotations

import asyncio
import errno

import pytest
from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.host import cgroupfs, inotify
from swapwarden.agent.reconcile import queue, schedule
from swapwarden.api import names

from tests.unit.agent.agent_node import (
    MIB,
    Node,
    apply,
    armed,
    compare,
    due,
    look_again,
    lose_events,
    snapshot,
    state,
    unheard,
    until,
    watched,
)
from tests.unit.agent.cgroup_tree import swap_max


async def test_cruns_inner_cgroup_gets_the_value_too(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    scope = plain.tree.container(pod, "app")
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB, at_most=False)}}))
    await until(lambda: swap_max(scope) == str(MIB))
    inner = plain.tree.group(scope / "container")
    await until(lambda: swap_max(inner) == str(MIB))


async def test_cruns_inner_cgroup_is_found_without_an_event(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    scope = plain.tree.container(pod, "app")
    add = inotify.Inotify.add

    def full(notify: inotify.Inotify, path: str, mask: int) -> int:
        if path == str(scope):
            raise OSError(errno.ENOSPC, "No space left on device")
        return add(notify, path, mask)

    with monkeypatch.context() as short:
        short.setattr(inotify.Inotify, "add", full)
        apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB, at_most=False)}}))
        await until(lambda: swap_max(scope) == str(MIB))
        inner = plain.tree.group(scope / "container")
        compare(agent)
        assert swap_max(inner) == str(MIB)
    plain.tree.remove(inner)
    plain.known(pod).containers[scope.name].files.pop()
    compare(agent)
    inner = plain.tree.group(scope / "container")
    await until(lambda: swap_max(inner) == str(MIB))


async def test_a_nested_clusters_pods_are_untouched(plain: Node) -> None:
    pod = plain.tree.pod(1)
    outer = plain.tree.container(pod, "kind")
    inner = plain.tree.group(
        outer / "kubelet.slice" / "kubelet-kubepods.slice" / "kubelet-kubepods-pod0123456789ab.slice"
    )
    agent = plain.start()
    apply(agent, state({1: MIB}))
    assert (swap_max(pod), swap_max(inner)) == (str(MIB), "max")


async def test_a_pod_that_is_removed_while_being_written_is_no_failure(plain: Node) -> None:
    agent = plain.start()
    for number in range(50):
        plain.tree.pod(number)
        await asyncio.sleep(0)
        plain.tree.remove(plain.tree.pod_path(number))
    await until(lambda: not agent.inventory.pods)
    compare(agent)
    assert snapshot(agent).violations == []


@pytest.mark.parametrize("level", [False, True])
async def test_a_recreated_pod_stays_known_when_the_event_of_its_end_is_late(
    plain: Node, monkeypatch: pytest.MonkeyPatch, level: bool
) -> None:
    """As static pods are. Were it forgotten, so would be what its file held before."""
    agent = plain.start(state({1: 0}))
    pod = await plain.run(1, "app")
    await until(lambda: swap_max(pod) == "0")
    before = plain.known(pod).file.inode
    path = plain.tree.level("burstable") if level else pod
    path.rename(plain.tree.root / "old")
    if level:
        plain.tree.group(path)
    plain.tree.pod(1)
    with unheard(agent):
        compare(agent)
    anew = plain.known(pod)
    assert anew.file.inode != before
    told: list[str] = []
    real = agent.inventory.observe

    def look(owner: inotify.Watched, name: str, origin: resolve.Origin, noticed: float) -> None:
        told.append(name)
        real(owner, name, origin, noticed)

    monkeypatch.setattr(agent.inventory, "observe", look)
    await until(lambda: path.name in told)  # its end, and its beginning
    assert plain.known(pod) is anew
    apply(agent, state({1: 0}, mode=names.Mode.RESTORE, generation=2))
    assert swap_max(pod) == "max"


async def test_a_level_that_was_removed_before_it_was_read_is_known_when_it_is_made_again(plain: Node) -> None:
    level = plain.tree.level("burstable")
    plain.tree.remove(level)
    agent = plain.start(state({1: 0}))
    plain.tree.group(level)
    plain.tree.remove(level)
    agent.catch_up()
    plain.tree.group(level)
    pod = await plain.run(1, "app")
    await until(lambda: swap_max(pod) == "0")
    before = plain.known(pod)
    compare(agent)
    assert plain.known(pod) is before
    apply(agent, state({1: 0}, mode=names.Mode.RESTORE, generation=2))
    assert swap_max(pod) == "max"


async def test_a_level_recreated_without_an_event_is_watched_again(plain: Node) -> None:
    agent = plain.start()
    (plain.tree.root / "old").mkdir()
    plain.tree.level("burstable").rename(plain.tree.root / "old" / "level")
    plain.tree.group(plain.tree.level("burstable"))
    lose_events(agent)
    compare(agent)
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")


async def test_containers_that_came_and_went_unseen_are_made_up_for(plain: Node) -> None:
    pod = plain.tree.pod(1)
    gone = plain.tree.container(pod, "gone")
    agent = plain.start()
    wants = {name: spec.FileSetting(MIB, at_most=False) for name in ("gone", "new")}
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: wants}))
    plain.tree.remove(gone)
    new = plain.tree.container(pod, "new")
    lose_events(agent)
    compare(agent)
    assert list(plain.known(pod).containers) == [new.name]
    assert swap_max(new) == str(MIB)


async def test_watches_are_ended_by_hand(plain: Node) -> None:
    """On cgroupfs they never end by themselves; a directory that is moved away stands for one that is removed there."""
    agent = plain.start()
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB, at_most=False)}}))
    before = watched(agent)
    pod = plain.tree.pod(1)
    app = plain.tree.container(pod, "app")
    await until(lambda: swap_max(app) == str(MIB))
    assert watched(agent) == before + 4
    app.rename(plain.tree.root / "app")
    await until(lambda: plain.known(pod).containers == {})
    assert watched(agent) == before + 2
    pod.rename(plain.tree.root / "pod")
    await until(lambda: not agent.inventory.pods)
    assert watched(agent) == before
    plain.tree.level("burstable").rename(plain.tree.root / "level")
    await until(lambda: watched(agent) == before - 1)


async def test_the_tree_may_come_later_and_may_go(plain: Node) -> None:
    plain.tree.remove(plain.tree.kubepods)
    agent = plain.start()
    problem = snapshot(agent).tree.problem
    assert problem is not None
    assert problem.reason == "NoPodTree"
    plain.tree.group(plain.tree.kubepods)
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    plain.tree.remove(plain.tree.kubepods)
    await until(lambda: agent.root is None)
    assert agent.inventory.pods == {}


async def test_pods_of_a_tree_that_was_ambiguous_at_first_were_there_before(plain: Node) -> None:
    pod = plain.tree.pod(1)
    other = plain.tree.group(plain.tree.root / "other" / "kubepods")
    agent = plain.start()
    problem = snapshot(agent).tree.problem
    assert problem is not None
    assert problem.reason == "AmbiguousTree"
    plain.tree.remove(other)
    await until(lambda: agent.root is not None)
    assert swap_max(pod) == "max"


async def test_pods_that_ran_before_a_first_look_that_failed_are_left_alone_by_the_next_run(plain: Node) -> None:
    """As when --cgroup-anchor is set after an agent that did not know which of two trees is the node's."""
    pod = plain.tree.pod(1)
    other = plain.tree.group(plain.tree.root / "other" / "kubepods")
    plain.start()
    plain.stop()
    plain.tree.remove(other)
    plain.start()
    assert swap_max(pod) == "max"
    plain.stop()
    later = plain.tree.pod(2)
    plain.start()
    assert [swap_max(path) for path in (pod, later)] == ["max", "0"]


async def test_an_agent_that_ends_while_it_searches_leaves_no_timer(plain: Node) -> None:
    plain.tree.remove(plain.tree.kubepods)
    agent = plain.start()
    assert due(agent, queue.Task.TREE, schedule.Why.DUE) is not None
    timer = armed(agent)
    plain.stop()
    assert timer is not None
    assert timer.cancelled()


async def test_a_comparison_searches_too(plain: Node) -> None:
    plain.tree.remove(plain.tree.kubepods)
    agent = plain.start()
    plain.tree.group(plain.tree.kubepods)
    compare(agent)
    assert agent.root is not None


async def test_a_file_of_a_removed_pod_is_not_watched_again(plain: Node) -> None:
    agent = plain.start(state({1: 0}))
    pod = await plain.run(1)
    file = plain.known(pod).file
    plain.tree.remove(pod)
    await until(lambda: not agent.inventory.pods)
    before = watched(agent)
    with unheard(agent):
        plain.tree.pod(1)
        look_again(agent, file)
        assert (watched(agent), file.watch) == (before, None)
