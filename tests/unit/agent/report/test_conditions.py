from __future__ import annotations

from swapwarden.agent.report import collector, status


def series() -> list[tuple[str, ...]]:
    samples = list(status.CONDITIONS.samples())
    assert all(sample.value == 1 for sample in samples)
    return sorted(tuple(value for _, value in sample.labels) for sample in samples)


def test_each_condition_has_one_series_that_says_what_it_is_now() -> None:
    quiet, secrets = (
        collector.ConditionVerdict("False", "Quiet", ""),
        collector.ConditionVerdict("True", "NoTmpfsNoswap", ""),
    )
    status.publish({"Drifted": quiet, "SecretsOnDisk": secrets})
    assert series() == [("Drifted", "False", "Quiet"), ("SecretsOnDisk", "True", "NoTmpfsNoswap")]
    status.publish({"Drifted": collector.ConditionVerdict("True", "Yielded", "another message")})
    assert series() == [("Drifted", "True", "Yielded")]
    status.publish({})
    assert series() == []
