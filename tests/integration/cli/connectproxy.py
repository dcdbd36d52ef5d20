"""An HTTP proxy on loopback that knows CONNECT, and leads all that ask for one name to one port."""

from __future__ import annotations

import base64
import http.server
import selectors
import socket
import threading
from typing import Any, Self


class ConnectProxy:
    """Use it as a context manager."""

    def __init__(self, name: str, port: int, credentials: str = "") -> None:
        """NAME is led to PORT of 127.0.0.1, everything else refused; CREDENTIALS (user:password) are asked for."""
        self.asked: list[str] = []
        """Targets of CONNECT, allowed or not."""
        proxy = self
        wanted = f"Basic {base64.b64encode(credentials.encode()).decode()}" if credentials else None

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                proxy.asked.append(self.path)
                if wanted is not None and self.headers["Proxy-Authorization"] != wanted:
                    self.send_error(407)
                    return
                if self.path.rpartition(":")[0] != name:
                    self.send_error(403)
                    return
                with socket.create_connection(("127.0.0.1", port)) as far:
                    self.send_response(200)
                    self.end_headers()
                    _pass(self.connection, far)
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _pass(near: socket.socket, far: socket.socket) -> None:
    """All bytes in both directions, until one side has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(near, selectors.EVENT_READ, far)
        selector.register(far, selectors.EVENT_READ, near)
        while True:
            for key, _ in selector.select():
                source: Any = key.fileobj
                try:
                    data = source.recv(65536)
                    if not data:
                        return
                    key.data.sendall(data)
                except OSError:
                    return
