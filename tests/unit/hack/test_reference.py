"""Pages that are made from the code."""

from __future__ import annotations

import argparse
import importlib
import re

import click
import pytest
from swapwarden.__main__ import COMMANDS
from swapwarden.api import names
from swapwarden.cli.kubectl import main as kubectl

from hack.generate import reference, swap_matrix
from testbed.base import paths


def cells(line: str) -> list[str]:
    return [each.strip() for each in line.strip("|").split("|")]


def rows() -> list[list[str]]:
    return [cells(line) for line in swap_matrix.table()[2:]]


@pytest.mark.parametrize(
    ("said", "behavior", "kubelet", "found"),
    [
        ("nothing", "Kubelet", "NoSwap", ["0", "0", "0", "0"]),
        ("nothing", "Kubelet", "LimitedSwap", ["0", "512Mi", "0", "0"]),
        ("nothing", "Kubelet", "sets no limits", ["all", "all", "all", "all"]),
        ("and a swap limit", "Kubelet", "sets no limits", ["256Mi"] * 4),
        ("nothing", "LimitedSwap", "any", ["0", "384Mi", "0", "0"]),
        ("nothing", "WorkloadControlled", "any", ["0", "0", "0", "0"]),
        ("and a swap limit", "WorkloadControlled", "any", ["256Mi"] * 4),
        ("`Disabled`", "any", "any", ["0", "0", "0", "0"]),
        ("not understood", "any", "any", ["0", "0", "0", "0"]),
    ],
)
def test_what_pods_get(said: str, behavior: str, kubelet: str, found: list[str]) -> None:
    """The formula's part of an eighth of the node's memory: of 4 GiB, and of 3 GiB with 25 % kept back."""
    limited = said == "and a swap limit"
    (row,) = [
        each
        for each in rows()
        if said in each[0]
        and (limited or "and a swap limit" not in each[0])
        and each[1] in {behavior, f"`{behavior}`"}
        and (each[2] in {kubelet, f"`{kubelet}`"} or f"[{kubelet}]" in each[2])
    ]
    assert [each.partition("<br>")[0] for each in row[3:]] == found


def test_each_policy_and_each_behavior_is_in_the_matrix() -> None:
    text = "\n".join(swap_matrix.table())
    assert [each for each in (*names.Policy, *names.Behavior) if f"`{each}`" not in text] == []


def test_the_matrix_replaces_the_text_between_its_marks() -> None:
    page = f"before\n{reference.BEGIN}\nold\n{reference.END}\nafter\n"
    made = reference.with_matrix(page)
    assert made == reference.with_matrix(made)
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "old" not in made
    with pytest.raises(reference.PageError, match=r"docs/concepts.md has no lines"):
        reference.with_matrix("nothing of the kind")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_is_in_the_reference(command: str) -> None:
    section = reference.command_line().partition(f"## swapwarden {command}\n")[2].partition("\n## ")[0]
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(COMMANDS[command][0]).add_arguments(parser)
    flags = re.findall(r"(?:^  |, )(--?[a-z][a-z-]*)", parser.format_help(), re.MULTILINE)
    assert flags
    assert [flag for flag in flags if f"`{flag}" not in section] == []
    assert "%(" not in section


def test_only_options_that_take_a_value_show_one() -> None:
    page = reference.command_line()
    assert "| `--agent-pods` |" in page
    assert "| `--writes-per-second NUMBER` |" in page


@pytest.mark.parametrize("command", kubectl.COMMANDS)
def test_each_option_of_the_plugin_is_in_the_reference(command: str) -> None:
    found = kubectl.load(command)
    each = found.commands if isinstance(found, click.Group) else {"": found}
    for name, one in each.items():
        path = f"kubectl swap {command} {name}".strip()
        section = reference.command_line().partition(f"## {path}\n")[2].partition("\n## ")[0]
        options = [parameter for parameter in one.params if isinstance(parameter, click.Option)]
        assert [flag for option in options if not option.hidden for flag in option.opts if flag not in section] == []
        # Options that help does not list are on the page, for all commands together.
        page = (paths.DOCS / "kubectl-swap.md").read_text(encoding="utf-8")
        assert [flag for option in options if option.hidden for flag in option.opts if f"`{flag}`" not in page] == []
        assert f"{path} [OPTIONS]" in section
