"""A memory hog: fill anonymous memory and touch all of it again and again. Standard library only; runs as a script.

    python hog.py MIB [--cgroup DIR] [--pace MIB_PER_SECOND] [--then MIB_PER_SECOND] [--rounds N]

It joins DIR before it takes any memory. It prints a line per round, so that a reader can wait for `round 1`.
"""

import argparse
import contextlib
import mmap
import os
import sys
import time
from pathlib import Path

MIB = 1 << 20


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="Fill memory and keep touching it.")
    parser.add_argument("mib", type=int, help="how much to fill, in MiB")
    parser.add_argument("--cgroup", help="the folder of the cgroup to join first")
    parser.add_argument("--pace", type=float, default=64.0, help="MiB touched a second (default 64)")
    parser.add_argument("--then", type=float, help="the same after the first round (default: the pace)")
    parser.add_argument(
        "--rounds", type=int, default=0, help="go idle after so many rounds, keeping the memory; 0: never"
    )
    options = parser.parse_args()
    if options.cgroup:
        Path(options.cgroup, "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    memory = mmap.mmap(-1, options.mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # A kernel may have none.
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # Page by page, like most programs' memory.
    block = os.urandom(MIB)  # zswap and zram would store zeros as nothing.
    due = time.monotonic()
    done, pace = 0, options.pace
    while not options.rounds or done < options.rounds:
        for start in range(0, len(memory), MIB):
            memory[start : start + MIB] = block
            due = max(due + 1 / pace, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
        done, pace = done + 1, options.then or pace
        sys.stdout.write(f"round {done}: {options.mib} MiB\n")
        sys.stdout.flush()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
