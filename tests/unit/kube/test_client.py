from __future__ import annotations

import asyncio
import email.utils
import json
import pathlib
import socket
import time

import pytest
from swapwarden.kube import client, config, errors, transport

from tests.unit.kube.scripted import CUT, END, HANG, RESET, STREAM, Scripted, chunk, failure, head, plain, reply, until

pytestmark = pytest.mark.usefixtures("server")


def made(server: Scripted, token: config.TokenFile | None = None, connections: int = 16) -> client.Client:
    cfg = config.Config(server=server.url, token_file=token)
    return client.Client(cfg, user_agent="test", max_connections=connections)


def write_token(path: pathlib.Path, token: str) -> None:
    """Put a new file in the place of the old one, as the kubelet does."""
    new = path.with_suffix(".new")
    new.write_text(token)
    new.rename(path)


async def test_a_request_has_the_method_path_and_body_of_the_call(server: Scripted) -> None:
    server.answer(reply({"kind": "Lease"}))
    cfg = config.Config(server=f"{server.url}/clusters/one", static_token="secret")
    async with client.Client(cfg, user_agent="swapwarden-test/1") as api:
        answer = await api.post("/apis/x", b'{"a":1}', params={"fieldManager": "me & you"})
    assert json.loads(answer) == {"kind": "Lease"}
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/clusters/one/apis/x")
    assert request.query == {"fieldManager": "me & you"}
    assert request.body == b'{"a":1}'
    assert request.headers == {
        "host": f"127.0.0.1:{server.port}",
        "user-agent": "swapwarden-test/1",
        "accept": "application/json",
        "authorization": "Bearer secret",
        "content-type": "application/json",
        "content-length": "7",
    }


async def test_each_verb_says_what_it_sends(server: Scripted, api: client.Client) -> None:
    for _ in range(4):
        server.answer(reply({}))
    await api.put("/x", b"{}")
    await api.merge_patch("/x", b"{}")
    await api.delete("/x")
    await api.get("/x")
    seen = [(request.method, request.headers.get("content-type")) for request in server.requests]
    assert seen == [
        ("PUT", "application/json"),
        ("PATCH", "application/merge-patch+json"),
        ("DELETE", None),
        ("GET", None),
    ]


@pytest.mark.parametrize(
    "answer",
    [plain(b"12"), STREAM + chunk(b"12") + END, head(204), plain(b"")],
    ids=["length", "chunked", "none", "empty"],
)
async def test_connections_are_kept(server: Scripted, api: client.Client, answer: bytes) -> None:
    for _ in range(3):
        server.answer(answer)
        await api.get("/x")
    assert server.connections == 1


async def test_errors_keep_the_connection(server: Scripted, api: client.Client) -> None:
    server.answer(failure(404, "NotFound", "no such thing"))
    server.answer(reply({}))
    with pytest.raises(errors.ApiError):
        await api.get("/x")
    await api.get("/x")
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"1", Connection="close"),
        plain(b"1").replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["close", "http-1.0"],
)
async def test_connections_that_cannot_be_kept_are_not(server: Scripted, api: client.Client, answer: bytes) -> None:
    server.answer(answer)
    server.answer(plain(b"3"))
    assert await api.get("/x") == b"1"
    assert await api.get("/x") == b"3"
    assert server.connections == 2


async def test_unrequested_bytes_are_no_answer(server: Scripted, api: client.Client) -> None:
    """Proxies send a 408 before they close an idle connection; it must not answer the next request."""
    later = asyncio.Event()
    server.answer(plain(b"1"), later, plain(b"too slow", 408), CUT)
    server.answer(plain(b"2"))
    assert await api.get("/x") == b"1"
    later.set()
    await until(lambda: api._idle[0]._reader.unread)
    assert await api.get("/x") == b"2"


async def test_idle_connections_grow_old(server: Scripted, api: client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        server.answer(plain(b"1"))
    await api.get("/x")
    now = time.monotonic()
    monkeypatch.setattr("swapwarden.kube.transport.time.monotonic", lambda: now + transport.IDLE_SECONDS + 1)
    await api.get("/x")
    assert server.connections == 2


@pytest.mark.parametrize("end", [CUT, RESET], ids=["closed", "reset"])
async def test_a_kept_connection_that_was_closed_is_replaced(server: Scripted, api: client.Client, end: object) -> None:
    """The server closes it as the second request arrives."""
    server.answer(plain(b"1"))
    server.answer(end)  # type: ignore[arg-type]  # parametrized
    server.answer(plain(b"2"))
    await api.get("/x")
    assert await api.post("/y", b"{}") == b"2"
    assert [(request.path, request.connection) for request in server.requests] == [("/x", 1), ("/y", 1), ("/y", 2)]


async def test_one_stale_connection_is_enough(server: Scripted, api: client.Client) -> None:
    """The request is sent twice at most, however many connections were kept."""
    go = asyncio.Event()
    for _ in range(3):
        server.answer(go, plain(b"1"))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(api.get("/x"))
        await server.seen(3)
        go.set()
    server.answer(CUT)
    server.answer(CUT)
    with pytest.raises(errors.Unreachable, match=f"{transport.BROKE}: closed by"):
        await api.get("/y")
    assert [request.connection for request in server.requests[3:]] == [3, 4]


@pytest.mark.parametrize("end", [CUT, RESET], ids=["closed", "reset"])
async def test_a_fresh_connection_that_is_closed_is_not_tried_again(
    server: Scripted, api: client.Client, end: object
) -> None:
    server.answer(end)  # type: ignore[arg-type]  # parametrized
    server.answer(plain(b"1"))
    with pytest.raises(errors.Unreachable, match=transport.BROKE):
        await api.get("/x")
    assert len(server.requests) == 1


async def test_a_kept_connection_that_breaks_within_the_head_is_not_tried_again(
    server: Scripted, api: client.Client
) -> None:
    """Then the request has been done, or half of it."""
    server.answer(plain(b"1"))
    server.answer(b"HTTP/1.1 2", CUT)
    await api.get("/x")
    with pytest.raises(errors.Unreachable, match=transport.BROKE):
        await api.post("/x", b"{}")
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "parts",
    [
        (plain(b"0123456789")[:-1], CUT),
        (STREAM + chunk(b"0123456789"), CUT),
        (head() + b"0123456789", CUT),
    ],
    ids=["length", "chunked", "neither"],
)
async def test_an_answer_cut_off_is_none(server: Scripted, api: client.Client, parts: tuple[bytes, object]) -> None:
    server.answer(*parts)  # type: ignore[arg-type]  # parametrized
    with pytest.raises(errors.Unreachable, match=transport.CUT_OFF):
        await api.get("/x")


async def test_waiting_ends(server: Scripted, api: client.Client) -> None:
    server.answer(HANG)
    server.answer(plain(b"0123456789")[:-1], HANG)
    server.answer(plain(b"1"))
    for _ in range(2):
        with pytest.raises(errors.Unreachable, match=r"no answer from 127.0.0.1:\d+ within 0.05 s to GET /x"):
            await api.get("/x", timeout=0.05)
    assert await api.get("/x") == b"1"
    assert server.connections == 3


async def test_waiting_for_a_turn_counts(server: Scripted) -> None:
    """A lease must be renewed in time, whatever else happens."""
    server.answer(HANG)
    async with made(server, connections=1) as api:
        first = asyncio.create_task(api.get("/slow"))
        await server.seen(1)
        with pytest.raises(errors.Unreachable, match=r"within 0\.05 s"):
            await api.get("/x", timeout=0.05)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    assert len(server.requests) == 1


async def test_the_number_of_connections_is_bounded(server: Scripted) -> None:
    go = asyncio.Event()
    for _ in range(6):
        server.answer(go, plain(b"1"))
    async with made(server, connections=2) as api, asyncio.TaskGroup() as tasks:
        for _ in range(6):
            tasks.create_task(api.get("/x"))
        await server.seen(2)
        go.set()
    assert server.connections == 2
    assert len(server.requests) == 6


async def test_a_watch_does_not_count(server: Scripted) -> None:
    server.answer(STREAM, HANG)
    server.answer(plain(b"1"))
    async with made(server, connections=1) as api, api.stream("/watch"):
        assert await api.get("/x", timeout=2) == b"1"


@pytest.mark.parametrize("parts", [(HANG,), (plain(b"0123456789")[:-1], HANG)], ids=["head", "body"])
async def test_a_cancelled_request_leaves_no_trace(server: Scripted, parts: tuple[object, ...]) -> None:
    server.answer(*parts)  # type: ignore[arg-type]  # parametrized
    server.answer(plain(b"1"))
    async with made(server, connections=1) as api:
        task = asyncio.create_task(api.get("/x"))
        await server.seen(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await api.get("/x", timeout=2) == b"1"
    assert server.connections == 2


async def test_closing_closes(server: Scripted) -> None:
    server.answer(plain(b"1"))
    async with made(server) as api:
        await api.get("/x")
        assert server.open == 1
    await until(lambda: not server.open)


@pytest.mark.parametrize(
    "answer",
    [
        STREAM + chunk(b"01234") + chunk(b"56") + END,
        plain(b"0123456"),
        STREAM.replace(b"\r\n\r\n", b"\r\nTrailer: X-Sum\r\n\r\n") + chunk(b"0123456") + b"0\r\nX-Sum: 1\r\n\r\n",
    ],
    ids=["chunked", "length", "trailer"],
)
async def test_an_answer_may_come_in_any_pieces(server: Scripted, api: client.Client, answer: bytes) -> None:
    for cut in range(1, len(answer)):
        gap = asyncio.Event()
        server.answer(answer[:cut], gap, answer[cut:])
        asyncio.get_running_loop().call_later(0.001, gap.set)
        assert await api.get("/x") == b"0123456", f"cut after {cut} bytes"
    assert server.connections == 1


async def test_bodies_are_bounded(server: Scripted, api: client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swapwarden.kube.transport.MAX_BODY_BYTES", 1024 * 1024)
    server.answer(plain(bytes(1024 * 1024)))
    server.answer(plain(bytes(1024 * 1024 + 1)))
    assert len(await api.get("/x")) == 1024 * 1024
    with pytest.raises(errors.TooLarge, match="1 MiB"):
        await api.get("/x")


def test_the_largest_object_fits() -> None:
    """The most that etcd's client sends (2 MiB), all of it characters that Go escapes, and the frame around it."""
    assert 2 * 1024 * 1024 * len(r"\u003c") + 1024 * 1024 < transport.MAX_BODY_BYTES


@pytest.mark.parametrize("levels", [1_100, 9_995, 100_000])
def test_an_error_that_is_nested_deeply(levels: int) -> None:
    nested = b"[" * levels + b"]" * levels
    for body in (nested, b'{"reason":"Bad","message":"no","details":%s}' % nested, b'{"message":%s}' % nested):
        error = errors.api_error(400, body)
        assert error.status == 400
        assert len(error.message) < 1000


def test_the_message_of_an_error_is_bounded() -> None:
    error = errors.api_error(400, b'{"reason":"%s","message":"%s"}' % (b"r" * 2_000_000, b"m" * 2_000_000))
    assert len(str(error)) < 40_000
    assert error.message.startswith("mmm")


@pytest.mark.parametrize(
    "start",
    [
        head(200, X_A="a" * 200_000),
        b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"a: 1\r\n" * 12_000,
        b"HTTP/1.1 200 " + b"a" * 70_000,
    ],
    ids=["whole", "one without end", "many", "reason"],
)
async def test_headers_are_bounded(server: Scripted, api: client.Client, start: bytes) -> None:
    server.answer(start, b"a" * 70_000, HANG)
    with pytest.raises(errors.Unreachable, match=f"64 KiB|{transport.NOT_HTTP}"):
        await api.get("/x", timeout=5)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        STREAM + b"zz\r\n",
        head(101, Upgrade="websocket", Connection="Upgrade"),
        plain(b"1") + plain(b"2"),
        plain(b"1", Connection="close") + b"2",
    ],
    ids=["ssh", "tls alert", "bad chunk", "upgrade", "two answers", "more than the answer"],
)
async def test_bytes_that_are_not_http_are_no_answer(server: Scripted, api: client.Client, answer: bytes) -> None:
    server.answer(answer, HANG)
    with pytest.raises(errors.Unreachable, match=transport.NOT_HTTP):
        await api.get("/x", timeout=5)


async def test_an_interim_answer_is_no_answer(server: Scripted, api: client.Client) -> None:
    server.answer(head(103))
    with pytest.raises(errors.Unreachable, match="interim"):
        await api.get("/x", timeout=5)


async def test_nobody_listens(api: client.Client) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        cfg = config.Config(server=f"http://127.0.0.1:{port}")
        async with client.Client(cfg, user_agent="test") as other:
            with pytest.raises(errors.Unreachable, match=f"cannot connect to 127.0.0.1:{port}"):
                await other.get("/x")
    assert api


async def test_connecting_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose queue is full takes no more connections, and says nothing."""
    monkeypatch.setattr("swapwarden.kube.transport.CONNECT_SECONDS", 0.05)
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())
        cfg = config.Config(server=f"http://127.0.0.1:{full.getsockname()[1]}")
        async with client.Client(cfg, user_agent="test") as other:
            with pytest.raises(errors.Unreachable, match=r"within 0\.05 s"):
                await other.get("/x")


async def test_a_host_whose_name_is_no_name_cannot_be_reached() -> None:
    cfg = config.Config(server=f"https://{'a' * 64}.example")
    async with client.Client(cfg, user_agent="test") as other:
        with pytest.raises(errors.Unreachable, match=r"cannot connect to a{64}\.example: .*label"):
            await other.get("/x")


async def test_an_error_says_what_the_server_said(server: Scripted, api: client.Client) -> None:
    server.answer(failure(409, "Conflict", "the object has been modified"))
    with pytest.raises(errors.ApiError) as caught:
        await api.put("/x", b"{}")
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    assert str(caught.value) == "the object has been modified (409 Conflict)"
    assert caught.value.retry_after == 0.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"upstream is gone\n", "upstream is gone (502)"),
        (b"", "no message (502)"),
        (b"[1]", "[1] (502)"),
        (b"\xff\xfe", "\ufffd\ufffd (502)"),
        (b'{"reason":"Odd"}', '{"reason":"Odd"} (502 Odd)'),
        (b"x" * 1000, "x" * 512 + " (502)"),
    ],
)
async def test_an_error_that_is_no_status(server: Scripted, api: client.Client, body: bytes, message: str) -> None:
    server.answer(plain(body, 502))
    with pytest.raises(errors.ApiError) as caught:
        await api.get("/x")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("99999999999", 60.0),
        ("soon", 0.0),
        ("-1", 0.0),
        ("Mon, 01 Jan 2024 00:00:00 GMT", 0.0),
        (f"Mon, 01 Jan 2024 00:00:00 +{'9' * 20}", 0.0),
    ],
)
async def test_the_server_says_when_to_come_back(
    server: Scripted, api: client.Client, header: str, seconds: float
) -> None:
    server.answer(failure(429, "TooManyRequests", "slow down", Retry_After=header))
    with pytest.raises(errors.ApiError) as caught:
        await api.get("/x")
    assert caught.value.retry_after == seconds


async def test_the_server_says_when_to_come_back_as_a_date(server: Scripted, api: client.Client) -> None:
    server.answer(plain(b"", 503, Retry_After=email.utils.formatdate(time.time() + 30, usegmt=True)))
    with pytest.raises(errors.ApiError) as caught:
        await api.get("/x")
    assert caught.value.retry_after == pytest.approx(30, abs=2)


def bearer(server: Scripted) -> list[str]:
    return [request.headers["authorization"] for request in server.requests]


async def test_a_refused_token_is_read_again(server: Scripted, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "token"
    write_token(path, "old")
    server.answer(plain(b"1"))
    server.answer(failure(401, "Unauthorized", "Unauthorized"))
    server.answer(plain(b"2"))
    async with made(server, config.TokenFile(path, now=lambda: 0.0)) as api:
        await api.get("/x")
        write_token(path, "new")
        assert await api.post("/y", b"{}") == b"2"
    assert bearer(server) == ["Bearer old", "Bearer old", "Bearer new"]
    assert [request.body for request in server.requests[1:]] == [b"{}", b"{}"]


async def test_a_refused_token_is_tried_twice_and_no_more(server: Scripted, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "token"
    write_token(path, "same")
    for _ in range(2):
        server.answer(failure(401, "Unauthorized", "Unauthorized"))
    async with made(server, config.TokenFile(path)) as api:
        with pytest.raises(errors.ApiError, match="401 Unauthorized"):
            await api.get("/x")
    assert len(server.requests) == 2


async def test_a_watch_with_a_refused_token_reads_it_again(server: Scripted, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "token"
    write_token(path, "old")
    token = config.TokenFile(path, now=lambda: 0.0)
    token.token()
    write_token(path, "new")
    server.answer(failure(401, "Unauthorized", "Unauthorized"))
    server.answer(STREAM + chunk(b"1") + END)
    async with made(server, token) as api, api.stream("/x") as pieces:
        assert [piece async for piece in pieces] == [b"1"]
    assert bearer(server) == ["Bearer old", "Bearer new"]


async def test_a_static_token_is_tried_once(server: Scripted) -> None:
    server.answer(failure(401, "Unauthorized", "Unauthorized"))
    cfg = config.Config(server=server.url, static_token="secret")
    async with client.Client(cfg, user_agent="test") as api:
        with pytest.raises(errors.ApiError):
            await api.get("/x")
    assert len(server.requests) == 1


async def test_a_token_replaced_on_disk_is_used_within_a_second(server: Scripted, tmp_path: pathlib.Path) -> None:
    path, now = tmp_path / "token", 0.0
    write_token(path, "old")
    for _ in range(3):
        server.answer(plain(b"1"))
    async with made(server, config.TokenFile(path, now=lambda: now)) as api:
        await api.get("/x")
        write_token(path, "new")
        await api.get("/x")
        now = config.TOKEN_CHECK_SECONDS
        await api.get("/x")
    assert bearer(server) == ["Bearer old", "Bearer old", "Bearer new"]


async def test_without_a_token_nothing_is_sent(tmp_path: pathlib.Path, server: Scripted) -> None:
    async with made(server, config.TokenFile(tmp_path / "absent")) as api:
        with pytest.raises(errors.ConfigError, match="token file"):
            await api.get("/x")
    assert server.requests == []


async def test_a_stream_arrives_in_pieces(server: Scripted, api: client.Client) -> None:
    go = asyncio.Event()
    server.answer(STREAM, chunk(b"one"), go, chunk(b"two"), END)
    server.answer(plain(b"1"))
    async with api.stream("/x") as pieces:
        assert await anext(pieces) == b"one"
        go.set()
        assert [piece async for piece in pieces] == [b"two"]
    await api.get("/x")
    assert server.connections == 1


@pytest.mark.parametrize("end", [CUT, RESET], ids=["closed", "reset"])
async def test_a_stream_that_is_cut_says_so(server: Scripted, api: client.Client, end: object) -> None:
    go = asyncio.Event()
    server.answer(STREAM, chunk(b"one"), go, end)  # type: ignore[arg-type]  # parametrized
    async with api.stream("/x") as pieces:
        assert await anext(pieces) == b"one"
        go.set()
        with pytest.raises(EOFError):
            await anext(pieces)


async def test_a_stream_that_is_left_closes_its_connection(server: Scripted, api: client.Client) -> None:
    server.answer(STREAM, chunk(b"one"), HANG)
    server.answer(plain(b"1"))
    async with api.stream("/x") as pieces:
        await anext(pieces)
    await until(lambda: not server.open)
    await api.get("/x")


async def test_who_reads_slowly_holds_up_the_server(server: Scripted, api: client.Client) -> None:
    """Unread bytes stay in the server and the kernel."""
    count, size = 1000, 64 * 1024
    server.answer(STREAM, *[chunk(bytes(size))] * count, END)
    async with api.stream("/x") as pieces:
        received = len(await anext(pieces))
        before = -1
        while server.sent != before:
            before = server.sent
            await asyncio.sleep(0.02)
        assert server.sent < count * size / 2
        async for piece in pieces:
            received += len(piece)
    assert received == count * size


async def test_a_stream_must_begin_in_time(server: Scripted, api: client.Client) -> None:
    server.answer(HANG)
    with pytest.raises(errors.Unreachable, match=r"within 0\.05 s"):
        async with api.stream("/x", timeout=0.05):
            raise AssertionError


async def test_a_refused_stream_keeps_its_connection(server: Scripted, api: client.Client) -> None:
    server.answer(failure(403, "Forbidden", "you may not"))
    server.answer(plain(b"1"))
    with pytest.raises(errors.ApiError, match="you may not"):
        async with api.stream("/x"):
            raise AssertionError
    await api.get("/x")
    assert server.connections == 1


async def test_requests_are_counted(server: Scripted, api: client.Client) -> None:
    def counted() -> list[float]:
        labels = [("GET", "200"), ("GET", "404"), ("GET", "timeout"), ("GET", "unreachable"), ("WATCH", "unreachable")]
        return [transport.REQUESTS.value(*label) for label in labels]

    before = counted()
    server.answer(plain(b"1"))
    server.answer(failure(404, "NotFound", "no"))
    server.answer(HANG)
    server.answer(CUT)
    server.answer(CUT)
    await api.get("/x")
    for timeout in (5, 0.05, 5):
        with pytest.raises(errors.KubeError):
            await api.get("/x", timeout=timeout)
    with pytest.raises(errors.Unreachable):
        async with api.stream("/x"):
            raise AssertionError
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, 1, 1, 1, 1]


async def test_a_request_that_is_given_up_is_taken_back_from_the_kernel() -> None:
    """By a reset, or it would arrive when an interrupted network works again."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"{}")
            await reader.read()
        except ConnectionResetError:
            ended.set_result("reset")
        else:
            ended.set_result("closed in good order")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with client.Client(config.Config(server=f"http://127.0.0.1:{port}"), user_agent="test") as api:
            with pytest.raises(errors.Unreachable):
                await api.put("/x", b"{}", timeout=0.05)
            assert await ended == "reset"


async def test_the_servers_time_is_that_of_its_last_answer(server: Scripted, api: client.Client) -> None:
    assert api.server_time() is None
    for stamp, seconds in (
        ("Thu, 01 Jan 2026 00:00:00 GMT", 1767225600.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 253402300799.0),
        ("yesterday", None),
        ("Thu, 99 Jan 2026 00:00:00 GMT", None),
        ("", None),
    ):
        server.answer(reply({}, Date=stamp))
        await api.get("/x")
        found = api.server_time()
        assert found is None if seconds is None else found == pytest.approx(seconds, abs=5)
    server.answer(failure(500, "", "broken", Date="Thu, 01 Jan 2026 00:00:00 GMT"))
    with pytest.raises(errors.ApiError):
        await api.get("/x")
    assert api.server_time() is not None, "an error also has a date"
