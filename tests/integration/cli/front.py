"""A front of a real API server that answers in place of kubelets and a metrics server.

It asks the API server first, with the caller's credentials, and passes on refusals.
"""

from __future__ import annotations

import http.client
import http.server
import json
import re
import ssl
import threading
from typing import Any, Self

from testbed.controlplane.servers import ControlPlane

_AGENT = re.compile(r"/api/v1/namespaces/[^/]+/pods/http:([^/:]+):([0-9]+)/proxy/metrics")
_METRICS = "/apis/metrics.k8s.io/v1beta1"


class Front:
    """Plain HTTP on loopback; use it as a context manager."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.metrics: dict[str, str] = {}
        """Metrics of agents, by pod; those of others cannot be reached."""
        self.measured: dict[str, list[dict[str, Any]]] = {}
        """Items of metrics.k8s.io, by the last word of the path (pods, nodes); without any the API does not exist."""
        self.asked: list[str] = []
        """Paths, without their query."""
        self._control_plane = control_plane
        front = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                front.answer(self)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 names of http.server

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """The API server's answer, or ours where it may be had."""
        path = request.path.partition("?")[0]
        self.asked.append(path)
        status, content, kind = self._real(request)
        agent = _AGENT.fullmatch(path)
        if status != http.HTTPStatus.FORBIDDEN and agent and agent[1] in self.metrics:
            status, content, kind = http.HTTPStatus.OK, self.metrics[agent[1]].encode(), "text/plain"
        if status == http.HTTPStatus.NOT_FOUND and path.startswith(_METRICS) and self.measured:
            found = {"items": self.measured.get(path.rpartition("/")[2], [])}
            status, content, kind = http.HTTPStatus.OK, json.dumps(found).encode(), "application/json"
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _real(self, request: http.server.BaseHTTPRequestHandler) -> tuple[int, bytes, str]:
        context = ssl.create_default_context(cafile=str(self._control_plane.ca_file))
        connection = http.client.HTTPSConnection("127.0.0.1", self._control_plane.port, timeout=30, context=context)
        try:
            body = request.rfile.read(int(request.headers.get("Content-Length", 0))) or None
            headers = {key: request.headers[key] for key in ("Authorization", "Content-Type") if key in request.headers}
            connection.request(request.command, request.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers.get("Content-Type", "text/plain")
        finally:
            connection.close()
