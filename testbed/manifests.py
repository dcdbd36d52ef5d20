"""The product's manifests as a test cluster needs them: the webhook runs outside of the cluster, behind a URL."""

import base64
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent.parent / "deploy" / "manifests"
_WEBHOOK = "webhook-registration.yaml"
_NEEDED = ("00-namespace.yaml", "*-serviceaccount.yaml", "*-certificates.yaml", "*-rbac.yaml", "*-policy-*.yaml")


def webhook_manifests(url_base: str, ca_pem: str | bytes, registration: str | None = None) -> str:
    """The webhook's registration as YAML, for a webhook at URL_BASE (https://host:port) that CA_PEM vouches for.

    REGISTRATION is what the chart makes, unless it is that of the manifests.
    """
    ca = ca_pem.encode() if isinstance(ca_pem, str) else ca_pem
    documents = list(yaml.safe_load_all(registration or (FOLDER / _WEBHOOK).read_text(encoding="utf-8")))
    for document in documents:
        for entry in document["webhooks"]:
            path = entry["clientConfig"]["service"]["path"]
            entry["clientConfig"] = {
                "url": f"{url_base.rstrip('/')}{path}",
                "caBundle": base64.b64encode(ca).decode("ascii"),
            }
    return yaml.safe_dump_all(documents, sort_keys=False)


def policies() -> list[Path]:
    """The admission policies."""
    return sorted(FOLDER.glob("*-policy-*.yaml"))


def other_manifests() -> list[Path]:
    """What a part needs that runs outside of the cluster: namespace (first), rights, policies, the empty Secret."""
    return [path for pattern in _NEEDED for path in sorted(FOLDER.glob(pattern))]
