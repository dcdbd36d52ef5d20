"""Files that are made from others: write them, or compare them with the newly made content."""

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from testbed.base import paths

Made = Mapping[Path, str | None]
"""Contents by path; None for a file that must no longer exist."""


def outdated(made: Made) -> list[Path]:
    """Return the files that differ from the newly made content."""
    return sorted(path for path, text in made.items() if _content(path) != text)


def _content(path: Path) -> str | None:
    # Another process may remove it at any time.
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    return None


def alone(folder: Path, made: Made) -> Made:
    """Return MADE, and None for each other file below FOLDER."""
    others = {path for path in folder.rglob("*") if path.is_file()} - made.keys()
    return {**made, **dict.fromkeys(others)}


def write(made: Made) -> None:
    """Write the files that differ, in their order; remove those that must no longer exist.

    Other processes may write the same files or read them meanwhile: each is replaced at once, and no unfinished one is
    ever in its folder, where helm would read it.
    """
    paths.BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".generated-", dir=paths.BUILD) as folder:
        for path, text in made.items():
            if text is None:
                path.unlink(missing_ok=True)
            elif _content(path) != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                new = Path(folder) / path.name
                new.write_text(text, encoding="utf-8")
                new.replace(path)
