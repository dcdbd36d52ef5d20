"""A mutating webhook of somebody else, that the API server asks after ours."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator

from testbed.controlplane.servers import ControlPlane
from tests.integration.webhook.pods import Json

NAME = "zz-other.example.com"
_REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@contextlib.contextmanager
def asked_after_ours(
    control_plane: ControlPlane, namespace: str, patch: Callable[[Json], list[Json]]
) -> Iterator[None]:
    """Have new pods of NAMESPACE changed by the JSON patch that PATCH makes for each."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            response = {"uid": asked["request"]["uid"], "allowed": True}
            if operations := patch(asked["request"]["object"]):
                encoded = base64.b64encode(json.dumps(operations).encode()).decode()
                response |= {"patchType": "JSONPatch", "patch": encoded}
            body = json.dumps({**asked, "request": None, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class calls it so
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    certificate, key = control_plane.credentials.issue("other", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    entry = {
        "name": NAME,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {
            "url": f"https://127.0.0.1:{server.server_port}/",
            "caBundle": base64.b64encode(control_plane.ca_file.read_bytes()).decode(),
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    }
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        control_plane.create(_REGISTRATIONS, {"metadata": {"name": NAME}, "webhooks": [entry]})
        yield
    finally:
        control_plane.request("DELETE", f"{_REGISTRATIONS}/{NAME}")
        server.shutdown()
        thread.join()
        server.server_close()
