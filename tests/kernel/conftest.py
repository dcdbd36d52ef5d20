"""A node of the agent that tests of the kernel share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from testbed.vm.kernelvm import KernelVM
from tests.kernel import test_agent


@pytest.fixture
def node(control_plane: ControlPlane, kernel_vm: KernelVM) -> Iterator[test_agent.Node]:
    control_plane.apply_crds(test_agent.CRDS)
    control_plane.apply(*manifests.other_manifests())
    made = test_agent.Node(control_plane, kernel_vm, "systemd")
    yield made
    made.close()
