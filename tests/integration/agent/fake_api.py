"""A scripted API server for one NodeSwapState: for what a real one cannot be made to do on command."""

from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import queue
import socket
import threading
import uuid
from typing import Any, Self
from urllib import parse

from tests.integration.conftest import Json

COLLECTION = "/apis/swapwarden.dev/v1alpha1/nodeswapstates"


def _merge(target: Json, patch: Json) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


EXPIRED: Json = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}


class FakeApi:
    """Serves on loopback, without TLS. All state behind one lock."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.failing: int | None = None
        """Answer every request with this HTTP status."""
        self.patches: list[Json] = []
        self.oldest = 0
        """A watch from a version before this one is too old."""
        self.lists = 0
        """How often the state was listed."""
        self._object: Json | None = None
        self._version = 100
        self._changed = threading.Condition()
        self._watchers: list[queue.SimpleQueue[Json | None]] = []
        self._server: _Server | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, on the port of the last time, if there was one."""
        api = self

        class Handler(_Handler):
            fake = api

        self._server = _Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and break those that there are."""
        if self._server is not None:
            self.cut()
            self._server.shutdown()
            self._server.break_all()
            self._server.server_close()
            self._server = None

    def cut(self) -> None:
        """End all watches."""
        with self._changed:
            for watcher in self._watchers:
                watcher.put(None)

    def kubeconfig(self, folder: pathlib.Path) -> pathlib.Path:
        """A kubeconfig, in JSON, for this server."""
        file = folder / "kubeconfig.json"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        file.write_text(json.dumps(content))
        return file

    # For tests

    def put(self, spec: Json, *, generation: int | None = None, new: bool = False) -> int:
        """Set the spec, as the controller would; gives the generation."""
        with self._changed:
            kind = "MODIFIED"
            if self._object is None or new:
                kind = "ADDED"
                self._object = {
                    "metadata": {"name": self.node, "uid": str(uuid.uuid4()), "generation": 0},
                    "status": {},
                }
            meta = self._object["metadata"]
            meta["generation"] = meta["generation"] + 1 if generation is None else generation
            self._object["spec"] = {"profileRef": {"name": "p"}, **spec}
            self._tell(kind)
            made: int = meta["generation"]
            return made

    def delete(self) -> None:
        """Delete the object."""
        with self._changed:
            self._tell("DELETED")
            self._object = None

    def bookmark(self) -> None:
        """Send a bookmark with the collection's version, as after changes of other objects; forget earlier versions."""
        with self._changed:
            self._version += 1
            self.oldest = self._version
            for watcher in self._watchers:
                watcher.put({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self._version)}}})

    def expire(self) -> None:
        """Tell all watches that their version is too old."""
        with self._changed:
            for watcher in self._watchers:
                watcher.put(EXPIRED)

    @property
    def status(self) -> Json:
        """The status as it is now."""
        with self._changed:
            return {} if self._object is None else json.loads(json.dumps(self._object["status"]))

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        for condition in self.status.get("conditions", []):
            if condition["type"] == kind:
                return condition["status"], condition["reason"]
        return "", ""

    @property
    def watching(self) -> int:
        """How many watches are open."""
        return len(self._watchers)

    # The server

    def _tell(self, kind: str) -> None:
        if self._object is None:
            return
        self._version += 1
        self._object["metadata"]["resourceVersion"] = str(self._version)
        event = {"type": kind, "object": json.loads(json.dumps(self._object))}
        for watcher in self._watchers:
            watcher.put(event)

    def answer_list(self) -> tuple[int, Json]:
        with self._changed:
            self.lists += 1
            items = [] if self._object is None else [self._object]
            return 200, {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    def answer_patch(self, patch: Json) -> tuple[int, Json]:
        with self._changed:
            if self._object is None:
                return 404, {"message": "not found", "reason": "NotFound"}
            self.patches.append(patch)
            _merge(self._object["status"], patch["status"])
            self._tell("MODIFIED")
            return 200, self._object

    def open_watch(self, version: str) -> queue.SimpleQueue[Json | None]:
        with self._changed:
            watcher: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
            if int(version) < self.oldest:
                watcher.put(EXPIRED)
                watcher.put(None)
            elif self._object is not None and int(version) < int(self._object["metadata"]["resourceVersion"]):
                watcher.put({"type": "MODIFIED", "object": json.loads(json.dumps(self._object))})
            self._watchers.append(watcher)
            return watcher

    def close_watch(self, watcher: queue.SimpleQueue[Json | None]) -> None:
        with self._changed:
            self._watchers.remove(watcher)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def break_all(self) -> None:
        for kept in list(self._open):
            with contextlib.suppress(OSError):
                kept.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeApi

    def do_GET(self) -> None:
        target = parse.urlsplit(self.path)
        query = dict(parse.parse_qsl(target.query))
        if self.fake.failing is not None:
            self._send(self.fake.failing, {"message": "as told", "reason": "Told"})
        elif target.path == COLLECTION and query["fieldSelector"] == f"metadata.name={self.fake.node}":
            if query.get("watch") in {"true", "1"}:
                self._watch(query["resourceVersion"])
            else:
                self._send(*self.fake.answer_list())
        else:
            self._send(403, {"message": f"forbidden: {self.path}", "reason": "Forbidden"})

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        target = parse.urlsplit(self.path)
        if self.fake.failing is not None:
            self._send(self.fake.failing, {"message": "as told", "reason": "Told"})
        elif target.path == f"{COLLECTION}/{self.fake.node}/status":
            assert self.headers["Content-Type"] == "application/merge-patch+json"
            assert set(body) == {"status"}
            self._send(*self.fake.answer_patch(body))
        else:
            self._send(403, {"message": f"forbidden: {self.path}", "reason": "Forbidden"})

    def _send(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, version: str) -> None:
        watcher = self.fake.open_watch(version)
        try:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while (event := watcher.get()) is not None:
                data = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass
        finally:
            self.fake.close_watch(watcher)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class calls it so
        pass
