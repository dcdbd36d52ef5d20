"""Evictions of whole clusters in simulated time: a small one, and by `make bench-pressure` those of 5,000 nodes.

These take minutes, and print the table of docs/design/measurements.md.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest
from swapwarden.controller.pressure import budgets, handler
from swapwarden.controller.term import Term
from swapwarden.kube import client
from swapwarden.policy.pressure import handling, limits, ranking
from swapwarden.policy.pressure.candidates import Candidate

from tests.unit.controller.pressure.simulated.world import Load, World, simulate

SMALL = Load(nodes=32, pools=4, pressed=(6, 2, 2, 5), ramp=20, seconds=130, failovers=(45, 80), faults=0.1)
"""Of the last pool, most nodes are under pressure."""
RUSH = Load(nodes=32, pools=1, pressed=(10,), ramp=5, seconds=50, failovers=(25,), lost=0, late=0, faults=0)
"""A leader ends just after its evictions."""
RUSH_OF_ALL = msgspec.structs.replace(RUSH, pools=8, pressed=(2,) * 8)
HOURLY = Load(nodes=8, pools=1, pressed=(3,), ramp=5, seconds=130, failovers=(50,), per_hour=1)
"""One pod may go from a node, and more would need to."""
FULL = {
    "1 % of each profile": Load(
        nodes=5000, pools=10, pressed=(5,) * 10, ramp=10, seconds=600, failovers=(60, 200, 400)
    ),
    "the same, one request in five fails": Load(
        nodes=5000, pools=10, pressed=(5,) * 10, ramp=10, seconds=600, failovers=(60, 200, 400), faults=0.2
    ),
    "1 %, all of one profile": Load(
        nodes=5000, pools=10, pressed=(50,), ramp=10, seconds=900, failovers=(60, 200, 400)
    ),
    "60 %": Load(nodes=5000, pools=10, pressed=(450,) * 6 + (75,) * 4, ramp=20, seconds=180, failovers=(60, 120)),
}
HOLDS = [handling.OBSERVE, *limits.HoldReason]


def broken(world: World) -> list[str]:
    """Return the rules that were broken."""
    return [*world.judge.violations, *world.judge.excesses()]


def test_no_rule_is_broken_and_a_replay_decides_the_same() -> None:
    before = {reason: handler.HOLDS.value(reason) for reason in HOLDS}
    world = simulate(SMALL)
    assert broken(world) == []
    assert len(world.judge.evictions) >= 5
    assert len({one.epoch for one in world.judge.records}) >= 2, "several terms evict"
    for reason in ("Stale", "Settling", "Widespread", "RateLimit"):
        assert handler.HOLDS.value(reason) > before[reason], reason
    assert simulate(SMALL).judge.digest() == world.judge.digest()
    assert broken(simulate(RUSH)) == []
    assert broken(simulate(HOURLY)) == []
    assert broken(simulate(RUSH_OF_ALL)) == []


def never(*_: Any, **__: Any) -> bool:
    return False


def unlimited(*_: Any, **__: Any) -> None:
    return None


def began_long_ago(self: limits.Evictions, _: float) -> None:
    BEGIN(self, -1e9)


def without_foreign_records(node: handling.NodePressure, seen: handling.Situation) -> handling.Step:
    own = None if node.attempt is None else node.attempt.victim
    return NEXT_STEP(node, msgspec.structs.replace(seen, victim=own))


async def evict_the_large_one(api: client.Client, term: Term, pod: Candidate, grace: int) -> handling.EvictionAnswer:
    name = f"{pod.name.partition('-')[0]}-large"
    return await EVICT(api, term, msgspec.structs.replace(pod, name=name, uid=f"uid-{name}"), grace)


def has_not_to_end(self: handling.NodePressure, step: handling.Step, answer: handling.Answer, now: float) -> None:
    ANSWERED(self, step, answer, now)
    if self.turn.life is handling.PodLife.ENDING:
        self.turn.life = handling.PodLife.GONE


BEGIN, EVICT = limits.Evictions.__init__, budgets.evict
NEXT_STEP, ANSWERED = handling.next_step, handling.NodePressure.answered


@pytest.mark.parametrize(
    ("load", "mutants", "says"),
    [
        (SMALL, [(limits.Evictions, "limited", unlimited)], "pool-3: "),
        (RUSH_OF_ALL, [(limits.Evictions, "limited", unlimited)], "cluster: "),
        # States have most of the last evictions: alone, either is hardly ever missed.
        (
            RUSH,
            [(limits.Evictions, "__init__", began_long_ago), (limits.Evictions, "recall", unlimited)],
            "in 20 s",
        ),
        (SMALL, [(limits.Evictions, "is_settling", never)], "settles"),
        (HOURLY, [(limits.Evictions, "recall", unlimited)], "in 3600 s"),
        (SMALL, [(limits, "is_widespread", never)], "most nodes"),
        (SMALL, [(handling, "next_step", without_foreign_records)], "is recorded"),
        (SMALL, [(ranking, "_spared", unlimited)], "it must stay"),
        (SMALL, [(ranking.Ranked, "excess", property(lambda one: one.usage))], "within its grant"),
        (SMALL, [(budgets, "evict", evict_the_large_one)], "not the recorded one"),
        # One that ends holds evictions in two ways.
        (
            SMALL,
            [(handling.NodePressure, "answered", has_not_to_end), (handling, "is_one_ending", never)],
            "on its way",
        ),
    ],
    ids=[
        "a profile's rate",
        "the cluster's rate",
        "a new leader",
        "settling",
        "earlier terms",
        "widespread",
        "the record",
        "spared pods",
        "the grant",
        "another pod",
        "two at once",
    ],
)
def test_the_judge_finds_broken_rules(
    monkeypatch: pytest.MonkeyPatch, load: Load, mutants: list[tuple[Any, str, object]], says: str
) -> None:
    for owner, name, mutant in mutants:
        monkeypatch.setattr(owner, name, mutant)
    # Each seed is another script: of some, the mutant makes no difference.
    scripts = (msgspec.structs.replace(load, seed=seed) for seed in range(1, 20))
    assert any(says in each for script in scripts for each in broken(simulate(script)))


@pytest.mark.skipif("PRESSURE_BENCH" not in os.environ, reason="minutes: make bench-pressure")
@pytest.mark.parametrize("name", FULL)
def test_5000_nodes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    begun, world = time.process_time(), simulate(FULL[name])
    cpu, judge = time.process_time() - begun, world.judge
    assert broken(world) == []
    shares, queued = statistics.quantiles(judge.waits, n=100), statistics.quantiles(judge.queued, n=100)
    profile, cluster = judge.fastest()
    with capsys.disabled():
        print(  # noqa: T201 the table is the result
            f"\n| {name} | {sum(world.load.pressed)} | {len(judge.evictions)} | {shares[49]:.2f} / {shares[98]:.2f} s"
            f" | {queued[49]:.0f} / {max(judge.queued):.0f} s"
            f" | {profile} / {cluster} | {cpu:.0f} s |"
        )
    # Another process, with another order of all sets.
    code = f"import {__name__} as t; print(t.simulate(t.FULL[{name!r}]).judge.digest())"
    again = subprocess.run(  # noqa: S603 this module
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert again.stdout.strip() == judge.digest()
