"""The cache of things that are slow to make: outside the work tree, shared by all clones of one user."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from testbed.base import term


def root() -> Path:
    """Return the cache folder, made if absent: $SWAPWARDEN_CACHE, $XDG_CACHE_HOME/swapwarden or ~/.cache/swapwarden."""
    if own := os.environ.get("SWAPWARDEN_CACHE"):
        folder = Path(own)
    elif xdg := os.environ.get("XDG_CACHE_HOME"):
        folder = Path(xdg) / "swapwarden"
    else:
        folder = Path.home() / ".cache" / "swapwarden"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the lock NAME against other set-ups of this user; wait while another one works."""
    path = root() / f"{name}.lock"
    with path.open("w", encoding="ascii") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            term.say(f"another set-up is making {name}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def find(name: str) -> Path | None:
    """Return the installed folder NAME, or None. An existing folder is complete: it is named only when it is done."""
    folder = root() / name
    return folder if folder.is_dir() else None


@contextlib.contextmanager
def install(name: str) -> Iterator[Path]:
    """Yield an empty folder that becomes the cache's NAME if the block succeeds, and is removed if it fails."""
    with tempfile.TemporaryDirectory(prefix=".new-", dir=root()) as made:
        folder = Path(made) / "content"
        folder.mkdir()
        yield folder
        target = root() / name
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)


def made(name: str, make: Callable[[Path], object]) -> Path:
    """Return the installed folder NAME; if it is absent, MAKE fills a folder that becomes it."""
    if not find(name):
        with lock(name):
            if not find(name):  # Another set-up made it while this one waited.
                with install(name) as folder:
                    make(folder)
    return root() / name
