from __future__ import annotations

from swapwarden.agent.report import conditions, status


def series() -> list[tuple[str, ...]]:
    return sorted(tuple(value for _, value in sample.labels) for sample in conditions.CONDITIONS.samples())


def test_each_condition_has_one_series_that_says_what_it_is_now() -> None:
    told = conditions.Series()
    quiet, secrets = status.Verdict("False", "Quiet", ""), status.Verdict("True", "NoTmpfsNoswap", "")
    told.publish({"Drift": quiet, "SecretsOnDisk": secrets})
    assert series() == [("Drift", "False", "Quiet"), ("SecretsOnDisk", "True", "NoTmpfsNoswap")]
    told.publish({"Drift": status.Verdict("True", "Yielded", "another message")})
    assert series() == [("Drift", "True", "Yielded")]
    assert conditions.CONDITIONS.value("Drift", "True", "Yielded") == 1
    told.publish({})
    assert series() == []
