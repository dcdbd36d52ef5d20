from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import quantity
from swapwarden.policy.observed.resources import Class, Kind, Resources, compute

APP, INIT = Kind.APP, Kind.INIT
GUARANTEED, BURSTABLE, BEST_EFFORT = Class.GUARANTEED, Class.BURSTABLE, Class.BEST_EFFORT


def resources(requests: Any = None, limits: Any = None) -> Resources:
    return msgspec.convert({"requests": requests or {}, "limits": limits or {}}, Resources)


FULL = resources(limits={"cpu": 1, "memory": "1Gi"})
NONE = resources()


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([(APP, NONE)], BEST_EFFORT),
        ([(APP, resources({"cpu": "0"}, {"memory": 0}))], BEST_EFFORT),
        ([(APP, resources({"ephemeral-storage": "1Gi"}, {"nvidia.com/gpu": 1}))], BEST_EFFORT),
        ([(APP, FULL)], GUARANTEED),
        ([(APP, resources({"cpu": "1000m", "memory": "1024Mi"}, {"cpu": 1, "memory": "1Gi"}))], GUARANTEED),
        ([(APP, resources({"cpu": 0.5, "memory": "1Gi"}, {"cpu": "500m", "memory": "1Gi"}))], GUARANTEED),
        ([(APP, resources({"cpu": "100m", "memory": "1Gi"}, {"cpu": "200m", "memory": "1Gi"}))], BURSTABLE),
        ([(APP, resources(limits={"memory": "1Gi"}))], BURSTABLE),
        ([(APP, resources(limits={"cpu": 1, "memory": 0}))], BURSTABLE),
        ([(APP, resources({"memory": "1Mi"}))], BURSTABLE),
        ([(APP, FULL), (APP, NONE)], BURSTABLE),
        ([(INIT, NONE), (APP, FULL)], BURSTABLE),
        ([(INIT, FULL), (APP, FULL)], GUARANTEED),
        ([(INIT, FULL), (APP, NONE)], BURSTABLE),
    ],
)
def test_class_from_containers(containers: list[tuple[Kind, Resources]], expected: Class) -> None:
    assert compute(None, containers) is expected


@pytest.mark.parametrize(
    ("pod", "containers", "expected"),
    [
        (NONE, [(APP, FULL)], BEST_EFFORT),
        (FULL, [(APP, NONE)], GUARANTEED),
        (FULL, [(APP, resources({"cpu": "1", "memory": "1Mi"}))], BURSTABLE),
        (FULL, [(APP, resources({"cpu": "1", "memory": "1Gi"}))], GUARANTEED),
        # The containers' peak, not their sum, becomes the pod's request.
        (FULL, [(INIT, FULL), (APP, FULL)], GUARANTEED),
        (resources({"cpu": 1, "memory": "1Gi"}, {"cpu": 1, "memory": "1Gi"}), [(APP, NONE)], GUARANTEED),
        (resources({"memory": "1Gi"}), [(APP, FULL)], BURSTABLE),
        (resources(limits={"memory": "1Gi"}), [(APP, FULL)], BURSTABLE),
    ],
)
def test_resources_of_the_pod_decide_where_there_are_any(
    pod: Resources, containers: list[tuple[Kind, Resources]], expected: Class
) -> None:
    assert compute(pod, containers) is expected


def test_a_text_that_is_no_quantity_is_an_error() -> None:
    with pytest.raises(quantity.QuantityError, match="1Q"):
        compute(None, [(APP, resources({"memory": "1Q"}))])


def test_quantities_with_their_paths() -> None:
    stated = resources({"cpu": 0.5}, {"memory": "1Gi"}).quantities("spec.resources")
    assert list(stated) == [("spec.resources.requests.cpu", "0.5"), ("spec.resources.limits.memory", "1Gi")]
