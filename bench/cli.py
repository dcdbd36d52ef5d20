"""Time from the start of `kubectl swap` to its help, for each command: python -m bench.cli [--starts N]."""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from swapwarden.cli.kubectl import main

STARTS: Final = 20
MOST_HELP: Final = 0.150
"""The budget of `kubectl swap --help` in seconds, by the clock."""


def started(argv: Sequence[str]) -> tuple[float, float]:
    """Run a program; return its seconds by the clock, and of CPU (user and system)."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run() -> int:
    """Start all in turns, print medians and minima in milliseconds; 1 if the help takes longer than its budget."""
    parser = argparse.ArgumentParser(prog="bench.cli", description="Time the starts of kubectl swap.")
    parser.add_argument("--starts", type=int, default=STARTS)
    starts: int = parser.parse_args().starts
    # With it, each start would compile all modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    plugin = str(Path(sys.executable).parent / "kubectl-swap")
    helps = {
        " ".join([*name, "--help"]): [plugin, *name, "--help"] for name in ([], *([each] for each in main.COMMANDS))
    }
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(starts + 1):
        for name, argv in {"(python -c pass)": [sys.executable, "-c", "pass"], **helps}.items():
            took = started(argv)
            if turn:  # the first one reads files into the page cache
                found.setdefault(name, []).append(took)
    print(f"{'milliseconds':<20}{'median':>8}{'least':>8}{'CPU median':>12}{'least':>8}")
    for name, times in found.items():
        clock, cpu = zip(*times, strict=True)
        figures = (statistics.median(clock), min(clock), statistics.median(cpu), min(cpu))
        print(
            f"{name:<20}"
            + "".join(f"{each * 1000:{width}.0f}" for each, width in zip(figures, (8, 8, 12, 8), strict=True))
        )
    if (late := statistics.median(clock for clock, _ in found["--help"])) > MOST_HELP:
        print(f"--help: {late * 1000:.0f} ms, budget {MOST_HELP * 1000:.0f}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run())
