"""The e2e suite on an existing cluster: only the one named by the user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from testbed.base import process
from testbed.controlplane import assets
from tests.e2e import provider
from tests.e2e.provider import ProviderError

_TIMEOUT = 30.0


class Existing(provider.ByKubeconfig):
    """The cluster behind CONTEXT of KUBECONFIG (~/.kube/config unless given), into which IMAGE is installed.

    Its nodes and its API server are other people's: cases that need them are skipped. $E2E_BUSYBOX names an image that
    its nodes can pull, $E2E_NODE one of its nodes with LimitedSwap.
    """

    name = "existing"
    node = None
    owns_swap = False
    outlives_run = True

    def __init__(self, context: str, image: str, kubeconfig: str | None) -> None:
        super().__init__(context, Path(kubeconfig) if kubeconfig else Path.home() / ".kube" / "config")
        self.image = image
        self.busybox = provider.public_busybox()
        self.node_name = os.environ.get("E2E_NODE", "")

    def __enter__(self) -> Self:
        self._check_context()
        nodes = [one["metadata"]["name"] for one in self.get("/api/v1/nodes")["items"]]
        if not self.node_name and len(nodes) == 1:
            self.node_name = nodes[0]
        if self.node_name not in nodes:
            raise ProviderError(f"say with E2E_NODE which node to use; there are: {', '.join(nodes)}")
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was made here."""

    def _check_context(self) -> None:
        """Refuse anything but the context that was named; the file's current one counts for nothing."""
        command = [
            str(assets.kubectl()),
            f"--kubeconfig={self._kubeconfig}",
            "config",
            "get-contexts",
            "-o=name",
        ]
        known = process.run(command, timeout=_TIMEOUT).stdout.split()
        if self._context not in known:
            there = ", ".join(known) or "none"
            raise ProviderError(f"E2E_CONTEXT={self._context}: {self._kubeconfig} has no such context. It has: {there}")

    def load_image(self, archive: Path) -> None:
        raise ProviderError(
            f"{archive}: nothing is loaded onto the nodes of an existing cluster; push it to a registry"
        )

    def stop_apiserver(self) -> None:
        raise ProviderError("the API server of an existing cluster is not stopped")

    def start_apiserver(self) -> None:
        raise ProviderError("the API server of an existing cluster is not started")

    def logs(self, lines: int = 20) -> str:
        del lines
        return self.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp").stdout[-8000:]
