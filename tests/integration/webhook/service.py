"""A stand-in for the Service between the API server and the webhook's replicas, and a creator of pods."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator
from typing import Self

from swapwarden.kube import client, config, errors

from testbed.controlplane.servers import ControlPlane
from testbed.product.webhook import Webhook
from tests.integration.webhook import pods


class Service:
    """A Service's address: a new connection reaches the next replica that is ready, open ones stay where they are."""

    def __init__(self) -> None:
        self._replicas: list[Webhook] = []
        self._turns = itertools.count()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()
        while self._open:
            self._ended.clear()
            await self._ended.wait()

    @property
    def url(self) -> str:
        assert self._server
        return f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def add(self, replica: Webhook) -> None:
        self._replicas.append(replica)

    def remove(self, replica: Webhook) -> None:
        self._replicas.remove(replica)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        replica = self._replicas[next(self._turns) % len(self._replicas)]
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", int(replica.url.rpartition(":")[2]))
            await asyncio.gather(_pass_on(reader, ours), _pass_on(theirs, writer))
        except ConnectionError:
            writer.close()
        finally:
            self._open.discard(writer)
            self._ended.set()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


class Load:
    """A client that creates so many pods a second, and remembers refusals."""

    def __init__(self, control_plane: ControlPlane, namespace: str, per_second: float) -> None:
        self._control_plane = control_plane
        self._namespace = namespace
        self._interval = 1 / per_second
        self._begun = 0.0
        self.made = 0
        self.failures: list[str] = []
        self.slowest = 0.0
        self._news = asyncio.Event()

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[Self]:
        """Ask for as long as the block lasts."""
        cfg = config.load(str(self._control_plane.kubeconfig))
        async with client.Client(cfg, user_agent="test", max_connections=32) as api:
            self._begun = time.monotonic()
            numbers, ended = itertools.count(), asyncio.Event()
            askers = [asyncio.create_task(self._ask(api, numbers, ended)) for _ in range(24)]
            try:
                yield self
            finally:
                ended.set()
                await asyncio.gather(*askers)

    def told(self) -> str:
        """The results."""
        rate = self.made / (time.monotonic() - self._begun)
        return f"{self.made} pods, {rate:.0f} per second, the slowest in {self.slowest:.3f} s"

    async def more(self, count: int) -> None:
        """Until so many more pods were made, or one was refused."""
        wanted = self.made + count
        async with asyncio.timeout(120):
            while self.made < wanted and not self.failures:
                self._news.clear()
                await self._news.wait()

    async def _ask(self, api: client.Client, numbers: itertools.count[int], ended: asyncio.Event) -> None:
        while not ended.is_set():
            number = next(numbers)
            await asyncio.sleep(self._begun + number * self._interval - time.monotonic())
            body = json.dumps(pods.pod(f"web-{number}", {pods.POLICY: "Preferred"})).encode()
            asked = time.monotonic()
            try:
                made = json.loads(await api.post(pods.path(self._namespace), body, params={"dryRun": "All"}))
            except errors.KubeError as error:
                self.failures.append(str(error))
            else:
                assert made["spec"]["affinity"]
                self.made += 1
            self.slowest = max(self.slowest, time.monotonic() - asked)
            self._news.set()
