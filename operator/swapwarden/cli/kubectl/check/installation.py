"""Problems of Swapwarden's own installation: its kinds, its admission, its certificate, its leader."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime
import pathlib
import re
import ssl
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import yaml

import swapwarden
from swapwarden.api import decoding, names
from swapwarden.cli.kubectl.check.catalogue import Check, ClusterProblem, Severity, problem
from swapwarden.cli.kubectl.cluster import session, snapshot
from swapwarden.cli.kubectl.output import tables
from swapwarden.cli.wire import Named
from swapwarden.kube.election import election
from swapwarden.policy.observed.pods import WirePod

Json = dict[str, Any]

_ENTRY: Final = "pods.swapwarden.dev"
"""Name of the webhook's entry for pods with annotations of ours. The names of the others end with it, after a dot."""
_OPTIONAL: Final = "warnings."
"""How the name begins of the entry that only warns."""
LEASE: Final = "swapwarden-controller"
POLICIES: Final = ("pod-values", "pod-immutable", "binding-without-policy", "namespace-default")
"""How the names of the policies inside the API server end that every installation has."""
SOON: Final = datetime.timedelta(days=14)
"""A certificate is renewed when a third of its 90 days is left; with so little left that did not work."""
_LATE: Final = 3
"""Lease durations without a renewal after which nobody leads."""


class Specified(Named, frozen=True):
    """A CustomResourceDefinition, or a ValidatingAdmissionPolicyBinding."""

    spec: Json = {}  # noqa: RUF012 msgspec copies it, which ruff sees in direct subclasses only


class _ClientConfig(msgspec.Struct, frozen=True, rename="camel"):
    ca_bundle: str = ""
    service: Json | None = None


class _Entry(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    failure_policy: str = ""
    client_config: _ClientConfig = _ClientConfig()


class Webhook(Named, frozen=True):
    """A MutatingWebhookConfiguration: the fields that are read."""

    webhooks: tuple[_Entry, ...] = ()


class LeaderLease(Named, frozen=True):
    """A Lease: the fields that are read."""

    spec: election.Spec = election.Spec()


@dataclasses.dataclass
class Installed:
    """The objects of the installation; None if they cannot be read."""

    crds: list[Specified] | None = None
    webhooks: list[Webhook] | None = None
    mutating: list[Named] | None = None
    """MutatingAdmissionPolicies, with which an installation may do without a webhook."""
    policies: list[Named] | None = None
    """ValidatingAdmissionPolicies."""
    bindings: list[Specified] | None = None
    leases: list[LeaderLease] | None = None
    """Leases of the name LEASE."""
    own_crds: list[Specified] = dataclasses.field(default_factory=list)
    """Definitions of this version."""


def own_definitions() -> list[Json]:
    """Read this version's definitions from the installed package, or from a work tree around it."""
    package = pathlib.Path(swapwarden.__file__).parent
    folder = package / "crds"
    if not folder.is_dir():
        folder = package.parents[1] / "crds"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = sorted(folder.glob("*.yaml"))
    return [yaml.load(path.read_text(encoding="utf-8"), loader) for path in files]  # noqa: S506 one of two safe ones


def judge(installed: Installed, view: snapshot.ClusterSnapshot, now: datetime.datetime) -> Iterator[ClusterProblem]:
    """Yield the problems of the installation."""
    if not view.installed:
        here = f"customresourcedefinition/{names.PROFILE_PLURAL}.{names.GROUP}"
        text = f"this cluster does not know {names.API_VERSION}: Swapwarden is not installed, or is another version"
        remedy = "install it (docs/install.md), or choose another cluster with --context"
        yield problem(Check.NOT_INSTALLED, here, text, remedy=remedy)
        return
    if installed.crds is not None:
        yield from _kinds(installed.own_crds, installed.crds)
    if installed.leases is not None:
        yield from _leader(installed.leases, now)
    if installed.webhooks is not None and installed.mutating is not None:
        yield from _webhooks(installed.webhooks, installed.mutating, view, now)
    if installed.policies is not None and installed.bindings is not None:
        yield from _policies(installed.policies, installed.bindings)
    yield from _plugins(view)


def _kinds(own: Iterable[Specified], crds: Iterable[Specified]) -> Iterator[ClusterProblem]:
    by_name = {one.metadata.name: one for one in crds}
    for ours in own:
        name = ours.metadata.name
        theirs = by_name.get(name)
        here = f"customresourcedefinition/{name}"
        if theirs is None:
            yield problem(Check.NOT_INSTALLED, here, "does not exist")
            continue
        known, there = set(_fields(_schema(ours))), set(_fields(_schema(theirs)))
        for fields, has, knows in ((known - there, "does not have", "knows"), (there - known, "has", "does not know")):
            if fields:
                few = tables.first_few(sorted(fields))
                yield problem(Check.OTHER_VERSION, here, f"{has} {few}, which this kubectl swap {knows}")


def _schema(definition: Specified) -> Json:
    versions = definition.spec.get("versions", ())
    for version in versions:
        if version.get("name") == names.VERSION and version.get("served"):
            return dict(version.get("schema", {}).get("openAPIV3Schema", {}))
    return {}


def _fields(schema: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all fields of a schema."""
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    for name, child in properties.items() if isinstance(properties, dict) else ():
        yield f"{path}{name}"
        yield from _fields(child, f"{path}{name}.")
    for part in ("items", "additionalProperties"):
        yield from _fields(schema.get(part), f"{path.removesuffix('.')}[].")


def _leader(leases: Iterable[LeaderLease], now: datetime.datetime) -> Iterator[ClusterProblem]:
    text = f"there is no Lease {LEASE}: no controller ever led"
    for one in leases:
        spec, lease = one.spec, f"the Lease {one.metadata.namespace}/{LEASE}"
        renewed, seconds = _time(spec.renew_time), spec.lease_duration_seconds or 15
        if not spec.holder_identity or renewed is None:
            text = f"nobody holds {lease}"
        elif now - renewed > datetime.timedelta(seconds=_LATE * seconds):
            text = f"{lease} was not renewed since {renewed:%Y-%m-%dT%H:%M:%SZ}, by {spec.holder_identity}"
        else:
            return
    yield problem(Check.NO_LEADER, f"lease/{LEASE}", f"{text}: nothing is planned, and new pods start without swap")


def _time(text: str | None) -> datetime.datetime | None:
    try:
        time = datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo else None


def _webhooks(
    webhooks: Iterable[Webhook], mutating: Iterable[Named], view: snapshot.ClusterSnapshot, now: datetime.datetime
) -> Iterator[ClusterProblem]:
    entries_by_name = {one.metadata.name: [each for each in one.webhooks if is_ours(each.name)] for one in webhooks}
    ours = {name: entries for name, entries in entries_by_name.items() if entries}
    if not ours and not any(map(_is_ours, mutating)):
        text = (
            "neither a webhook nor a policy completes new pods: defaults of namespaces have no effect, and policies"
            " do not place pods"
        )
        yield problem(Check.NO_ADMISSION, "mutatingwebhookconfiguration/swapwarden", text)
    for name, entries in ours.items():
        here = f"mutatingwebhookconfiguration/{name}"
        bundles = {each.client_config.ca_bundle for each in entries}
        yield from (one for bundle in sorted(bundles) for one in _certificate(here, bundle, now))
        required = [each for each in entries if not each.name.startswith(_OPTIONAL)]
        if lenient := [each.name for each in required if each.failure_policy == "Ignore"]:
            text = (
                f"failurePolicy is Ignore for {tables.first_few(lenient)}: while the webhook does not answer, pods"
                " start without their namespace's default, and are not placed"
            )
            yield problem(Check.FAILURE_POLICY, here, text)
        if any(each.client_config.service for each in entries) and not view.pods_of and "pods" not in view.unread:
            ready = [part.ready for part in view.parts if part.component == "webhook"]
            if not any(ready):
                number = tables.count(len(ready), "pod")
                text = f"none of {number} of the webhook is Ready: new pods with a policy are refused, or not completed"
                yield problem(Check.WEBHOOK_NOT_READY, here, text)


def _plugins(view: snapshot.ClusterSnapshot) -> Iterator[ClusterProblem]:
    """Yield nodes with an agent that lack what other nodes have beside the container runtime."""
    where = view.agent_namespace()
    ours = [part for part in view.parts if part.namespace == where]
    plugins = [part for part in ours if part.component == "nri"]
    ready = {part.node for part in plugins if part.ready}
    text = "has no Ready pod beside its container runtime: the agent alone holds the limits of containers that start"
    for part in ours:
        if plugins and part.component == snapshot.AGENT and part.ready and part.node not in ready:
            yield problem(Check.PLUGIN_NOT_READY, f"node/{part.node}", text, where=where or "")


def is_ours(name: str) -> bool:
    """Return whether an entry of a webhook configuration is for our webhook, by its name."""
    return name == _ENTRY or name.endswith(f".{_ENTRY}")


def _is_ours(one: Named) -> bool:
    return one.metadata.labels.get("app.kubernetes.io/name") == "swapwarden"


def _certificate(here: str, bundle: str, now: datetime.datetime) -> Iterator[ClusterProblem]:
    """Yield the problem of the webhook's authorities: the controller's end when its own do."""
    ends = _ends(bundle)
    last = max(ends, default=None) if ends is not None else None
    severity = None
    if not bundle:
        reason = "Untrusted"
        message = "has no caBundle: API servers do not trust the webhook, and new pods with a policy are refused"
    elif ends is None:
        reason, message = "Untrusted", "its caBundle holds no certificates"
    elif last is None or last - now >= SOON:
        return
    elif last <= now:
        reason, message = "Expired", f"its caBundle expired on {last:%Y-%m-%d}: new pods with a policy are refused"
    else:
        reason, severity = "ExpiresSoon", Severity.WARNING
        message = f"the last authority of its caBundle expires on {last:%Y-%m-%d}, and was not renewed"
    yield problem(Check.WEBHOOK_CERTIFICATE, here, message, reason=reason, severity=severity)


def _ends(bundle: str) -> list[datetime.datetime] | None:
    """Return when the authorities of a bundle (PEM in base64) expire; None if it has no valid certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode("ascii"))
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError, ValueError):
        return None
    # Certificates that are no authorities are trusted, but not listed here.
    return [
        datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(str(one["notAfter"])), datetime.UTC)
        for one in context.get_ca_certs()
        if "notAfter" in one
    ]


def _policies(policies: Iterable[Named], bindings: Iterable[Specified]) -> Iterator[ClusterProblem]:
    bound = {one.spec.get("policyName") for one in bindings}
    there = [one.metadata.name for one in policies if _is_ours(one)]
    for suffix in POLICIES:
        present = [name for name in there if name == suffix or name.endswith(f"-{suffix}")]
        if suffix == "namespace-default":
            present = [name for name in present if not name.endswith("unknown-namespace-default")]
        if bound.isdisjoint(present):
            here = f"validatingadmissionpolicy/{present[0] if present else f'swapwarden-{suffix}'}"
            what = "has no binding, so that API servers do not evaluate it" if present else "does not exist"
            text = f"{what}: nothing prevents what it refuses, or nothing does while the webhook is down"
            yield problem(Check.NO_ADMISSION, here, text)


# Admission, tried by a dry run: only API servers know whether they reach the webhook and accept its certificate, and
# only a request for a pod shows it.


_FAILED: Final = re.compile(r'failed calling webhook "([^"]{1,253})": (.*)', re.DOTALL)
_TRUST: Final = re.compile(r"x509|tls:|certificate")
_CONTAINER: Final = {
    "name": "check",
    "image": "registry.k8s.io/pause:3.10",
    "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "2Mi"}},
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "swap-check-", "annotations": {names.POLICY_ANNOTATION: names.Policy.REQUIRED.value}},
    "spec": {
        "containers": [_CONTAINER],
        # As the strictest of the Pod Security Standards wants it.
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
    },
}
"""Admission must give it a node selector."""


Trial = ClusterProblem | str | None
"""The problem, why there is no result (another webhook or policy refused the pod), or None if admission works."""


async def try_admission(asked: session.Session, namespace: str) -> Trial:
    """Ask for the pod in a namespace: if that has no answer in time, the other requests may still have one."""
    path = asked.namespaced("api/v1", "pods", namespace)
    try:
        answer = await asked.dry_run(path, POD)
    except session.ApiUnreachableError as error:
        return f"the API server does not answer for the pod of the dry run: {error.message}"
    except session.CommandError as error:
        return refused(namespace, error.message)
    return admitted(namespace, answer)


def admitted(namespace: str, answer: bytes) -> Trial:
    """Return the result if the pod would have been created like this."""
    try:
        pod = decoding.decode(answer, WirePod)
    except msgspec.MsgspecError as error:
        return f"the API server's answer is invalid: {error}"
    if (pod.spec.node_selector or {}).get(names.SWAP_LABEL) == "true":
        return None
    return _trial(
        "NotCompleted",
        namespace,
        f"a new pod with the policy {names.Policy.REQUIRED} is not placed: admission is not called for it,"
        " or does not answer and its failurePolicy is Ignore",
        severity=Severity.WARNING,
        remedy="try another namespace with -n, and without -n see the problems of admission and of the webhook;"
        " docs/admission.md lists the pods that admission leaves alone",
    )


def refused(namespace: str, message: str) -> Trial:
    """Return the result if the pod would not have been created, by the API server's message."""
    failed = _FAILED.search(message)
    if failed is None or not is_ours(failed[1]):
        return f"the pod of the dry run is refused before or after: {message}"
    if _TRUST.search(failed[2]):
        remedy = (
            "caBundle must hold the authority of the webhook's certificate, and the certificate must name its Service:"
            " see the log of the controller, which makes and renews both, or cert-manager's (docs/admission.md)"
        )
        return _trial("Untrusted", namespace, _refusal(failed[2]), remedy=remedy)
    return _trial("NoAnswer", namespace, _refusal(failed[2]))


def _refusal(why: str) -> str:
    return f"a new pod with a policy is refused, as API servers cannot ask the webhook: {why}"


def _trial(
    reason: str, namespace: str, message: str, *, severity: Severity | None = None, remedy: str = ""
) -> ClusterProblem:
    here = f"namespace/{namespace}"
    return problem(Check.ADMISSION_FAILS, here, message, reason=reason, severity=severity, remedy=remedy)
