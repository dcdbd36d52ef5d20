"""etcd for an API server."""

import base64
import contextlib
import http.client
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.base import process
from testbed.controlplane import assets
from testbed.controlplane.requests import ControlPlaneError, Json

_TIMEOUT = 60.0


class Etcd:
    """One, with its data in FOLDER. COMMAND returns the command line that runs a program in its network.

    In a block of NETWORK, connections reach it. QUOTA: bytes that it may store, if its own 2 GiB are not enough.
    """

    def __init__(
        self,
        folder: Path,
        command: Callable[[Sequence[str]], list[str]],
        network: Callable[[], contextlib.AbstractContextManager[None]],
        quota: int | None,
    ) -> None:
        self._folder = folder
        self._data = folder / "etcd"
        self._command = command
        self._network = network
        self._quota = quota
        self.port = 0
        self.process: process.Process | None = None

    def start(self) -> None:
        """Start it at `port` with its earlier data."""
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{process.free_port()}"
        argv = [str(assets.ensure().etcd), "--name=testbed", f"--data-dir={self._data}"]
        argv += ["--unsafe-no-fsync", "--log-level=warn"]
        argv += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        argv += [
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=testbed={peer}",
        ]
        argv += [f"--quota-backend-bytes={self._quota}"] if self._quota else []
        self.process = process.Process("etcd", self._command(argv), log=self._folder / "etcd.log")

    def kill(self) -> None:
        """End it like a crash; its data stay."""
        if self.process:
            self.process.kill()
        self.process = None

    def forget(self) -> None:
        """Remove its data."""
        shutil.rmtree(self._data, ignore_errors=True)

    def copy(self, target: Path) -> None:
        """Copy its data, after its end, to a new folder."""
        shutil.copytree(self._data, target)

    def put_back(self, saved: Path) -> None:
        """Restore the data that copy() took."""
        self.forget()
        shutil.copytree(saved, self._data)

    def compact(self) -> None:
        """Make etcd forget all versions but the newest, as kube-apiserver does every 5 minutes.

        The API server's watch cache still knows some of them, until it is restarted.
        """
        newest = self._request("/v3/kv/range", {"key": _base64(b"\0")})["header"]["revision"]
        self._request("/v3/kv/compaction", {"revision": newest, "physical": True})

    def metrics(self) -> str:
        """Return etcd's metrics, in Prometheus' text format."""
        return self._ask("GET", "/metrics", None).decode()

    def _request(self, path: str, body: Json) -> Json:
        return json.loads(self._ask("POST", path, json.dumps(body)))

    def _ask(self, method: str, path: str, body: str | None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT)
        try:
            with self._network():
                connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise ControlPlaneError(f"etcd: {path}: HTTP {answer.status}: {content.decode(errors='replace')}")
        return content


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
