"""The documentation's claims about tests that run its commands are compared with the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.docs import commands
from hack.docs.commands import Block

MARKED = """
# Page

Text
    that goes on.

- item

    of a list

<!-- run by tests/some.py -->
```console
$ one \\
  --more
printed
$ two
```

- <!-- not run: why -->
  ```sh
  three
    four
  ```

```text
none
```

    indented
"""


def test_blocks_are_found_with_what_stands_before_them() -> None:
    found = list(commands.blocks("docs/a.md", MARKED))
    assert [(each.language, each.line) for each in found] == [("console", 12), ("sh", 20), ("text", 25), ("", 29)]
    assert found[0].test == "tests/some.py"
    assert found[0].steps() == [("one    --more", ["printed"]), ("two", [])]
    assert found[1].steps() == [("three", []), ("  four", [])]
    assert [each.test for each in found[1:]] == [None, None, None]


def test_a_test_gets_the_blocks_that_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(MARKED)
    assert [each.line for each in commands.run_by("tests/some.py", "page.md")] == [12]
    with pytest.raises(ValueError, match=r"page.md has no block of commands that is run by tests/other.py"):
        commands.run_by("tests/other.py", "page.md")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/reads.py").write_text('commands.run_by(ME, "docs/a.md")')
    (tmp_path / "tests/other.py").write_text('helm("install")')


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("language", "mark", "found"),
    [
        ("sh", "<!-- not run: needs a registry -->", None),
        ("sh", "<!-- run by tests/reads.py -->", None),
        ("sh", '<!-- run with other values by tests/other.py: helm("install" -->', None),
        ("yaml", "", None),
        ("", "", "without a language"),
        ("sh", "", "no comment before it"),
        ("console", "<!-- not run -->", "no comment before it"),
        ("sh", "<!-- run by tests/gone.py -->", "there is no tests/gone.py"),
        ("sh", "<!-- run by tests/other.py -->", "does not take commands from"),
        ("sh", "<!-- run with other values by tests/other.py: uninstall -->", "does not have uninstall"),
    ],
)
def test_a_mark_is_held_against_what_it_names(language: str, mark: str, found: str | None) -> None:
    said = commands.problem(Block("docs/a.md", 7, language, "one", mark))
    assert said is None if found is None else said and found in said and said.startswith("docs/a.md:7: ")


@pytest.mark.parametrize(
    ("shown", "printed", "fit"),
    [
        (["NAME   AGE", "...    Ready"], "NAME AGE\nnode-1  <none>  Ready\n", True),
        (["NAME   AGE", "...    Ready"], "NAME AGE\nnode-1  <none>  NotReady\n", False),
        (["one", "...", "two"], "one\ntwo\n", True),
        (["one", "...", "two"], "one\nand\nmore\ntwo\n", True),
        (["one", "...", "two"], "one\ntwo\nmore\n", False),
        (["limit 10792960 of 0"], "limit 4096 of 0\n", True),
        (["limit 10792960 of 0"], "limit 4096 of 1\n", False),
        (["limit 10792960 of 10792960"], "limit 4096 of 4096\n", True),
        (["limit 10792960 of 10792960"], "limit 4096 of 4097\n", False),
        (["limit 1024 of 1024"], "limit 40 of 41\n", True),
        (["~9.8Mi   32%"], "~12Mi 4%\n", True),
        (["~9.8Mi   32%"], "~12Gi 4%\n", False),
        (["worker-..."], "worker-abc-1", True),
        ([], "", True),
        ([], "something\n", False),
    ],
)
def test_shown_lines_fit_printed_ones(shown: list[str], printed: str, fit: bool) -> None:
    assert commands.fits(shown, printed) is fit


def test_a_size_is_the_same_wherever_a_page_has_it() -> None:
    sizes: dict[str, str] = {}
    assert commands.fits(["10792960"], "4096", sizes)
    assert commands.fits(["10792960", "20481024"], "4096\n8192", sizes)
    assert not commands.fits(["10792960"], "8192", sizes)
    assert not commands.fits(["20481024"], "4096", sizes)
    assert sizes == {"10792960": "4096", "20481024": "8192"}
