"""How a workload's pods, or those of a namespace, get another policy: the patch, and its consequences. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from swapwarden.api import names
from swapwarden.cli import wire
from swapwarden.cli.inputs import kinds
from swapwarden.cli.kubectl.cluster import workloads
from swapwarden.policy.observed import namespaces
from swapwarden.webhook import review, validation

Json = dict[str, Any]


class WorkloadMeta(wire.Meta, frozen=True, rename="camel"):
    """Metadata of a workload: the fields that are read."""

    owner_references: tuple[workloads.Owner, ...] = ()


class Workload(msgspec.Struct, frozen=True):
    """A workload as the API server sends it."""

    metadata: WorkloadMeta
    spec: Json = {}
    status: Json = {}


def wrong_value(value: str) -> str | None:
    """Return the error of admission for an invalid policy; None for a valid one."""
    pod = review.ReviewedPod(review.ReviewedMetadata(annotations={names.POLICY_ANNOTATION: value}))
    return next((cause.message for cause in validation.wrong_values(pod)), None)


def patch(kind: kinds.WorkloadKind, value: str | None) -> Json:
    """Return the merge patch (RFC 7386) that gives a workload's pods the policy; None removes it."""
    found: Json = {"metadata": {"annotations": {names.POLICY_ANNOTATION: value}}}
    for part in reversed(kind.template):
        found = {part: found}
    return found


def patch_command(kind: str, name: str, namespace: str, change: Json, options: Iterable[str] = ()) -> str:
    """Return the command that applies a patch."""
    body = json.dumps(change, separators=(",", ":"))
    return shlex.join(["kubectl", *options, "patch", kind, name, "-n", namespace, "--type=merge", "-p", body])


def label_patch(value: str | None) -> Json:
    """Return the merge patch that gives a namespace's new pods the policy by default; None removes it."""
    return {"metadata": {"labels": {names.DEFAULT_POLICY_LABEL: value}}}


def label_command(name: str, value: str | None, options: Iterable[str] = ()) -> str:
    """Return the command that gives a namespace its default, or takes it away."""
    word = f"{names.DEFAULT_POLICY_LABEL}-" if value is None else f"{names.DEFAULT_POLICY_LABEL}={value}"
    overwrite = [] if value is None else ["--overwrite"]
    return shlex.join(["kubectl", *options, "label", "namespace", name, word, *overwrite])


def of_namespace(name: str) -> Iterator[str]:
    """Yield notes about a namespace's default."""
    yield "a default counts for new pods without a policy of their own: existing ones keep theirs"
    if name in namespaces.UNDEFAULTED:
        yield f"pods of {name} get no default: the namespace must start without Swapwarden's webhook"


def recreating(pod: workloads.DetailedPod, value: str | None, options: Sequence[str] = ()) -> str:
    """Return the commands that end a pod which nobody manages, and make it again with another policy."""
    of_ours = (names.POLICY_ANNOTATION, names.POLICY_SOURCE_ANNOTATION)
    words = [] if value is None else [f"{names.POLICY_ANNOTATION}={value}"]
    words += [f"{key}-" for key in of_ours if key in pod.metadata.annotations and not (value and key == of_ours[0])]
    kubectl = ["kubectl", *options]
    get = [*kubectl, "get", "pod", pod.metadata.name, "-n", pod.metadata.namespace, "-o", "yaml"]
    annotate = ["kubectl", "annotate", "--local", "--overwrite", "-f", "-", "-o", "yaml", *words]
    return " | ".join(shlex.join(each) for each in (get, annotate, [*kubectl, "replace", "--force", "-f", "-"]))


def current(kind: kinds.WorkloadKind, workload: Workload) -> str | None:
    """Return the policy in the pod template; None if there is none."""
    annotations = _annotations(_template(kind, workload))
    found = annotations.get(names.POLICY_ANNOTATION)
    return found if isinstance(found, str) else None


def problems(kind: kinds.WorkloadKind, workload: Workload, value: str | None) -> list[str]:
    """Return why admission would refuse pods of the template with this policy."""
    template = _template(kind, workload)
    annotations = {key: text for key, text in _annotations(template).items() if key != names.POLICY_ANNOTATION}
    if value is not None:
        annotations[names.POLICY_ANNOTATION] = value
    owners = [review.Owner(kind.name, controller=True)]
    metadata = review.ReviewedMetadata(annotations=annotations, owner_references=owners)
    try:
        spec = msgspec.convert(template.get("spec") or {}, review.ReviewedPodSpec)
    except msgspec.ValidationError:
        spec = review.ReviewedPodSpec()
    return [f"{cause.field}: {cause.message}" for cause in validation.errors(review.ReviewedPod(metadata, spec))]


def _template(kind: kinds.WorkloadKind, workload: Workload) -> Mapping[str, Any]:
    found: Any = {"spec": workload.spec}
    for part in kind.template:
        found = found.get(part) or {}
    return found if isinstance(found, dict) else {}


def _annotations(template: Mapping[str, Any]) -> dict[str, str]:
    found = (template.get("metadata") or {}).get("annotations") or {}
    return {key: str(value) for key, value in found.items()}


def consequence(kind: kinds.WorkloadKind, workload: Workload) -> str:
    """Return the consequence for the workload's pods when its template changes."""
    spec, status = workload.spec, workload.status
    match kind.name:
        case "Deployment":
            return _rolls(spec.get("replicas", 1), spec.get("strategy") or {}, paused=bool(spec.get("paused")))
        case "StatefulSet":
            return _rolls(spec.get("replicas", 1), spec.get("updateStrategy") or {})
        case "DaemonSet":
            return _rolls(status.get("desiredNumberScheduled", 0), spec.get("updateStrategy") or {})
        case "CronJob":
            return "counts for jobs that are created from now on; running jobs keep theirs"
        case _:
            return f"its {spec.get('replicas', 1)} pods stay as they are; it creates new ones if you delete them"


_ROLLING: Final = ("maxUnavailable", "maxSurge", "partition")


def _rolls(pods: object, strategy: Mapping[str, Any], *, paused: bool = False) -> str:
    kind = str(strategy.get("type") or "RollingUpdate")
    if kind == "OnDelete":
        return f"its {pods} pods stay until they are deleted (OnDelete), and come back with the policy"
    rolling = strategy.get("rollingUpdate") or {}
    details = [f"{key} {rolling[key]}" for key in _ROLLING if key in rolling]
    how = ", ".join([kind, *details])
    when = ", once it is resumed: it is paused" if paused else ""
    return f"its {pods} pods will be replaced ({how}){when}"


def of_immutable(kind: kinds.WorkloadKind, name: str, value: str | None) -> str:
    """Return why the template cannot be changed, and what to do."""
    what = (
        f"without the annotation {names.POLICY_ANNOTATION}"
        if value is None
        else f"with the annotation {names.POLICY_ANNOTATION}: {value} in {'.'.join(kind.template)}.metadata.annotations"
    )
    return (
        f"the pod template of {kind.word}/{name} is immutable: recreate it {what} from its manifest"
        " (kubectl replace --force -f FILE), which ends its pods"
    )


def of_unknown(owner: workloads.Owner, value: str | None, namespace: str, options: Sequence[str] = ()) -> str:
    """Return the command for an owner of an unknown kind."""
    group, _, version = owner.api_version.rpartition("/")
    word = f"{owner.kind.lower()}.{version}.{group}" if group else owner.kind.lower()
    change: Json = {"spec": {"template": {"metadata": {"annotations": {names.POLICY_ANNOTATION: value}}}}}
    return patch_command(word, owner.name, namespace, change, options)


def managed(kind: kinds.WorkloadKind, workload: Workload, owner: workloads.Owner) -> str:
    """Return a note about a workload that has an owner."""
    return (
        f"{kind.word}/{workload.metadata.name} is managed by {owner.kind} {owner.name} ({owner.api_version}), which may"
        " undo the change: see whether pods' annotations can be set there"
    )
