from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from swapwarden.kube import client, config

from tests.unit.kube.scripted import Scripted


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Scripted]:
    async with Scripted() as running:
        yield running


@pytest_asyncio.fixture
async def api(server: Scripted) -> AsyncIterator[client.Client]:
    async with client.Client(config.Config(server=server.url), user_agent="test") as made:
        yield made
