"""Files that are made from others: write them, or compare them with the newly made content."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from testbed.base import host, paths, process, term

Made = Mapping[Path, str | None]
"""Contents by path; None for a file that must no longer exist."""


def outdated(made: Made) -> list[Path]:
    """Return the files that differ from the newly made content."""
    return sorted(path for path, text in made.items() if _content(path) != text)


def _content(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main(make: Callable[[], Made], remedy: str) -> int:
    """The command line `write | check`: exit status 1 for `check` if a file is out of date, which REMEDY repairs."""
    if sys.argv[1:] not in (["write"], ["check"]):
        print(f"{sys.argv[0]} write | check", file=sys.stderr)
        return 2
    try:
        made = make()
    except (host.SetupError, process.ProcessError) as error:
        term.say(f"can't go on: {error}")
        return 1
    found = outdated(made)
    for path in found:
        if sys.argv[1] == "check":
            print(f"{path.relative_to(paths.ROOT)} is out of date: run {remedy} and commit the result")
        elif (text := made[path]) is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return int(sys.argv[1] == "check" and bool(found))
