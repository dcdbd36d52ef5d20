"""Events of inotify, and comparisons in place of missing ones."""

from __future__ import annotations

import os
import pathlib

import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.host import inotify
from swapwarden.agent.reconcile import queue, reconciler
from swapwarden.api import names

from tests.unit.agent.agent_node import MIB, Node, apply, compare, lose_events, snapshot, state, until, watched
from tests.unit.agent.cgroup_tree import swap_max, write

QUEUE = int(pathlib.Path("/proc/sys/fs/inotify/max_queued_events").read_text(encoding="ascii"))


async def test_watches_and_descriptors_stay_flat(plain: Node) -> None:
    agent = plain.start()
    watches = watched(agent)
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 there is nothing to wait for
    for number in range(40):
        pod = plain.tree.pod(number)
        plain.tree.container(pod, "app")
        await until(lambda pod=pod: swap_max(pod) == "0")  # type: ignore[misc] # mypy sees no type for the default
        plain.tree.remove(pod)
    await until(lambda: not agent.inventory.pods)
    assert watched(agent) == watches
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208 as above
    assert list(plain.ledger.limits) == []


async def test_lost_events_are_made_up_for(plain: Node) -> None:
    agent = plain.start()
    gone, changed = plain.tree.pod(1), plain.tree.pod(2)
    await until(lambda: swap_max(gone) == swap_max(changed) == "0")
    plain.tree.remove(gone)
    write(changed, "max")
    new = plain.tree.pod(3)
    lose_events(agent)
    compare(agent)
    assert [swap_max(changed), swap_max(new)] == ["0", "0"]
    assert len(agent.inventory.pods) == 2


async def test_without_inotify_it_polls_and_says_so(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(inotify, "Inotify", refuse)
    monkeypatch.setattr(inotify, "POLL_SECONDS", 0.01)
    plain.tree.remove(plain.tree.kubepods)
    agent = plain.start()
    plain.tree.group(plain.tree.kubepods)
    await until(lambda: agent.root is not None)
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    assert "max_user_instances" in snapshot(agent).degraded


async def test_watches_that_run_out_are_made_up_for_by_polling(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify, "POLL_SECONDS", 0.01)
    agent = plain.start()

    def refuse(_: inotify.Inotify, path: str, mask: int) -> int:
        raise OSError(28, "No space left on device", path, mask)

    with monkeypatch.context() as short:
        short.setattr(inotify.Inotify, "add", refuse)
        pod = plain.tree.pod(1)
        await until(lambda: swap_max(pod) == "0")
        assert "max_user_watches" in snapshot(agent).degraded
        write(pod, "max")
        await until(lambda: swap_max(pod) == "0")
    await until(lambda: not snapshot(agent).degraded)
    write(pod, "max")
    await until(lambda: swap_max(pod) == "0")


async def test_an_inotify_instance_that_is_free_again_is_taken(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(inotify, "POLL_SECONDS", 0.01)
    with monkeypatch.context() as short:
        short.setattr(inotify, "Inotify", refuse)
        agent = plain.start()
        assert "max_user_instances" in snapshot(agent).degraded
    await until(lambda: not snapshot(agent).degraded)
    monkeypatch.setattr(agent, "resync", lambda: None)
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")


async def test_a_refusal_that_is_not_for_want_of_watches_names_the_path(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = plain.start()

    def refuse(_: inotify.Inotify, path: str, mask: int) -> int:
        raise OSError(13, "Permission denied", path, mask)

    monkeypatch.setattr(inotify.Inotify, "add", refuse)
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    assert "Permission denied" in snapshot(agent).degraded
    assert str(plain.tree.root) in snapshot(agent).degraded


async def test_events_that_the_kernel_drops_are_made_up_for(plain: Node) -> None:
    """More than fs.inotify.max_queued_events before the agent gets to run."""
    agent = plain.start()
    first, second = plain.tree.pod(1), plain.tree.pod(2)
    await until(lambda: [swap_max(pod) for pod in (first, second)] == ["0", "0"])
    overflows = reconciler.OVERFLOWS.value()
    assert snapshot(agent).recent.lost == 0
    for times in (1, 2):
        for _ in range(QUEUE // 2 + 1):  # of two files in turn: events that are alike and follow each other become one
            for pod in (first, second):
                write(pod, "max")
        third = plain.tree.pod(2 + times)
        await until(lambda times=times: reconciler.OVERFLOWS.value() == overflows + times)  # type: ignore[misc] # as above
        await until(lambda pod=third: [swap_max(each) for each in (first, second, pod)] == ["0", "0", "0"])  # type: ignore[misc] # as above
        assert snapshot(agent).recent.lost == times
    assert snapshot(agent).degraded == ""
    plain.later += queue.LOST_SECONDS
    assert snapshot(agent).recent.lost == 0


async def test_a_tree_that_cannot_be_read_for_a_while_is_neither_gone_nor_forgotten(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no descriptor left a directory looks as empty as one that is gone."""
    monkeypatch.setattr(inotify, "POLL_SECONDS", 0.01)
    pod = plain.tree.pod(1, memory_swap_max=f"{8 * MIB}\n")
    app = plain.tree.container(pod, "app")
    agent = plain.start()
    apply(agent, state({1: 0}, containers={1: {"app": spec.FileSetting(MIB, at_most=False)}}))
    shortfalls = inotify.SHORTFALLS.value("unreadable")

    def full(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr("swapwarden.agent.host.cgroupfs.os.scandir", full)
        late = plain.tree.pod(2)
        await until(lambda: inotify.SHORTFALLS.value("unreadable") > shortfalls + 1)
        assert "Too many open files" in snapshot(agent).degraded
        assert list(plain.known(pod).containers) == [app.name]
    await until(lambda: swap_max(late) == "0")
    await until(lambda: not snapshot(agent).degraded)
    apply(agent, state({}, mode=names.Mode.RESTORE))
    assert [swap_max(path) for path in (pod, app, late)] == [str(8 * MIB), "max", "max"]


async def test_failed_watches_are_reported_until_a_full_comparison_is_over() -> None:
    told = inotify.WatchRegistry(readable=lambda: None)
    told.degrade(inotify.Degraded.UNREADABLE, "no descriptor left")
    told.retry()
    assert told.degraded == "no descriptor left"
    told.degrade(inotify.Degraded.UNREADABLE, "still none")
    told.retried()
    assert told.degraded == "still none"
    told.retry()
    told.retried()
    assert told.degraded == ""
    told.close()


async def test_pods_that_were_there_before_are_left_alone_also_where_the_first_look_was_cut_short(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inotify, "POLL_SECONDS", 0.01)
    before = plain.tree.pod(1)
    real = os.scandir

    def full(fd: int) -> object:
        if pathlib.Path(f"/proc/self/fd/{fd}").readlink() == before:
            raise OSError(24, "Too many open files")
        return real(fd)

    with monkeypatch.context() as short:
        short.setattr("swapwarden.agent.host.cgroupfs.os.scandir", full)
        agent = plain.start()
        assert agent.inventory.pods == {}
        assert "Too many open files" in snapshot(agent).degraded
    await until(lambda: not snapshot(agent).degraded)
    after = plain.tree.pod(2)
    await until(lambda: swap_max(after) == "0")
    assert swap_max(before) == "max"


async def test_a_pod_that_is_removed_while_it_is_read_is_gone(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    file, real = plain.known(pod).file, plain.cgroups.inode
    with monkeypatch.context() as stale:
        stale.setattr(plain.cgroups, "inode", lambda path: file.inode if path == file.path else real(path))
        plain.tree.remove(pod)
        compare(agent)
        assert snapshot(agent).degraded == ""
    compare(agent)
    assert agent.inventory.pods == {}
