"""Pass a pod's policy to the scheduler: fields added to a new pod bring it to a node with swap, or keep it off.

The required label exists on nodes where pods can get swap (docs/controller.md). Nothing is added twice: existing fields
are left alone, so that the API server may call again after other webhooks have changed the pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from swapwarden.api import names
from swapwarden.policy.admission import answers, pod_annotations
from swapwarden.policy.observed.new_pods import NewPod, WireAffinity, WirePreferredTerm, WireToleration

_TRUE: Final = "true"
TOLERATION: Final = {"key": names.SWAP_TAINT, "operator": "Exists"}
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def term(policy: names.Policy) -> dict[str, Any]:
    """Return the preferred scheduling term of a policy that has one (core/v1 PreferredSchedulingTerm)."""
    expression = {"key": names.SWAP_LABEL, "operator": pod_annotations.PREFERRED_LABEL[policy], "values": [_TRUE]}
    return {"weight": pod_annotations.PREFERENCE_WEIGHT, "preference": {"matchExpressions": [expression]}}


def contradicts(pod: NewPod) -> str | None:
    """Return the value that the pod's own node selector asks of the label, if Required can never ask the same."""
    asked = (pod.spec.node_selector or {}).get(names.SWAP_LABEL, _TRUE)
    return None if asked == _TRUE else asked


def operations(pod: NewPod, policy: str) -> Iterator[answers.Operation]:
    """Yield the patch for a new pod with this policy. Nothing if its node is chosen already."""
    if pod.spec.node_name or pod.is_of_daemon_set:
        return
    spec = pod.spec
    if policy == names.Policy.REQUIRED:
        # spec.nodeSelector counts beside all else. An expression in affinity would not: terms are alternatives, and an
        # empty one matches nothing until something is added to it.
        if spec.node_selector is None:
            yield _add({names.SWAP_LABEL: _TRUE}, "nodeSelector")
        elif names.SWAP_LABEL not in spec.node_selector:
            yield _add(_TRUE, "nodeSelector", names.SWAP_LABEL)
    elif policy in pod_annotations.PREFERRED_LABEL:
        yield from _preference(spec.affinity, term(names.Policy(policy)))
    if policy in pod_annotations.TOLERATING and not _tolerates(spec.tolerations or []):
        if spec.tolerations is None:
            yield _add([TOLERATION], "tolerations")
        else:
            yield _add(TOLERATION, "tolerations", "-")


def _preference(affinity: WireAffinity | None, preference: dict[str, Any]) -> Iterator[answers.Operation]:
    if affinity is None:
        yield _add({"nodeAffinity": {_PREFERRED: [preference]}}, "affinity")
    elif affinity.node_affinity is None:
        yield _add({_PREFERRED: [preference]}, "affinity", "nodeAffinity")
    else:
        terms = affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
        if terms is None:
            yield _add([preference], "affinity", "nodeAffinity", _PREFERRED)
        elif msgspec.convert(preference, WirePreferredTerm) not in terms:
            yield _add(preference, "affinity", "nodeAffinity", _PREFERRED, "-")


def _tolerates(tolerations: list[WireToleration]) -> bool:
    """Return whether the pod tolerates our taint, whatever its value and effect (core/v1 Toleration)."""
    return any(one.operator == "Exists" and one.key in {"", names.SWAP_TAINT} and not one.effect for one in tolerations)


def _add(value: Any, *keys: str) -> answers.Operation:
    return answers.Operation("add", answers.pointer("spec", *keys), value)
