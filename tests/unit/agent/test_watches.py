"""Events, their lack, and what is done about it."""

from __future__ import annotations

import os

import pytest
from swapwarden.agent import inotify, watches

from tests.unit.agent.agent_node import Node, until
from tests.unit.agent.cgroup_tree import swap_max, write


async def test_watches_and_descriptors_stay_flat(plain: Node) -> None:
    agent = plain.start()
    watches = len(agent._watches._owners)
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 there is nothing to wait for
    for number in range(40):
        pod = plain.tree.pod(number)
        plain.tree.container(pod, "app")
        await until(lambda pod=pod: swap_max(pod) == "0")  # type: ignore[misc] # mypy sees no type for the default
        plain.tree.remove(pod)
    await until(lambda: not agent._mirror.pods)
    assert len(agent._watches._owners) == watches
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208 as above
    assert list(plain.journal.paths()) == []


async def test_lost_events_are_made_up_for(plain: Node) -> None:
    agent = plain.start()
    gone, changed = plain.tree.pod(1), plain.tree.pod(2)
    await until(lambda: swap_max(gone) == swap_max(changed) == "0")
    plain.tree.remove(gone)
    write(changed, "max")
    new = plain.tree.pod(3)
    plain.lose_events()
    agent.resync()
    assert [swap_max(changed), swap_max(new)] == ["0", "0"]
    assert len(agent._mirror.pods) == 2


async def test_without_inotify_it_polls_and_says_so(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(inotify, "Inotify", refuse)
    monkeypatch.setattr(watches, "POLL_SECONDS", 0.01)
    plain.tree.remove(plain.tree.kubepods)
    agent = plain.start()
    plain.tree.group(plain.tree.kubepods)
    await until(lambda: agent.root is not None)
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    assert "max_user_instances" in agent.standing().polling


async def test_watches_that_run_out_are_made_up_for_by_polling(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "POLL_SECONDS", 0.01)
    agent = plain.start()
    assert agent._watches._notify is not None

    def refuse(path: str, mask: int) -> int:
        raise OSError(28, "No space left on device", path, mask)

    with monkeypatch.context() as short:
        short.setattr(agent._watches._notify, "add", refuse)
        pod = plain.tree.pod(1)
        await until(lambda: swap_max(pod) == "0")
        assert "max_user_watches" in agent.standing().polling
        write(pod, "max")
        await until(lambda: swap_max(pod) == "0")
    await until(lambda: not agent.standing().polling)
    write(pod, "max")
    await until(lambda: swap_max(pod) == "0")


async def test_an_inotify_instance_that_is_free_again_is_taken(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(watches, "POLL_SECONDS", 0.01)
    with monkeypatch.context() as short:
        short.setattr(inotify, "Inotify", refuse)
        agent = plain.start()
        assert "max_user_instances" in agent.standing().polling
    await until(lambda: not agent.standing().polling)
    monkeypatch.setattr(agent, "resync", lambda: None)
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")


async def test_a_refusal_that_is_not_for_want_of_watches_names_the_path(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = plain.start()
    assert agent._watches._notify is not None

    def refuse(path: str, mask: int) -> int:
        raise OSError(13, "Permission denied", path, mask)

    monkeypatch.setattr(agent._watches._notify, "add", refuse)
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    assert "Permission denied" in agent.standing().polling
    assert str(plain.tree.root) in agent.standing().polling
