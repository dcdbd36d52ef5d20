"""One base class for what requests fail with."""

from __future__ import annotations

import msgspec
import pytest
from swapwarden.kube import errors, watch


@pytest.mark.parametrize(
    "error",
    [
        errors.ApiError(500, "InternalError", "broken"),
        errors.Unreachable("no route"),
        errors.TooLarge("17 MiB"),
        errors.ConfigError("no token"),
        watch.Broken("cut off"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_failed_request_is_one_kind_of_error_and_asks_for_no_wait_by_itself(error: Exception) -> None:
    assert isinstance(error, errors.KubeError)
    assert error.retry_after == 0.0


def test_a_watch_that_is_too_far_behind_is_no_failed_request() -> None:
    """A loop that waits and asks for the same again would never get on."""
    assert not issubclass(watch.Expired, errors.KubeError)


@pytest.mark.parametrize(
    ("details", "causes"),
    [
        ({"causes": [{"reason": "DisruptionBudget", "message": "m"}, {"field": "f"}]}, {"DisruptionBudget"}),
        ({"causes": [{"reason": f"r{n}"} for n in range(99)]}, {f"r{n}" for n in range(32)}),
        ({"causes": None}, set()),
        ({"causes": [7]}, set()),
        (None, set()),
    ],
)
def test_causes_of_a_refusal(details: object, causes: set[str]) -> None:
    body = {"kind": "Status", "code": 429, "message": "no", "details": details}
    error = errors.api_error(429, msgspec.json.encode(body))
    assert error.causes == causes
    assert error.message == "no"
