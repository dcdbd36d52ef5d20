"""Pods for tests, and the ways to ask for them."""

from __future__ import annotations

import uuid
from typing import Any

from testbed.controlplane import ControlPlane

Json = dict[str, Any]

POLICY = "swapwarden.dev/swap-policy"
SOURCE = "swapwarden.dev/policy-source"
LIMIT = "swapwarden.dev/swap-limit"
LABEL = "swapwarden.dev/default-swap-policy"
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
