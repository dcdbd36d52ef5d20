"""Run inside the node VM and make the storm of bench/storm.py. Standard library only.

    python3 storm_guest.py [--kill] SECONDS CGROUP...

Each second it makes systemd reload its units, if the last time is over; systemd then writes `max` to each pod's
memory.swap.max. Every 100 ms it asks the kernel to reclaim 128 KiB of each CGROUP, which are swapped out if that is
allowed. With --kill, it kills the agent each second in the middle third. It prints one JSON object: `reloads`, `kills`,
the rounds of `reclaims`, and how busy the CPUs were (`busy`, 0 to 1).
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

RELOAD_SECONDS = 1.0
RECLAIM_SECONDS = 0.1
RECLAIM = b"128K"
AGENT = "swapwarden agent"
"""In the agent's command line."""


def times() -> tuple[float, float]:
    """Return the CPU time since boot: all, and idle."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    return float(sum(fields)), float(fields[3] + fields[4])


def reclaim(cgroup: str) -> None:
    """Ask for it; if nothing can be reclaimed, the kernel refuses."""
    with contextlib.suppress(OSError):
        Path(cgroup, "memory.reclaim").write_bytes(RECLAIM)


def kill() -> int:
    """Kill all agents; return whether there was one."""
    return int(subprocess.run(["pkill", "-KILL", "-f", AGENT], check=False).returncode == 0)


def main(seconds: float, cgroups: Sequence[str], *, kills: bool) -> None:
    """See the module."""
    begun = time.monotonic()
    killed, kill_due = 0, begun + seconds / 3 if kills else float("inf")
    all_before, idle_before = times()
    reloads, reclaims, reloading = 0, 0, None
    reload_due = reclaim_due = begun
    while (now := time.monotonic()) < begun + seconds:
        if now >= reload_due and (reloading is None or reloading.poll() is not None):
            reloading = subprocess.Popen(["systemctl", "daemon-reload"])
            reloads += 1
            reload_due = max(reload_due + RELOAD_SECONDS, now)
        if kill_due <= now < begun + 2 * seconds / 3:
            killed += kill()
            kill_due = now + RELOAD_SECONDS
        if now >= reclaim_due:
            reclaim_due = max(reclaim_due + RECLAIM_SECONDS, now)
            reclaims += 1
            for cgroup in cgroups:
                reclaim(cgroup)
        time.sleep(max(0.0, min(reload_due, reclaim_due) - time.monotonic(), 0.01))
    if reloading is not None:
        reloading.wait()
    all_after, idle_after = times()
    busy = 1 - (idle_after - idle_before) / (all_after - all_before)
    print(json.dumps({"reloads": reloads, "kills": killed, "reclaims": reclaims, "busy": busy}))


if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if each != "--kill"]
    main(float(given[0]), given[1:], kills="--kill" in sys.argv)
