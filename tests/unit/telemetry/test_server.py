import asyncio

import pytest
from swapwarden.telemetry import server


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


async def test_a_broken_check_is_a_500_and_the_server_goes_on() -> None:
    def broken() -> str | None:
        raise RuntimeError("no")

    async with server.serve("127.0.0.1", 0, ready=broken) as port:
        assert (await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n"))[0].split()[1] == b"500"
        assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n"))[0].split()[1] == b"200"


async def test_a_silent_client_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT", 0.05)
    async with server.serve("127.0.0.1", 0, ready=lambda: None) as port:
        assert (await ask(port, b"GET /healthz"))[0].split()[1] == b"400"


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), (":8080", ("0.0.0.0", 8080)), ("[::]:1", ("::", 1))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert server.parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:70000"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="write host:port"):
        server.parse_address(text)


async def test_what_is_read_on_demand_is_read_for_metrics_only() -> None:
    reads = 0

    async def refresh() -> None:
        nonlocal reads
        await asyncio.sleep(0)
        reads += 1

    async with server.serve("127.0.0.1", 0, ready=lambda: None, refresh=refresh, render=lambda: f"{reads}") as port:
        await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n") == (b"HTTP/1.1 200 OK", b"1")
