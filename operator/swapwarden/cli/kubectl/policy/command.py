"""`kubectl swap policy`: gives the pods of a workload, or of a namespace, another policy."""

from __future__ import annotations

from typing import Final

import click

from swapwarden.api import names
from swapwarden.cli.inputs import kinds
from swapwarden.cli.kubectl import completion, flags
from swapwarden.cli.kubectl.cluster import session, workloads
from swapwarden.cli.kubectl.policy import patches
from swapwarden.policy.observed import namespaces

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


class _PolicyRequest:
    """The requested change, and the flags for its command."""

    def __init__(self, target: session.Target, value: str | None, *, apply: bool) -> None:
        self.value = value
        self.apply = apply
        self.options = [f"--kubeconfig={target.kubeconfig}"] if target.kubeconfig else []
        self.options += [f"--context={target.context}"] if target.context else []

    @property
    def words(self) -> str:
        return f"without {names.POLICY_ANNOTATION}" if self.value is None else f"{names.POLICY_ANNOTATION}={self.value}"


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
    path = f"/api/v1/namespaces/{session.quote(name)}"
    found = namespaces.project(await asked.get(path, namespaces.WireNamespace)).get(names.DEFAULT_POLICY_LABEL)
    if found == change.value:
        click.echo(f"namespace/{name} unchanged: {_says(found, 'default')}")
        return
    for text in patches.of_namespace(name):
        asked.note(text)
    if not change.apply:
        click.echo(patches.label_command(name, change.value, change.options))
        return
    await asked.patch(path, patches.label_patch(change.value))
    click.echo(f"namespace/{name} labelled: {_says(change.value, 'default')}")


def _says(value: str | None, what: str) -> str:
    return f"it has no {what}" if value is None else f"its {what} is {value}"


async def _pod(asked: session.Session, name: str, change: _PolicyRequest) -> None:
    """Follow the pod to who made it."""
    path = f"{asked.namespaced('api/v1', 'pods')}/{session.quote(name)}"
    try:
        pod = await asked.get(path, workloads.DetailedPod)
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
            patches.recreating(pod, change.value, change.options),
        )
    elif (kind := workloads.kind_of_owner(owner)) is None:
        sentence = f"the pod is made by {owner.kind} {owner.name} ({owner.api_version}), a kind that is not known here"
        _by_hand(
            asked,
            change,
            f"{sentence}: see where its pods' annotations are set, and set {change.words}",
            f"{sentence}. Where its pod template is at spec.template, as is usual, this changes it:",
            patches.of_unknown(owner, change.value, asked.namespace, change.options),
        )
    else:
        await _workload(asked, kind, owner.name, change, workloads.guess(pod))


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
        click.echo(
            patches.patch_command(word, name, asked.namespace, patches.patch(guess, change.value), change.options)
        )
        return
    name = found.metadata.name
    if wrong := patches.problems(kind, found, change.value):
        refusal = f"pods of {kind.word}/{name} would be refused in its namespace {asked.namespace}:"
        raise session.CommandError("\n  ".join((refusal, *wrong)))
    if patches.current(kind, found) == change.value:
        click.echo(f"{kind.word}/{name} unchanged: {_says(change.value, 'policy')}")
        return
    if kind.immutable:
        raise session.CommandError(patches.of_immutable(kind, name, change.value))
    body = patches.patch(kind, change.value)
    asked.note(f"{kind.word}/{name}: {patches.consequence(kind, found)}")
    if not change.apply:
        click.echo(patches.patch_command(kind.word, name, asked.namespace, body, change.options))
        return
    path = f"{asked.namespaced(kind.api, kind.plural)}/{session.quote(name)}"
    await asked.patch(path, body)
    click.echo(f"{kind.word}/{name} patched: {_says(change.value, 'policy')}")


async def _top(
    asked: session.Session, kind: kinds.WorkloadKind, name: str
) -> tuple[kinds.WorkloadKind, patches.Workload]:
    """Return the workload that manages this one, at any level; itself if none of a known kind does."""
    for _ in range(_MAX_OWNERS):
        path = f"{asked.namespaced(kind.api, kind.plural)}/{session.quote(name)}"
        found = await asked.get(path, patches.Workload)
        owner = workloads.controller(found.metadata.owner_references)
        above = workloads.kind_of_owner(owner) if owner is not None else None
        if owner is None:
            return kind, found
        if above is None:
            asked.note(patches.managed(kind, found, owner))
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
    wrong = None if value is None else patches.wrong_value(value)
    if wrong is not None:
        raise click.UsageError(wrong)
    session.run(target, lambda asked: _run(asked, target_name, _PolicyRequest(target, value, apply=apply)))
