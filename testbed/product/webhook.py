"""The product's webhook as a process of its own, in front of a testbed control plane."""

from pathlib import Path

from testbed.base import process
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests, part

_SETTLE_TIMEOUT = 30.0


class Webhook(part.Part):
    """`swapwarden webhook`, with a certificate of the control plane's authority."""

    def __init__(self, control_plane: ControlPlane, *options: str) -> None:
        self._control_plane = control_plane
        self.certificate, self.key = control_plane.credentials.issue("swapwarden-webhook", ["127.0.0.1", "localhost"])
        fixed = ["--host=127.0.0.1", "--port=0", f"--tls-cert={self.certificate}", f"--tls-key={self.key}"]
        fixed += ["--cert-reload-interval=0.1", "--shutdown-delay=0"]
        super().__init__("webhook", *fixed, *options, log=self.certificate.with_suffix(".log"))
        try:
            self.url = f"https://127.0.0.1:{self.said('listening')['port']}"
        except BaseException:
            self.process.kill()
            raise

    def install(self) -> None:
        """Apply rights and policies of build/manifests with this process as the webhook; wait until it is in force."""
        self._control_plane.apply(*manifests.other_manifests())
        self.register()
        self._control_plane.wait_for_policies()

    def register(self) -> None:
        """Register this process and wait until the API server calls it. Rights and policies must exist."""
        # Without one, the probe's pod is refused before any webhook call; no controller manager makes it here.
        self._control_plane.request(
            "POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}}
        )
        ca = self._control_plane.ca_file.read_bytes()
        self._control_plane.apply(manifests.webhook_manifests(self.url, ca))
        logs = self._control_plane.servers.logs
        process.until(self._is_called, "the API server calls the webhook", _SETTLE_TIMEOUT, said=logs)

    def _is_called(self) -> bool:
        before = self.metric("swapwarden_webhook_requests_total")
        annotations = {"swapwarden.dev/swap-policy": "NoPreference"}
        pod = {
            "metadata": {"generateName": "probe-", "annotations": annotations},
            "spec": {"containers": [{"name": "probe", "image": "none"}]},
        }
        self._control_plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod)
        return self.metric("swapwarden_webhook_requests_total") > before

    def uninstall(self) -> None:
        """Remove the registration and the admission policies; the namespace and the rights stay."""
        files = [manifests.folder() / "webhook-registration.yaml", *manifests.policies()]
        named = [f"--filename={path}" for path in files]
        self._control_plane.kubectl("delete", "--ignore-not-found", "--wait=false", *named)
        self._control_plane.wait_for_policies()

    def replace_certificate(self, certificate: Path, key: Path) -> None:
        """Replace the pair that the process reads, one file after the other like a careless rotation."""
        self.certificate.write_bytes(certificate.read_bytes())
        self.key.write_bytes(key.read_bytes())
