"""Whether the CustomResourceDefinition of states has all fields that this controller writes.

An API server drops fields that a definition lacks without notice: the agent would never see them, and the plan would
always differ from the state. Therefore states are written with fieldValidation=Strict. If that is refused, the rest is
written for a while, and then all is tried again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Final

from swapwarden.api import names, state
from swapwarden.kube import errors
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

LACKING = metrics.gauge(
    "swapwarden_controller_crd_fields_missing",
    "1 while the CustomResourceDefinition of NodeSwapStates lacks fields or values that this controller writes: it is"
    " of an older version. The API server drops the fields, and pods with such values are left out.",
)

AGAIN_SECONDS: Final = 300.0
_STRICT: Final = {"fieldValidation": "Strict"}
_LENIENT: Final = {"fieldValidation": "Ignore"}
_INVALID: Final = 422
_REFUSALS: Final = {400, _INVALID}
"""To a POST and to a PATCH (k/k: staging/src/k8s.io/apiserver/pkg/endpoints/handlers)."""
_REFUSED: Final = "strict decoding error"
_FIELD: Final = re.compile(r'unknown field "([^"]{1,253})"')
_VALUE: Final = re.compile(rf"spec\.pods\.({state.POD_KEY})[.:]")
_MAX_NAMED: Final = 5


class StrictFields:
    """Knowledge about the definition; `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: float | None = None
        LACKING.set(0)

    def left(self) -> float:
        """Return for how many seconds writes omit the check of fields; 0 if they do not."""
        return 0.0 if self._until is None else max(0.0, self._until - self._now())

    def params(self) -> Mapping[str, str]:
        """Return the parameters of the next write."""
        return _LENIENT if self.left() else _STRICT

    def written(self, params: Mapping[str, str]) -> None:
        """Note that a write with these parameters was done."""
        if params is _STRICT and self._until is not None:
            log.info("the CustomResourceDefinition of NodeSwapStates has all fields now")
            self._until = None
            LACKING.set(0)

    def refused(self, error: errors.ApiError) -> bool:
        """Return whether a write was refused for fields that the definition lacks: it can be repeated without."""
        if error.status not in _REFUSALS or _REFUSED not in error.message:
            return False
        self._lacks(sorted(set(_FIELD.findall(error.message))) or ["fields"])
        return True

    def refused_pods(self, error: errors.ApiError) -> frozenset[str]:
        """Return the keys of the pods for which a write was refused: the definition does not know their form."""
        keys = frozenset(_VALUE.findall(error.message)) if error.status == _INVALID else frozenset[str]()
        if keys:
            self._lacks([f"values of spec.pods.{key}" for key in sorted(keys)])
        return keys

    def _lacks(self, found: list[str]) -> None:
        more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
        log.error(
            "the CustomResourceDefinition %s.%s is older than this controller and lacks %s%s: what they say is not"
            " enforced; apply crds/ of this version. All else is planned; trying again in %.0f s",
            names.STATE_PLURAL,
            names.GROUP,
            ", ".join(found[:_MAX_NAMED]),
            more,
            AGAIN_SECONDS,
        )
        self._until = self._now() + AGAIN_SECONDS
        LACKING.set(1)
