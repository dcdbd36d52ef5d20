"""Renews an OIDC token by the official client, which takes seconds to import: only who needs it waits for it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

import oauthlib.oauth2  # type: ignore[import-untyped]  # has no types
import requests
import urllib3.exceptions
from kubernetes import client
from kubernetes import config as official

from swapwarden.kube import errors


def renewed(paths: Sequence[pathlib.Path], context: str) -> str:
    """Return a new ID token for the context's user, and write it to the kubeconfig: the old one cannot be renewed.

    ConfigError if the issuer gives none.
    """
    found = client.Configuration()
    try:
        official.load_kube_config(  # type: ignore[no-untyped-call]  # has no types
            os.pathsep.join(map(str, paths)), context, found
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
    return str(found.api_key.get("BearerToken", "")).removeprefix("Bearer ")
