"""nfd-master of Node Feature Discovery: it sets the labels that NodeFeatures ask for, and notes them on the Node."""

from __future__ import annotations

import os

from testbed.base import process
from testbed.controlplane import programs
from testbed.controlplane.servers import ControlPlane

FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/nodefeatures"
OWNS = "nfd.node.kubernetes.io/feature-labels"
PRUNE_TIMEOUT = 60.0


def apply_kinds(control_plane: ControlPlane) -> None:
    """Its own definitions of NodeFeatures and what else it watches."""
    control_plane.apply_crds(programs.nfd() / programs.NFD_CRDS)


def _command(control_plane: ControlPlane, *options: str) -> list[str]:
    return [str(programs.nfd() / "nfd-master"), f"-kubeconfig={control_plane.kubeconfig}", "-config=", *options]


def master(control_plane: ControlPlane, node: str) -> process.Process:
    """It labels nodes for as long as the context lasts. NODE, which must be there, is the one it takes for its own."""
    log = control_plane.folder / "nfd-master.log"
    command = _command(control_plane, f"-port={process.free_port()}")
    return process.Process("nfd-master", command, log=log, env=os.environ | {"NODE_NAME": node})


def prune(control_plane: ControlPlane) -> None:
    """Take away from all nodes what it has set."""
    process.run(_command(control_plane, "-prune"), timeout=PRUNE_TIMEOUT)
