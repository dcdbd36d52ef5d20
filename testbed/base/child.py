"""Become the program in the arguments, after asking the kernel to kill it when its parent dies.

    python child.py PARENT-PID PROGRAM ARGUMENT...

This wrapper replaces subprocess's preexec_fn, which may deadlock in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent, which has this process id, dies. OSError if it refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # The parent died before the kernel was asked.
        raise SystemExit(1)


def main(argv: list[str]) -> None:
    """See the module."""
    parent, program = int(argv[0]), argv[1:]
    die_with(parent)
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is what is wanted
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
