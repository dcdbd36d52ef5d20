"""Credentials of a control plane: its authority, certificates and kubeconfigs."""

import base64
import json
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.controlplane import pki

# The address of the host's loopback for a guest of QEMU's user-mode network.
GUEST_VIEW_OF_HOST: Final = "10.0.2.2"
LOOPBACK: Final = "127.0.0.1"
SERVICES: Final = "10.96.0.0/16"
_KUBERNETES_SERVICE = "10.96.0.1"


class Credentials:
    """A certificate authority in FOLDER, with files for the API server, which is at ADDRESS, and its administrator."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self.pki = folder / "pki"
        self.pki.mkdir(mode=0o700)
        self._authority = pki.Authority(self.pki)
        self.ca_file = self._authority.certificate
        known = (LOOPBACK, GUEST_VIEW_OF_HOST, _KUBERNETES_SERVICE, "localhost", "kubernetes", "kubernetes.default.svc")
        self.serving = self._authority.issue("apiserver", "kube-apiserver", list(dict.fromkeys([*known, address])))
        self.admin = self._authority.issue("admin", "admin", organization="system:masters")
        self.token_key = pki.write_key(pki.new_key(), self.pki / "service-accounts.key")
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self._names = 0

    def context(self, *, admin: bool) -> ssl.SSLContext:
        """Return a TLS context for a client's connections; with ADMIN for the administrator's."""
        if admin not in self._contexts:
            context = ssl.create_default_context(cafile=str(self.ca_file))
            if admin:
                context.load_cert_chain(self.admin.certificate, self.admin.key)
            self._contexts[admin] = context
        return self._contexts[admin]

    def issue(self, common_name: str, sans: Sequence[str], organization: str | None = None) -> pki.KeyPair:
        """Return a certificate of the authority in `ca_file` and its key, for a server or a user, in new files."""
        self._names += 1
        return self._authority.issue(f"{common_name}-{self._names}", common_name, sans, organization)

    def kubeconfig(self, name: str, proof: pki.KeyPair | str, server: str) -> Path:
        """Return a kubeconfig in a new file, with a certificate or a bearer token."""
        self._names += 1
        path = self._folder / f"{name.replace(':', '-')}-{self._names}.kubeconfig"
        user = {"token": proof} if isinstance(proof, str) else _user(proof)
        cluster = {"server": server, "certificate-authority-data": _base64(self.ca_file.read_bytes())}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": "testbed", "user": name}}],
            "current-context": name,
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=2), encoding="utf-8")  # JSON is also YAML.
        return path


def _user(pair: pki.KeyPair) -> dict[str, str]:
    return {
        "client-certificate-data": _base64(pair.certificate.read_bytes()),
        "client-key-data": _base64(pair.key.read_bytes()),
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
