from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, throttling
from swapwarden.policy.observed import resources

from tests.unit.objects import GI, MI

NONE, SOFT = names.ReservationPolicy.NONE, names.ReservationPolicy.SOFT
RESERVATION, LOW = names.MEMORY_RESERVATION_ANNOTATION, names.MEMORY_LOW_ANNOTATION
THROTTLING, HIGH = names.MEMORY_THROTTLING_ANNOTATION, names.MEMORY_HIGH_ANNOTATION
APP_HIGH = f"{names.CONTAINER_HIGH_PREFIX}app"
NEVER = throttling.NEVER


def read(annotations: dict[str, str], *containers: str) -> resources.MemoryAsks | None:
    return resources.memory_asks(annotations, containers or ("app",))


@pytest.mark.parametrize("annotations", [{}, {"a": "b", names.LIMIT_ANNOTATION: "1Gi"}, {f"{APP_HIGH}2": "1Gi"}])
def test_most_pods_ask_nothing(annotations: dict[str, str]) -> None:
    assert read(annotations) is None


@pytest.mark.parametrize(
    ("annotations", "fields"),
    [
        ({RESERVATION: "Soft"}, {"reservation": SOFT}),
        ({RESERVATION: "None"}, {"reservation": NONE}),
        ({LOW: "1.5Gi"}, {"low": 3 * GI // 2}),
        ({LOW: "0"}, {"low": 0}),
        ({THROTTLING: "90%"}, {"throttling": 90}),
        ({THROTTLING: "Disabled"}, {"throttling": NEVER}),
        ({HIGH: "300Mi"}, {"high": 300 * MI}),
        ({APP_HIGH: "300Mi"}, {"container_high": (("app", 300 * MI),)}),
        ({RESERVATION: "Soft", LOW: "1Mi", HIGH: "2Mi"}, {"reservation": SOFT, "low": MI, "high": 2 * MI}),
    ],
)
def test_valid_values(annotations: dict[str, str], fields: dict[str, Any]) -> None:
    assert read(annotations) == resources.MemoryAsks(**fields)


@pytest.mark.parametrize(
    ("annotations", "fields"),
    [
        ({RESERVATION: "TieredReservation"}, {"reservation": NONE}),
        ({RESERVATION: ""}, {"reservation": NONE}),
        ({RESERVATION: "Soft", LOW: "1GB"}, {"reservation": NONE}),
        ({THROTTLING: "90"}, {"throttling": NEVER}),
        ({THROTTLING: "90%", HIGH: "-1Mi"}, {"throttling": NEVER}),
        ({THROTTLING: "90%", APP_HIGH: "much"}, {"throttling": 90, "container_high": (("app", NEVER),)}),
        ({HIGH: "1" * 100_000}, {"throttling": NEVER}),
    ],
)
def test_invalid_values_give_no_protection_and_no_throttling(
    annotations: dict[str, str], fields: dict[str, Any]
) -> None:
    assert read(annotations) == resources.MemoryAsks(**fields)


def test_containers_in_the_order_of_the_spec() -> None:
    annotations = {f"{names.CONTAINER_HIGH_PREFIX}{name}": "1Mi" for name in "dcba"}
    asks = read(annotations, "a", "c", "e")
    assert asks is not None
    assert asks.container_high == (("a", MI), ("c", MI))


def test_pods_that_ask_the_same_share_one_object() -> None:
    annotations = {RESERVATION: "Soft", APP_HIGH: "300Mi"}
    assert read(annotations) is read(dict(annotations))


TEXTS = st.text(max_size=8) | st.sampled_from(["None", "Soft", "Disabled", "90%", "1Gi", "1GB"])


@given(st.dictionaries(st.sampled_from([RESERVATION, LOW, THROTTLING, HIGH, APP_HIGH]), TEXTS))
def test_whatever_is_written_amounts_are_none_or_bytes(annotations: dict[str, str]) -> None:
    asks = read(annotations)
    assert (asks is None) == (not annotations)
    if asks is not None:
        assert all(amount is None or amount >= 0 for amount in (asks.low, asks.high, asks.throttling))
        assert all(amount >= 0 for _, amount in asks.container_high)
