"""A control plane that these tests stop, freeze and compact, and a proxy before it."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from swapwarden.kube import client, config

from testbed.controlplane.servers import ControlPlane
from tests.integration.kube.proxy import Proxy


@pytest.fixture
def own(stoppable: ControlPlane) -> ControlPlane:
    """The session's, which these tests may stop."""
    return stoppable


@pytest_asyncio.fixture
async def proxy(own: ControlPlane) -> AsyncIterator[Proxy]:
    async with Proxy(own.port) as running:
        yield running


@pytest_asyncio.fixture
async def api(own: ControlPlane, proxy: Proxy) -> AsyncIterator[client.Client]:
    """The cluster's administrator, through the proxy."""
    admin = config.load(str(own.kubeconfig))
    async with client.Client(dataclasses.replace(admin, server=proxy.url), user_agent="swapwarden-test") as made:
        yield made


class ConfigMaps:
    """ConfigMaps in a namespace of their own, past the proxy."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self.namespace = f"test-{uuid.uuid4().hex[:10]}"
        control_plane.create_namespace(self.namespace)
        self.path = f"/api/v1/namespaces/{self.namespace}/configmaps"

    def create(self, name: str, value: str = "1") -> str:
        """Give the object's version."""
        return self._version(self._control_plane.create(self.path, {"metadata": {"name": name}, "data": {"v": value}}))

    def set(self, name: str, value: str) -> str:
        status, answer = self._control_plane.request("PATCH", f"{self.path}/{name}", {"data": {"v": value}})
        assert status == 200, answer
        return self._version(answer)

    def delete(self, name: str) -> None:
        status, answer = self._control_plane.request("DELETE", f"{self.path}/{name}")
        assert status == 200, answer

    def version(self) -> str:
        """The collection's version."""
        return self._version(self._control_plane.get(f"{self.path}?limit=1"))

    @staticmethod
    def _version(answer: Any) -> str:
        return str(answer["metadata"]["resourceVersion"])


@pytest.fixture
def maps(own: ControlPlane) -> ConfigMaps:
    return ConfigMaps(own)
