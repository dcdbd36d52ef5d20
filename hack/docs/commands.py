"""Code blocks of the documentation, and the tests that run the commands in them.

Before each block of commands (`sh`, `console`) stands a comment, which neither the forge nor the site shows. One of

    <!-- run by tests/unit/docs/test_commands.py -->
    <!-- run with other values by tests/e2e/release.py: self._helm("install" -->
    <!-- not run: needs a registry -->

The first names a test that takes the block's commands from the page with `run_by`. The second names a file that does
the same in its own way, and a text in it.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from testbed.base import paths
from testbed.controlplane import assets

ROOT = paths.ROOT
LANGUAGES = ("sh", "console")
_OPENING = re.compile(r"( *)```(\S*)")
_MARK = re.compile(
    r"<!-- (?:run by (?P<test>\S+)|run with other values by (?P<file>[^\s:]+): (?P<text>.+)|not run: .+) -->"
)
_ANYTHING = "..."
_SIZE_DIGITS = 5
_SEVERAL_DIGITS = re.compile(r"\d+\.\d+|\d{2,}")
_PARTS = re.compile(rf"(\.\.\.|{_SEVERAL_DIGITS.pattern}|\s+)")
_LIST_ITEM = re.compile(r" *([-*]|\d+\.) ")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A code block: its page as a path in the repository, its first line's number, and the line before it."""

    page: str
    line: int
    language: str
    text: str
    mark: str

    @property
    def test(self) -> str | None:
        """Return the test that the mark names."""
        found = _MARK.fullmatch(self.mark)
        return found["test"] if found else None

    def steps(self) -> list[tuple[str, list[str]]]:
        """Return each command, and the lines that it prints in the page: in `sh` blocks none."""
        joined = self.text.replace("\\\n", " ")
        if self.language == "sh":
            return [(line, []) for line in joined.splitlines() if line.strip()]
        made: list[tuple[str, list[str]]] = []
        for line in joined.splitlines():
            if line.startswith("$ "):
                made.append((line[2:], []))
            else:
                made[-1][1].append(line)
        return made


def pages() -> list[str]:
    """Return all pages with commands for people."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found]


def blocks(page: str, markdown: str | None = None) -> Iterator[Block]:
    """Yield all fenced code blocks of a page, and those that are only indented, as blocks without a language."""
    lines = ((ROOT / page).read_text(encoding="utf-8") if markdown is None else markdown).splitlines()
    place, before, in_list = 0, "", False
    while place < len(lines):
        line = lines[place]
        if opening := _OPENING.match(line):
            end = next(each for each in range(place + 1, len(lines)) if lines[each].strip() == "```")
            text = "\n".join(each.removeprefix(opening[1]) for each in lines[place + 1 : end])
            yield Block(page, place + 1, opening[2], text, before.strip())
            place = end
        elif line.startswith("    ") and not before and not in_list:
            yield Block(page, place + 1, "", line, "")
        if line and not line.startswith(" "):
            in_list = bool(_LIST_ITEM.match(line))
        before = lines[place]
        place += 1


def run_by(test: str, page: str) -> list[Block]:
    """Return the blocks of PAGE whose mark names TEST; ValueError if there are none."""
    found = [each for each in blocks(page) if each.test == test]
    if not found:
        raise ValueError(f"{page} has no block of commands that is run by {test}")
    return found


def problem(block: Block) -> str | None:
    """Return the fault of a block's mark; None if it is right."""
    said = None
    if not block.language:
        said = "a code block without a language: fence it, as ```text if nothing else fits"
    elif block.language in LANGUAGES:
        mark = _MARK.fullmatch(block.mark)
        missing = "no comment before it names who runs these commands, or why nobody does (hack/docs/commands.py)"
        said = _unfounded(mark, block.page) if mark else missing
    return f"{block.page}:{block.line}: {said}" if said else None


def _unfounded(mark: re.Match[str], page: str) -> str | None:
    named = mark["test"] or mark["file"]
    if not named:
        return None
    if not (ROOT / named).is_file():
        return f"there is no {named}"
    source = (ROOT / named).read_text(encoding="utf-8")
    if mark["text"] and mark["text"] not in source:
        return f"{named} does not have {mark['text']}"
    if mark["test"] and not ("run_by(" in source and f'"{page}"' in source):
        return f'{named} does not take commands from "{page}" with run_by'
    return None


def environment(kubeconfig: Path, home: Path) -> dict[str, str]:
    """Return a shell's variables for the cluster of KUBECONFIG, with `kubectl`, `kubectl swap` and `swapwarden`.

    HOME is a folder of its own, for their files.
    """
    folders = [str(assets.kubectl().parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    return os.environ | {"PATH": os.pathsep.join(folders), "KUBECONFIG": str(kubeconfig), "HOME": str(home)}


def fits(shown: list[str], printed: str, sizes: dict[str, str] | None = None) -> bool:
    """Return whether a program printed the shown lines.

    `...` stands for anything, a line of it for any lines, a number of several digits (also 3.2) for any number. A large
    one (from 10000 on) stands for the same number each time; SIZES has those of earlier commands, and gets those of
    this one. The number of blanks between words does not matter.
    """
    known = {} if sizes is None else sizes
    named: set[str] = set()
    pattern = "".join(_line(line.strip(), known, named) for line in shown)
    found = re.fullmatch(pattern, "".join(f"{line.strip()}\n" for line in printed.splitlines()))
    if found is None:
        return False
    known |= {name.removeprefix("n"): number for name, number in found.groupdict().items()}
    return True


def _line(shown: str, known: Mapping[str, str], named: set[str]) -> str:
    if shown == _ANYTHING:
        return r"(?:.*\n)*?"
    return "".join(_part(each, known, named) for each in _PARTS.split(shown)) + r"\n"


def _part(shown: str, known: Mapping[str, str], named: set[str]) -> str:
    if shown == _ANYTHING:
        return ".*?"
    if shown.isspace():
        return r"\s+"
    if shown.isdigit() and len(shown) >= _SIZE_DIGITS:
        return _size(shown, known, named)
    return r"\d+(?:\.\d+)?" if _SEVERAL_DIGITS.fullmatch(shown) else re.escape(shown)


def _size(shown: str, known: Mapping[str, str], named: set[str]) -> str:
    if shown in known:
        return known[shown]
    if shown in named:
        return f"(?P=n{shown})"
    named.add(shown)
    return rf"(?P<n{shown}>\d+)"
