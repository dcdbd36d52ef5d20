"""Errors and notes of a session."""

from __future__ import annotations

import asyncio
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest
from swapwarden.cli.kubectl import flags, main
from swapwarden.cli.kubectl.cluster import session
from swapwarden.kube import transport


class Server:
    """Answers each request with the same, on loopback."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.paths: list[str] = []
        self.token: str | None = None
        """The only one that it accepts, if it is not all the same."""
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.paths.append(self.path)
                accepted = server.token is None or self.headers["Authorization"] == f"Bearer {server.token}"
                self.send_response(server.status if accepted else 401)
                self.send_header("Content-Length", str(len(server.body)))
                self.end_headers()
                self.wfile.write(server.body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *_: None  # type: ignore[method-assign]  # who has read enough may leave

    def kubeconfig(self, folder: Path, user: dict[str, object] | None = None) -> str:
        path = folder / "kubeconfig"
        server = f"http://127.0.0.1:{self.http.server_address[1]}"
        content = {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(content))
        return str(path)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.http.serve_forever, args=(0.05,), daemon=True).start()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, {"message": "Unauthorized"}, "error: the API server refused the credentials (401): Unauthorized; log in"),
        (403, {"message": "nodes is forbidden"}, "error: nodes is forbidden (403); docs/kubectl-swap.md lists"),
        (404, {"message": 'nodes "a" not found', "reason": "NotFound"}, 'error: nodes "a" not found'),
        (404, {}, "error: GET /api/v1/nodes: {} (404)"),
        (500, {"message": "etcd\x1b[31m is away"}, "error: GET /api/v1/nodes: etcd\ufffd[31m is away (500)"),
        (200, [], "error: the answer to GET /api/v1/nodes is no list: "),
    ],
)
def test_what_the_server_says(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, body: object, said: str
) -> None:
    server.status, server.body = status, json.dumps(body).encode()
    assert main.main(["top", "nodes", "--kubeconfig", server.kubeconfig(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)


PAGE = (
    "<!DOCTYPE html>\n<html><head><title>Sign in &amp; go on</title></head><body>"
    + "<p>more</p>" * 5000
    + "</body></html>"
)


@pytest.mark.parametrize("status", [200, 302, 401, 403, 404, 502])
@pytest.mark.parametrize("words", [["top", "nodes"], ["nodes", "n1"]])
def test_web_page_gives_a_sentence_and_is_not_printed(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, words: list[str]
) -> None:
    server.status, server.body = status, PAGE.encode()
    assert main.main([*words, "--kubeconfig", server.kubeconfig(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: GET /")
    assert "'Sign in &amp; go on'" in err
    assert "address" in err
    assert "<p>" not in err
    assert len(err) < 500


# The names of Linux that Python has on no other system, taken away before anything is imported.
ELSEWHERE = """
import os, select, signal, socket, sys, time
absent = {
    os: ("memfd_create", "eventfd", "pidfd_open", "sched_setaffinity", "setresuid", "splice", "posix_fadvise",
         "copy_file_range", "getrandom", "sendfile", "O_TMPFILE", "O_PATH", "O_DIRECT"),
    select: ("epoll", "EPOLLIN"),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGPWR"),
    socket: ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "AF_NETLINK", "AF_VSOCK"),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI", "clock_settime"),
}
import asyncio, selectors  # which know other systems themselves
for module, gone in absent.items():
    for name in gone:
        if hasattr(module, name):
            delattr(module, name)
socket.TCP_KEEPALIVE = socket.TCP_KEEPINTVL  # what macOS has in place of TCP_KEEPIDLE
selectors.DefaultSelector = selectors.PollSelector
def opened(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc", "/sys")):
        raise FileNotFoundError(arguments[0])
sys.addaudithook(opened)
from swapwarden.cli.kubectl import __main__ as program
sys.argv[:] = ["kubectl-swap", *sys.argv[1:]]
sys.exit(program.main())
"""


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["nodes"], 0),
        (["top", "pods", "-A"], 0),
        (["explain", "web"], 1),
        (["simulate", "--delete", "a"], 1),
        (["check"], 1),
    ],
)
def test_it_runs_where_python_lacks_what_only_linux_has(
    server: Server, tmp_path: Path, words: list[str], status: int
) -> None:
    server.body = b'{"items": []}'
    done = subprocess.run(  # noqa: S603 our own words
        [sys.executable, "-c", ELSEWHERE, *words, "--kubeconfig", server.kubeconfig(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == status, done.stderr
    assert server.paths


@pytest.mark.parametrize(
    "answer",
    [
        {"items": []},
        {"items": [{}]},
        {"items": [{"metadata": {}}]},
        {"items": [{"metadata": {"name": "a"}}]},
        {"metadata": {"name": "a"}, "items": [{"metadata": {"name": "a"}, "spec": [], "webhooks": [{}]}]},
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("words", [["check", "--patience=0"], ["check", "-f", "examples"]], ids=" ".join)
def test_answers_that_no_api_server_gives_end_no_command(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], answer: object
) -> None:
    server.body = json.dumps(answer).encode()
    assert main.main([*words, "--kubeconfig", server.kubeconfig(tmp_path)]) in {0, 1, 2}
    err = capsys.readouterr().err
    assert answer == {"items": []} or "not understood" in err
    assert all(line.startswith(("note: ", "error: ")) for line in err.splitlines())


def test_an_error_names_the_path_of_an_object_without_metadata(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.body = b'{"items": []}'
    assert main.main(["check", "--kubeconfig", server.kubeconfig(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: /apis/apiextensions.k8s.io/v1/customresourcedefinitions/")
    assert "is not understood" in err


class Issuer:
    """A program that gives tokens: the first, then the second, and so on. It keeps count in a file."""

    def __init__(self, folder: Path) -> None:
        self._count = folder / "count"
        script = folder / "issuer"
        credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
        status = json.dumps({**credential, "status": {"token": "token-NUMBER"}}).replace("NUMBER", "'$n'")
        script.write_text(
            f"#!/bin/sh\nn=$(($(cat '{self._count}' 2>/dev/null || echo 0) + 1))\necho $n > '{self._count}'\n"
            f"echo '{status}'\n"
        )
        script.chmod(0o755)
        self.user: dict[str, object] = {"exec": {"apiVersion": credential["apiVersion"], "command": str(script)}}

    @property
    def asked(self) -> int:
        return int(self._count.read_text())


def test_credentials_that_expire_meanwhile_are_asked_for_again(server: Server, tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    target = session.Target(kubeconfig=server.kubeconfig(tmp_path, issuer.user))
    server.token = "token-1"

    async def work(asked: session.Session) -> list[bytes]:
        first = await asked.body("/1")
        server.token = "token-2"
        # Those that are under way at the same time make do with the same.
        return [first, *await asyncio.gather(*(asked.body(f"/{number}") for number in range(2, 6)))]

    assert session.run(target, work) == [b"{}"] * 5
    assert issuer.asked == 2


def test_credentials_that_are_refused_when_new_are_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    server.token = "another"
    target = session.Target(kubeconfig=server.kubeconfig(tmp_path, issuer.user))
    with pytest.raises(session.CommandError, match=r"refused the credentials \(401\)"):
        session.run(target, lambda asked: asked.body("/1"))
    assert (issuer.asked, server.paths) == (2, ["/1", "/1"])


def test_credentials_that_stand_in_the_kubeconfig_are_tried_once(server: Server, tmp_path: Path) -> None:
    server.token = "another"
    target = session.Target(kubeconfig=server.kubeconfig(tmp_path, {"token": "mine"}))
    with pytest.raises(session.CommandError, match=r"refused the credentials \(401\)"):
        session.run(target, lambda asked: asked.body("/1"))
    assert server.paths == ["/1"]


def test_names_become_segments_of_paths(server: Server, tmp_path: Path) -> None:
    target = session.Target(kubeconfig=server.kubeconfig(tmp_path))
    session.run(target, lambda asked: asked.objects(session.NODES, dict[str, str], ["../../x?y#z"]))
    assert server.paths == ["/api/v1/nodes/..%2F..%2Fx%3Fy%23z"]


class Named(msgspec.Struct):
    name: str


def test_objects_that_are_not_understood_are_left_out(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.body = b'{"items": [{"name": "a"}, {"name": 5, "metadata": {"name": "b\\u001b"}}]}'

    async def work(asked: session.Session) -> list[Named]:
        assert asked.namespaced("api/v1", "pods") == "/api/v1/namespaces/shop/pods"
        return await asked.collect("/api/v1/pods", Named) + await asked.collect("/api/v1/pods", Named)

    found = session.run(session.Target(server.kubeconfig(tmp_path)), work)
    assert found == [Named("a"), Named("a")]
    # Said once.
    assert capsys.readouterr().err == (
        "note: pods 'b\\x1b' is left out: not understood: Expected `str`, got `int` - at `$.name`\n"
    )


def test_objects_that_are_nested_deeply_hide_no_other(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nested = b"[" * 20_000 + b"]" * 20_000
    deep = b'{"metadata":{"name":"deep","managedFields":[{"fieldsV1":%s}]},"name":"deep"}' % nested
    server.body = b'{"items":[{"name":"a"},%s,{"metadata":{"name":"bad"},"name":%s}]}' % (deep, nested)
    target = session.Target(server.kubeconfig(tmp_path))
    assert session.run(target, lambda asked: asked.collect("/api/v1/pods", Named)) == [Named("a"), Named("deep")]
    assert "pods 'bad' is left out" in capsys.readouterr().err
    with pytest.raises(session.CommandError, match="is not understood"):
        session.run(target, lambda asked: asked.get("/api/v1/pods/bad", Named))


def test_lists_that_are_too_large_are_asked_for_in_smaller_pages(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 100_000)
    server.body = b'{"items":["%s"]}' % (b"x" * 200_000)
    target = session.Target(server.kubeconfig(tmp_path))
    with pytest.raises(session.ApiUnreachableError, match="larger"):
        session.run(target, lambda asked: asked.collect("/api/v1/pods", str))
    limits = [path.rpartition("limit=")[2] for path in server.paths]
    assert (limits[:3], limits[-1]) == (["500", "250", "125"], "1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("1m30s", 90), ("500ms", 0.5), ("2", 2), ("1.5h", 5400), ("0", 86400), ("0.0001s", 0.0001)],
)
def test_times(text: str, seconds: float) -> None:
    assert flags.Seconds(zero=flags.FOREVER).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["1m30", "s", "1.s", "-1s", "1d", "1234567890s", "", "1 s"])
def test_invalid_times(text: str) -> None:
    with pytest.raises(click.BadParameter, match="no time such as"):
        flags.Seconds().convert(text, None, None)


@pytest.mark.parametrize("text", ["0", "0s", "0m0.0s"])
def test_no_time(text: str) -> None:
    assert flags.Seconds(zero=0.0).convert(text, None, None) == 0
    with pytest.raises(click.BadParameter, match="0 is too short"):
        flags.Seconds().convert(text, None, None)


def test_a_namespace_after_an_equals_sign() -> None:
    """As kubectl takes it."""
    seen: list[str | None] = []

    @click.command()
    @flags.namespace
    @flags.cluster
    def shown(target: session.Target) -> None:
        seen.append(target.namespace)

    for words in (["-n=shop"], ["-nshop"], ["-n", "shop"], ["--namespace=shop"], []):
        shown.main(words, standalone_mode=False)
    assert seen == ["shop"] * 4 + [None]


def test_notes_that_are_repeated(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(asked: session.Session) -> None:
        asked.note("a")
        asked.note("a")
        assert capsys.readouterr().err == "note: a\n"
        with asked.repeat_notes():
            asked.note("a")
            asked.note("a")
            assert capsys.readouterr().err == ""
        assert capsys.readouterr().err == "note: a\n"
        asked.note("a")
        assert capsys.readouterr().err == ""
        asked.note("a", again=True)
        assert capsys.readouterr().err == "note: a\n"

    session.run(session.Target(server.kubeconfig(tmp_path)), work)
