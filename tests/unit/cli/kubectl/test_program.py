"""The program as a process: what it imports, how it fails."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from swapwarden.cli.kubectl import main

HEAVY = ("pydantic", "kubernetes", "kopf", "aiohttp", "cryptography", "prometheus_client", "uvloop", "hypothesis")
OF_THE_OPERATOR = ("aiohttp", "cryptography", "kopf", "prometheus_client", "uvloop")

# As in an environment without them.
BLOCKED = """
import importlib.abc, sys
blocked = set(sys.argv[1].split(","))
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from swapwarden.cli.kubectl import __main__ as program
sys.argv[:] = ["kubectl-swap", *sys.argv[2:]]
sys.exit(program.main())
"""

IMPORTED = """
import sys
from swapwarden.cli.kubectl import __main__ as program
sys.argv[:] = ["kubectl-swap", *sys.argv[1:]]
status = program.main()
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""

ASKED = """
import sys
from swapwarden.cli.kubectl import __main__ as program
from swapwarden.cli.kubectl.cluster import session
def prefetch(self, *paths):
    print(len(paths), "pydantic" in sys.modules, "swapwarden.policy.plan" in sys.modules)
    sys.exit()
session.Session.prefetch = prefetch
sys.argv[:] = ["kubectl-swap", *sys.argv[1:]]
program.main()
"""


@pytest.fixture
def refused(tmp_path: pathlib.Path) -> str:
    """A kubeconfig of a server that is not there: nobody listens at port 9 (discard)."""
    file = tmp_path / "kubeconfig"
    file.write_text(
        """{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c"}}]}"""
    )
    return str(file)


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 our own words
        [sys.executable, "-c", code, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", main.COMMANDS)
def test_it_works_without_what_only_the_operator_needs(name: str) -> None:
    done = run(BLOCKED, ",".join(OF_THE_OPERATOR), name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: kubectl swap {name} ")
    assert "--kubeconfig FILE" in done.stdout or "Commands:" in done.stdout


def test_a_kind_by_kubectls_other_names() -> None:
    for name in ("node", "no"):
        done = run(BLOCKED, "-", name, "--help")
        assert "Show each node's swap" in done.stdout


def test_it_says_what_to_install() -> None:
    done = run(BLOCKED, "click,kubernetes", "nodes")
    assert (done.returncode, done.stderr) == (
        1,
        "error: kubectl swap needs click: pip install 'swapwarden[kubectl]'\n",
    )


@pytest.mark.parametrize("arguments", ["nodes", "top pods", "top nodes", "explain web"])
def test_before_its_first_request_it_imports_nothing_heavy(refused: str, arguments: str) -> None:
    done = run(IMPORTED, *arguments.split(), KUBECONFIG=refused)
    assert "cannot connect to 127.0.0.1:9" in done.stderr
    loaded = done.stdout.split()
    assert "click" in loaded
    assert [name for name in (*HEAVY, "rich", "typing_extensions") if name in loaded] == []
    assert "swapwarden.policy.plan" not in done.stdout


@pytest.mark.parametrize("arguments", ["check", "simulate --delete old"])
def test_those_that_judge_a_cluster_ask_before_they_import_what_judges(refused: str, arguments: str) -> None:
    done = run(ASKED, *arguments.split(), KUBECONFIG=refused)
    assert done.stdout == "5 False False\n"


def test_without_a_cluster(tmp_path: pathlib.Path) -> None:
    done = run(BLOCKED, "-", "nodes", KUBECONFIG=str(tmp_path / "absent"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "absent does not exist: there is no cluster configuration" in done.stderr
    assert done.stderr.count("\n") == 1


def test_usage_errors(tmp_path: pathlib.Path) -> None:
    for arguments in (["nodes", "a", "-l", "b=c"], ["nodes", "--request-timeout", "soon"], ["bogus"]):
        done = run(BLOCKED, "-", *arguments, KUBECONFIG=str(tmp_path / "absent"))
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert done.stderr.startswith("error: ")
        assert "\nUsage: kubectl swap " in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-n shop explain web -o json", "explain -n shop web -o json"),
        ("--namespace=shop --context c explain web", "explain --namespace=shop --context c web"),
        ("-nshop -A top pods web", "top pods -nshop -A web"),
        ("top -n shop pods", "top pods -n shop"),
        ("-n shop explain -- web", "explain -n shop -- web"),
        ("nodes -l a=b", "nodes -l a=b"),
        ("-n nodes", ""),
        ("-n shop top", "top"),
        ("-n shop --help", "--help"),
        ("-n shop -- nodes", "-n shop -- nodes"),
        ("--context", "--context"),
        ("-x nodes", "-x nodes"),
        ("", ""),
    ],
)
def test_flags_before_the_command(words: str, expected: str) -> None:
    assert main.command_first(words.split()) == expected.split()


def test_completion_after_flags_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    main.complete(["-n", "shop", "top", "--context", "c", "na"])
    assert capsys.readouterr().out.startswith("namespaces\t")
    main.complete(["-n", "shop", "expl"])
    assert capsys.readouterr().out.startswith("explain\t")


def test_a_flag_before_the_command_counts(refused: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--kubeconfig", refused, "-n", "shop", "explain", "web"]) == 1
    assert "cannot connect to 127.0.0.1:9" in capsys.readouterr().err
    assert main.main(["-n", "shop"]) == 2
    assert "Commands:" in capsys.readouterr().err


def helps(found: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """The help of a command and of all below it, by their paths."""
    context = click.Context(found, info_name=path, terminal_width=80)
    yield path, found.get_help(context)
    if isinstance(found, click.Group):
        for name in found.list_commands(context):
            below = found.get_command(context, name)
            assert below is not None
            yield from helps(below, f"{path} {name}")


HELPS = dict(helps(main.command, "kubectl swap"))


@pytest.mark.parametrize("path", HELPS)
def test_help_is_readable(path: str) -> None:
    text = HELPS[path]
    assert "\\" not in text
    assert text.replace("\n", "").isprintable()
    # One example a line, which begins with the command.
    for line in text.splitlines():
        assert line.count("kubectl swap ") <= 1 or line.startswith("  `"), line
    _, found, examples = text.partition("\n  Examples:\n")
    if found:
        assert all(re.match(r"    kubectl swap", line) for line in examples.splitlines())


def test_each_command_shows_how_it_is_used() -> None:
    assert [name for name in main.COMMANDS if "\n  Examples:\n" not in HELPS[f"kubectl swap {name}"]] == []


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["nodse"], "nodes"),
        (["explane", "web"], "explain"),
        (["top", "podss"], "pods"),
        (["top", "name-spaces"], "namespaces"),
        (["xyzzy"], None),
    ],
)
def test_misspelt_command_is_answered_with_the_one_that_was_meant(
    words: list[str], meant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: unknown command ")
    assert ("did you mean" in said) is (meant is not None)
    if meant:
        assert f'did you mean "{meant}"?' in said or f'did you mean "{meant[:-1]}"?' in said


@pytest.mark.parametrize(("words", "path"), [([], "kubectl swap"), (["top"], "kubectl swap top")])
def test_without_a_command_the_help_is_shown_and_nothing_else(
    words: list[str], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(words) == 2
    assert capsys.readouterr().err.split() == HELPS[path].split()


@pytest.mark.parametrize("words", [["nodes", "--bad"], ["explain"], ["check", "--offline"], ["nodes", "-o", "xml"]])
def test_errors_all_begin_alike(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert f"See 'kubectl swap {words[0]} --help'." in said
