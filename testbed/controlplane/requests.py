"""Requests to an API server, by its administrator or the bearer of a token."""

import contextlib
import http.client
import json
import select
import urllib.parse
from typing import Any

from testbed.base import process
from testbed.controlplane import netns
from testbed.controlplane.credentials import Credentials

_TIMEOUT = 60.0
_SERVED_TIMEOUT = 30.0

Json = Any


class ControlPlaneError(Exception):
    """The control plane refused or failed."""


class Requests:
    """Requests to the API server at PORT of 127.0.0.1, in NETWORK if given.

    Connections are kept and used again: a handshake costs more than most requests, and waiting tests make thousands.
    """

    def __init__(self, credentials: Credentials, network: netns.NetworkNamespace | None) -> None:
        self._credentials = credentials
        self._network = network
        self.port = 0
        self._idle: dict[bool, list[http.client.HTTPSConnection]] = {True: [], False: []}
        """TLS contexts of the administrator, and of tokens."""
        self._names = 0

    def network(self) -> contextlib.AbstractContextManager[None]:
        """In this block, the thread's new connections reach the API server; needed only if it has its own network."""
        return self._network.entered() if self._network else contextlib.nullcontext()

    def close(self) -> None:
        """Close the kept connections."""
        for kept in self._idle.values():
            while kept:
                kept.pop().close()

    def ready(self, timeout: float = 5.0) -> bool:
        """Return whether the API server reports within TIMEOUT seconds that it is ready."""
        try:
            with contextlib.closing(self._connected(admin=True, timeout=timeout)) as connection:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def version(self) -> tuple[int, int]:
        """Return the API server's version: (1, 37)."""
        found = self.get("/version")
        return int(found["major"]), int(found["minor"])

    def request(
        self, method: str, path: str, body: Json = None, token: str | None = None, content_type: str | None = None
    ) -> tuple[int, Json]:
        """Send one request of the API as administrator, or as the bearer of TOKEN: (HTTP status, decoded answer).

        BODY is sent as JSON; a PATCH is a JSON merge patch unless CONTENT_TYPE differs.
        """
        content = None if body is None else json.dumps(body).encode()
        status, answer, kind = self.send(method, path, content, token, content_type)
        return status, json.loads(answer) if "json" in kind else answer.decode(errors="replace")

    def send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        token: str | None = None,
        content_type: str | None = None,
    ) -> tuple[int, bytes, str]:
        """Send JSON text like request(): (HTTP status, undecoded answer, its content type)."""
        default_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json", "Content-Type": content_type or default_type}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        kept = self._idle[token is None]
        connection = self._open(kept) or self._connected(admin=token is None, timeout=_TIMEOUT)
        try:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            made = answer.status, answer.read(), answer.headers.get("Content-Type", "")
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            kept.append(connection)
        return made

    def _connected(self, *, admin: bool, timeout: float) -> http.client.HTTPSConnection:
        context = self._credentials.context(admin=admin)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=context)
        try:
            with self.network():
                connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    @staticmethod
    def _open(kept: list[http.client.HTTPSConnection]) -> http.client.HTTPSConnection | None:
        """Return a connection that the server has not closed: an idle one becomes readable at its end."""
        while kept:
            connection = kept.pop()
            ended = select.poll()
            ended.register(connection.sock, select.POLLIN)
            if not ended.poll(0):
                return connection
            connection.close()
        return None

    def wait_served(self, path: str) -> None:
        """Wait until a collection is served."""
        process.until(
            lambda: self.request("GET", path)[0] == http.HTTPStatus.OK, f"{path} is served", _SERVED_TIMEOUT, poll=0.02
        )

    def get(self, path: str) -> Json:
        """Return the object at PATH; ControlPlaneError if there is none."""
        return self._expect("GET", path, None)

    def create(self, path: str, body: Json) -> Json:
        """POST an object; ControlPlaneError with the API server's words if it is refused."""
        return self._expect("POST", path, body)

    def _expect(self, method: str, path: str, body: Json) -> Json:
        status, answer = self.request(method, path, body)
        if status >= http.HTTPStatus.BAD_REQUEST:
            said = answer.get("message", answer) if isinstance(answer, dict) else answer
            raise ControlPlaneError(f"{method} {path}: HTTP {status}: {said}")
        return answer

    def create_namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """Create a namespace and its default service account, which pods need and no controller manager makes here."""
        self.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        self.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})

    def wait_for_policies(self) -> None:
        """Wait until all admission policies that were applied before are in force, and no deleted one is."""
        # The API server adopts them in order, so that the last one here is in force after all others.
        self._names += 1
        name, group = f"testbed-probe-{self._names}", "admissionregistration.k8s.io"
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
        specs: dict[str, Json] = {
            "policies": {
                "matchConstraints": {"resourceRules": [{**rule, "resourceNames": [name]}]},
                "validations": [{"expression": "false"}],
            },
            "policybindings": {"policyName": name, "validationActions": ["Deny"]},
        }
        paths = {kind: f"/apis/{group}/v1/validatingadmission{kind}" for kind in specs}
        for kind, spec in specs.items():
            self.create(paths[kind], {"metadata": {"name": name}, "spec": spec})
        path, probe = "/api/v1/namespaces/default/configmaps?dryRun=All", {"metadata": {"name": name}}
        process.until(
            lambda: self.request("POST", path, probe)[0] >= http.HTTPStatus.BAD_REQUEST,
            "admission policies are in force",
            _SERVED_TIMEOUT,
            poll=0.02,
        )
        for kind in specs:
            self.request("DELETE", f"{paths[kind]}/{name}")

    def token(self, namespace: str, service_account: str, pod: str | None = None, seconds: int = 3600) -> str:
        """A service account's token; bound to POD when given, so that the API server knows the bearer's node."""
        spec: dict[str, Json] = {"expirationSeconds": seconds}
        if pod:
            found = self.get(f"/api/v1/namespaces/{namespace}/pods/{urllib.parse.quote(pod)}")
            uid = found["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        made = self.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
        return str(made["status"]["token"])
