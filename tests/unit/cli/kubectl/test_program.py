"""The program as a process: what it imports, how it fails."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

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
from swapwarden.cli.kubectl import __main__ as program, session
def ahead(self, *paths):
    print(len(paths), "pydantic" in sys.modules, "swapwarden.policy.plan" in sys.modules)
    sys.exit()
session.Session.ahead = ahead
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
    assert "--kubeconfig FILE" in done.stdout or "Commands:" in done.stdout or name == "completion"


def test_a_kind_by_kubectls_other_names() -> None:
    for name in ("node", "no"):
        done = run(BLOCKED, "-", name, "--help")
        assert "Show each node's swap" in done.stdout


def test_it_says_what_to_install() -> None:
    done = run(BLOCKED, "click,rich,kubernetes", "nodes")
    assert (done.returncode, done.stderr) == (
        1,
        "error: kubectl swap needs click: pip install 'swapwarden[kubectl]'\n",
    )


@pytest.mark.parametrize("arguments", ["nodes", "top pods", "top nodes", "explain web", "policy web Disabled"])
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
        assert done.stderr.startswith("Usage: kubectl swap ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-n shop explain web -o json", "explain -n shop web -o json"),
        ("--namespace=shop --context c explain web", "explain --namespace=shop --context c web"),
        ("-nshop -A top pods web", "top pods -nshop -A web"),
        ("top -n shop pods", "top pods -n shop"),
        ("-n shop policy -- web", "policy -n shop -- web"),
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
