"""The product's manifests for a test cluster: the webhook runs outside the cluster, behind a URL."""

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from testbed.base import paths
from testbed.product import helm

_WEBHOOK = "webhook-registration.yaml"
_NEEDED = (
    "00-namespace.yaml",
    "*-serviceaccount.yaml",
    "*-certificates.yaml",
    "*-rbac.yaml",
    "*-policy-*.yaml",
    "*-flowschema.yaml",
)


def read(text: str) -> list[Any]:
    """Return the objects of a YAML text; skip empty documents."""
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def written(objects: Iterable[Any]) -> str:
    """Objects as YAML in block style."""
    return yaml.dump_all(objects, Dumper=yaml.CSafeDumper, sort_keys=False)


def folder() -> Path:
    """Return paths.MANIFESTS, made from the chart."""
    helm.chart()
    return paths.MANIFESTS


def webhook_manifests(url_base: str, ca_pem: str | bytes, registration: str | None = None) -> str:
    """Return the webhook's registration as YAML, for a webhook at URL_BASE (https://host:port) that CA_PEM vouches for.

    REGISTRATION is the chart's, unless it is that of the manifests.
    """
    ca = ca_pem.encode() if isinstance(ca_pem, str) else ca_pem
    documents = read(registration or (folder() / _WEBHOOK).read_text(encoding="utf-8"))
    for document in documents:
        for entry in document["webhooks"]:
            path = entry["clientConfig"]["service"]["path"]
            entry["clientConfig"] = {
                "url": f"{url_base.rstrip('/')}{path}",
                "caBundle": base64.b64encode(ca).decode("ascii"),
            }
    return written(documents)


def policies() -> list[Path]:
    """The admission policies."""
    return sorted(folder().glob("*-policy-*.yaml"))


def other_manifests() -> list[Path]:
    """Return the objects for a part outside the cluster: namespace (first), rights, policies, flows, a Secret."""
    return [path for pattern in _NEEDED for path in sorted(folder().glob(pattern))]
