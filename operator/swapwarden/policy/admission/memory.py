"""Find contradictions between a new pod's annotations about memory, and between these and its resources.

The policy inside the API server checks the same. Amounts are billionths of bytes, as exact as for the API server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from swapwarden.api import names, quantity, throttling
from swapwarden.policy.admission import answers, pod_annotations
from swapwarden.policy.observed.new_pods import NewPod
from swapwarden.policy.observed.resources import Kind, ResourceList, Resources, peak_at_most

_INVALID: Final = "FieldValueInvalid"
_NANO: Final = 10**9


def contradictions(pod: NewPod) -> Iterator[answers.StatusCause]:
    """Yield contradictions by key. Invalid values contradict nothing: they are refused by themselves."""
    annotations = pod.annotations
    request, limit = _of_pod(pod)
    low = _amount(annotations.get(names.MEMORY_LOW_ANNOTATION))
    if low:
        key = names.MEMORY_LOW_ANNOTATION
        if annotations.get(names.MEMORY_RESERVATION_ANNOTATION) == names.ReservationPolicy.NONE:
            yield _cause(pod, key, pod_annotations.RESERVES_NOTHING)
        if low > request:
            yield _cause(pod, key, f"{pod_annotations.ABOVE_REQUEST}, {_bytes(request)}")
    bounds = {names.MEMORY_HIGH_ANNOTATION: (request, limit)}
    for _, one in pod.spec.created():
        bounds[names.CONTAINER_HIGH_PREFIX + one.name] = _request(one.resources), _limit(one.resources)
    disabled = annotations.get(names.MEMORY_THROTTLING_ANNOTATION) == throttling.DISABLED
    for key in sorted(key for key in bounds if key in annotations):
        high, (least, most) = _amount(annotations[key]), bounds[key]
        if high is None:
            continue
        if disabled:
            yield _cause(pod, key, pod_annotations.THROTTLES_NOTHING)
        if high < least:
            yield _cause(pod, key, f"{pod_annotations.BELOW_REQUEST}, {_bytes(least)}")
        if most is not None and high > most:
            yield _cause(pod, key, f"{pod_annotations.ABOVE_LIMIT}, {_bytes(most)}")


def without_effect(pod: NewPod) -> Iterator[tuple[str, str]]:
    """Yield the keys of valid annotations without effect, and why."""
    annotations = pod.annotations
    containers = [one for _, one in pod.spec.created()]
    request, limit = _of_pod(pod)
    if (
        annotations.get(names.POLICY_ANNOTATION) == names.Policy.DISABLED
        and annotations.get(names.RECLAIM_ANNOTATION) in pod_annotations.RECLAIMING
    ):
        yield names.RECLAIM_ANNOTATION, pod_annotations.RECLAIMS_NOTHING
    if not request:
        if _amount(annotations.get(names.MEMORY_LOW_ANNOTATION)):
            yield names.MEMORY_LOW_ANNOTATION, pod_annotations.NO_REQUEST
        if annotations.get(names.MEMORY_RESERVATION_ANNOTATION) == names.ReservationPolicy.SOFT:
            yield names.MEMORY_RESERVATION_ANNOTATION, pod_annotations.NO_REQUEST
    several = len(containers) > 1
    if _amount(annotations.get(names.MEMORY_HIGH_ANNOTATION)) is not None:
        if several:
            yield names.MEMORY_HIGH_ANNOTATION, pod_annotations.SEVERAL_CONTAINERS
        elif not _has_room(request, limit):
            yield names.MEMORY_HIGH_ANNOTATION, pod_annotations.NO_LIMIT
    bounds = {one.name: (_request(one.resources), _limit(one.resources)) for one in containers}
    for name, own in bounds.items():
        key = names.CONTAINER_HIGH_PREFIX + name
        if _amount(annotations.get(key)) is not None and not _has_room(*own):
            yield key, pod_annotations.NO_LIMIT
    if throttling.percent(annotations.get(names.MEMORY_THROTTLING_ANNOTATION, "")) != throttling.NEVER and not any(
        _has_room(*own) for own in (bounds.values() if several else [(request, limit)])
    ):
        yield names.MEMORY_THROTTLING_ANNOTATION, pod_annotations.NO_LIMIT


def _has_room(request: int, limit: int | None) -> bool:
    """Return whether memory.high can lie between request and limit."""
    return limit is not None and limit > request


def _of_pod(pod: NewPod) -> tuple[int, int | None]:
    """Return the memory request and limit of the whole pod, the limit None if there is none.

    The request is never less than the pod's own: see `resources.peak_at_most`.
    """
    spec = pod.spec
    overhead = _stated(spec.overhead) or 0
    request = _stated(spec.resources.requests) if spec.resources else None
    if request is None:
        # A pod is refused only for what it can have in no order of its containers: CEL, which decides alone on pods
        # that ask for nothing but memory, cannot see which sidecars start before an init container. The plan has the
        # exact request, and protects no more than that.
        request = peak_at_most((kind, _request(one.resources)) for kind, one in spec.created())
    limit = _limit(spec.resources)
    limits = [_limit(one.resources) for kind, one in spec.created() if kind is not Kind.INIT]
    if limit is None and limits and None not in limits:
        limit = sum(one for one in limits if one is not None)
    return request + overhead, None if limit is None else limit + overhead


def _request(asked: Resources | None) -> int:
    request = _stated(asked.requests) if asked else None
    # A file lacks the API server's defaults.
    return (_limit(asked) or 0) if request is None else request


def _limit(asked: Resources | None) -> int | None:
    return (_stated(asked.limits) or None) if asked else None


def _stated(amounts: ResourceList) -> int | None:
    return None if amounts.memory is None else _amount(amounts.memory)


def _amount(written: str | float | None) -> int | None:
    """Return the amount of a quantity; None for an invalid one."""
    text = "" if written is None else str(written)
    return quantity.nano(text) if quantity.is_quantity(text) else None


def _bytes(amount: int) -> int:
    return -(-amount // _NANO)


def _cause(pod: NewPod, key: str, why: str) -> answers.StatusCause:
    shown = pod_annotations.quoted(pod.annotations[key])
    return answers.StatusCause(_INVALID, f"Invalid value: {shown}: {why}", f"metadata.annotations[{key}]")
