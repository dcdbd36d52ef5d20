from __future__ import annotations

from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.report import conditions


def series() -> list[tuple[str, ...]]:
    return sorted(tuple(value for _, value in sample.labels) for sample in conditions.CONDITIONS.samples())


def test_each_condition_has_one_series_that_says_what_it_is_now() -> None:
    told = conditions.Conditions()
    quiet, secrets = systemd_zero.Verdict("False", "Quiet", ""), systemd_zero.Verdict("True", "NoTmpfsNoswap", "")
    told.tell({"Drift": quiet, "SecretsOnDisk": secrets})
    assert series() == [("Drift", "False", "Quiet"), ("SecretsOnDisk", "True", "NoTmpfsNoswap")]
    told.tell({"Drift": systemd_zero.Verdict("True", "Yielded", "another message")})
    assert series() == [("Drift", "True", "Yielded")]
    assert conditions.CONDITIONS.value("Drift", "True", "Yielded") == 1
    told.tell({})
    assert series() == []
