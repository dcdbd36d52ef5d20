"""Completion by kubectl."""

from __future__ import annotations

import pathlib

import pytest
from swapwarden.cli.kubectl import completion, main
from swapwarden.cli.kubectl.cluster import session


def answered(*words: str) -> list[str]:
    return completion.answer(main.command, words).splitlines()


def test_commands_with_what_they_are_for() -> None:
    *found, directive = answered("")
    assert [line.split("\t")[0] for line in found] == list(main.COMMANDS)
    assert dict(line.split("\t") for line in found) == {name: summary for name, (_, summary) in main.COMMANDS.items()}
    assert directive == ":4"
    assert [line.partition("\t")[0] for line in answered("no")] == ["nodes", ":4"]


def test_flags_and_their_values() -> None:
    assert "--all-namespaces\tAll namespaces." in answered("top", "pods", "--")
    assert answered("nodes", "-o", "") == ["wide", "json", "yaml", "name", ":4"]
    assert answered("nodes", "--output=w") == ["wide", ":4"]
    assert [line.partition("\t")[0] for line in answered("top", "n")] == ["namespaces", "nodes", ":4"]


def test_files_are_left_to_the_shell() -> None:
    assert answered("nodes", "--kubeconfig", "") == [":0"]


def test_contexts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text('{"contexts": [{"name": "prod"}, {"name": "play"}, {"name": "test"}, 5, {"name": 5}]}')
    assert answered("nodes", "--kubeconfig", str(path), "--context", "p") == ["play", "prod", ":4"]
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert answered("nodes", "--context", "") == [":4"]


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[session.Target] = []

    def run(target: session.Target, _: object) -> list[str]:
        asked.append(target)
        return ["web-2", "web-1", "db"]

    monkeypatch.setattr(session, "run", run)
    assert answered("top", "pods", "-n", "shop", "--context", "c", "web-1", "w") == ["web-2", ":4"]
    assert asked == [session.Target(None, "c", completion.WAIT_SECONDS, "shop", interactive=False)]


def test_without_a_cluster_there_are_no_names(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert answered("nodes", "") == [":4"]
