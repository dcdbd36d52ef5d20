"""A TCP proxy on loopback that cuts, stalls and refuses connections. TLS passes through it."""

from __future__ import annotations

import asyncio
from typing import Self


class Proxy:
    """Use it as an async context manager."""

    def __init__(self, port: int) -> None:
        """PORT of 127.0.0.1 to connect to."""
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = {to_server: asyncio.Event() for to_server in (False, True)}
        self.go_on()
        self.port = 0
        self.connections = 0
        self.kept = 0
        """How many connections' data is kept back now."""
        self.refusing = False
        """Close new connections at once."""
        self._budget: int | None = None
        self._refuse_then = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break all connections, now and not later."""
        self._budget = None
        for writer in self._writers:
            writer.transport.abort()

    def cut_after(self, count: int, *, refuse: bool = False) -> None:
        """Break all connections after so many more bytes from the server, and refuse others then."""
        self._budget, self._refuse_then = count, refuse

    def stall(self, *, answers: bool = True) -> None:
        """Keep the connections open and pass nothing on; without `answers`, only what clients send is kept back."""
        self._flowing[True].clear()
        if answers:
            self._flowing[False].clear()

    def go_on(self) -> None:
        """End a stall."""
        for flowing in self._flowing.values():
            flowing.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(far_writer)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass_on(reader, far_writer, to_server=True))
                    both.create_task(self._pass_on(far_reader, writer, to_server=False))
            except* OSError:
                pass
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool) -> None:
        """Until either side ends; then the other one must end."""
        while data := await reader.read(4096):
            self.kept += 1
            await self._flowing[to_server].wait()
            self.kept -= 1
            # A network loses what a sender has not got through when it resets the connection.
            if error := reader.exception():
                raise error
            if not to_server and self._budget is not None:
                self._budget -= len(data)
                if self._budget <= 0:
                    self.refusing = self._refuse_then
                    self.cut()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError
