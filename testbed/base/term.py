"""What the testbed says to the person in front of it."""

import contextlib
import sys
import time
from collections.abc import Iterator


def say(text: str) -> None:
    """One line on stderr; stdout belongs to whoever runs the testbed."""
    sys.stderr.write(f"testbed: {text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Announce a step that takes time, and say how long it took."""
    say(f"{name} ...")
    begun = time.monotonic()
    yield
    say(f"{name}: done in {time.monotonic() - begun:.1f} s")
