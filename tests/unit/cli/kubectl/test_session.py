"""What is said of what cannot be shown."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from swapwarden.cli.kubectl import main, session


class Server:
    """Answers each request with the same, on loopback."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.paths: list[str] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.paths.append(self.path)
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(server.body)))
                self.end_headers()
                self.wfile.write(server.body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.HTTPServer(("127.0.0.1", 0), Handler)

    def kubeconfig(self, folder: Path) -> str:
        path = folder / "kubeconfig"
        server = f"http://127.0.0.1:{self.http.server_address[1]}"
        content = {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "namespace": "shop"}}],
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


def test_names_become_segments_of_paths(server: Server, tmp_path: Path) -> None:
    server.status = 404
    main.main(["nodes", "../../x?y#z", "--kubeconfig", server.kubeconfig(tmp_path)])
    assert "/api/v1/nodes/..%2F..%2Fx%3Fy%23z" in server.paths


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


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("1m30s", 90), ("500ms", 0.5), ("2", 2), ("1.5h", 5400), ("0", 86400)]
)
def test_times(text: str, seconds: float) -> None:
    from swapwarden.cli.kubectl import flags

    assert flags.Seconds().convert(text, None, None) == seconds
