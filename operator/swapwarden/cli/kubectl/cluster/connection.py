"""The kubeconfig of a user: with flags, programs that give credentials, a proxy, impersonation.

swapwarden.kube.kubeconfig refuses those settings for parts of the operator.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import os
import pathlib
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from swapwarden.kube import config, kubeconfig
from swapwarden.kube.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Credentials:
    """Credentials from a plugin: a token, or a certificate with its key in PEM form, or both."""

    token: str | None = dataclasses.field(default=None, repr=False)
    cert_data: bytes | None = dataclasses.field(default=None, repr=False)
    key_data: bytes | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True)
class Plugin:
    """A source of credentials that do not stand in the kubeconfig: a program, or an issuer of tokens."""

    kind: Literal["exec", "auth-provider"]
    origin: pathlib.Path
    """The kubeconfig that it stands in."""
    settings: Any = dataclasses.field(repr=False)
    """The entry as it was read."""
    cluster: dict[str, Any] = dataclasses.field(repr=False)
    """The cluster that it is for, as the kubeconfig has it, with the data of its authority."""
    paths: tuple[pathlib.Path, ...]
    """All kubeconfigs."""
    context: str


Ask = Callable[[Plugin], Credentials]


@dataclasses.dataclass(frozen=True)
class Wishes:
    """Values of flags in place of the kubeconfig's; empty if not given."""

    cluster: str = ""
    user: str = ""
    server: str = ""
    token: str = dataclasses.field(default="", repr=False)
    insecure: bool = False
    impersonate: str = ""
    impersonate_groups: tuple[str, ...] = ()
    impersonate_uid: str = ""


def load(
    path: str | None = None, context: str | None = None, ask: Ask | None = None, wishes: Wishes | None = None
) -> config.Config:
    """Find the configuration as kubectl does: `path`, $KUBECONFIG, ~/.kube/config, a pod's service account.

    `ask` gets credentials that do not stand in the kubeconfig; without it users who need some are refused.
    ConfigError with the fault and the remedy.
    """
    wishes = wishes or Wishes()
    try:
        files = kubeconfig.files(path)
    except kubeconfig.MissingError as error:
        if wishes.server and not (path or context or wishes.cluster or wishes.user):
            none, nowhere = kubeconfig.KubeconfigCluster(wishes.server), pathlib.Path()
            bare = kubeconfig.Chosen("", "default", nowhere, none, nowhere, kubeconfig.User())
            return _as_wished(config.Config(server=wishes.server), bare, wishes)
        if path or context or wishes != Wishes() or not config.is_in_pod():
            raise ConfigError(
                f"{error}: there is no cluster configuration; give --kubeconfig or set KUBECONFIG (in a pod, its"
                f" service account's token would do; {config.SERVICE_ACCOUNT} has none)"
            ) from error
        return config.in_cluster(config.SERVICE_ACCOUNT)
    chosen = kubeconfig.Kubeconfig(files).choose(context, cluster=wishes.cluster, user=wishes.user)
    if wishes.server:
        chosen = chosen._replace(cluster=msgspec.structs.replace(chosen.cluster, server=wishes.server))
    if wishes.token:
        named = {"token": wishes.token, "token_file": None, "exec": None, "auth_provider": None}
        chosen = chosen._replace(user=msgspec.structs.replace(chosen.user, **named))
    user, cluster = chosen.user, chosen.cluster
    plugins: Mapping[Literal["exec", "auth-provider"], Any] = {"exec": user.exec, "auth-provider": user.auth_provider}
    kubeconfig.refuse(chosen, {"username": user.username})
    if ask is None:
        kubeconfig.refuse(chosen, plugins)
    authority, given = kubeconfig.authority(chosen), Credentials()
    plugin = next((kind for kind, settings in plugins.items() if settings), None)
    if ask and plugin:
        # No secret of the kubeconfig's; an authority in a file is given as data, as client-go does.
        shown = {key: value for key, value in msgspec.to_builtins(cluster).items() if value is not None}
        if authority is not None:
            shown["certificate-authority-data"] = base64.b64encode(authority).decode()
        given = ask(Plugin(plugin, chosen.of_user, plugins[plugin], shown, tuple(files), chosen.context))
    built = kubeconfig.build(chosen, authority, token=given.token, cert_data=given.cert_data, key_data=given.key_data)
    return _as_wished(built, chosen, wishes)


def _as_wished(built: config.Config, chosen: kubeconfig.Chosen, wishes: Wishes) -> config.Config:
    """Return the configuration with what only a person may choose."""
    origin, insecure = chosen.of_cluster, wishes.insecure or bool(chosen.cluster.insecure_skip_tls_verify)
    if insecure and built.ca_data is not None and not wishes.insecure:
        raise ConfigError(f"{origin}: a certificate authority and insecure-skip-tls-verify contradict each other")
    return dataclasses.replace(
        built,
        insecure=insecure,
        ca_data=None if insecure else built.ca_data,
        proxy=_proxy(chosen.cluster.proxy_url, built.server, origin),
        impersonation=tuple(_impersonation(chosen.user, wishes)),
        static_token=wishes.token or built.static_token,
    )


def _proxy(written: str | None, server: str, origin: pathlib.Path) -> str:
    """Return the proxy of the kubeconfig, else that of the environment."""
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
        host = proxy.rpartition("@")[2][:200]  # without credentials
        raise ConfigError(f"{where} {host!r} is not the URL of an HTTP proxy, such as http://proxy.example:3128")
    return proxy


def _impersonation(user: kubeconfig.User, wishes: Wishes) -> Iterator[tuple[str, str]]:
    """Return the headers for --as (k/k: staging/src/k8s.io/api/authentication/v1/types.go)."""
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
