"""The program kubectl-swap, which kubectl runs as `kubectl swap`; it says so where its extra is not installed."""

from __future__ import annotations

import importlib
import sys
from typing import Final

from swapwarden import lazily

EXTRA: Final = frozenset({"click", "kubernetes"})
"""Packages of the extra `kubectl`."""


def main() -> int:
    """Run the command line; the exit status."""
    return _run("main")


def complete() -> int:
    """Run kubectl_complete-swap, which kubectl asks how a command line may go on; the exit status."""
    return _run("complete")


def _run(function: str) -> int:
    try:
        # If typing_extensions is installed, msgspec prefers it to typing: that costs start-up time.
        with lazily.without("typing_extensions"):
            importlib.import_module("msgspec")
        return int(getattr(importlib.import_module("swapwarden.cli.kubectl.main"), function)())
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA:
            raise
        print(f"error: kubectl swap needs {missing}: pip install 'swapwarden[kubectl]'", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
