"""Credentials that do not stand in the kubeconfig, as kubectl takes them.

Most cloud providers have a program for them (exec), by the protocol of k/k:
staging/src/k8s.io/client-go/pkg/apis/clientauthentication/v1. Of auth-provider there is oidc alone, as in kubectl.

Programs are run by this module and not by the official client (kubernetes.config, 37.0), which is loaded only to renew
an OIDC token. Its import takes 0.27 to 0.55 s of CPU on each command. It has no deadline, ignores interactiveMode and
installHint, and reads output of any length. A program that must not ask has standard input open. Its standard error is
hidden unless standard output is a terminal, and becomes part of the client's error.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from swapwarden.cli.kubectl.cluster import connection
from swapwarden.kube import errors

WAIT_SECONDS: Final = 300.0
"""For a program that may ask a person to log in."""
LEEWAY_SECONDS: Final = 10.0
"""A token that expires so soon is as good as none, as kubectl has it."""
MAX_BYTES: Final = 1024 * 1024
VERSIONS: Final = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))
_CLUSTER_EXTENSION: Final = "client.authentication.k8s.io/exec"


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class _Exec(msgspec.Struct, frozen=True, rename="camel"):
    """ExecConfig of a kubeconfig."""

    command: str
    api_version: str
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: Literal["Never", "IfAvailable", "Always"] = "IfAvailable"


class _ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _Credential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _ExecStatus


class _Oidc(msgspec.Struct, frozen=True, rename="kebab"):
    """config of the auth-provider oidc: the fields that are read."""

    id_token: str
    idp_certificate_authority: str = ""
    idp_certificate_authority_data: str = ""


class _Provider(msgspec.Struct, frozen=True):
    name: str
    config: dict[str, str] = {}


def ask(
    plugin: connection.Plugin, *, interactive: bool = True, seconds: float = WAIT_SECONDS
) -> connection.Credentials:
    """Get the credentials of a kubeconfig's user. ConfigError if there are none, with the reason.

    Not `interactive`: it asks nobody and renews nothing.
    """
    if plugin.kind == "exec":
        return _of_program(plugin, interactive=interactive, seconds=seconds)
    return connection.Credentials(token=_id_token(plugin, renew=interactive))


def _failed(plugin: connection.Plugin, text: str) -> errors.ConfigError:
    return errors.ConfigError(f"{plugin.origin}: {text}")


def _id_token(plugin: connection.Plugin, *, renew: bool) -> str:
    try:
        provider = msgspec.convert(plugin.settings, _Provider)
        if provider.name != "oidc":
            raise _failed(
                plugin,
                f"auth-provider {provider.name!r} is not supported, nor is it by kubectl since 1.26; use the provider's"
                " exec plugin",
            )
        oidc = msgspec.convert(provider.config, _Oidc)
    except msgspec.ValidationError as error:
        raise _failed(plugin, f"auth-provider: {error}") from error
    if not _has_expired(oidc.id_token):
        return oidc.id_token
    if not oidc.idp_certificate_authority and not oidc.idp_certificate_authority_data:
        # The official client would not verify the issuer, to which it sends what tokens are renewed by.
        raise _failed(
            plugin,
            "the ID token has expired; run a command of kubectl, which renews it, or give idp-certificate-authority",
        )
    if not renew:
        raise _failed(plugin, "the ID token has expired")
    renewed = _renewed(plugin.paths, plugin.context)
    if _has_expired(renewed):
        raise _failed(plugin, "the ID token has expired, and its issuer gives no new one; log in again")
    return renewed


def _renewed(paths: Sequence[pathlib.Path], context: str) -> str:
    """Return a new ID token for the context's user, and write it to the kubeconfig: the old one cannot be renewed.

    Raise ConfigError if the issuer gives none.
    """
    # The official client takes long to import; all other users do without it.
    import oauthlib.oauth2  # type: ignore[import-untyped]  # noqa: PLC0415 as above; it has no types
    import requests  # noqa: PLC0415 as above
    import urllib3.exceptions  # noqa: PLC0415 as above
    from kubernetes import client  # noqa: PLC0415 as above
    from kubernetes import config as official  # noqa: PLC0415 as above

    settings = client.Configuration()
    try:
        official.load_kube_config(  # type: ignore[no-untyped-call]  # has no types
            os.pathsep.join(map(str, paths)), context, settings
        )
    except (
        official.ConfigException,
        oauthlib.oauth2.OAuth2Error,
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        KeyError,
        OSError,
        ValueError,
    ) as error:
        raise errors.ConfigError(f"the ID token has expired and cannot be renewed: {error}; log in again") from error
    return str(settings.api_key.get("BearerToken", "")).removeprefix("Bearer ")


def _has_expired(token: str) -> bool:
    """Return whether a token has expired: an invalid one has, one without a time of expiry has not."""
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(f"{token.split('.')[1]}==="), type=dict[str, Any])
        expiry = float(claims.get("exp", 0))
    except (IndexError, TypeError, ValueError):
        return True
    return 0 < expiry <= time.time() + LEEWAY_SECONDS


def _of_program(plugin: connection.Plugin, *, interactive: bool, seconds: float) -> connection.Credentials:
    try:
        settings = msgspec.convert(plugin.settings, _Exec)
    except msgspec.ValidationError as error:
        raise _failed(plugin, f"exec: {error}") from error
    if settings.api_version not in VERSIONS:
        raise _failed(plugin, f"exec: apiVersion {settings.api_version!r} is not one of {', '.join(VERSIONS)}")
    asks = interactive and settings.interactive_mode != "Never" and sys.stdin.isatty()
    if settings.interactive_mode == "Always" and not asks:
        raise _failed(plugin, f"{settings.command} needs a terminal (interactiveMode: Always)")
    return _parse(plugin, settings, _run(plugin, settings, asks=asks, seconds=seconds))


def _run(plugin: connection.Plugin, settings: _Exec, *, asks: bool, seconds: float) -> bytes:
    command = settings.command
    if os.sep in command:
        # As client-go: a path is relative to the kubeconfig, a bare name is looked for on the PATH.
        command = str(plugin.origin.parent / command)
    spec: dict[str, Any] = {"interactive": asks}
    if settings.provide_cluster_info:
        spec["cluster"] = _cluster(plugin.cluster)
    info = {"apiVersion": settings.api_version, "kind": "ExecCredential", "spec": spec}
    environment = {each.name: each.value for each in settings.env or ()}
    try:
        done = subprocess.run(  # noqa: S603 what the user's own kubeconfig says
            [command, *(settings.args or ())],
            env=os.environ | environment | {"KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=None if asks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(plugin, f"{command} gave no credentials within {seconds:g} s") from error
    except OSError as error:
        hint = f"; {settings.install_hint.strip()}" if settings.install_hint else ""
        raise _failed(plugin, f"cannot run {command}: {error.strerror}{hint}") from error
    if done.returncode:
        raise _failed(plugin, f"{command} ended with status {done.returncode}: no credentials")
    return done.stdout


def _cluster(cluster: dict[str, Any]) -> dict[str, Any]:
    """Return the cluster as the program gets it, with its extension in `config`."""
    passed = {key: value for key, value in cluster.items() if key not in {"extensions", "certificate-authority"}}
    extensions = cluster.get("extensions")
    for each in extensions if isinstance(extensions, list) else ():
        if isinstance(each, dict) and each.get("name") == _CLUSTER_EXTENSION:
            passed["config"] = each.get("extension")
    return passed


def _parse(plugin: connection.Plugin, settings: _Exec, output: bytes) -> connection.Credentials:
    # Its output is secret: no message may hold it.
    if len(output) > MAX_BYTES:
        raise _failed(plugin, f"{settings.command} printed more than {MAX_BYTES >> 20} MiB")
    try:
        credential = msgspec.json.decode(output, type=_Credential)
    except msgspec.MsgspecError as error:
        raise _failed(plugin, f"{settings.command} printed no ExecCredential") from error
    if (credential.kind, credential.api_version) != ("ExecCredential", settings.api_version):
        raise _failed(plugin, f"{settings.command} printed no ExecCredential of {settings.api_version}")
    status = credential.status
    if not status.token and not status.client_certificate_data:
        raise _failed(plugin, f"{settings.command} gave neither a token nor a certificate")
    return connection.Credentials(
        token=status.token or None,
        cert_data=status.client_certificate_data.encode() or None,
        key_data=status.client_key_data.encode() or None,
    )
