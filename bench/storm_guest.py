"""Run inside the node VM and make the storm of bench/storm.py. Standard library only.

    python3 storm_guest.py SECONDS CGROUP...

Each second it makes systemd reload its units, if the last time is over; systemd then writes `max` to each pod's
memory.swap.max. Every 200 ms it asks the kernel to reclaim 256 KiB of each CGROUP, which are swapped out if that is
allowed. It prints one JSON object: `reloads`, and how busy the CPUs were (`busy`, 0 to 1) without the storm itself.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

RELOAD_SECONDS = 1.0
RECLAIM_SECONDS = 0.2
RECLAIM = b"256K"


def times() -> tuple[float, float]:
    """Return the CPU time since boot: all, and idle."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    return float(sum(fields)), float(fields[3] + fields[4])


def reclaim(cgroup: str) -> None:
    """Ask for it; if nothing can be reclaimed, the kernel refuses."""
    with contextlib.suppress(OSError):
        descriptor = os.open(f"{cgroup}/memory.reclaim", os.O_WRONLY)
        try:
            os.write(descriptor, RECLAIM)
        finally:
            os.close(descriptor)


def main(seconds: float, cgroups: Sequence[str]) -> None:
    """See the module."""
    begun = time.monotonic()
    all_before, idle_before = times()
    reloads, reloading = 0, None
    reload_due = reclaim_due = begun
    while (now := time.monotonic()) < begun + seconds:
        if now >= reload_due and (reloading is None or reloading.poll() is not None):
            reloading = subprocess.Popen(["systemctl", "daemon-reload"])
            reloads += 1
            reload_due = max(reload_due + RELOAD_SECONDS, now)
        if now >= reclaim_due:
            reclaim_due = max(reclaim_due + RECLAIM_SECONDS, now)
            for cgroup in cgroups:
                reclaim(cgroup)
        time.sleep(max(0.0, min(reload_due, reclaim_due) - time.monotonic(), 0.01))
    if reloading is not None:
        reloading.wait()
    all_after, idle_after = times()
    print(json.dumps({"reloads": reloads, "busy": 1 - (idle_after - idle_before) / (all_after - all_before)}))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
