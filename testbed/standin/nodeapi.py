"""The node stand-in's requests to the API server. Standard library only, and no module of the product."""

import contextlib
import dataclasses
import http.client
import json
import queue
import random
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_TIMEOUT = 60.0
_WATCH_SECONDS = 240
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
_PASSING = {http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.UNAUTHORIZED}
MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """A refusal by the API server."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


@dataclasses.dataclass(frozen=True)
class Access:
    """The address of the API server and the credentials for it."""

    server: str
    ca_file: Path
    token_file: Path

    def connect(self, timeout: float) -> http.client.HTTPSConnection:
        """Open a new connection."""
        parts = urllib.parse.urlsplit(self.server)
        context = ssl.create_default_context(cafile=str(self.ca_file))
        connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout, context=context)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def headers(self, content_type: str = "application/json") -> dict[str, str]:
        """Return the headers of a request."""
        token = self.token_file.read_text(encoding="utf-8").strip()
        return {"Authorization": f"Bearer {token}", "Accept": "application/json", "Content-Type": content_type}


def log(text: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} node: {text}\n")
    sys.stderr.flush()


def pauses() -> Iterator[float]:
    """Yield growing, jittered seconds to wait between attempts."""
    delay = _FIRST_DELAY
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        delay = min(2 * delay, _LONGEST_DELAY)


class Client:
    """Requests over one kept connection; for one thread. Retries for as long as the API server is away."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._connection: http.client.HTTPSConnection | None = None

    def request(self, method: str, path: str, body: Json | None = None, content_type: str = "application/json") -> Json:
        """Send one request and return its answer; ApiError if the API server refuses it (HTTP 4xx)."""
        pause = pauses()
        payload = json.dumps(body).encode() if body is not None else None
        while True:
            try:
                self._connection = self._connection or self._access.connect(_TIMEOUT)
                self._connection.request(method, path, payload, self._access.headers(content_type))
                response = self._connection.getresponse()
                answer: Json = json.loads(response.read() or b"{}")
                if response.status < http.HTTPStatus.BAD_REQUEST:
                    return answer
                error = ApiError(response.status, str(answer.get("message", answer)))
                if response.status < http.HTTPStatus.INTERNAL_SERVER_ERROR and response.status not in _PASSING:
                    raise error
                log(f"{method} {path}: {error}; trying again")
            except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
                log(f"{method} {path}: {error}; trying again")
                if self._connection:
                    self._connection.close()
                self._connection = None
            time.sleep(next(pause))


class PodWatch:
    """Follow the pods of one node in a thread and put changes into a queue.

    Entries: `("SYNC", [pods])` after each list, and `("ADDED" | "MODIFIED" | "DELETED", pod)`.
    """

    def __init__(self, access: Access, node: str, events: "queue.Queue[tuple[str, Any]]") -> None:
        self._access = access
        self._client = Client(access)
        self._selector = urllib.parse.urlencode({"fieldSelector": f"spec.nodeName={node}"})
        self._events = events

    def start(self) -> None:
        """Start following; the thread ends with the program."""
        threading.Thread(target=self._follow, name="pods", daemon=True).start()

    def _follow(self) -> None:
        pause = pauses()
        while True:
            try:
                listed = self._client.request("GET", f"/api/v1/pods?{self._selector}")
                self._events.put(("SYNC", listed["items"]))
                version = listed["metadata"]["resourceVersion"]
                while True:
                    for kind, pod in self._watch(version):
                        pause = pauses()
                        version = pod["metadata"]["resourceVersion"]
                        if kind != "BOOKMARK":
                            self._events.put((kind, pod))
            except (OSError, http.client.HTTPException, json.JSONDecodeError, ApiError) as error:
                log(f"watching pods: {error}; listing again")
                time.sleep(next(pause))

    def _watch(self, version: str) -> Iterator[tuple[str, Json]]:
        query = f"{self._selector}&watch=1&allowWatchBookmarks=true&timeoutSeconds={_WATCH_SECONDS}"
        connection = self._access.connect(_WATCH_SECONDS + _TIMEOUT)
        with contextlib.closing(connection):
            connection.request("GET", f"/api/v1/pods?{query}&resourceVersion={version}", None, self._access.headers())
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise ApiError(response.status, response.read(1000).decode(errors="replace"))
            while line := response.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 0), event["object"].get("message", ""))
                yield event["type"], event["object"]


class PodWriter:
    """Write pod status and confirm deletions in a thread, only the newest status of a pod."""

    def __init__(self, access: Access) -> None:
        self._client = Client(access)
        self._changed = threading.Condition()
        self._statuses: dict[tuple[str, str, str], Json] = {}
        self._deletions: list[tuple[str, str, str]] = []

    def start(self) -> None:
        """Start writing; the thread ends with the program."""
        threading.Thread(target=self._write, name="statuses", daemon=True).start()

    def status(self, namespace: str, name: str, uid: str, status: Json) -> None:
        """Queue a pod's status."""
        with self._changed:
            self._statuses[namespace, name, uid] = status
            self._changed.notify()

    def confirm_deletion(self, namespace: str, name: str, uid: str) -> None:
        """Report to the API server that the node has removed a pod that is being deleted."""
        with self._changed:
            self._statuses.pop((namespace, name, uid), None)
            self._deletions.append((namespace, name, uid))
            self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._deletions or self._statuses)
                status: Json | None = None
                if self._deletions:
                    pod = self._deletions.pop(0)
                else:
                    pod = next(iter(self._statuses))
                    status = self._statuses.pop(pod)
            namespace, name, uid = pod
            path = f"/api/v1/namespaces/{namespace}/pods/{name}"
            try:
                if status is None:
                    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                    self._client.request("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})
                else:
                    # The UID keeps the status of a deleted pod off a new one with its name.
                    body = {"metadata": {"uid": uid}, "status": status}
                    self._client.request("PATCH", f"{path}/status", body, MERGE_PATCH)
            except ApiError as error:
                if error.status not in {http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT}:
                    log(f"pod {namespace}/{name}: {error}")
