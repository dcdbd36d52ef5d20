"""The product's controller as a process of its own, with its service account's token."""

import itertools
from typing import Any

from testbed import part
from testbed.controlplane import ControlPlane

NAMESPACE = "swapwarden-system"
ACCOUNT = "swapwarden-controller"
_NUMBERS = itertools.count(1)


class Controller(part.Part):
    """`swapwarden controller`. The rights of deploy/manifests must be applied before."""

    def __init__(self, control_plane: ControlPlane, *options: str) -> None:
        self.identity = f"controller-{next(_NUMBERS)}"
        token = control_plane.token(NAMESPACE, ACCOUNT)
        kubeconfig = control_plane.kubeconfig_for(token, self.identity)
        fixed = [f"--kubeconfig={kubeconfig}", f"--identity={self.identity}", f"--namespace={NAMESPACE}"]
        super().__init__("controller", *fixed, *options, log=kubeconfig.with_suffix(".log"))

    def leads(self) -> dict[str, Any]:
        """Wait until it leads; the fields of the log line that says so."""
        return self.said("this instance leads")
