from __future__ import annotations

import json
import pathlib

import pytest
from swapwarden.cli.kubectl.check import report
from swapwarden.cli.kubectl.check.catalogue import Check, ClusterProblem, Severity
from swapwarden.cli.kubectl.check.command import command
from swapwarden.cli.kubectl.cluster import session
from swapwarden.cli.kubectl.output import tables

NODES = [
    ClusterProblem(Severity.ERROR, Check.NO_AGENT, "NoAgent", f"node/n{number:02}", "no agent", "see why")
    for number in range(12)
]
TYPO = ClusterProblem(Severity.WARNING, Check.NO_EFFECT, "Limit", "pod/a/b", "has no\x1b[2J effect", "correct it")
REPORT = report.CheckReport([*NODES, TYPO], {"leases": "forbidden"})

TEXT = """\
12 errors, 1 warning.
Not looked at: leases: forbidden

Error  NoAgent (12)
  node/n00: no agent
  node/n01: no agent
  node/n02: no agent
  node/n03: no agent
  node/n04: no agent
  node/n05: no agent
  node/n06: no agent
  node/n07: no agent
  node/n08: no agent
  node/n09: no agent
  and 2 more (-o wide, json and yaml have all)
  -> see why

Warning  NoEffect: Limit
  pod/a/b: has no\ufffd[2J effect
  -> correct it
"""


def test_problems_of_one_kind_are_listed_together(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(tables.Form(), REPORT)
    assert capsys.readouterr().out == TEXT
    report.show(tables.Form("wide"), REPORT)
    assert "node/n11: no agent\n  -> see why" in capsys.readouterr().out
    report.show(tables.Form(color="always"), REPORT)
    assert "\x1b[1;31mError\x1b[0m  NoAgent" in capsys.readouterr().out


def test_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(tables.Form("json"), REPORT)
    found = json.loads(capsys.readouterr().out)
    assert found["summary"] == {"errors": 12, "warnings": 1, "notLookedAt": 1}
    assert found["problems"][0] == {
        "severity": "Error", "check": "NoAgent", "reason": "NoAgent", "object": "node/n00", "message": "no agent",
        "remedy": "see why",
    }  # fmt: skip
    assert (len(found["problems"]), found["notLookedAt"]) == (13, {"leases": "forbidden"})


@pytest.mark.parametrize(
    ("problems", "unread", "on_error", "on_warning"),
    [
        ([], {}, 0, 0),
        ([], {"pods": "forbidden"}, 2, 2),
        ([TYPO], {}, 0, 1),
        ([TYPO], {"pods": "forbidden"}, 2, 1),
        (NODES, {"pods": "forbidden"}, 1, 1),
    ],
)
def test_the_exit_status(
    problems: list[ClusterProblem], unread: dict[str, str], on_error: int, on_warning: int
) -> None:
    made = report.CheckReport(problems, unread)
    assert (made.status(Severity.ERROR), made.status(Severity.WARNING)) == (on_error, on_warning)


def run(*arguments: str) -> int:
    status = command.main(list(arguments), standalone_mode=False)
    assert isinstance(status, int)
    return status


def test_files_without_a_cluster(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pod.yaml"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    file.write_text(json.dumps(pod))
    assert run("-f", str(file), "--offline") == 0
    assert capsys.readouterr().out == "0 errors, 0 warnings.\n"
    pod["metadata"] = {"name": "p", "annotations": {"swapwarden.dev/swap-polcy": "x"}}
    file.write_text(json.dumps(pod))
    assert run("-f", str(file), "--offline") == 0
    assert run("-f", str(file), "--offline", "--fail-on", "warning") == 1
    pod["metadata"] = {"name": "p", "annotations": {"swapwarden.dev/swap-policy": "x"}}
    file.write_text(json.dumps(pod))
    assert run("-f", str(file), "--offline") == 1


def test_files_that_cannot_be_read(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("a: [")
    assert run("-f", str(file), "--offline") == 2
    out, err = capsys.readouterr()
    assert f"Not looked at: {file}: document 1: not YAML" in out
    assert err == ""


def test_where_rights_are_listed_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = {plural: f"{plural} is forbidden (403); {session.RIGHTS}" for plural in ("leases", "nodes")}
    report.show(tables.Form(), report.CheckReport([], {**lacking, "a.yaml": "no YAML"}))
    assert capsys.readouterr().out == (
        "0 errors, 0 warnings.\nNot looked at: a.yaml: no YAML\nNot looked at: leases: leases is forbidden (403)\n"
        f"Not looked at: nodes: nodes is forbidden (403)\n({session.RIGHTS})\n"
    )
