"""Annotations of pods about memory: the webhook and the API server's policies give the same answers about them."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from swapwarden.api import names
from swapwarden.policy.admission import pod_annotations as rules

RESERVATION, LOW = names.MEMORY_RESERVATION_ANNOTATION, names.MEMORY_LOW_ANNOTATION
THROTTLING, HIGH = names.MEMORY_THROTTLING_ANNOTATION, names.MEMORY_HIGH_ANNOTATION
APP_HIGH, SIDE_HIGH = f"{names.CONTAINER_HIGH_PREFIX}app", f"{names.CONTAINER_HIGH_PREFIX}side"
RECLAIM = names.RECLAIM_ANNOTATION
KEYS = (RESERVATION, LOW, THROTTLING, HIGH, APP_HIGH, RECLAIM)

Spec = dict[str, Any]


class Case(NamedTuple):
    """A pod, and the answer about its keys."""

    annotations: dict[str, str]
    spec: Spec
    said: Mapping[str, str] = types.MappingProxyType({})
    """By key, a part of the reason."""


def container(name: str = "app", request: str | None = None, limit: str | None = None, **fields: Any) -> Spec:
    """A container with this memory."""
    amounts = {"requests": request, "limits": limit}
    resources = {key: {"memory": text} for key, text in amounts.items() if text}
    return {"name": name, "image": "none", "resources": resources, **fields}


def spec(*containers: Spec, init: tuple[Spec, ...] = (), **fields: Any) -> Spec:
    """The spec of a pod."""
    return {"containers": list(containers), **({"initContainers": list(init)} if init else {}), **fields}


ONE = spec(container(request="256Mi", limit="1Gi"))
UNLIMITED = spec(container(request="256Mi"))
BARE = spec(container())
FULL = spec(container(request="1Gi", limit="1Gi"))
TWO = spec(container(request="256Mi", limit="1Gi"), container("side", "64Mi", "64Mi"))
STARTING = spec(
    container(request="256Mi", limit="1Gi"),
    init=(
        container("side", "64Mi", "128Mi", restartPolicy="Always"),
        container("setup", "512Mi", "512Mi"),
        container("small", "1Mi", "1Mi"),
    ),
)

ACCEPTED = [
    Case({RESERVATION: "Soft", LOW: "256Mi", THROTTLING: "90%"}, ONE),
    Case({RESERVATION: "None", THROTTLING: "Disabled"}, ONE),
    Case({RESERVATION: "None", LOW: "0"}, ONE),
    Case({LOW: "1"}, UNLIMITED),
    *(Case({RECLAIM: mode}, BARE) for mode in ("Off", "Startup", "Continuous")),
    *(Case({HIGH: amount}, ONE) for amount in ("256Mi", "268435456", "0.5Gi", "1Gi")),
    *(Case({APP_HIGH: amount}, TWO) for amount in ("256Mi", "1Gi")),
    Case({LOW: "320Mi"}, TWO),
    Case({LOW: "576Mi", APP_HIGH: "1Gi"}, STARTING),
    Case({THROTTLING: "1%"}, TWO),
]
"""Without a warning."""

REFUSED = [
    *(Case({RESERVATION: text}, ONE, {RESERVATION: '"None", "Soft"'}) for text in ("soft", "TieredReservation", "")),
    *(Case({THROTTLING: text}, ONE, {THROTTLING: rules.NO_THROTTLING}) for text in ("0%", "100%", "90", "", "9%\n")),
    *(Case({key: "1GB"}, ONE, {key: "not a quantity"}) for key in (LOW, HIGH, APP_HIGH)),
    Case(dict.fromkeys(KEYS, "x"), ONE, dict.fromkeys(KEYS, 'alue: "x": ')),
    Case({RESERVATION: "None", LOW: "1"}, ONE, {LOW: rules.RESERVES_NOTHING}),
    Case({LOW: "257Mi"}, ONE, {LOW: f"{rules.ABOVE_REQUEST}, 268435456"}),
    Case({LOW: "1"}, BARE, {LOW: f"{rules.ABOVE_REQUEST}, 0"}),
    Case({LOW: "321Mi"}, TWO, {LOW: rules.ABOVE_REQUEST}),
    Case({LOW: "577Mi"}, STARTING, {LOW: f"{rules.ABOVE_REQUEST}, 603979776"}),
    Case({HIGH: "255Mi"}, ONE, {HIGH: f"{rules.BELOW_REQUEST}, 268435456"}),
    Case({HIGH: "1025Mi"}, ONE, {HIGH: f"{rules.ABOVE_LIMIT}, 1073741824"}),
    Case({HIGH: "2Gi"}, TWO, {HIGH: rules.ABOVE_LIMIT}),
    Case({HIGH: "1Mi"}, UNLIMITED, {HIGH: f"{rules.BELOW_REQUEST}, 268435456"}),
    Case({HIGH: "1Mi"}, spec(container(request="9E")), {HIGH: rules.BELOW_REQUEST}),
    Case({APP_HIGH: "255Mi"}, TWO, {APP_HIGH: f"{rules.BELOW_REQUEST}, 268435456"}),
    Case({APP_HIGH: "1025Mi", SIDE_HIGH: "65Mi"}, TWO, {APP_HIGH: rules.ABOVE_LIMIT, SIDE_HIGH: ", 67108864"}),
    Case({SIDE_HIGH: "64Mi", RESERVATION: "x"}, ONE, {SIDE_HIGH: rules.NO_CONTAINER, RESERVATION: '"None", "Soft"'}),
    Case({THROTTLING: "Disabled", HIGH: "512Mi"}, ONE, {HIGH: rules.THROTTLES_NOTHING}),
    Case({THROTTLING: "Disabled", APP_HIGH: "512Mi"}, ONE, {APP_HIGH: rules.THROTTLES_NOTHING}),
    Case(
        {RESERVATION: "None", LOW: "2Gi", APP_HIGH: "2Gi", SIDE_HIGH: "1Mi"},
        TWO,
        {LOW: rules.RESERVES_NOTHING, APP_HIGH: rules.ABOVE_LIMIT, SIDE_HIGH: rules.BELOW_REQUEST},
    ),
]

WITHOUT_EFFECT = [
    Case({RESERVATION: "Soft"}, BARE, {RESERVATION: rules.NO_REQUEST}),
    Case({THROTTLING: "90%"}, UNLIMITED, {THROTTLING: rules.NO_LIMIT}),
    Case({THROTTLING: "90%"}, FULL, {THROTTLING: rules.NO_LIMIT}),
    Case({HIGH: "512Mi"}, UNLIMITED, {HIGH: rules.NO_LIMIT}),
    Case({HIGH: "512Mi"}, TWO, {HIGH: rules.SEVERAL_CONTAINERS}),
    Case({SIDE_HIGH: "64Mi", APP_HIGH: "512Mi"}, TWO, {SIDE_HIGH: rules.NO_LIMIT}),
    Case({RESERVATION: "Soft", THROTTLING: "5%"}, BARE, {RESERVATION: rules.NO_REQUEST, THROTTLING: rules.NO_LIMIT}),
]
"""Admitted with these warnings and no others."""
