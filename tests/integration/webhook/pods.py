"""Pods for tests, and the ways to ask for them."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Sequence
from typing import Any

from swapwarden.kube import client, config, errors, transport

from testbed.controlplane.servers import ControlPlane

Json = dict[str, Any]

POLICY = "swapwarden.dev/swap-policy"
SOURCE = "swapwarden.dev/policy-source"
LIMIT = "swapwarden.dev/swap-limit"
LABEL = "swapwarden.dev/default-swap-policy"
SWAP = "node.swapwarden.dev/swap"
APP_LIMIT = "swap-limit.swapwarden.dev/app"
DRY_RUN = "?dryRun=All"
CALLS = "swapwarden_webhook_requests_total"


def pod(name: str, annotations: dict[str, str] | None = None, *, node: str | None = None) -> Json:
    """A Burstable pod with one container, app."""
    container = {"name": "app", "image": "none", "resources": {"requests": {"memory": "64Mi", "cpu": "100m"}}}
    metadata: Json = {"name": name, "finalizers": ["example.com/kept"]}
    if annotations is not None:
        metadata["annotations"] = annotations
    spec: Json = {"containers": [container]}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def path(namespace: str, name: str = "", subresource: str = "") -> str:
    """The API path of a namespace's pods, of one pod, or of a subresource of it."""
    return "/".join(part for part in (f"/api/v1/namespaces/{namespace}/pods", name, subresource) if part)


def create(control_plane: ControlPlane, namespace: str, body: Json, query: str = "") -> tuple[int, Any]:
    """Ask for a pod: HTTP status and answer."""
    return control_plane.request("POST", path(namespace) + query, body)


def patch(control_plane: ControlPlane, where: str, body: Json, content_type: str | None = None) -> tuple[int, Any]:
    """Ask for a change: HTTP status and answer."""
    return control_plane.request("PATCH", where, body, content_type=content_type)


def new_namespace(control_plane: ControlPlane, default: str | None = None) -> str:
    """A namespace of its own, with a default policy where one is given."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    control_plane.create_namespace(name, {LABEL: default} if default is not None else None)
    return name


def causes(answer: Json) -> dict[str, str]:
    """A refusal's message for each field: the webhook's has a list, a policy's one message."""
    listed = [cause for cause in answer["details"]["causes"] if "field" in cause]
    if listed:
        return {cause["field"]: cause["message"] for cause in listed}
    told = str(answer["message"]).partition(" denied request: ")[2]
    return dict(each.split(": ", 1) for each in re.split(r"; (?=metadata\.|spec\.nodeSelector\[)", told))


async def many(
    control_plane: ControlPlane, requests: Sequence[tuple[str, str, Json]], *, dry_run: bool = False
) -> list[Json | errors.ApiError]:
    """Method, path and body of each request, all asked over a few connections that stay open; their answers."""
    answers: list[Json | errors.ApiError] = [{}] * len(requests)
    waiting = iter(enumerate(requests))
    params = {"dryRun": "All"} if dry_run else {}
    cfg = config.load(str(control_plane.kubeconfig))
    async with client.Client(cfg, user_agent="test") as api:

        async def worker() -> None:
            for number, (method, where, body) in waiting:
                kind = client.MERGE_PATCH if method == "PATCH" else transport.JSON
                sent = json.dumps(body).encode()
                try:
                    answer = await api.request(method, where, params=params, body=sent, content_type=kind)
                    answers[number] = json.loads(answer)
                except errors.ApiError as error:
                    answers[number] = error

        await asyncio.gather(*(worker() for _ in range(8)))
    return answers
