from __future__ import annotations

from swapwarden.agent import conditions
from swapwarden.api import state


def series() -> list[tuple[str, ...]]:
    return sorted(tuple(value for _, value in sample.labels) for sample in conditions.CONDITIONS.samples())


def test_each_condition_has_one_series_that_says_what_it_is_now() -> None:
    told = conditions.Conditions()
    told.tell([state.Condition("Drift", "False", "Quiet"), state.Condition("SecretsOnDisk", "True", "NoTmpfsNoswap")])
    assert series() == [("Drift", "False", "Quiet"), ("SecretsOnDisk", "True", "NoTmpfsNoswap")]
    told.tell([state.Condition("Drift", "True", "Yielded", "another message")])
    assert series() == [("Drift", "True", "Yielded")]
    assert conditions.CONDITIONS.value("Drift", "True", "Yielded") == 1
    told.tell([])
    assert series() == []
