"""Where the API server is and how to prove who we are: kubeconfig files and the service account of a pod.

TLS is always verified, and plain http is for loopback only. What a person may choose for themselves, and no part of the
operator may, is read by load_for_person() alone: a server that is not verified, a proxy, impersonation.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import importlib
import os
import pathlib
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from swapwarden.kube.errors import ConfigError

T = TypeVar("T")

SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")

TOKEN_CHECK_SECONDS = 1.0
"""How old a look at the token file may be; the kubelet writes a new token minutes before the old one expires."""


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
        """The token as it is in the file now; the last good one where there is none in it for a moment."""
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
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
            if stamp == self._stamp:
                return
            text = self._path.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            raise ConfigError(f"cannot read the token file {self._path}: {error.strerror}") from error
        if not _is_token(text):
            raise ConfigError(f"the token file {self._path} holds no token")
        self._token, self._stamp = text, stamp


def _is_token(text: str) -> bool:
    """Whether a text can stand in a header as one word."""
    return text.isascii() and text.isprintable() and " " not in text and bool(text)


@dataclasses.dataclass(frozen=True)
class Config:
    """One API server and one identity. Secrets are left out of repr()."""

    server: str
    """Base URL."""
    namespace: str = "default"
    ca_data: str | None = dataclasses.field(default=None, repr=False)
    """CA certificates in PEM form. Without them the system's own are trusted."""
    cert_data: bytes | None = dataclasses.field(default=None, repr=False)
    """Our certificate in PEM form."""
    key_data: bytes | None = dataclasses.field(default=None, repr=False)
    """Its key, without a passphrase, in PEM form."""
    tls_server_name: str | None = None
    static_token: str | None = dataclasses.field(default=None, repr=False)
    token_file: TokenFile | None = None
    """Goes before `static_token`."""
    insecure: bool = False
    """Whether the server is taken at its word. Only a person can ask for that."""
    proxy: str = dataclasses.field(default="", repr=False)
    """URL of the HTTP proxy to go through; it may hold credentials."""
    impersonation: tuple[tuple[str, str], ...] = ()
    """Headers that name who to act as, ready to be sent."""

    def __post_init__(self) -> None:
        """Refuse what would be unsafe or cannot work."""
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
        """The bearer token to send now, if there is one."""
        return self.token_file.token() if self.token_file else self.static_token

    def ssl_context(self) -> ssl.SSLContext | None:
        """A context that verifies the server and shows our certificate; None for plain http on loopback."""
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
        # Python 3.13 began to ask for extensions that the authorities of many clusters lack.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def _load_pair(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    # The ssl module takes certificates from files only.
    with _unnamed_file(cert + b"\n" + key) as name:
        # Without a password a key that needs one would ask the terminal for it.
        context.load_cert_chain(name, password="")


@contextlib.contextmanager
def _unnamed_file(content: bytes) -> Iterator[str]:
    """A path by which this process can read CONTENT: in memory, or in a file of its own where there is no such path."""
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


@dataclasses.dataclass(frozen=True)
class Credentials:
    """What a plugin gives: a token, or a certificate with its key in PEM form, or both."""

    token: str | None = dataclasses.field(default=None, repr=False)
    cert_data: bytes | None = dataclasses.field(default=None, repr=False)
    key_data: bytes | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True)
class Plugin:
    """Where a kubeconfig's user has credentials from that do not stand in it: a program, or an issuer of tokens."""

    kind: Literal["exec", "auth-provider"]
    origin: pathlib.Path
    """The kubeconfig that it stands in."""
    settings: Any = dataclasses.field(repr=False)
    """What stands there, as it came."""
    cluster: dict[str, Any] = dataclasses.field(repr=False)
    """The cluster that it is for, as the kubeconfig has it, with the data of its authority."""
    paths: tuple[pathlib.Path, ...]
    """All kubeconfigs."""
    context: str


Ask = Callable[[Plugin], Credentials]


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What a person's flags say in place of the kubeconfig; empty where they say nothing."""

    cluster: str = ""
    user: str = ""
    server: str = ""
    token: str = dataclasses.field(default="", repr=False)
    insecure: bool = False
    impersonate: str = ""
    impersonate_groups: tuple[str, ...] = ()
    impersonate_uid: str = ""


def load(kubeconfig: str | None = None, context: str | None = None) -> Config:
    """Find the configuration: `kubeconfig`, else the pod's service account, else $KUBECONFIG, else ~/.kube/config.

    ConfigError where there is none, or where it asks for something that is not supported.
    """
    if not kubeconfig and _is_in_pod():
        return in_cluster(SERVICE_ACCOUNT)
    return from_kubeconfigs(_files(kubeconfig), context)


def load_for_person(
    kubeconfig: str | None = None, context: str | None = None, ask: Ask | None = None, wishes: Wishes | None = None
) -> Config:
    """Find the configuration as kubectl does: `kubeconfig`, $KUBECONFIG, ~/.kube/config, a pod's service account.

    `ask` gets credentials that do not stand in the kubeconfig. What a person may choose, and a part of the operator may
    not, is taken from the kubeconfig and from `wishes`: a server that is not verified, a proxy, impersonation.
    """
    wishes = wishes or Wishes()
    try:
        files = _files(kubeconfig, of_person=True)
    except ConfigError:
        if wishes.server and not (kubeconfig or context or wishes.cluster or wishes.user):
            return _of_person(Config(server=wishes.server), _Cluster(wishes.server), _User(), pathlib.Path(), wishes)
        if kubeconfig or context or wishes != Wishes() or not _is_in_pod():
            raise
        return in_cluster(SERVICE_ACCOUNT)
    return from_kubeconfigs(files, context, ask, wishes)


def contexts(kubeconfig: str | None = None) -> list[str]:
    """The names of all contexts in the kubeconfig files. ConfigError where there are none to read."""
    return _Kubeconfig(_files(kubeconfig)).names("contexts")


def _is_in_pod() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


def _files(kubeconfig: str | None, *, of_person: bool = False) -> list[pathlib.Path]:
    """The kubeconfig files to read; of those that $KUBECONFIG names the ones that exist, of which it wants one."""
    if kubeconfig:
        return [pathlib.Path(kubeconfig)]
    listed = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    at_home = os.path.expanduser("~/.kube/config")  # noqa: PTH111 Path's needs a home
    paths = [pathlib.Path(name) for name in listed or [at_home]]
    found = [path for path in paths if path.exists()]
    if not found:
        missing = f"{paths[0]} does not exist" if len(paths) == 1 else "none of the files in KUBECONFIG exists"
        if of_person:
            raise ConfigError(
                f"{missing}: there is no cluster configuration; give --kubeconfig or set KUBECONFIG (in a pod, its"
                f" service account's token would do; {SERVICE_ACCOUNT} has none)"
            )
        raise ConfigError(
            f"no cluster configuration: no service account's token in {SERVICE_ACCOUNT}, and {missing};"
            " give --kubeconfig or set KUBECONFIG"
        )
    return found


def in_cluster(folder: pathlib.Path = SERVICE_ACCOUNT) -> Config:
    """The configuration of a pod: its service account's token, CA and namespace, and the API server's service."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod")
    namespace = folder / "namespace"
    return Config(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=_content(namespace).decode().strip() if namespace.exists() else "default",
        ca_data=_pem(_content(folder / "ca.crt"), folder / "ca.crt"),
        token_file=TokenFile(folder / "token"),
    )


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: bytes | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    proxy_url: str | None = None
    extensions: Any = None


class _User(msgspec.Struct, rename="kebab"):
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    client_certificate: str | None = None
    client_certificate_data: bytes | None = None
    client_key: str | None = None
    client_key_data: bytes | None = None
    exec: Any = None
    auth_provider: Any = None
    username: Any = None
    impersonate: str | None = msgspec.field(default=None, name="as")
    as_groups: list[str] | None = None
    as_uid: str | None = None
    as_user_extra: dict[str, list[str]] | None = None


class _Context(msgspec.Struct):
    cluster: str
    user: str | None = None
    namespace: str | None = None


class _Kubeconfig:
    """Kubeconfig files: v1.Config of client-go. Entries are looked at only when they are asked for.

    The first file that has an entry of a name has the whole of it; the first with a current-context names it.
    """

    def __init__(self, paths: Sequence[pathlib.Path]) -> None:
        self._files = [(path, _parse(path)) for path in paths]
        self._name = str(paths[0]) if len(paths) == 1 else f"none of {', '.join(map(str, paths))}"

    def entry(self, section: str, name: str, kind: type[T]) -> tuple[pathlib.Path, T]:
        """The entry of that name in `clusters`, `contexts` or `users`, and the file that it is in."""
        for path, parsed in self._files:
            entries = parsed.get(section)
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, dict) and entry.get("name") == name:
                    try:
                        return path, msgspec.convert(entry.get(section.removesuffix("s")) or {}, kind)
                    except msgspec.ValidationError as error:
                        raise ConfigError(f"{path}: {name!r} in {section}: {error}") from error
        raise ConfigError(f"{self._name} has {self._no()} entry {name!r} in {section}")

    def names(self, section: str) -> list[str]:
        """The names of all entries, each once."""
        sections = [parsed.get(section) for _, parsed in self._files]
        entries = [entry for found in sections if isinstance(found, list) for entry in found]
        found = [entry["name"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        return list(dict.fromkeys(found))

    def current(self) -> str:
        """The name of the current context."""
        for _, parsed in self._files:
            name = parsed.get("current-context")
            if isinstance(name, str) and name:
                return name
        raise ConfigError(f"{self._name} has {self._no()} current-context: choose one with --context")

    def _no(self) -> str:
        return "no" if len(self._files) == 1 else "an"


def _parse(path: pathlib.Path) -> dict[str, Any]:
    # In a pod there is no kubeconfig, so the agent never pays for the parser.
    yaml = importlib.import_module("yaml")
    try:
        # The one in C, where there is one: files with the certificates of many clusters are large.
        parsed = yaml.load(_content(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"{path} is not a kubeconfig: it holds no mapping")
    return parsed


def _data(origin: pathlib.Path, inline: bytes | None, file: str | None) -> bytes | None:
    """What an entry gives as data, or else as the path of a file, which is relative to the kubeconfig `origin`."""
    return inline or (_content(origin.parent / file) if file else None)


def from_kubeconfig(path: pathlib.Path, context: str | None = None) -> Config:
    """Read one context (by default the current one) of a kubeconfig file; paths in it are relative to the file."""
    return from_kubeconfigs([path], context)


def from_kubeconfigs(
    paths: Sequence[pathlib.Path], context: str | None = None, ask: Ask | None = None, wishes: Wishes | None = None
) -> Config:
    """Read one context (by default the current one) of kubeconfig files, one at least; paths are relative to each.

    Without `ask` users whose credentials do not stand in the files are refused; without `wishes`, which a person has,
    servers that are not to be verified, proxies and impersonation.
    """
    files = _Kubeconfig(paths)
    asks = wishes or Wishes()
    current = context or ("" if asks.cluster and asks.user else files.current())
    chosen = files.entry("contexts", current, _Context)[1] if current else _Context("")
    of_cluster, cluster = files.entry("clusters", asks.cluster or chosen.cluster, _Cluster)
    named = asks.user or chosen.user
    of_user, user = files.entry("users", named, _User) if named else (paths[0], _User())
    if asks.server:
        cluster = msgspec.structs.replace(cluster, server=asks.server)
    if asks.token:
        user = msgspec.structs.replace(user, token=asks.token, token_file=None, exec=None, auth_provider=None)
    if wishes is None and cluster.insecure_skip_tls_verify:
        raise ConfigError(
            f"{of_cluster}: insecure-skip-tls-verify is refused; give certificate-authority(-data) instead"
        )
    if wishes is None and cluster.proxy_url:
        raise ConfigError(f"{of_cluster}: proxy-url is not supported; use an address that can be reached directly")
    plugins: dict[Literal["exec", "auth-provider"], Any] = {"exec": user.exec, "auth-provider": user.auth_provider}
    refused: dict[str, Any] = {"username": user.username}
    if wishes is None:
        refused["as"] = user.impersonate or user.as_groups or user.as_uid or user.as_user_extra
    for name, value in [*(() if ask else plugins.items()), *refused.items()]:
        if value:
            raise ConfigError(
                f"{of_user}: credentials by {name!r} are not supported here; use a token or a client certificate,"
                " for example from `kubectl create token`"
            )
    authority = _data(of_cluster, cluster.certificate_authority_data, cluster.certificate_authority)
    asked = Credentials()
    plugin = next((kind for kind, settings in plugins.items() if settings), None)
    if ask and plugin:
        # No secret of the kubeconfig's; an authority in a file is given as data, as client-go does.
        told = {key: value for key, value in msgspec.to_builtins(cluster).items() if value is not None}
        if authority is not None:
            told["certificate-authority-data"] = base64.b64encode(authority).decode()
        asked = ask(Plugin(plugin, of_user, plugins[plugin], told, tuple(paths), current))
    found = Config(
        server=cluster.server,
        namespace=chosen.namespace or "default",
        ca_data=None if authority is None else _pem(authority, of_cluster),
        cert_data=asked.cert_data or _data(of_user, user.client_certificate_data, user.client_certificate),
        key_data=asked.key_data or _data(of_user, user.client_key_data, user.client_key),
        tls_server_name=cluster.tls_server_name or None,
        static_token=asked.token or user.token or None,
        token_file=TokenFile(of_user.parent / user.token_file) if user.token_file and not asked.token else None,
    )
    return found if wishes is None else _of_person(found, cluster, user, of_cluster, wishes)


def _of_person(found: Config, cluster: _Cluster, user: _User, origin: pathlib.Path, wishes: Wishes) -> Config:
    """The configuration with what only a person may choose."""
    insecure = wishes.insecure or bool(cluster.insecure_skip_tls_verify)
    if insecure and found.ca_data is not None and not wishes.insecure:
        raise ConfigError(f"{origin}: a certificate authority and insecure-skip-tls-verify contradict each other")
    return dataclasses.replace(
        found,
        insecure=insecure,
        ca_data=None if insecure else found.ca_data,
        proxy=_proxy(cluster.proxy_url, found.server, origin),
        impersonation=tuple(_impersonation(user, wishes)),
        static_token=wishes.token or found.static_token,
    )


def _proxy(written: str | None, server: str, origin: pathlib.Path) -> str:
    """The proxy of the kubeconfig, else that of the environment."""
    where, proxy = f"{origin}: proxy-url", written or ""
    if not proxy and any(name.upper() in {"HTTPS_PROXY", "HTTP_PROXY"} for name in os.environ):
        tunnel = importlib.import_module("swapwarden.kube.tunnel")
        where, proxy = "HTTPS_PROXY", tunnel.from_environment(server, os.environ)
    if not proxy:
        return ""
    try:
        url = urllib.parse.urlsplit(proxy)
        usable = url.scheme == "http" and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable:
        told = proxy.rpartition("@")[2][:200]  # without credentials
        raise ConfigError(f"{where} {told!r} is not the URL of an HTTP proxy, such as http://proxy.example:3128")
    return proxy


def _impersonation(user: _User, wishes: Wishes) -> Iterator[tuple[str, str]]:
    """Headers, as the API server reads them (k/k: staging/src/k8s.io/api/authentication/v1/types.go)."""
    by_flags = bool(wishes.impersonate or wishes.impersonate_groups or wishes.impersonate_uid)
    name = wishes.impersonate or user.impersonate or ""
    groups = wishes.impersonate_groups or (() if wishes.impersonate else tuple(user.as_groups or ()))
    uid = wishes.impersonate_uid or ("" if wishes.impersonate else user.as_uid or "")
    extra = {} if by_flags else user.as_user_extra or {}
    if not name and (groups or uid or extra):
        raise ConfigError("groups, a UID or more of a user can be impersonated with a user only: give --as")
    written = [("Impersonate-User", name)] if name else []
    written += [("Impersonate-Group", group) for group in groups]
    written += [("Impersonate-Uid", uid)] if uid else []
    for key, values in extra.items():
        written += [(f"Impersonate-Extra-{urllib.parse.quote(key, safe='')}", value) for value in values]
    for header, value in written:
        if not value or not value.isprintable() or value != value.strip():
            raise ConfigError(f"{value[:80]!r} cannot be impersonated: it is no name that a header can hold")
        # As UTF-8, in which API servers read it.
        yield header, value.encode().decode("latin-1")


def _content(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _pem(data: bytes, origin: pathlib.Path) -> str:
    """CA certificates; with none at all the ssl module would trust the system's own."""
    text = data.decode("ascii", "ignore")
    if "-----BEGIN " not in text:
        raise ConfigError(f"{origin}: the certificate authority is not in PEM form")
    return text
