"""AdmissionReviews as an API server sends them."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from swapwarden.webhook import review

Json = dict[str, Any]


def pod(
    annotations: Mapping[str, str] | None, *, init: Sequence[str] = (), containers: Sequence[str] = ("app",)
) -> Json:
    """A pod with more in it than the webhook reads."""
    metadata: Json = {
        "name": "web-0",
        "namespace": "shop",
        "labels": {"app": "web"},
        "managedFields": [{"manager": "k"}],
    }
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    spec: Json = {
        "containers": [{"name": name, "image": "none", "resources": {"requests": {"cpu": "1"}}} for name in containers],
        "initContainers": [{"name": name, "image": "none", "restartPolicy": "Always"} for name in init],
        "priority": 0,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def raw(new: Json | None, old: Json | None = None, *, operation: str = "CREATE", **request: Any) -> bytes:
    """An encoded AdmissionReview; `request` replaces fields of its request."""
    return json.dumps(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "c0ffee00-0000-4000-8000-000000000001",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "name": "web-0",
                "namespace": "shop",
                "operation": operation,
                "userInfo": {"username": "jane", "groups": ["system:authenticated"]},
                "object": new,
                "oldObject": old,
                "dryRun": False,
                "options": None,
                **request,
            },
        }
    ).encode()


def create(annotations: Mapping[str, str] | None, **shape: Any) -> review.Request:
    """The request to create a pod."""
    return review.decode(raw(pod(annotations, **shape)))


def update(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> review.Request:
    """The request to change a pod's annotations."""
    return review.decode(raw(pod(now), pod(before), operation="UPDATE"))


def patched(pod: Json, response: review.Response) -> Json:
    """Apply the response's JSON patch as RFC 6902 says, as far as it uses it."""
    assert response.allowed
    result: Json = json.loads(json.dumps(pod))
    for operation in json.loads(response.patch or b"[]"):
        *path, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        target = result
        for key in path:
            target = target[key]
        assert operation["op"] == "add"
        if isinstance(target, list):
            assert last == "-"
            target.append(operation["value"])
        else:
            target[last] = operation["value"]
    return result


def client_hello() -> bytes:
    """The first bytes of a client."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="webhook").do_handshake()
    return outgoing.read()
