"""Read kubeconfig files: v1.Config of client-go.

By hand: a process that imports the official client takes 43 MB, one on json, ssl and http.client 17. Only the
renewal of an expired OIDC token is left to that client (cli/kubectl/cluster/credentials.py).
"""

from __future__ import annotations

import importlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from swapwarden.kube import config
from swapwarden.kube.errors import ConfigError

T = TypeVar("T")


class MissingError(ConfigError):
    """No kubeconfig exists; the message names the paths."""


class KubeconfigCluster(msgspec.Struct, rename="kebab"):
    """The address of an API server."""

    server: str
    certificate_authority: str | None = None
    certificate_authority_data: bytes | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    proxy_url: str | None = None
    extensions: Any = None


class User(msgspec.Struct, rename="kebab"):
    """A user and their credentials."""

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


class Context(msgspec.Struct):
    """A user at a cluster."""

    cluster: str
    user: str | None = None
    namespace: str | None = None


class Chosen(NamedTuple):
    """One context with its entries, and the files that hold them."""

    context: str
    namespace: str
    of_cluster: pathlib.Path
    cluster: KubeconfigCluster
    of_user: pathlib.Path
    user: User


class Kubeconfig:
    """Kubeconfig files. An entry is decoded on demand.

    The first file that has an entry of a name defines all of it; the first file with a current-context defines that.
    """

    def __init__(self, paths: Sequence[pathlib.Path]) -> None:
        self._files = [(path, _parse(path)) for path in paths]
        self._name = str(paths[0]) if len(paths) == 1 else f"none of {', '.join(map(str, paths))}"

    def _entry(self, section: str, name: str, kind: type[T]) -> tuple[pathlib.Path, T]:
        """Return the entry of that name in `clusters`, `contexts` or `users`, and its file."""
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
        """Return the names of all entries, each once."""
        lists = [parsed.get(section) for _, parsed in self._files]
        entries = [entry for listed in lists if isinstance(listed, list) for entry in listed]
        every = [entry["name"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        return list(dict.fromkeys(every))

    def _current(self) -> str:
        """Return the name of the current context."""
        for _, parsed in self._files:
            name = parsed.get("current-context")
            if isinstance(name, str) and name:
                return name
        raise ConfigError(f"{self._name} has {self._no()} current-context: choose one with --context")

    def choose(self, context: str | None, *, cluster: str = "", user: str = "") -> Chosen:
        """Return a context, by default the current one, or `cluster` and `user` in its place."""
        name = context or ("" if cluster and user else self._current())
        chosen = self._entry("contexts", name, Context)[1] if name else Context("")
        of_cluster, address = self._entry("clusters", cluster or chosen.cluster, KubeconfigCluster)
        named = user or chosen.user
        of_user, who = self._entry("users", named, User) if named else (self._files[0][0], User())
        return Chosen(name, chosen.namespace or "default", of_cluster, address, of_user, who)

    def _no(self) -> str:
        return "no" if len(self._files) == 1 else "an"


def files(kubeconfig: str | None) -> list[pathlib.Path]:
    """Return the kubeconfig files to read, at least one; MissingError if none exists.

    Of the files that $KUBECONFIG names, one must exist; missing ones are left out.
    """
    if kubeconfig:
        return [pathlib.Path(kubeconfig)]
    listed = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    at_home = os.path.expanduser("~/.kube/config")  # noqa: PTH111 Path's needs a home
    paths = [pathlib.Path(name) for name in listed or [at_home]]
    existing = [path for path in paths if path.exists()]
    if not existing:
        missing = f"{paths[0]} does not exist" if len(paths) == 1 else "none of the files in KUBECONFIG exists"
        raise MissingError(missing)
    return existing


def _parse(path: pathlib.Path) -> dict[str, Any]:
    yaml = importlib.import_module("yaml")
    try:
        # The loader in C, if available: files with the certificates of many clusters are large.
        parsed = yaml.load(config.content(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"{path} is not a kubeconfig: it holds no mapping")
    return parsed


def load(kubeconfig: str | None, context: str | None) -> config.Config:
    """Read one context, by default the current one, of `kubeconfig`, $KUBECONFIG or ~/.kube/config for the operator.

    ConfigError if there is none, or if it needs a choice that is reserved for users of kubectl swap: a server without
    verification, a proxy, a program for credentials, impersonation.
    """
    try:
        chosen = Kubeconfig(files(kubeconfig)).choose(context)
    except MissingError as error:
        raise ConfigError(
            f"no cluster configuration: no service account's token in {config.SERVICE_ACCOUNT}, and {error};"
            " give --kubeconfig or set KUBECONFIG"
        ) from error
    if chosen.cluster.insecure_skip_tls_verify:
        raise ConfigError(
            f"{chosen.of_cluster}: insecure-skip-tls-verify is refused; give certificate-authority(-data) instead"
        )
    if chosen.cluster.proxy_url:
        raise ConfigError(
            f"{chosen.of_cluster}: proxy-url is not supported; use an address that can be reached directly"
        )
    user = chosen.user
    impersonated = user.impersonate or user.as_groups or user.as_uid or user.as_user_extra
    refuse(
        chosen, {"exec": user.exec, "auth-provider": user.auth_provider, "username": user.username, "as": impersonated}
    )
    return build(chosen, authority(chosen))


def refuse(chosen: Chosen, credentials: Mapping[Any, Any]) -> None:
    """Raise ConfigError if the user has any of these."""
    for name, value in credentials.items():
        if value:
            raise ConfigError(
                f"{chosen.of_user}: credentials by {name!r} are not supported here; use a token or a client"
                " certificate, for example from `kubectl create token`"
            )


def authority(chosen: Chosen) -> bytes | None:
    """Return the CA certificates of the cluster; None for the system's own."""
    return _data(chosen.of_cluster, chosen.cluster.certificate_authority_data, chosen.cluster.certificate_authority)


def build(
    chosen: Chosen,
    ca: bytes | None,
    *,
    token: str | None = None,
    cert_data: bytes | None = None,
    key_data: bytes | None = None,
) -> config.Config:
    """Return the configuration. Arguments replace the credentials in the kubeconfig."""
    user, origin = chosen.user, chosen.of_user
    return config.Config(
        server=chosen.cluster.server,
        namespace=chosen.namespace,
        ca_data=None if ca is None else config.pem(ca, chosen.of_cluster),
        cert_data=cert_data or _data(origin, user.client_certificate_data, user.client_certificate),
        key_data=key_data or _data(origin, user.client_key_data, user.client_key),
        tls_server_name=chosen.cluster.tls_server_name or None,
        static_token=token or user.token or None,
        token_file=config.TokenFile(origin.parent / user.token_file) if user.token_file and not token else None,
    )


def _data(origin: pathlib.Path, inline: bytes | None, file: str | None) -> bytes | None:
    """Return an entry's data, else the content of its file, whose path is relative to the kubeconfig `origin`."""
    return inline or (config.content(origin.parent / file) if file else None)
