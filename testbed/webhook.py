"""The product's webhook as a process of its own, in front of a testbed control plane."""

import http.client
import json
import re
import sys
import time
import types
import urllib.parse
from pathlib import Path
from typing import Any, Self

from testbed import manifests, process
from testbed.controlplane import ControlPlane

_START_TIMEOUT = 30.0
_SETTLE_TIMEOUT = 30.0
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


class Webhook:
    """`swapwarden webhook` on free ports of 127.0.0.1, with a certificate of the control plane's authority."""

    def __init__(self, control_plane: ControlPlane, *options: str) -> None:
        self._control_plane = control_plane
        self.certificate, self.key = control_plane.issue_certificate("swapwarden-webhook", ["127.0.0.1", "localhost"])
        argv = [sys.executable, "-m", "swapwarden", "webhook", "--host=127.0.0.1", "--port=0"]
        argv += [f"--tls-cert={self.certificate}", f"--tls-key={self.key}", "--metrics-address=127.0.0.1:0"]
        argv += ["--cert-reload-interval=0.1", "--shutdown-delay=0", *options]
        self.process = process.Process("swapwarden webhook", argv, log=self.certificate.with_suffix(".log"))
        try:
            said = self._said("listening")
        except BaseException:
            self.process.kill()
            raise
        self.url = f"https://127.0.0.1:{said['port']}"
        self.metrics_url = f"http://127.0.0.1:{said['metrics_port']}"

    def _said(self, message: str) -> dict[str, Any]:
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            for line in self.process.output().splitlines():
                if f'"{message}"' in line:
                    entry: dict[str, Any] = json.loads(line)
                    return entry
            self.process.check_alive()
            if time.monotonic() > deadline:
                raise process.ProcessError(f"the webhook does not say {message!r}:\n{self.process.tail()}")
            time.sleep(0.02)

    def install(self) -> None:
        """Apply all of deploy/manifests with this process as the webhook, and wait until it is in force."""
        self._control_plane.apply(*manifests.other_manifests())
        # Without one, the probe's pod is refused before any webhook is asked; no controller manager makes it here.
        self._control_plane.request(
            "POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}}
        )
        ca = self._control_plane.ca_file.read_bytes()
        self._control_plane.apply(manifests.webhook_manifests(self.url, ca))
        deadline = time.monotonic() + _SETTLE_TIMEOUT
        while not (self._is_called() and self._policies_are_in_force()):
            if time.monotonic() > deadline:
                raise process.ProcessError(f"the API server does not call the webhook\n{self._control_plane.logs()}")
            time.sleep(0.05)

    def _is_called(self) -> bool:
        before = self.metric("swapwarden_webhook_requests_total")
        annotations = {"swapwarden.dev/swap-policy": "NoPreference"}
        pod = {
            "metadata": {"generateName": "probe-", "annotations": annotations},
            "spec": {"containers": [{"name": "probe", "image": "none"}]},
        }
        self._control_plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod)
        return self.metric("swapwarden_webhook_requests_total") > before

    def _policies_are_in_force(self) -> bool:
        # The last of them in the order in which they were applied. There is no such pod: until then the answer is 404.
        binding = {
            "metadata": {"name": "probe", "annotations": {"swapwarden.dev/swap-policy": "NoPreference"}},
            "target": {"kind": "Node", "name": "probe"},
        }
        status, _ = self._control_plane.request("POST", "/api/v1/namespaces/default/pods/probe/binding", binding)
        return status == http.HTTPStatus.FORBIDDEN

    def uninstall(self) -> None:
        """Take the registration and the admission policies away; the namespace and the rights stay."""
        paths = [manifests.FOLDER / "webhook.yaml", *manifests.FOLDER.glob("policy-*.yaml")]
        self._control_plane.kubectl("delete", "--ignore-not-found", *(f"--filename={path}" for path in paths))

    def health(self, path: str) -> tuple[int, str]:
        """Status and text of /healthz, /readyz or /metrics."""
        address = urllib.parse.urlsplit(self.metrics_url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that have these labels; 0 where there is none."""
        total = 0.0
        for line in self.health("/metrics")[1].splitlines():
            found = _SAMPLE.match(line)
            if not found or found["name"] != name:
                continue
            has = dict(re.findall(r'(\w+)="([^"]*)"', found["labels"] or ""))
            if labels.items() <= has.items():
                total += float(found["value"])
        return total

    def replace_certificate(self, certificate: Path, key: Path) -> None:
        """Put another pair where the process reads its own, one file after the other as a careless rotation does."""
        self.certificate.write_bytes(certificate.read_bytes())
        self.key.write_bytes(key.read_bytes())

    def stop(self) -> int:
        """End it; the exit status."""
        return self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.stop()
