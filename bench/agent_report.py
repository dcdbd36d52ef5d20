"""Print the results of bench.agent, and judge them by the budgets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

COLD_PODS: Final = (10, 110, 250, 500)
LIVE_PODS: Final = 110
TRIES: Final = 100
ROUNDS: Final = 5
"""Rounds of repairs. The median of their p99 counts: a shared machine stands still for a moment now and then."""

# The budgets. On hardware the C loop takes about 4 ms for 250 files, and 1.5 ms for 110.
MOST_MEMORY: Final = 30_000_000
MOST_MORE_MEMORY: Final = 2_000_000
"""With memory QoS, more than without it; wake-ups and system calls have the same budget."""
MOST_COLD: Final = 60.0
"""250 pods from cold, in times of the C loop: 250 ms on hardware."""
MOST_REPAIR: Final = 5.0
"""99 of 100 repairs, from no limit and from 0, as a multiple of the C loop's."""
MOST_IDLE: Final = 200.0
"""CPU time of an idle minute, as a multiple of the C loop over the same pods' files: 5 millicores on hardware."""
MOST_CALLS: Final = 30
"""In an idle minute, full comparisons left out: signs of life, and one watch after the other."""
MOST_AWAKENINGS: Final = 4
"""Wake-ups in an idle minute: a sign of life, the watch's bookmark, its end."""

Json = dict[str, Any]


def p99(found: Sequence[float]) -> float:
    """Return the time that 99 of 100 did not exceed; with rounds, the median of theirs."""
    rounds = ROUNDS if len(found) >= ROUNDS * TRIES else 1
    size = len(found) // rounds
    return statistics.median(sorted(found[at : at + size])[size * 99 // 100] for at in range(0, rounds * size, size))


def show(found: Json) -> list[str]:
    """Print all; return the exceeded budgets."""
    print("pods from cold          agent ms    C loop ms    ratio    CPU ms a pod")
    for count, each in found["cold"].items():
        print(
            f"  {count:>4} {each['agent'] * 1000:24.1f} {each['floor'] * 1000:12.2f}"
            f" {each['agent'] / each['floor']:8.1f} {each['cpu'] * 1000 / int(count):14.2f}"
        )
    few, many = (found["cold"][str(count)] for count in (COLD_PODS[0], 250))
    print(f"  memory a pod, kB   {(many['memory'] - few['memory']) / (250 - COLD_PODS[0]) / 1000:12.1f}")
    print(f"with {LIVE_PODS} pods, ms              p50       p99")
    for what in ("arrival", "creation", "repair", "raise", "floor repair", "floor raise"):
        for each in (what, f"{what}, pressed"):
            print(f"  {each:<24} {statistics.median(found[each]) * 1000:9.2f} {p99(found[each]) * 1000:9.2f}")
    rest, memory = found["idle"], found["memory QoS: idle"]
    for what, each in (("idle for a minute", rest), ("the same with memory QoS", memory)):
        print(f"{what}: {each['cpu'] * 1000:.1f} ms of CPU, {each['memory'] / 1e6:.1f} MB", end="")
        print(f", {each['calls']:.1f} system calls in {each['awakenings']:.1f} wake-ups", end="")
        print(f"; {each['comparison']} more in a full comparison" if each["comparison"] else "")

    def times(what: str) -> float:
        return p99(found[what]) / p99(found[f"floor {what}"])

    ratios = {
        "MB of memory": (rest["memory"] / 1e6, MOST_MEMORY / 1e6),
        "x the C loop for 250 pods from cold": (many["agent"] / many["floor"], MOST_COLD),
        "x the C loop at p99 of repairs": (times("repair"), MOST_REPAIR),
        "x the C loop at p99 of raises from 0": (times("raise"), MOST_REPAIR),
        "C loops of CPU in an idle minute": (rest["cpu"] / found["floor"], MOST_IDLE),
        "system calls in an idle minute": (float(rest["calls"]), float(MOST_CALLS)),
        "wake-ups in an idle minute": (float(rest["awakenings"]), float(MOST_AWAKENINGS)),
        "MB more with memory QoS": ((found["memory QoS: memory"] - found["memory"]) / 1e6, MOST_MORE_MEMORY / 1e6),
        "system calls in an idle minute with memory QoS": (float(memory["calls"]), float(MOST_CALLS)),
        "wake-ups in an idle minute with memory QoS": (float(memory["awakenings"]), float(MOST_AWAKENINGS)),
    }
    for what, (is_now, most) in ratios.items():
        print(f"  {is_now:8.1f} of {most:5.0f} {what}")
    return [what for what, (is_now, most) in ratios.items() if is_now > most]
