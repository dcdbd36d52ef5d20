"""The admission server over real TLS on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from swapwarden.api import names
from swapwarden.telemetry import turns
from swapwarden.webhook import bodies, certificates, connections, review, server

from testbed.controlplane import pki
from tests.unit.webhook import reviews

GOOD = reviews.raw(reviews.pod({"swapwarden.dev/swap-policy": "Disabled"}))


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One connection, byte by byte where a test wants it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        async with asyncio.timeout(20):
            return await self._answer()

    async def ended(self) -> bool:
        """Whether the server closes the connection without another word."""
        try:
            async with asyncio.timeout(20):
                return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def _answer(self) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name}
        return Answer(int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"])))

    async def post(self, path: str, body: bytes = GOOD, **headers: str) -> Answer:
        await self.send(head(path, len(body), **headers) + body)
        return await self.answer()

    def peer(self) -> str:
        certificate = self.writer.get_extra_info("ssl_object").getpeercert()
        return str(dict(part[0] for part in certificate["subject"])["commonName"])

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def head(path: str, length: int, *, method: str = "POST", content_type: str = "application/json") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: webhook\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
    ).encode("ascii")


class Running:
    """A server in this process, and clients of it."""

    def __init__(self, serving: server.Serving, authority: pki.Authority, pair: pki.KeyPair) -> None:
        self.serving, self.authority, self.pair = serving, authority, pair
        self._clients: list[Client] = []

    async def connect(self, source: str = "127.0.0.1") -> Client:
        trusting = ssl.create_default_context(cafile=str(self.authority.certificate))
        at = ("127.0.0.1", self.serving.port)
        client = Client(*await asyncio.open_connection(*at, ssl=trusting, local_addr=(source, 0)))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


Start = Callable[[], Awaitable[Running]]


@pytest.fixture
def authority(tmp_path: Path) -> pki.Authority:
    return pki.Authority(tmp_path)


@pytest.fixture
def files(authority: pki.Authority) -> pki.KeyPair:
    return authority.issue("serving", "first", ["127.0.0.1"])


@pytest.fixture
def loaded(files: pki.KeyPair) -> certificates.Certificates:
    return certificates.Certificates(files.certificate, files.key)


@pytest.fixture
async def running(
    authority: pki.Authority, files: pki.KeyPair, loaded: certificates.Certificates
) -> AsyncIterator[Running]:
    async with server.serve("127.0.0.1", 0, loaded) as serving:
        started = Running(serving, authority, files)
        yield started
        await started.close()


# --- answers ---


async def test_a_pod_that_is_fine(running: Running) -> None:
    counted = server.REQUESTS.value("own", "CREATE", "allowed")
    observed = server.SECONDS.count("own")
    answer = await (await running.connect()).post("/pods?timeout=5s")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert json.loads(answer.body)["response"] == {"uid": "c0ffee00-0000-4000-8000-000000000001", "allowed": True}
    assert server.REQUESTS.value("own", "CREATE", "allowed") == counted + 1
    assert server.SECONDS.count("own") == observed + 1


async def test_a_pod_that_is_refused_is_logged_with_its_name(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    counted = server.REQUESTS.value("own", "CREATE", "refused")
    body = reviews.raw(reviews.pod({"swapwarden.dev/swap-policy": "Sometimes"}), dryRun=True)
    answer = await (await running.connect()).post("/pods", body)
    assert answer.status == 200, "a refusal is an answer, not an HTTP error"
    assert json.loads(answer.body)["response"]["allowed"] is False
    assert server.REQUESTS.value("own", "CREATE", "refused") == counted + 1
    (record,) = (record for record in caplog.records if record.getMessage() == "pod refused")
    fields: dict[str, Any] = vars(record)
    assert (fields["namespace"], fields["pod"], fields["dry_run"]) == ("shop", "web-0", True)
    assert "Sometimes" in fields["reason"]


@pytest.mark.parametrize("policy", list(names.Policy))
async def test_each_default_has_its_path(running: Running, policy: names.Policy) -> None:
    counted = server.REQUESTS.value("default", "CREATE", "patched")
    path = f"/pods/{policy.value.lower()}"
    answer = await (await running.connect()).post(path, reviews.raw(reviews.pod(None)))
    response = json.loads(answer.body)["response"]
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    assert server.REQUESTS.value("default", "CREATE", "patched") == counted + 1


async def test_one_connection_serves_many_requests(running: Running) -> None:
    client = await running.connect()
    for _ in range(20):
        assert (await client.post("/pods")).status == 200


async def test_an_operation_nobody_knows_does_not_become_a_label(running: Running) -> None:
    counted = server.REQUESTS.value("own", "other", "allowed")
    body = reviews.raw(None, operation="X" * 1000)
    assert (await (await running.connect()).post("/pods", body)).status == 200
    assert server.REQUESTS.value("own", "other", "allowed") == counted + 1


# --- invalid requests ---


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "says"),
    [
        ("/", GOOD, {}, 404, "this webhook serves /pods"),
        ("/pods/Required", GOOD, {}, 404, "/pods/disabled"),
        ("/pods", b"", {"method": "GET"}, 405, "only POST"),
        ("/pods", GOOD, {"content_type": "text/yaml"}, 415, "application/json, not text/yaml"),
        ("/pods", b"{", {}, 400, "not an AdmissionReview"),
        ("/pods", b"{}", {}, 400, "set admissionReviewVersions"),
    ],
)
async def test_an_invalid_request_gets_the_reason(
    running: Running, path: str, body: bytes, headers: dict[str, str], status: int, says: str
) -> None:
    counted = connections.BAD_REQUESTS.value(str(status))
    answer = await (await running.connect()).post(path, body, **headers)
    assert answer.status == status
    assert says in answer.body.decode()
    assert connections.BAD_REQUESTS.value(str(status)) == counted + 1


async def test_the_content_type_may_name_its_character_set(running: Running) -> None:
    client = await running.connect()
    assert (await client.post("/pods", content_type="application/json; charset=utf-8")).status == 200


async def test_a_mistake_of_ours_is_an_error_and_no_refusal(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_request: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setitem(server.ROUTES, "/pods", ("own", broken))
    client = await running.connect()
    answer = await client.post("/pods")
    assert answer.status == 500
    assert b"secret detail" not in answer.body
    monkeypatch.setitem(server.ROUTES, "/pods", ("own", review.answer))
    assert (await client.post("/pods")).status == 200


# --- bounds ---


async def test_a_body_as_large_as_the_largest_update_is_read(running: Running) -> None:
    pod = reviews.pod({"note": "x" * (server.MAX_BODY_BYTES - 4000)})
    assert (await (await running.connect()).post("/pods", reviews.raw(pod))).status == 200


async def test_a_larger_body_is_refused_before_it_is_sent(running: Running) -> None:
    client = await running.connect()
    await client.send(head("/pods", server.MAX_BODY_BYTES + 1))
    answer = await client.answer()
    assert answer.status == 413
    assert f"at most {server.MAX_BODY_BYTES}" in answer.body.decode()
    assert await client.ended(), "the rest of the body is not waited for"


async def test_a_body_of_unknown_length_is_cut_off_at_the_limit(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_BODY_BYTES", 100_000)
    client = await running.connect()
    await client.send(
        b"POST /pods HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    with contextlib.suppress(ConnectionError):
        for _ in range(8):
            await client.send(chunk)
    assert (await client.answer()).status == 413


async def test_bodies_that_stay_unfinished_keep_none_out(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_BUFFERED_BYTES", 4 * len(GOOD))
    monkeypatch.setattr(bodies, "SMALL_BODY_BYTES", len(GOOD) - 1)
    hostile = [await running.connect("127.9.9.9") for _ in range(3)]
    other = await running.connect()
    for client in hostile:
        await client.send(head("/pods", 4 * len(GOOD)) + b"{")
        assert (await other.post("/pods")).status == 200, "an announced length does not count"
    counted = connections.BAD_REQUESTS.value("503")
    for client in hostile:
        await client.send(b" " * (len(GOOD) + 9))
    async with asyncio.timeout(20):
        while connections.BAD_REQUESTS.value("503") == counted:  # sent bytes may still be under way
            assert (await other.post("/pods")).status == 200
    answer = await hostile[-1].answer()
    assert (answer.status, answer.headers["retry-after"]) == (503, "1"), "the last to come is furthest from its end"


async def test_for_a_new_connection_the_oldest_idle_one_gives_way(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    dropped = connections.DROPPED.value("idle")
    first, second = await running.connect(), await running.connect()
    for client in (first, second):
        assert (await client.post("/pods")).status == 200
    third = await running.connect()
    assert (await third.post("/pods")).status == 200
    assert await first.ended()
    assert (await second.post("/pods")).status == 200
    assert connections.DROPPED.value("idle") == dropped + 1


@pytest.mark.parametrize("begun", [b"", b"POST /po", head("/pods", 10), head("/pods", 10) + b"{"])
async def test_those_that_do_not_finish_what_they_began_give_way_first(
    running: Running, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    answered = await running.connect()
    assert (await answered.post("/pods")).status == 200
    slow = [await running.connect() for _ in range(2)]
    for client in slow:
        await client.send(begun)
    for client in slow:
        assert (await (await running.connect()).post("/pods")).status == 200
        assert await client.ended()
    assert (await answered.post("/pods")).status == 200


async def test_a_connection_that_is_being_answered_does_not_give_way(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(bodies, "SMALL_BODY_BYTES", 0)
    begun, going_on = asyncio.Event(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def take(_turns: turns.Turns, _peer: str, _key: str) -> AsyncIterator[None]:
        begun.set()
        await going_on.wait()
        yield

    monkeypatch.setattr(turns.Turns, "take", take)
    client = await running.connect()
    answer = asyncio.create_task(client.post("/pods"))
    await begun.wait()
    refused = connections.DROPPED.value("refused")
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await (await running.connect()).post("/pods")
    going_on.set()
    assert (await answer).status == 200
    assert connections.DROPPED.value("refused") == refused + 1


async def test_a_thousand_silent_connections_keep_no_client_out(running: Running) -> None:
    dropped = connections.DROPPED.value("silent")
    begun = b"\x16\x03\x01\x00\x10"
    silent = []
    for number in range(2 * connections.MAX_SILENT):
        idle = socket.create_connection(("127.0.0.1", running.serving.port), source_address=("127.9.9.9", 0))
        silent.append(idle)
        idle.sendall(begun[: number % 6])
        if number % 100 == 0:
            assert (await (await running.connect()).post("/pods")).status == 200
    assert (await (await running.connect()).post("/pods")).status == 200
    assert connections.DROPPED.value("silent") >= dropped + connections.MAX_SILENT
    for idle in silent:
        idle.close()


@pytest.mark.parametrize("maximum", ["MAX_HANDSHAKES", "MAX_HANDSHAKES_OF_PEER"])
async def test_a_handshake_that_stalls_gives_way_to_others(
    running: Running, monkeypatch: pytest.MonkeyPatch, maximum: str
) -> None:
    monkeypatch.setattr(connections, "STALLED_AFTER", 0.01)
    monkeypatch.setattr(connections, maximum, 2)
    dropped = connections.DROPPED.value("handshake")
    hello = reviews.client_hello()
    stalled = [await asyncio.open_connection("127.0.0.1", running.serving.port) for _ in range(5)]
    for _, writer in stalled:
        # Not all at once: what a handshake begins with may come in pieces.
        writer.write(hello[:7])
        await writer.drain()
        writer.write(hello[7:])
    async with asyncio.timeout(20):
        assert (await (await running.connect()).post("/pods")).status == 200
        while connections.DROPPED.value("handshake") < dropped + 3:
            assert (await (await running.connect()).post("/pods")).status == 200
    for _, writer in stalled:
        writer.close()


async def test_handshakes_of_one_address_keep_no_other_waiting(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_HANDSHAKES", 5)
    monkeypatch.setattr(connections, "MAX_HANDSHAKES_OF_PEER", 2)
    hello = reviews.client_hello()
    stalled = []
    for _ in range(5):
        stalled.append(socket.create_connection(("127.0.0.1", running.serving.port), source_address=("127.9.9.9", 0)))
        stalled[-1].sendall(hello)
    dropped = connections.DROPPED.value("handshake")
    assert (await (await running.connect()).post("/pods")).status == 200
    assert connections.DROPPED.value("handshake") == dropped, "nobody had to give way for it"
    for idle in stalled:
        idle.close()


async def test_a_client_that_closes_within_its_first_record_leaves_nothing(running: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.serving.port)
    writer.write(b"\x16\x03\x01\x10\x00 too little")
    writer.write_eof()
    async with asyncio.timeout(connections.READ_TIMEOUT / 2):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


# --- large reviews ---


def large(namespace: str, **annotations: str) -> bytes:
    pod = reviews.pod({"note": "x" * bodies.SMALL_BODY_BYTES, **annotations})
    return reviews.raw(pod, namespace=namespace)


async def test_large_reviews_of_one_namespace_keep_no_other_pod_waiting(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = asyncio.Event()
    monkeypatch.setattr("swapwarden.telemetry.turns.LONGEST_PAUSE", 0.0)
    turn = turns.Turns.take

    @contextlib.asynccontextmanager
    async def take(queue: turns.Turns, peer: str, key: str) -> AsyncIterator[None]:
        async with turn(queue, peer, key):
            await going_on.wait()
            yield

    monkeypatch.setattr(turns.Turns, "take", take)
    counted = connections.BAD_REQUESTS.value("503")
    asked = [asyncio.create_task((await running.connect()).post("/pods", large("greedy"))) for _ in range(8)]
    async with asyncio.timeout(20):
        while connections.BAD_REQUESTS.value("503") < counted + 4:
            assert (await (await running.connect()).post("/pods")).status == 200, "a small one has no turn to wait for"
        other = asyncio.create_task((await running.connect()).post("/pods", large("modest")))
        going_on.set()
        assert (await other).status == 200
        answers = await asyncio.gather(*asked)
    assert sorted(answer.status for answer in answers) == [200] * 4 + [503] * 4
    assert {answer.headers.get("retry-after") for answer in answers if answer.status == 503} == {"1"}


async def test_any_pod_that_can_be_stored_is_read(running: Running) -> None:
    # The worst of 1.5 MiB: each character takes six bytes as Go's encoder writes it.
    body = large("shop").replace(b'"none"', b'"' + rb"\u003c" * (3 * 512 * 1024) + b'"')
    assert len(body) > 9 * 1024 * 1024
    assert (await (await running.connect()).post("/pods", body)).status == 200


@pytest.mark.parametrize(
    "filling",
    [b'"tolerations":[' + b"{}," * 300_000 + b"{}]", b'"x":{' + b'"a":"",' * 300_000 + b'"a":""}'],
)
async def test_a_pod_of_very_many_fields_is_refused_unread(running: Running, filling: bytes) -> None:
    body = reviews.raw(reviews.pod({})).replace(b'"priority": 0', filling)
    answer = await (await running.connect()).post("/pods", body)
    assert answer.status == 400
    assert "more than 200000 fields" in answer.body.decode()


@pytest.mark.parametrize("begun", [b"", b"POST /po"])
async def test_a_head_that_does_not_come_is_not_waited_for(
    running: Running, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connections, "READ_TIMEOUT", 0.05)
    counted = connections.BAD_REQUESTS.value("408")
    client = await running.connect()
    await client.send(begun)
    assert await client.ended()
    assert connections.BAD_REQUESTS.value("408") == counted + 1


async def test_nor_is_the_head_of_a_second_request(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await running.connect()
    assert (await client.post("/pods")).status == 200
    monkeypatch.setattr(connections, "READ_TIMEOUT", 0.05)
    await client.send(b"POST /po")
    assert await client.ended()


async def test_a_body_that_does_not_come_is_not_waited_for(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_TIMEOUT", 0.05)
    client = await running.connect()
    await client.send(head("/pods", len(GOOD)) + GOOD[:-1])
    answer = await client.answer()
    assert answer.status == 408
    assert answer.headers["connection"] == "close"


async def test_a_client_that_leaves_in_the_middle_harms_nobody(running: Running) -> None:
    counted = connections.BAD_REQUESTS.value("400")
    client = await running.connect()
    await client.send(head("/pods", len(GOOD)) + GOOD[:-1])
    await client.close()
    other = await running.connect()
    async with asyncio.timeout(20):
        while connections.BAD_REQUESTS.value("400") == counted:
            assert (await other.post("/pods")).status == 200


async def test_plain_http_and_garbage_are_turned_away(running: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.serving.port)
    writer.write(head("/pods", len(GOOD)) + GOOD)
    with contextlib.suppress(ConnectionError):
        assert b"200" not in await reader.read()
    writer.close()
    client = await running.connect()
    await client.send(b"\x00\x01garbage\r\n\r\n")
    assert (await client.answer()).status == 400
    assert (await (await running.connect()).post("/pods")).status == 200


# --- rotation ---


async def test_rotation_under_load_costs_no_request(
    running: Running, authority: pki.Authority, loaded: certificates.Certificates
) -> None:
    done = asyncio.Event()
    seen: set[str] = set()

    async def keep_asking(*, reconnect: bool) -> int:
        count = 0
        client = await running.connect()
        while not done.is_set():
            if reconnect:
                await client.close()
                client = await running.connect()
            assert (await client.post("/pods")).status == 200
            seen.add(client.peer())
            count += 1
        return count

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        askers = [group.create_task(keep_asking(reconnect=number > 0)) for number in range(4)]
        for number in range(20):
            new = authority.issue(f"pair-{number}", f"pair-{number}", ["127.0.0.1"])
            # One file after the other, looked at in between: the worst moment.
            running.pair.certificate.write_bytes(new.certificate.read_bytes())
            await asyncio.to_thread(loaded.check)
            running.pair.key.write_bytes(new.key.read_bytes())
            await asyncio.to_thread(loaded.check)
            while f"pair-{number}" not in seen:  # noqa: ASYNC110 the askers say it with what they see
                await asyncio.sleep(0)
        done.set()
    assert all(asker.result() >= 20 for asker in askers)
    assert (await running.connect()).peer() == "pair-19"


async def test_a_broken_pair_leaves_the_old_one_serving(running: Running, loaded: certificates.Certificates) -> None:
    running.pair.certificate.write_text("broken", encoding="ascii")
    assert not loaded.check()
    client = await running.connect()
    assert client.peer() == "first"
    assert (await client.post("/pods")).status == 200


async def test_the_files_are_watched(running: Running, loaded: certificates.Certificates) -> None:
    watching = asyncio.create_task(loaded.watch(0.01))
    new = running.authority.issue("other", "other", ["127.0.0.1"])
    running.pair.certificate.write_bytes(new.certificate.read_bytes())
    running.pair.key.write_bytes(new.key.read_bytes())
    async with asyncio.timeout(20):
        while (client := await running.connect()).peer() != "other":
            await client.close()
    watching.cancel()


# --- the end ---


async def test_draining_ends_connections_with_their_next_answer(running: Running) -> None:
    client = await running.connect()
    assert "connection" not in (await client.post("/pods")).headers
    running.serving.drain()
    assert (await client.post("/pods")).headers["connection"] == "close"
    assert await client.ended()
    assert (await (await running.connect()).post("/pods")).status == 200, "it still serves"


async def test_the_end_waits_until_clients_have_left_their_connections(running: Running) -> None:
    """A request that meets the end of an idle connection is lost."""
    clients = [await running.connect() for _ in range(3)]
    for client in clients:
        assert (await client.post("/pods")).status == 200
    running.serving.drain()
    ending = asyncio.create_task(running.serving.left(60.0))
    for client in clients:
        await asyncio.sleep(0)
        assert not ending.done()
        assert (await client.post("/pods")).status == 200
        assert await client.ended()
    async with asyncio.timeout(10):
        await ending


async def test_a_request_in_progress_is_answered_before_the_end(
    authority: pki.Authority, files: pki.KeyPair, loaded: certificates.Certificates
) -> None:
    begun, stop = asyncio.Event(), asyncio.Event()

    async def serve() -> None:
        async with server.serve("127.0.0.1", 0, loaded) as serving:
            started.append(Running(serving, authority, files))
            begun.set()
            await stop.wait()

    started: list[Running] = []
    async with asyncio.timeout(30):
        task = asyncio.create_task(serve())
        await begun.wait()
        (running,) = started
        idle, busy = await running.connect(), await running.connect()
        assert (await idle.post("/pods")).status == 200
        assert (await busy.post("/pods")).status == 200
        await busy.send(head("/pods", len(GOOD)) + GOOD[:10])
        # A request on another connection is answered after the head before it was read.
        assert (await idle.post("/pods")).status == 200
        stop.set()
        while True:  # the listener is closed first
            try:
                late = await running.connect()
            except ConnectionError:
                break
            await late.close()
        assert not task.done(), "it must wait for the body"
        await busy.send(GOOD[10:])
        answer = await busy.answer()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        await task
        assert await idle.ended()
        await running.close()


async def test_a_request_that_never_ends_does_not_hold_up_the_end(
    authority: pki.Authority, files: pki.KeyPair, loaded: certificates.Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SHUTDOWN_TIMEOUT", 0.05)
    async with asyncio.timeout(10):
        async with server.serve("127.0.0.1", 0, loaded) as serving:
            running = Running(serving, authority, files)
            client = await running.connect()
            await client.send(head("/pods", len(GOOD)) + GOOD[:10])
        await running.close()


async def test_a_port_that_is_taken(running: Running, loaded: certificates.Certificates) -> None:
    with pytest.raises(OSError, match="in use"):
        async with server.serve("127.0.0.1", running.serving.port, loaded):
            pass
