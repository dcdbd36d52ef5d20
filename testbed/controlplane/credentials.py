"""Credentials of a control plane: its authority, certificates and kubeconfigs."""

import base64
import json
import ssl
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

    def issue_certificate(self, common_name: str, sans: list[str]) -> tuple[Path, Path]:
        """Return a server's certificate and key (PEM files) from the authority in `ca_file`."""
        self._names += 1
        pair = self._authority.issue(f"{common_name}-{self._names}", common_name, sans)
        return pair.certificate, pair.key

    def of_admin(self, server: str) -> Path:
        """Return a kubeconfig of the cluster's administrator, always the same file."""
        path = self._folder / "admin.kubeconfig"
        if not path.exists():
            self._write(path, "admin", _user(self.admin), server, None)
        return path

    def of_user(self, user: str, organization: str | None, server: str) -> Path:
        """Return a kubeconfig with a certificate of USER in the group ORGANIZATION, in a new file."""
        self._names += 1
        pair = self._authority.issue(f"user-{self._names}", user, organization=organization)
        path = self._folder / f"user-{self._names}.kubeconfig"
        self._write(path, user, _user(pair), server, None)
        return path

    def of_token(self, token: str, name: str, server: str, tls_server_name: str | None) -> Path:
        """Return a kubeconfig with a bearer token, in a new file."""
        self._names += 1
        path = self._folder / f"{name}-{self._names}.kubeconfig"
        self._write(path, name, {"token": token}, server, tls_server_name)
        return path

    def _write(self, path: Path, name: str, user: dict[str, str], server: str, tls_server_name: str | None) -> None:
        cluster = {"server": server, "certificate-authority-data": _base64(self.ca_file.read_bytes())}
        if tls_server_name:
            cluster["tls-server-name"] = tls_server_name
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


def _user(pair: pki.KeyPair) -> dict[str, str]:
    return {
        "client-certificate-data": _base64(pair.certificate.read_bytes()),
        "client-key-data": _base64(pair.key.read_bytes()),
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
