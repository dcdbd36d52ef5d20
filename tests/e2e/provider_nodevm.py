"""The e2e suite's cluster on the testbed's node VM."""

from __future__ import annotations

import subprocess
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from deploy.build.image import REFERENCE
from testbed.base import process
from testbed.controlplane.servers import ControlPlaneError
from testbed.vm import nodevm, ociimage
from testbed.vm.cluster import Cluster
from testbed.vm.nodevm import NodeVM
from tests.e2e import provider
from tests.e2e.provider import PLUGIN, PLUGIN_TIMEOUT, ProviderError


class NodeVMProvider:
    """A testbed.vm.cluster.Cluster."""

    name = "node-vm"
    node_name = nodevm.NAME
    image = REFERENCE
    busybox = ociimage.BUSYBOX
    owns_swap = True
    outlives_run = False

    def __init__(self, images: Sequence[Path]) -> None:
        self.cluster = Cluster(images)

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.cluster.__exit__(kind, error, trace)

    @property
    def node(self) -> NodeVM:
        return self.cluster.node

    def kubectl(self, *args: str, text: str | None = None, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        return self.cluster.kubectl(*args, text=text, timeout=timeout)

    def helm(self, *args: str, timeout: float = 900.0) -> subprocess.CompletedProcess[str]:
        return self.cluster.helm(*args, timeout=timeout)

    def swap(self, *args: str) -> subprocess.CompletedProcess[str]:
        control_plane = self.cluster.control_plane
        argv = control_plane.command([PLUGIN, *args, f"--kubeconfig={control_plane.kubeconfig}"])
        return process.run(argv, timeout=PLUGIN_TIMEOUT)

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        control_plane = self.cluster.control_plane
        return provider.shell(control_plane.command([]), control_plane.kubeconfig, script)

    def get(self, path: str) -> Any:
        try:
            return self.cluster.control_plane.get(path)
        except (ControlPlaneError, OSError) as error:
            raise ProviderError(f"{path}: {error}") from error

    def text(self, path: str) -> str:
        return str(self.get(path))

    def post(self, path: str, body: Any) -> None:
        try:
            self.cluster.control_plane.create(path, body)
        except (ControlPlaneError, OSError) as error:
            raise ProviderError(f"{path}: {error}") from error

    def load_image(self, archive: Path) -> None:
        self.cluster.node.import_image(archive)

    def stop_apiserver(self) -> None:
        self.cluster.control_plane.servers.stop_apiserver()

    def start_apiserver(self) -> None:
        self.cluster.control_plane.servers.start_apiserver()

    def logs(self, lines: int = 20) -> str:
        return self.cluster.logs(lines)
