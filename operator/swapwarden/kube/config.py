"""Find the API server and the credentials for it.

TLS is always verified, and plain http is allowed for loopback only. Users of kubectl swap can choose otherwise: it
builds its own Config. No part of the operator reads these choices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator

from swapwarden.kube.errors import ConfigError

SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")

TOKEN_CHECK_SECONDS = 1.0
"""The longest time between two reads of the token file. The kubelet renews it minutes before it expires."""


class TokenFile:
    """A bearer token in a file that another process replaces, as the kubelet does for service accounts."""

    def __init__(self, path: pathlib.Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._checked = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self._token = ""

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"

    def forget(self) -> None:
        """Read the file again at the next use: the server refused the token."""
        self._checked = float("-inf")
        self._stamp = None

    def token(self) -> str:
        """Return the token in the file; the last valid one while the file holds none."""
        if not self._token or self._now() - self._checked >= TOKEN_CHECK_SECONDS:
            self._checked = self._now()
            try:
                self._look()
            except ConfigError:
                if not self._token:
                    raise
        return self._token

    def _look(self) -> None:
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp == self._stamp:
                return
            text = self._path.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            raise ConfigError(f"cannot read the token file {self._path}: {error.strerror}") from error
        if not _is_token(text):
            raise ConfigError(f"the token file {self._path} holds no token")
        self._token, self._stamp = text, stamp


def _is_token(text: str) -> bool:
    """Return whether a text can be one word of a header."""
    return text.isascii() and text.isprintable() and " " not in text and bool(text)


@dataclasses.dataclass(frozen=True)
class Config:
    """One API server and one identity. Secrets are left out of repr()."""

    server: str
    """Base URL."""
    namespace: str = "default"
    ca_data: str | None = dataclasses.field(default=None, repr=False)
    """CA certificates in PEM form. Without them, the system's own are trusted."""
    cert_data: bytes | None = dataclasses.field(default=None, repr=False)
    """The client certificate in PEM form."""
    key_data: bytes | None = dataclasses.field(default=None, repr=False)
    """The client's private key in PEM form, without a passphrase."""
    tls_server_name: str | None = None
    static_token: str | None = dataclasses.field(default=None, repr=False)
    token_file: TokenFile | None = None
    """Takes precedence over `static_token`."""
    insecure: bool = False
    """Whether to skip the verification of the server. Only a user of kubectl swap can choose that."""
    proxy: str = dataclasses.field(default="", repr=False)
    """URL of the HTTP proxy to go through; it may hold credentials."""
    impersonation: tuple[tuple[str, str], ...] = ()
    """Headers that name the user to impersonate, ready to send."""

    def __post_init__(self) -> None:
        """Refuse an unsafe or unusable configuration."""
        try:
            url = urllib.parse.urlsplit(self.server)
            usable = url.scheme in {"http", "https"} and url.hostname and url.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(f"the API server's address {self.server!r} is not a URL such as https://10.0.0.1:6443")
        if url.username is not None:
            raise ConfigError(f"the address of the API server {url.hostname} holds credentials; give a token instead")
        if url.scheme == "http" and url.hostname not in {"localhost", "127.0.0.1", "::1"}:
            raise ConfigError(f"{self.server}: plain http is for loopback only; use https")
        if bool(self.cert_data) != bool(self.key_data):
            raise ConfigError(f"for {self.server}: a client certificate and its key go together; only one is given")
        if self.static_token is not None and not _is_token(self.static_token):
            raise ConfigError(f"the token for {self.server} is empty, or holds characters that no token has")

    def token(self) -> str | None:
        """Return the bearer token to send now, if any."""
        return self.token_file.token() if self.token_file else self.static_token

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a context to verify the server and present the client certificate; None for plain http on loopback.

        ConfigError if a certificate or key cannot be read.
        """
        if self.server.startswith("http:"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca_data)
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.cert_data and self.key_data:
                _load_pair(context, self.cert_data, self.key_data)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the certificates for {self.server} cannot be used: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Since Python 3.13, ssl requires extensions that the authorities of many clusters lack.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def _load_pair(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    # The ssl module reads certificates from files only.
    with _unnamed_file(cert + b"\n" + key) as name:
        # Without a password here, OpenSSL would ask the terminal for one where the key is encrypted.
        context.load_cert_chain(name, password="")


@contextlib.contextmanager
def _unnamed_file(content: bytes) -> Iterator[str]:
    """Yield a path from which this process can read CONTENT: in memory if possible, else a temporary file."""
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("swapwarden"), "wb") as memory:  # noqa: PTH123 a descriptor
            name = f"/proc/self/fd/{memory.fileno()}"
            if os.access(name, os.R_OK):
                memory.write(content)
                memory.flush()
                yield name
                return
    import tempfile  # noqa: PLC0415 0.7 MB, for macOS, and for systems without /proc

    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(content)
        file.flush()
        yield file.name


def load(kubeconfig: str | None = None, context: str | None = None) -> Config:
    """Return the configuration: `kubeconfig`, else the pod's service account, else $KUBECONFIG, else ~/.kube/config.

    ConfigError if none exists, or if it asks for something unsupported.
    """
    if not kubeconfig and is_in_pod():
        return in_cluster(SERVICE_ACCOUNT)
    # A pod has no kubeconfig, so the agent does not load the module that reads one.
    from swapwarden.kube import kubeconfig as files  # noqa: PLC0415 see above

    return files.load(kubeconfig, context)


def is_in_pod() -> bool:
    """Return whether this process has the token of a service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


def in_cluster(folder: pathlib.Path = SERVICE_ACCOUNT) -> Config:
    """Return the configuration of a pod: its service account's token, CA and namespace; the API server's service.

    ConfigError if the process runs in no pod, or ca.crt cannot be read.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod")
    namespace = folder / "namespace"
    return Config(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=content(namespace).decode().strip() if namespace.exists() else "default",
        ca_data=pem(content(folder / "ca.crt"), folder / "ca.crt"),
        token_file=TokenFile(folder / "token"),
    )


def content(path: pathlib.Path) -> bytes:
    """Read a file that the configuration names; ConfigError on failure."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def pem(data: bytes, origin: pathlib.Path) -> str:
    """Return CA certificates as text; ConfigError if there are none, because ssl would then trust the system's own."""
    text = data.decode("ascii", "ignore")
    if "-----BEGIN " not in text:
        raise ConfigError(f"{origin}: the certificate authority is not in PEM form")
    return text
