"""Whether the CustomResourceDefinition of states has all fields that this controller writes.

An API server drops fields that a definition lacks without a word: the agent would never see them, and the plan would
differ from the state for ever. So states are written with fieldValidation=Strict. Where that is refused, what can be
written is written all the same for a while, and then it is tried again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Final

from swapwarden.api import names
from swapwarden.kube import client
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

LACKING = metrics.gauge(
    "swapwarden_controller_crd_fields_missing",
    "1 while the CustomResourceDefinition of NodeSwapStates lacks fields that this controller writes, which the API"
    " server then drops: it is of an older version.",
)

AGAIN_SECONDS: Final = 300.0
_STRICT: Final = {"fieldValidation": "Strict"}
_LENIENT: Final = {"fieldValidation": "Ignore"}
_REFUSALS: Final = {400, 422}
"""To a POST and to a PATCH (k/k: staging/src/k8s.io/apiserver/pkg/endpoints/handlers)."""
_REFUSED: Final = "strict decoding error"
_FIELD: Final = re.compile(r'unknown field "([^"]{1,253})"')
_MAX_NAMED: Final = 5


class CrdFields:
    """What is known of the definition; `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: float | None = None
        LACKING.set(0)

    def left(self) -> float:
        """Return the seconds for which fields that the definition lacks are left to be dropped; 0 where none is."""
        return 0.0 if self._until is None else max(0.0, self._until - self._now())

    def params(self) -> Mapping[str, str]:
        """Return the parameters of the next write."""
        return _LENIENT if self.left() else _STRICT

    def written(self, params: Mapping[str, str]) -> None:
        """A write with these parameters was done."""
        if params is _STRICT and self._until is not None:
            log.info("the CustomResourceDefinition of NodeSwapStates has all fields now")
            self._until = None
            LACKING.set(0)

    def refused(self, error: client.ApiError) -> bool:
        """Whether a write was refused because of fields that the definition lacks: it can be repeated without."""
        if error.status not in _REFUSALS or _REFUSED not in error.message:
            return False
        fields = sorted(set(_FIELD.findall(error.message)))
        more = f" and {len(fields) - _MAX_NAMED} more" if len(fields) > _MAX_NAMED else ""
        log.error(
            "the CustomResourceDefinition %s.%s is older than this controller and lacks %s%s: what they say is not"
            " enforced; apply crds/ of this version. All else is planned; trying again in %.0f s",
            names.STATE_PLURAL,
            names.GROUP,
            ", ".join(fields[:_MAX_NAMED]) or "fields",
            more,
            AGAIN_SECONDS,
        )
        self._until = self._now() + AGAIN_SECONDS
        LACKING.set(1)
        return True
