import argparse
import asyncio
import collections
import contextlib
import itertools
import re
import resource
import socket
import threading
import tracemalloc
from collections.abc import Iterator

import pytest
from swapwarden.telemetry import server

from testbed.base import paths


async def ask(port: int, request: bytes) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], body


async def test_health_readiness_and_metrics() -> None:
    problem: str | None = "waiting for pods"
    async with server.serve("127.0.0.1", 0, ready=lambda: problem, render=lambda: "up 1\n") as port:
        assert await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n") == (b"HTTP/1.1 200 OK", b"ok\n")
        status, body = await ask(port, b"GET /readyz?verbose HTTP/1.1\r\n\r\n")
        assert (status, body) == (b"HTTP/1.1 503 Service Unavailable", b"waiting for pods\n")
        problem = None
        assert await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n") == (b"HTTP/1.1 200 OK", b"ok\n")
        assert await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n") == (b"HTTP/1.1 200 OK", b"up 1\n")
        assert (await ask(port, b"HEAD /metrics HTTP/1.1\r\n\r\n"))[1] == b""


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", b"400"),
    ],
)
async def test_bad_requests_get_a_clear_answer(request_bytes: bytes, status: bytes) -> None:
    async with server.serve("127.0.0.1", 0, ready=lambda: None) as port:
        assert (await ask(port, request_bytes))[0].split()[1] == status


async def test_a_broken_check_is_a_500_and_the_server_continues() -> None:
    def broken() -> str | None:
        raise RuntimeError("no")

    async with server.serve("127.0.0.1", 0, ready=broken) as port:
        assert (await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n"))[0].split()[1] == b"500"
        assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n"))[0].split()[1] == b"200"


async def test_a_silent_client_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT", 0.05)
    async with server.serve("127.0.0.1", 0, ready=lambda: None) as port:
        assert (await ask(port, b"GET /healthz"))[0].split()[1] == b"400"


def test_no_probe_is_refused_before_its_kubelet_gives_it_up() -> None:
    helpers = (paths.ROOT / "deploy/helm/swapwarden/templates/_helpers.tpl").read_text(encoding="utf-8")
    probes = helpers.partition('define "swapwarden.probes"')[2].partition("{{- end -}}")[0]
    seconds = [float(each) for each in re.findall(r"timeoutSeconds: (\d+)", probes)]
    assert len(seconds) == 3
    assert max(seconds) <= server.HEAD_TIMEOUT


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), (":8080", ("", 8080)), ("[::]:1", ("::", 1))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert server.parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:70000"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write host:port"):
        server.parse_address(text)


async def test_values_read_on_demand_are_read_for_metrics_only() -> None:
    reads = 0

    async def refresh() -> None:
        nonlocal reads
        await asyncio.sleep(0)
        reads += 1

    async with server.serve("127.0.0.1", 0, ready=lambda: None, refresh=refresh, render=lambda: f"{reads}") as port:
        await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n") == (b"HTTP/1.1 200 OK", b"1")


# --- clients that hold connections open ---

CROWD = 2000
PROBE = b"GET /readyz HTTP/1.1\r\n\r\n"


class Idlers(threading.Thread):
    """A client that keeps opening connections, and closes the oldest beyond CROWD: it may send a little first."""

    def __init__(self, port: int, addresses: int, begun: bytes) -> None:
        super().__init__()
        self._port, self._addresses, self._begun = port, addresses, begun
        self.opened = 0
        self.crowded, self.ended = threading.Event(), threading.Event()

    def run(self) -> None:
        held: collections.deque[socket.socket] = collections.deque()
        while not self.ended.is_set():
            idle = socket.socket()
            idle.settimeout(5)
            number = self.opened % self._addresses
            idle.bind((f"127.1.{number // 250}.{number % 250 + 1}", 0))
            with contextlib.suppress(OSError):  # dropped again already
                idle.connect(("127.0.0.1", self._port))
                idle.send(self._begun)
            held.append(idle)
            self.opened += 1
            if len(held) > CROWD:
                held.popleft().close()
                self.crowded.set()
        for idle in held:
            idle.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 3 * CROWD), hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(("addresses", "begun"), [(1, b"GET /readyz"), (CROWD, b"")])
async def test_probes_are_answered_while_thousands_of_idle_connections_stand(addresses: int, begun: bytes) -> None:
    async with server.serve("127.0.0.1", 0, ready=lambda: None, render=lambda: "up 1\n") as port:
        idlers = Idlers(port, addresses, begun)
        idlers.start()
        try:
            await asyncio.to_thread(idlers.crowded.wait, 60)
            for _ in range(20):
                before = idlers.opened
                assert await ask(port, PROBE) == (b"HTTP/1.1 200 OK", b"ok\n")
                async with asyncio.timeout(20):
                    while idlers.opened == before:  # noqa: ASYNC110 it is another thread's
                        await asyncio.sleep(0)
            assert await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n") == (b"HTTP/1.1 200 OK", b"up 1\n")
        finally:
            idlers.ended.set()
            await asyncio.to_thread(idlers.join)


async def test_readers_of_metrics_share_one_text_and_keep_no_probe_waiting() -> None:
    finished, made = asyncio.Event(), 0

    async def refresh() -> None:
        await finished.wait()

    def render() -> str:
        nonlocal made
        made += 1
        return f"up {made}\n"

    async with server.serve("127.0.0.1", 0, ready=lambda: None, refresh=refresh, render=render) as port:
        first = asyncio.create_task(ask(port, b"GET /metrics HTTP/1.1\r\n\r\n"))
        others = [asyncio.create_task(ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")) for _ in range(50)]
        for _ in range(20):
            assert await ask(port, PROBE) == (b"HTTP/1.1 200 OK", b"ok\n")
        finished.set()
        answers = await asyncio.gather(first, *others)
    # One time for those who were there when it began, and one for all who came while it lasted.
    assert {status for status, _ in answers} == {b"HTTP/1.1 200 OK"}
    assert {text for _, text in answers} <= {b"up 1\n", b"up 2\n"}
    assert made <= 2


async def test_readers_that_take_nothing_hold_one_text_in_memory() -> None:
    size, count = 8 * 1024 * 1024, 16
    text = "x" * size  # more than the kernel takes for a client
    before = most = 0
    tracemalloc.start()
    try:
        async with server.serve("127.0.0.1", 0, ready=lambda: None, render=lambda: text) as port:
            before = tracemalloc.get_traced_memory()[0]
            readers = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
            for reader in readers:
                reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            for reader in readers:
                await asyncio.get_running_loop().run_in_executor(None, reader.recv, 1)
            most = tracemalloc.get_traced_memory()[0]
            for reader in readers:
                reader.close()
    finally:
        tracemalloc.stop()
    assert most - before < 4 * size, "they came in a few turns, of which each has a text"


async def test_too_many_readers_of_metrics_keep_no_probe_waiting() -> None:
    finished = asyncio.Event()

    async def refresh() -> None:
        await finished.wait()

    async with server.serve("127.0.0.1", 0, ready=lambda: None, refresh=refresh, render=lambda: "up 1\n") as port:
        readers = [
            asyncio.create_task(ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")) for _ in range(server.MAX_METRICS + 20)
        ]
        done, _ = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result()[0] for task in done} == {b""}
        assert await ask(port, PROBE) == (b"HTTP/1.1 200 OK", b"ok\n")
        finished.set()
        answers = await asyncio.gather(*readers)
        assert (b"HTTP/1.1 200 OK", b"up 1\n") in answers


async def test_metrics_are_not_put_together_more_than_a_share_of_the_time() -> None:
    async def refresh() -> None:
        await asyncio.to_thread(lambda: None)

    times: list[tuple[float, float]] = []
    loop = asyncio.get_running_loop()

    def render() -> str:
        begun = loop.time()
        while loop.time() - begun < 0.01:
            pass
        times.append((begun, loop.time()))
        return "up 1\n"

    async with server.serve("127.0.0.1", 0, ready=lambda: None, refresh=refresh, render=render) as port:
        for _ in range(4):
            assert (await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[1] == b"up 1\n"
    for (begun, ended), (later, _) in itertools.pairwise(times):
        assert later - ended >= (ended - begun) * (1 / server.METRICS_SHARE - 1) * 0.9
