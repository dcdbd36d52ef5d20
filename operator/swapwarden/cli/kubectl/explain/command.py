"""`kubectl swap explain`: why a pod has its swap limit, or has none, and whether the kernel holds it."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, TypeVar

import click
import msgspec

from swapwarden.api import names, state
from swapwarden.cli.kubectl import candidates, flags
from swapwarden.cli.kubectl.cluster import agents, session, usage, workloads
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy import namespaces, nodes, pods

if TYPE_CHECKING:
    from swapwarden.cli.kubectl.cluster import admissionpolicies
    from swapwarden.cli.kubectl.explain import model

T = TypeVar("T")

EXAMPLES: Final = """\b
Examples:
  kubectl swap explain report-7c9f-x2x4q -n batch
  kubectl swap explain report-7c9f-x2x4q -n batch -o yaml
"""
_PREFIXES: Final = ("pod/", "pods/", "po/")


async def read(asked: session.Session, name: str) -> model.Seen:
    """Read what there is to see of a pod, and of what decides on its swap. Failure where the pod cannot be had."""
    pod = await _pod(asked, name)
    # Only now: they take longer to load than the cluster takes to answer, and who mistyped a name waits for neither.
    from swapwarden.cli.kubectl.cluster import admissionpolicies, planning, reading, registration  # noqa: PLC0415
    from swapwarden.cli.kubectl.explain import model  # noqa: PLC0415

    unseen: list[str] = []
    on = session.quote(pod.spec.node_name)
    node, bodies, found, webhooks = await asyncio.gather(
        _seen(unseen, "nodes", asked.get(f"{session.NODES}/{on}", nodes.WireNode) if on else _nothing()),
        _seen(unseen, names.PROFILE_PLURAL, reading.profiles(asked)),
        _seen(
            unseen, names.STATE_PLURAL, asked.get(f"{session.STATES}/{on}", state.NodeSwapState) if on else _nothing()
        ),
        _seen(unseen, "mutatingwebhookconfigurations", asked.collect(session.WEBHOOKS, registration.Registration)),
    )
    known = planning.known_profiles(bodies or ())
    valid = known.valid
    labels, others = None, None
    policies = () if webhooks is None or registration.is_there(webhooks) else await _policies(asked, unseen)
    hidden = registration.needs_namespace(webhooks or (), pod) or admissionpolicies.needs_namespace(policies, pod)
    if hidden or any(profile.needs_namespaces() for profile in valid.values()):
        path = f"/api/v1/namespaces/{session.quote(pod.metadata.namespace)}"
        space = await _seen(unseen, "namespaces", asked.get(path, namespaces.WireNamespace))
        labels = namespaces.project(space) if space else None
    if node and any(profile.overcommit_percent is not None for profile in valid.values()):
        neighbours = asked.collect("/api/v1/pods", pods.WirePod, fields=f"spec.nodeName={pod.spec.node_name}")
        rows = await _seen(unseen, "pods of all namespaces", neighbours)
        others = (
            None
            if rows is None
            else tuple(pods.project(each) for each in rows if each.metadata.uid != pod.metadata.uid)
        )
    agent, used = await _agent(asked, pod) if found else (None, None)
    return model.Seen(
        pod=pod,
        node=nodes.project(node) if node else None,
        profiles=None if bodies is None else valid,
        history=known.history,
        state=found,
        namespace=labels,
        others=others,
        has_agent=agent,
        used=used,
        registrations=tuple(webhooks or ()),
        policies=policies,
        unseen=tuple(sorted(unseen)),
    )


async def _pod(asked: session.Session, name: str) -> workloads.Pod:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    path = asked.namespaced("api/v1", "pods")
    if "/" in name:
        raise click.UsageError(f"{name!r} is no pod: give the name of one (kubectl get pods -n {asked.namespace})")
    try:
        return await asked.get(f"{path}/{session.quote(name)}", workloads.Pod)
    except session.NotFound as error:
        raise session.NotFound(
            f"{error.message} in namespace {asked.namespace}; see kubectl get pods -n {asked.namespace}"
        ) from error


async def _nothing() -> None:
    return None


async def _seen(unseen: list[str], what: str, asked: Awaitable[T]) -> T | None:
    """What was asked for; None where it is not there, or may not be seen, which is kept in `unseen`."""
    try:
        return await asked
    except session.Forbidden:
        unseen.append(what)
    except session.NotFound:
        pass
    return None


async def _policies(asked: session.Session, unseen: list[str]) -> tuple[admissionpolicies.Policy, ...]:
    """The policies that stand in for the webhook; those of which the bindings may not be seen are left out."""
    from swapwarden.cli.kubectl.cluster import admissionpolicies  # noqa: PLC0415 as above

    async def listed(plural: str, kind: type[T]) -> list[T] | None:
        path = f"{session.REGISTRATION}/{plural}"
        return await _seen(unseen, plural, asked.collect(path, kind, selector=admissionpolicies.SELECTOR))

    async def of(kind: str) -> tuple[admissionpolicies.Policy, ...]:
        policies, bindings = await asyncio.gather(
            listed(f"{kind}admissionpolicies", admissionpolicies.WirePolicy),
            listed(f"{kind}admissionpolicybindings", admissionpolicies.WireBinding),
        )
        return () if policies is None or bindings is None else admissionpolicies.join(policies, bindings)

    mutating, validating = await asyncio.gather(of("mutating"), of("validating"))
    return mutating + validating


async def _agent(asked: session.Session, pod: workloads.Pod) -> tuple[bool | None, model.Usage | None]:
    """Whether the pod's node has a Ready agent, and what that says of the pod; None for what is not known."""
    from swapwarden.cli.kubectl.explain import model  # noqa: PLC0415 as above

    running, why = await agents.find(asked)
    if running is None:
        asked.note(why)
        return None, None
    agent = running.get(pod.spec.node_name)
    if agent is None or not agent.ready:
        return False, None
    scraped, why = await agents.scrape(asked, [agent], usage.OF_PODS)
    if why:
        asked.note(why)
    (used,) = usage.of_pods([pods.project(pod)], scraped, {}, {})
    each = {one.name: one.swap_bytes for one in used.containers if one.swap_bytes is not None}
    return True, model.Usage(used.swap_bytes, each)


@click.command("explain", epilog=EXAMPLES)
@click.argument("pod", shell_complete=candidates.pods)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Namespace instead of the context's.",
    shell_complete=candidates.namespaces,
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", help="In which form. Default: text."
)
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="auto: on a terminal, unless NO_COLOR is set. Default: auto.",
)
@flags.cluster
def command(*, pod: str, output: str, color: str, target: session.Target) -> None:
    """Say why a pod has its swap limit, or has none, and whether the kernel holds it."""
    seen = session.run(target, lambda asked: read(asked, pod))
    from swapwarden.cli.kubectl.explain import model  # noqa: PLC0415 loaded by read()

    told = model.explain(seen)
    if output != "text":
        sys.stdout.write(tables.serialized(output, msgspec.to_builtins(told)))
        return
    from swapwarden.cli.kubectl.explain import screen  # noqa: PLC0415 as above

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    coloured = tables.Form(color=color).is_coloured(sys.stdout)
    now = datetime.datetime.now(datetime.UTC)
    signs = screen.marks(sys.stdout.encoding)
    sys.stdout.write(screen.text(told, now, signs=signs, width=width, coloured=coloured))
