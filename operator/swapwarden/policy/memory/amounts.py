"""The memory request and limit of a pod in all, as Kubernetes computes them.

In k/k: component-helpers/resource/helpers.go, PodRequests and PodLimits.
"""

from __future__ import annotations

from swapwarden.policy.observed import pods, resources


def pod_request(row: pods.PodRow, *, whole: bool = True) -> int:
    """Return the bytes that the pod requests, with its overhead; 0 if nothing is requested.

    Resources of the pod as a whole (KEP-2837) replace the containers' sum unless `whole` is False.
    """
    own = row.whole.request if whole else 0
    return (own or resources.peak((one.kind, one.request) for one in row.containers)) + row.whole.overhead


def pod_limit(row: pods.PodRow) -> int:
    """Return the bytes to which the pod is limited, with its overhead; 0 if nothing is limited.

    As the kubelet does, this sums the limits of the containers that have one: see `is_limited`.
    """
    limit = row.whole.limit or resources.peak((one.kind, one.limit) for one in row.containers)
    return limit + row.whole.overhead if limit else 0


def is_limited(row: pods.PodRow) -> bool:
    """Return whether the memory of the pod's cgroup is limited: by its own limit, or because each container has one.

    Ephemeral containers have no resources and do not count (k/k: pkg/kubelet/cm/helpers_linux.go).
    """
    counted = [one for one in row.containers if one.kind is not resources.Kind.EPHEMERAL]
    return bool(row.whole.limit) or all(one.limit for one in counted)
