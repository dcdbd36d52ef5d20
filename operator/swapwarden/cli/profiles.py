"""`swapwarden profiles`: applies the NodeSwapProfiles of the chart's values. The chart's hook runs it.

Helm cannot create them itself: it looks up all kinds before it creates the first object, their definition included.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import pathlib
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

import swapwarden
from swapwarden import options
from swapwarden.api import decoding, names
from swapwarden.cli import wire
from swapwarden.kube import backoff, client, config, errors, paging

T = TypeVar("T")

OWNER_LABEL: Final = "app.kubernetes.io/instance"
MANAGER: Final = "swapwarden-profiles"
MANAGER_LABEL: Final = "app.kubernetes.io/managed-by"
APPLY: Final = "application/apply-patch+yaml"
BACKOFF_SECONDS: Final = (0.5, 5.0)
REQUEST_SECONDS: Final = 10.0


class BeingDeleted(errors.KubeError):
    """A change of the profile would be lost with it."""


_PROFILES = decoding.Decoder(wire.Named)


def add_connection(parser: argparse.ArgumentParser, *, patience: float, patience_help: str) -> None:
    """Add --kubeconfig, and --timeout with its default in seconds."""
    parser.add_argument("--kubeconfig", default=None, help="default: in-cluster, $KUBECONFIG, ~/.kube/config")
    parser.add_argument(
        "--timeout",
        type=options.number(float, 1, 3600, "a number of seconds"),
        default=patience,
        metavar="SECONDS",
        help=patience_help,
    )


async def persist(ask: Callable[[], Awaitable[T]], deadline: float) -> T:
    """Await `ask`, again and again while it fails; from the deadline (of time.monotonic) on, raise its error."""
    waits = backoff.Backoff(*BACKOFF_SECONDS)
    while True:
        try:
            return await ask()
        except (errors.KubeError, msgspec.DecodeError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(waits.next())


async def delete(api: client.Client, path: str) -> None:
    """Delete an object, unless it does not exist."""
    try:
        await api.delete(path)
    except errors.ApiError as error:
        if error.status != 404:
            raise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `swapwarden profiles`."""
    parser.add_argument(
        "-f", "--filename", type=pathlib.Path, required=True, help="JSON file: specs of NodeSwapProfiles by name"
    )
    parser.add_argument("--owner", required=True, help="whose profiles these are: the release's name")
    waits = "how long to retry while the API server does not know the kind or cannot be reached (default: 60)"
    add_connection(parser, patience=60.0, patience_help=waits)


def run(arguments: argparse.Namespace) -> int:
    """Apply the file; return the exit status."""
    try:
        specs = msgspec.json.decode(arguments.filename.read_bytes(), type=dict[str, dict[str, Any]])
        cfg = config.load(arguments.kubeconfig)
    except (OSError, msgspec.DecodeError, errors.ConfigError) as error:
        print(f"error: {arguments.filename}: {error}", file=sys.stderr)
        return 2
    return asyncio.run(_run(cfg, specs, arguments.owner, arguments.timeout))


async def _run(cfg: config.Config, specs: dict[str, dict[str, Any]], owner: str, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    async with client.Client(cfg, user_agent=f"swapwarden-profiles/{swapwarden.__version__}") as api:
        try:
            problems = await persist(lambda: apply(api, specs, owner), deadline)
        except (errors.KubeError, msgspec.DecodeError) as error:
            problems = [f"not done after {seconds:g} s: {error}"]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


async def apply(api: client.Client, specs: dict[str, dict[str, Any]], owner: str) -> list[str]:
    """Create and update OWNER's profiles, then delete those that are not in `specs`.

    Returns the errors of the specs. errors.KubeError if a retry may help; BeingDeleted is one.
    """
    existing: list[wire.Named] = []

    def take(body: bytes) -> decoding.ListMetadata:
        page = decoding.page(body)
        existing.extend(_PROFILES.decode(item) for item in page.items or ())
        return page.metadata

    await paging.read(functools.partial(api.get, timeout=REQUEST_SECONDS), names.PROFILES_PATH, take, {})
    owned = {each.metadata.name for each in existing if is_owned(each.metadata.labels, owner)}
    foreign = {each.metadata.name for each in existing} - owned
    late = sorted(
        each.metadata.name for each in existing if each.metadata.deletion_timestamp and each.metadata.name in specs
    )
    if late:
        raise BeingDeleted(f"NodeSwapProfile {', '.join(late)} is being deleted; its nodes leave it first")
    problems = []
    for name, spec in specs.items():
        if name in foreign:
            problems.append(
                f"there is a NodeSwapProfile {name} that is not this release's: delete it, label it"
                f" {MANAGER_LABEL}={MANAGER},{OWNER_LABEL}={owner}, or choose another name"
            )
            continue
        try:
            await api.request(
                "PATCH",
                f"{names.PROFILES_PATH}/{name}",
                params={"fieldManager": MANAGER, "force": "true"},
                body=msgspec.json.encode(_profile(name, spec, owner)),
                content_type=APPLY,
                timeout=REQUEST_SECONDS,
            )
        except errors.ApiError as error:
            if error.status not in {400, 422}:
                raise
            problems.append(f"NodeSwapProfile {name}: {error.message}")
        else:
            print(f"NodeSwapProfile {name} applied")
    for name in sorted(owned - specs.keys()):
        await delete(api, f"{names.PROFILES_PATH}/{name}")
        print(f"NodeSwapProfile {name} deleted")
    return problems


def is_owned(labels: dict[str, str], owner: str) -> bool:
    """Return whether a profile with these labels is one of OWNER's."""
    return labels.get(MANAGER_LABEL) == MANAGER and labels.get(OWNER_LABEL) == owner


def _profile(name: str, spec: dict[str, Any], owner: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "swapwarden", MANAGER_LABEL: MANAGER, OWNER_LABEL: owner}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.PROFILE_KIND,
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }
