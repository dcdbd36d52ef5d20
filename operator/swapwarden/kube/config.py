"""Where the API server is and how to prove who we are: kubeconfig files and the service account of a pod.

TLS is always verified: `insecure-skip-tls-verify` is refused, and plain http is for loopback only.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import importlib
import os
import pathlib
import ssl
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")

TOKEN_CHECK_SECONDS = 1.0
"""How old a look at the token file may be; the kubelet writes a new token minutes before the old one expires."""


class ConfigError(Exception):
    """The configuration cannot be used; the message names what is wrong and what to do."""


class TokenFile:
    """A bearer token in a file that others replace (the kubelet does, for service accounts)."""

    def __init__(self, path: pathlib.Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._checked = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self._token = ""

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"

    def forget(self) -> None:
        """Read the file again at the next use, whatever its age: the server refused the token."""
        self._checked = float("-inf")
        self._stamp = None

    def token(self) -> str:
        """The token as it is in the file now; the last good one where the file cannot be read for a moment."""
        if self._now() - self._checked >= TOKEN_CHECK_SECONDS:
            self._checked = self._now()
            try:
                found = self._path.stat()
                stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
                if stamp != self._stamp:
                    self._token = self._path.read_text(encoding="utf-8").strip() or self._token
                    self._stamp = stamp
            except OSError as error:
                if not self._token:
                    raise ConfigError(f"cannot read the token file {self._path}: {error.strerror}") from error
        return self._token


@dataclasses.dataclass(frozen=True)
class Config:
    """One API server and one identity. Secrets are left out of repr()."""

    server: str
    """Base URL, without a slash at its end."""
    namespace: str = "default"
    ca_file: str | None = None
    ca_data: str | None = dataclasses.field(default=None, repr=False)
    """CA certificates in PEM form. Without a file and data the system's own are trusted."""
    cert_file: str | None = None
    key_file: str | None = None
    cert_data: bytes | None = dataclasses.field(default=None, repr=False)
    key_data: bytes | None = dataclasses.field(default=None, repr=False)
    tls_server_name: str | None = None
    static_token: str | None = dataclasses.field(default=None, repr=False)
    token_file: TokenFile | None = None

    def __post_init__(self) -> None:
        """Refuse what would be unsafe or cannot work."""
        url = urllib.parse.urlsplit(self.server)
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise ConfigError(f"the API server's address {self.server!r} is not a URL such as https://10.0.0.1:6443")
        if url.scheme == "http" and url.hostname not in {"localhost", "127.0.0.1", "::1"}:
            raise ConfigError(f"{self.server}: plain http is for loopback only; use https")

    def token(self) -> str | None:
        """The bearer token to send now, if there is one."""
        return self.token_file.token() if self.token_file else self.static_token

    def ssl_context(self) -> ssl.SSLContext | None:
        """A context that verifies the server and shows our certificate; None for plain http on loopback."""
        if self.server.startswith("http:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_data)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
            elif self.cert_data and self.key_data:
                _load_pair(context, self.cert_data, self.key_data)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the certificates for {self.server} cannot be used: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def _load_pair(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    # The ssl module takes certificates from files only; this one is gone before the function returns.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(cert + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


def load(kubeconfig: str | None = None, context: str | None = None) -> Config:
    """Find the configuration: `kubeconfig`, else the pod's service account, else $KUBECONFIG, else ~/.kube/config.

    ConfigError where there is none, or where it asks for something that is not supported.
    """
    if kubeconfig:
        return from_kubeconfig(pathlib.Path(kubeconfig), context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    from_environment = os.environ.get("KUBECONFIG", "")
    if os.pathsep in from_environment:
        raise ConfigError("KUBECONFIG names several files: give one with --kubeconfig")
    path = pathlib.Path(from_environment) if from_environment else pathlib.Path.home() / ".kube" / "config"
    if not path.exists():
        raise ConfigError(
            f"no cluster configuration: not in a pod, and {path} does not exist; give --kubeconfig or set KUBECONFIG"
        )
    return from_kubeconfig(path, context)


def in_cluster(folder: pathlib.Path = SERVICE_ACCOUNT) -> Config:
    """The configuration of a pod: its service account's token, CA and namespace, and the API server's service."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod")
    namespace = folder / "namespace"
    return Config(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "default",
        ca_file=str(folder / "ca.crt"),
        token_file=TokenFile(folder / "token"),
    )


def _parse(path: pathlib.Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
    # In a pod there is no kubeconfig, so the agent never pays for the parser.
    yaml = importlib.import_module("yaml")
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"{path} is not a kubeconfig: it holds no mapping")
    return parsed


def _named(parsed: dict[str, Any], path: pathlib.Path, section: str, key: str, name: str) -> dict[str, Any]:
    for entry in parsed.get(section) or []:
        if isinstance(entry, dict) and entry.get("name") == name:
            value = entry.get(key)
            return value if isinstance(value, dict) else {}
    raise ConfigError(f"{path} has no entry {name!r} in {section}")


def _decoded(values: dict[str, Any], key: str, path: pathlib.Path) -> bytes | None:
    if not values.get(key):
        return None
    try:
        return base64.b64decode(values[key], validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {key} is not base64") from error


def _file(values: dict[str, Any], key: str, path: pathlib.Path) -> str | None:
    return str(path.parent / values[key]) if values.get(key) else None


def from_kubeconfig(path: pathlib.Path, context: str | None = None) -> Config:
    """Read one context (by default the current one) of a kubeconfig file; paths in it are relative to the file."""
    parsed = _parse(path)
    name = context or parsed.get("current-context") or ""
    if not name:
        raise ConfigError(f"{path} has no current-context: choose one with --context")
    chosen = _named(parsed, path, "contexts", "context", name)
    cluster = _named(parsed, path, "clusters", "cluster", str(chosen.get("cluster", "")))
    user = _named(parsed, path, "users", "user", str(chosen["user"])) if chosen.get("user") else {}
    if cluster.get("insecure-skip-tls-verify"):
        raise ConfigError(f"{path}: insecure-skip-tls-verify is refused; give certificate-authority(-data) instead")
    if cluster.get("proxy-url"):
        raise ConfigError(f"{path}: proxy-url is not supported; use an address that can be reached directly")
    for unsupported in ("exec", "auth-provider", "username"):
        if user.get(unsupported):
            raise ConfigError(
                f"{path}: credentials by {unsupported!r} are not supported here; use a token or a client certificate,"
                " for example from `kubectl create token`"
            )
    token_file = _file(user, "tokenFile", path)
    ca_data = _decoded(cluster, "certificate-authority-data", path)
    return Config(
        server=str(cluster.get("server", "")).rstrip("/"),
        namespace=str(chosen.get("namespace") or "default"),
        ca_file=None if ca_data else _file(cluster, "certificate-authority", path),
        ca_data=ca_data.decode() if ca_data else None,
        cert_file=_file(user, "client-certificate", path),
        key_file=_file(user, "client-key", path),
        cert_data=_decoded(user, "client-certificate-data", path),
        key_data=_decoded(user, "client-key-data", path),
        tls_server_name=cluster.get("tls-server-name") or None,
        static_token=user.get("token") or None,
        token_file=TokenFile(pathlib.Path(token_file)) if token_file else None,
    )
