"""`kubectl swap policy`: gives the pods of a workload, or of a namespace, another policy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from swapwarden.api import names
from swapwarden.cli import wire
from swapwarden.cli.inputs import kinds
from swapwarden.cli.kubectl import completion, flags
from swapwarden.cli.kubectl.cluster import session, workloads
from swapwarden.policy.admission import validation
from swapwarden.policy.observed import namespaces
from swapwarden.policy.observed.new_pods import NewPod, NewPodSpec, WireOwner, WirePodMeta
from swapwarden.policy.observed.pods import WirePod

Json = dict[str, Any]

EXAMPLES: Final = """\b
Examples:
  kubectl swap policy deployment/web Disabled -n shop           print the patch
  kubectl swap policy web-7c9f-x2x4q Disabled -n shop           the same, by the name of a pod
  kubectl swap policy deployment/web Disabled -n shop --apply   apply it
  kubectl swap policy deployment/web --remove -n shop           remove the policy
  kubectl swap policy namespace/shop Disabled                   the default of new pods
"""
_MAX_OWNERS: Final = 4
"""More than any chain of Kubernetes' own kinds has: a CronJob's pod has two owners above it."""
_PODS: Final = frozenset({"", "pod", "pods", "po"})
_NAMESPACES: Final = frozenset({"namespace", "namespaces", "ns"})


class Workload(wire.Named, frozen=True):
    """A workload as the API server sends it."""

    spec: Json = {}  # noqa: RUF012 msgspec copies it, which ruff sees in direct subclasses only
    status: Json = {}  # noqa: RUF012 as above


def wrong_value(value: str) -> str | None:
    """Return the error of admission for an invalid policy; None for a valid one."""
    pod = NewPod(WirePodMeta(annotations={names.POLICY_ANNOTATION: value}), NewPodSpec())
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


def recreating(pod: WirePod, value: str | None, options: Sequence[str] = ()) -> str:
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
    owners = [WireOwner(kind=kind.name, controller=True)]
    metadata = WirePodMeta(annotations=annotations, owner_references=owners)
    try:
        spec = msgspec.convert(template.get("spec") or {}, NewPodSpec)
    except msgspec.ValidationError:
        spec = NewPodSpec()
    return [f"{cause.field}: {cause.message}" for cause in validation.errors(NewPod(metadata, spec))]


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


# The command


class _PolicyRequest:
    """The requested change, and the flags for its command."""

    def __init__(self, target: session.Target, value: str | None, *, apply: bool) -> None:
        self.value, self.apply = value, apply
        self.options = [f"--kubeconfig={target.kubeconfig}"] if target.kubeconfig else []
        self.options += [f"--context={target.context}"] if target.context else []


async def _run(asked: session.Session, what: str, change: _PolicyRequest) -> None:
    word, _, name = what.rpartition("/")
    if word.casefold() in _NAMESPACES:
        await _namespace(asked, name, change)
    elif word.casefold() in _PODS:
        await _pod(asked, name, change)
    else:
        kind = kinds.kind_of(word)
        if kind is None:
            known = ", ".join(each.word for each in kinds.KINDS)
            raise click.UsageError(f"{word!r} is not a kind with pods; known are pod, namespace, {known}")
        await _workload(asked, kind, name, change)


async def _namespace(asked: session.Session, name: str, change: _PolicyRequest) -> None:
    path = f"{session.NAMESPACES}/{session.quote(name)}"
    found = namespaces.project(await asked.get(path, namespaces.WireNamespace)).get(names.DEFAULT_POLICY_LABEL)
    if found == change.value:
        click.echo(f"namespace/{name} unchanged: {_says(found, 'default')}")
        return
    for text in of_namespace(name):
        asked.note(text)
    if not change.apply:
        click.echo(label_command(name, change.value, change.options))
        return
    await asked.patch(path, {"metadata": {"labels": {names.DEFAULT_POLICY_LABEL: change.value}}})
    click.echo(f"namespace/{name} labelled: {_says(change.value, 'default')}")


def _says(value: str | None, what: str) -> str:
    return f"it has no {what}" if value is None else f"its {what} is {value}"


async def _pod(asked: session.Session, name: str, change: _PolicyRequest) -> None:
    """Follow the pod to who made it."""
    path = f"{asked.namespaced('api/v1', 'pods')}/{session.quote(name)}"
    try:
        pod = await asked.get(path, WirePod)
    except session.NotFoundError as error:
        hint = f"name the kind of a workload: deployment/{name}"
        raise session.NotFoundError(f"{error.message} in namespace {asked.namespace}; {hint}") from error
    if pod.is_mirror:
        raise session.CommandError(
            f"pod/{name} is a static pod: write the annotation {names.POLICY_ANNOTATION} into its file on"
            f" {pod.spec.node_name}, and its kubelet recreates it"
        )
    owner = workloads.controller(pod.metadata.owner_references)
    if owner is None:
        sentence = f"nobody manages pod/{name}, and the policy of a pod is immutable: it must be recreated"
        _by_hand(
            asked,
            change,
            f"{sentence}, which ends it. Without --apply, the commands are printed",
            f"{sentence}. These commands delete and recreate it:",
            recreating(pod, change.value, change.options),
        )
    elif (kind := workloads.kind_of_owner(owner)) is None:
        sentence = f"the pod is made by {owner.kind} {owner.name} ({owner.api_version}), a kind that is not known here"
        _by_hand(
            asked,
            change,
            f"{sentence}: see where its pods' annotations are set, and set {_annotation(change.value)}",
            f"{sentence}. Where its pod template is at spec.template, as is usual, this changes it:",
            of_unknown(owner, change.value, asked.namespace, change.options),
        )
    else:
        await _workload(asked, kind, owner.name, change, workloads.guess(pod))


def _annotation(value: str | None) -> str:
    return f"without {names.POLICY_ANNOTATION}" if value is None else f"{names.POLICY_ANNOTATION}={value}"


def _by_hand(asked: session.Session, change: _PolicyRequest, refusal: str, note: str, command: str) -> None:
    """Print a command that only the user can run; refuse --apply."""
    if change.apply:
        raise session.CommandError(refusal)
    asked.note(note)
    click.echo(command)


async def _workload(
    asked: session.Session, kind: kinds.WorkloadKind, name: str, change: _PolicyRequest, guessed: str | None = None
) -> None:
    """Change the workload, or its owner; `guessed` is its name by the pod alone."""
    try:
        kind, found = await _top(asked, kind, name)
    except session.ForbiddenError as error:
        if guessed is None or change.apply:
            raise
        word, _, name = guessed.partition("/")
        asked.note(f"{guessed} makes the pod, by its name; it could not be read: {error.message}")
        guess = kinds.kind_of(word) or kind
        click.echo(patch_command(word, name, asked.namespace, patch(guess, change.value), change.options))
        return
    name = found.metadata.name
    if wrong := problems(kind, found, change.value):
        refusal = f"pods of {kind.word}/{name} would be refused in its namespace {asked.namespace}:"
        raise session.CommandError("\n  ".join((refusal, *wrong)))
    if current(kind, found) == change.value:
        click.echo(f"{kind.word}/{name} unchanged: {_says(change.value, 'policy')}")
        return
    if kind.immutable:
        raise session.CommandError(of_immutable(kind, name, change.value))
    body = patch(kind, change.value)
    asked.note(f"{kind.word}/{name}: {consequence(kind, found)}")
    if not change.apply:
        click.echo(patch_command(kind.word, name, asked.namespace, body, change.options))
        return
    path = f"{asked.namespaced(kind.api, kind.plural)}/{session.quote(name)}"
    await asked.patch(path, body)
    click.echo(f"{kind.word}/{name} patched: {_says(change.value, 'policy')}")


async def _top(asked: session.Session, kind: kinds.WorkloadKind, name: str) -> tuple[kinds.WorkloadKind, Workload]:
    """Return the workload that manages this one, at any level; itself if none of a known kind does."""
    for _ in range(_MAX_OWNERS):
        path = f"{asked.namespaced(kind.api, kind.plural)}/{session.quote(name)}"
        found = await asked.get(path, Workload)
        owner = workloads.controller(found.metadata.owner_references)
        above = workloads.kind_of_owner(owner) if owner is not None else None
        if owner is None:
            return kind, found
        if above is None:
            asked.note(managed(kind, found, owner))
            return kind, found
        kind, name = above, owner.name
    raise session.CommandError(f"{kind.word}/{name} has more than {_MAX_OWNERS} owners above it")


@click.command("policy", epilog=EXAMPLES)
@click.argument("target_name", metavar="POD|KIND/NAME", shell_complete=completion.pods)
@click.argument("value", required=False)
@click.option("--apply", is_flag=True, help="Apply the change instead of printing its command.")
@click.option("--remove", is_flag=True, help="Take the policy, or a namespace's default, away; in place of VALUE.")
@flags.own_namespace
@flags.cluster
def command(*, target_name: str, value: str | None, apply: bool, remove: bool, target: session.Target) -> None:
    """Give the pods of a workload another policy, or a namespace another default.

    VALUE is Disabled, NoPreference, Required, Preferred or Avoid. The policy of a pod that exists is immutable: what
    changes is the template of the workload that makes it, which is found from the pod. Without --apply, the command
    for it is printed, and its consequences are printed on standard error.
    """
    if remove == (value is not None):
        raise click.UsageError("give a policy, or --remove")
    wrong = None if value is None else wrong_value(value)
    if wrong is not None:
        raise click.UsageError(wrong)
    session.run(target, lambda asked: _run(asked, target_name, _PolicyRequest(target, value, apply=apply)))
