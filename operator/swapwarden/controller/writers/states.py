"""Writes the spec of NodeSwapStates, with a write for each difference only."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from swapwarden.api import names, state
from swapwarden.controller.writers.fenced import Fenced, owned_by
from swapwarden.kube import errors
from swapwarden.policy import plan
from swapwarden.policy.observed import nodes, states
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

LACKING = metrics.gauge(
    "swapwarden_controller_crd_fields_missing",
    "1 while the CustomResourceDefinition of NodeSwapStates lacks fields or values that this controller writes: it is"
    " of an older version. The API server drops the fields, and pods with such values are left out.",
)

AGAIN_SECONDS: Final = 300.0
STRICT: Final = {"fieldValidation": "Strict"}
"""Parameters of a write that fails if the CustomResourceDefinition lacks a field, which would be dropped silently."""
_LENIENT: Final = {"fieldValidation": "Ignore"}
_INVALID: Final = 422
_REFUSALS: Final = {400, _INVALID}
"""Statuses of a refused POST and a refused PATCH (k/k: staging/src/k8s.io/apiserver/pkg/endpoints/handlers)."""
_REFUSED: Final = "strict decoding error"
_FIELD: Final = re.compile(r'unknown field "([^"]{1,253})"')
_VALUE: Final = re.compile(rf"spec\.pods\.({state.POD_KEY})[.:]")
_MAX_NAMED: Final = 5
NO_FIELD_RECORDS: Final[list[dict[str, Any]]] = [{}]
"""Sent as metadata.managedFields to keep none (k/k: staging/src/k8s.io/apimachinery/pkg/util/managedfields). They would
be larger than the rest of a state, which changes with each pod."""


class StrictFields:
    """Whether the CustomResourceDefinition of states has all fields that this controller writes.

    An API server drops fields that a definition lacks without notice: the agent would never see them, and the plan
    would always differ from the state. So states are written with fieldValidation=Strict. If that is refused, the rest
    is written for a while, and then all is tried again. `now` is a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: float | None = None
        LACKING.set(0)

    def left(self) -> float:
        """Return for how many seconds writes omit the check of fields; 0 if they do not."""
        return 0.0 if self._until is None else max(0.0, self._until - self._now())

    def written(self, params: Mapping[str, str]) -> None:
        """Note that a write with these parameters was done."""
        if params is STRICT and self._until is not None:
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

    def _lacks(self, missing: list[str]) -> None:
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        log.error(
            "the CustomResourceDefinition %s.%s is older than this controller and lacks %s%s: what they say is not"
            " enforced; apply crds/ of this version. All else is planned; trying again in %.0f s",
            names.STATE_PLURAL,
            names.GROUP,
            ", ".join(missing[:_MAX_NAMED]),
            more,
            AGAIN_SECONDS,
        )
        self._until = self._now() + AGAIN_SECONDS
        LACKING.set(1)


class StateWriter:
    """Remembers the parts that an older CustomResourceDefinition refused, and leaves them out for a while."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is a monotonic clock in seconds."""
        self._fields = StrictFields(now)
        # By node: the stored spec, and the one that was sent.
        self._dropped: dict[str, tuple[state.StateSpec | dict[str, Any], state.StateSpec]] = {}
        # By node: pods that the API server refused, until they are tried again.
        self._refused: dict[str, frozenset[str]] = {}

    def close(self) -> None:
        """End with the term: the next leader measures."""
        LACKING.set(0)

    def forget(self, name: str) -> None:
        """Forget a deleted node."""
        self._dropped.pop(name, None)
        self._refused.pop(name, None)

    def accepted(self, name: str, spec: state.StateSpec) -> tuple[state.StateSpec, float | None]:
        """Leave out the pods that were refused lately: because of them, the other pods would have no plan.

        Also return the seconds after which the API server may accept all of it; None if it does now.
        """
        refused, left = self._refused.get(name), self._fields.left()
        if not refused:
            return spec, None
        if not left:
            del self._refused[name]
            return spec, None
        pods = {key: pod for key, pod in spec.pods.items() if key not in refused}
        return msgspec.structs.replace(spec, pods=pods), left

    async def write(
        self, writes: Fenced, node: nodes.NodeRow, row: states.StateRow | None, spec: state.StateSpec
    ) -> tuple[states.StateRow | None, float | None]:
        """Write `spec` into the node's state, which was `row`; None: create it.

        Return the state as the API server has it (None if an older definition refused it). Also return the seconds
        after which to write again (None if there is no need).

        Raise Deposed if the state has a later term, and ApiError: 404 if the state was deleted, 409 if it is another
        one.
        """
        epoch = writes.term.epoch
        patch = _created(node, spec, epoch) if row is None else state_patch(row, node, spec, epoch)
        if patch is None:
            return row, None
        left = self._fields.left()
        if row is not None and left and self._dropped.get(node.name) == (states.spec(row), spec):
            return row, left
        fields = _LENIENT if left else STRICT
        try:
            if row is None:
                answer = await writes.create("state", names.STATES_PATH, patch, **fields)
            else:
                answer = await writes.merge_patch("state", f"{names.STATES_PATH}/{node.name}", patch, **fields)
        except errors.ApiError as error:
            if self._is_older(error, node.name, spec):
                return None, 0.0
            raise
        self._fields.written(fields)
        return self._stored(states.decode(answer), spec)

    def _stored(self, row: states.StateRow, spec: state.StateSpec) -> tuple[states.StateRow, float | None]:
        left = self._fields.left()
        if left and plan.spec_patch(stored := states.spec(row), spec) is not None:
            self._dropped[row.name] = stored, spec
            return row, left
        self._dropped.pop(row.name, None)
        return row, None

    def _is_older(self, error: errors.ApiError, name: str, spec: state.StateSpec) -> bool:
        """Return whether an older definition refused a write, and another one can do with less."""
        if self._fields.refused(error):
            return True
        keys = self._fields.refused_pods(error) & spec.pods.keys()
        if keys:
            self._refused[name] = self._refused.get(name, frozenset()) | keys
        return bool(keys)


def _created(node: nodes.NodeRow, spec: state.StateSpec, epoch: int) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.STATE_KIND,
        "metadata": {"name": node.name, "ownerReferences": owned_by(node)},
        "spec": msgspec.structs.replace(spec, epoch=epoch),
    }


def state_patch(row: states.StateRow, node: nodes.NodeRow, spec: state.StateSpec, epoch: int) -> dict[str, Any] | None:
    """Return the merge patch from `row` to `spec` in the term `epoch`; None if they do not differ.

    A state that an earlier Node of the name owns is not taken over: once it is collected, the node gets a new one.
    """
    patch = plan.spec_patch(states.spec(row), spec)
    if patch is None and row.owner:
        return None
    metadata: dict[str, Any] = {"uid": row.uid, "managedFields": NO_FIELD_RECORDS}
    if not row.owner:
        metadata["ownerReferences"] = owned_by(node)
    return {"metadata": metadata, "spec": {**(patch or {}), "epoch": epoch}}
