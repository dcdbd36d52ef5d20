from __future__ import annotations

import argparse
import importlib
import pathlib
import re
import subprocess
import sys
import tomllib
import types

import pytest
import swapwarden
from swapwarden import __main__ as program


def libc(_: object) -> types.SimpleNamespace:
    """A C library whose prctl does nothing."""
    return types.SimpleNamespace(prctl=lambda *_: 0)


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which modules the program imports; each is a stand-in that takes one option and returns its value."""
    imported: list[str] = []

    def stand_in(path: str) -> types.SimpleNamespace:
        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--status", type=int, default=0)

        def run(arguments: argparse.Namespace) -> int:
            status: int = arguments.status
            return status

        imported.append(path)
        return types.SimpleNamespace(add_arguments=add_arguments, run=run, CDLL=libc)

    monkeypatch.setattr(importlib, "import_module", stand_in)
    return imported


@pytest.mark.parametrize("name", list(program.COMMANDS))
def test_only_the_chosen_part_is_imported(name: str, imports: list[str]) -> None:
    assert program.main([name, "--status", "7"]) == 7
    before = ["ctypes"] if name == program.LEAN else []
    assert imports == [*before, program.COMMANDS[name][0]]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_import_nothing(
    arguments: list[str], imports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert (ended.value.code, imports) == (0, [])
    words = capsys.readouterr().out.split()
    assert set(program.COMMANDS) <= set(words) if arguments == ["--help"] else words[1] == swapwarden.__version__


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["--", "plan"]])
def test_an_unknown_command(arguments: list[str], imports: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert (ended.value.code, imports) == (2, [])
    assert "usage: swapwarden" in capsys.readouterr().err


@pytest.mark.parametrize("known", [False, True])
def test_the_agent_imports_typing_extensions_only_if_it_is_loaded_already(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def stand_in(path: str) -> types.SimpleNamespace:
        if path == "ctypes":
            return types.SimpleNamespace(CDLL=libc)
        try:
            __import__("typing_extensions")
        except ImportError:
            found.append(False)
        else:
            found.append(True)
        return types.SimpleNamespace(add_arguments=lambda _: None, run=lambda _: 0)

    monkeypatch.setattr(importlib, "import_module", stand_in)
    monkeypatch.delitem(sys.modules, "typing_extensions", raising=False)
    if known:
        __import__("typing_extensions")
    program.main(["agent"])
    program.main(["controller"])
    assert found == [known, True]


@pytest.mark.parametrize("columns", ["", "no number", "-1", "0", "44", "200"])
def test_help_is_as_wide_as_argparse_would_have_it(
    columns: str, imports: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    def helped() -> str:
        with pytest.raises(SystemExit):
            program.main(["--help"])
        return capsys.readouterr().out

    ours = helped()
    monkeypatch.setattr(program, "Formatter", argparse.HelpFormatter)
    assert ours == helped()
    assert imports == []


def test_the_agents_flags_load_no_compressor() -> None:
    code = (
        "import sys; from swapwarden import __main__ as m; m.main(['agent', '--print-drop-ins']); print(*sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout  # noqa: S603 fixed words
    loaded = set(said.splitlines()[-1].split())
    assert "asyncio" in loaded
    assert not {"shutil", "lzma", "bz2", "json", "random", "typing_extensions"} & loaded


WAITING = """
import sys
from importlib import util
from swapwarden import __main__ as program
def show():
    print(*(each for each in ("ipaddress", "msgspec.inspect") if isinstance(sys.modules[each], util._LazyModule)))
program.main(["agent", "--print-drop-ins"])
show()
print(sys.modules["urllib.parse"].urlsplit("https://[fd00::1]:6443").hostname)
show()
"""


def test_the_agent_loads_what_it_hardly_needs_at_the_first_use() -> None:
    said = subprocess.run([sys.executable, "-c", WAITING], check=True, capture_output=True, text=True).stdout  # noqa: S603 fixed words
    assert said.splitlines()[-3:] == ["ipaddress msgspec.inspect", "fd00::1", "msgspec.inspect"]


# As in an environment without the extra `operator`.
BLOCKED = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {"aiohttp", "cryptography", "kopf", "prometheus_client", "uvloop"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from swapwarden import __main__ as program
sys.exit(program.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", list(program.COMMANDS))
def test_what_needs_an_extra_names_it_where_it_is_not_installed(name: str) -> None:
    done = subprocess.run(  # noqa: S603 our own words
        [sys.executable, "-c", BLOCKED, name, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert re.fullmatch(rf"error: swapwarden {name} needs \w+: pip install 'swapwarden\[operator\]'\n", done.stderr)
    else:
        assert done.stdout.startswith(f"usage: swapwarden {name} ")
    assert (done.returncode == 1) is (name in {"controller", "webhook"})


def test_the_extra_has_the_named_packages() -> None:
    project = tomllib.loads((pathlib.Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    listed = {re.split(r"[^a-z-]", each)[0] for each in project["optional-dependencies"]["operator"]}
    assert {each.replace("-", "_") for each in listed} == program.OPERATOR
