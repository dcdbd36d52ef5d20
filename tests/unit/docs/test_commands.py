"""Each command of the documentation says who runs it, and what runs without a cluster is run here."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from swapwarden import __main__ as program

from hack.docs import commands
from testbed.base import paths

ME = "tests/unit/docs/test_commands.py"
HOWTO = "docs/howto/denser-idle-pods.md"


@pytest.mark.parametrize("page", commands.pages())
def test_each_block_says_who_runs_it(page: str) -> None:
    assert [said for each in commands.blocks(page) if (said := commands.problem(each))] == []


@pytest.mark.parametrize("page", ["docs/semantics.md", "docs/memory-qos.md", "docs/strict.md", HOWTO])
def test_commands_print_the_shown_lines(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(paths.ROOT)
    shows = [each for each in commands.run_by(ME, page) if each.language == "console"]
    for block in shows:
        for command, shown in block.steps():
            assert program.main(shlex.split(command)[1:]) == 0
            printed = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
            assert shown == printed, f"{page}:{block.line}: {command}"


def test_the_loop_that_installs_drop_ins_writes_what_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [each for each in commands.run_by(ME, "docs/strict.md") if each.language == "sh"]
    script = block.text.replace("/etc/systemd/system", str(tmp_path))
    subprocess.run(["sh", "-euc", script], check=True, timeout=30)  # noqa: S603, S607 the page's own words
    assert program.main(["agent", "--print-drop-ins"]) == 0
    printed = capsys.readouterr().out.replace("/etc/systemd/system", str(tmp_path))
    for path in tmp_path.rglob("*.conf"):
        assert f"# {path}\n{path.read_text()}" in printed
    assert len(list(tmp_path.rglob("*.conf"))) == len(re.findall(r"(?m)^# ", printed))
