"""Messages of the testbed to the person in front of it."""

import contextlib
import sys
import time
from collections.abc import Iterator


def say(text: str) -> None:
    """Print one line on stderr; stdout belongs to the testbed's caller."""
    sys.stderr.write(f"testbed: {text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Announce a step that takes time, and report how long it took."""
    say(f"{name} ...")
    begun = time.monotonic()
    yield
    say(f"{name}: done in {time.monotonic() - begun:.1f} s")
