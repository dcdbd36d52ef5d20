"""Tests that failed and passed when they were run once more: kept over runs, so that they are repaired, not forgotten.

The history is in the cache folder, which all clones of one user share: a JSON object per line, one for each run of a
tier that could have shown an unsteady test. A test that was unsteady in one of the last RUNS of these fails the run in
which it is unsteady again.
"""

import collections
import contextlib
import datetime
import functools
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from testbed.base import cache, process

RUNS = 20
"""How many runs of one tier a test is remembered as unsteady."""
_FILE = "unsteady.jsonl"
_MOST = 64 * 1024
"""Characters of one output, of which the end is kept."""


class Unsteady(msgspec.Struct, frozen=True):
    """A test that failed first and then passed, with the output of both attempts."""

    name: str
    first: str
    again: str


class Run(msgspec.Struct, frozen=True):
    """One run of a tier."""

    tier: str
    date: str
    """RFC 3339."""
    commit: str
    tests: tuple[Unsteady, ...] = ()


def between(first: Path, again: Path) -> list[Unsteady]:
    """Return tests that failed by the FIRST report of pytest (JUnit's XML), and passed by the one made AGAIN."""
    before, after = _cases(first), _cases(again)
    return [
        Unsteady(name, _output(case), _output(after[name]))
        for name, case in before.items()
        if _has(case, "failure", "error") and name in after and not _has(after[name], "failure", "error", "skipped")
    ]


def _cases(report: Path) -> dict[str, ET.Element]:
    if not report.exists():
        return {}
    found = ET.parse(report).getroot().iter("testcase")  # noqa: S314 it reads what pytest has just written
    return {f"{each.get('classname', '')}::{each.get('name', '')}": each for each in found}


def _has(case: ET.Element, *kinds: str) -> bool:
    return any(case.find(kind) is not None for kind in kinds)


def _output(case: ET.Element) -> str:
    """Return a report's text about a test, with its output."""
    parts = [(each.tag, each.text or each.get("message") or "") for each in case]
    parts = [(tag, text.strip()) for tag, text in parts if text.strip()]
    lasted = f"({case.get('time', '?')} s)"
    return "\n".join([lasted, *(f"--- {tag}\n{text[-_MOST:]}" for tag, text in parts)])


def note(tier: str, found: Sequence[Unsteady], artifact: Path) -> list[str]:
    """Keep a run of TIER in the history; return the names of those FOUND that were also unsteady in an earlier run.

    ARTIFACT is a file for people with the tier's history, newest first. A run without unsteady tests does not change
    it.
    """
    run = Run(tier, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), commit(), tuple(found))
    with cache.lock("unsteady"):
        path = cache.root() / _FILE
        kept: dict[str, collections.deque[Run]] = {}
        for each in _read(path):
            kept.setdefault(each.tier, collections.deque(maxlen=RUNS)).append(each)
        own = kept.setdefault(tier, collections.deque(maxlen=RUNS))
        own.append(run)
        new = path.with_suffix(".new")
        new.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for runs in kept.values() for each in runs))
        new.replace(path)
    if found:
        told = [_described(each, test) for each in reversed(own) for test in each.tests]
        artifact.write_text("\n".join(told), encoding="utf-8")
    before = {test.name for earlier in list(own)[:-1] for test in earlier.tests}
    return [each.name for each in found if each.name in before]


def _read(path: Path) -> Iterator[Run]:
    """Return the history, without invalid lines (a full disk, another version)."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            yield msgspec.json.decode(line, type=Run)


@functools.cache
def commit() -> str:
    """Return the tested commit, marked if files differ from it."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=-changed"]
    return process.run(command, timeout=30, check=False).stdout.strip() or "not known"


def _described(run: Run, test: Unsteady) -> str:
    """Describe a test for people."""
    lines = [f"{test.name} ({run.tier}) failed, and held when it was run by itself: {run.date}, commit {run.commit}"]
    for title, text in (("It failed", test.first), ("Once more", test.again)):
        lines += [f"== {title}", text]
    return "\n".join(lines) + "\n"
