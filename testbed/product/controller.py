"""The product's controller as a process of its own, with its service account's token."""

import base64
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.controlplane.servers import ControlPlane
from testbed.product import part

NAMESPACE = "swapwarden-system"
ACCOUNT = "swapwarden-controller"
_NUMBERS = itertools.count(1)


class Controller(part.Part):
    """`swapwarden controller`. The rights of build/manifests must be applied before.

    SERVER, PROGRAM and PYTHON are as in ControlPlane.kubeconfig_for() and Part.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        *options: str,
        server: str | None = None,
        program: Sequence[str] = part.INSTALLED,
        python: Path = Path(sys.executable),
    ) -> None:
        self.identity = f"controller-{next(_NUMBERS)}"
        token = control_plane.token(NAMESPACE, ACCOUNT)
        self.credential = _credential(token)
        kubeconfig = control_plane.kubeconfig_for(token, self.identity, server=server)
        fixed = [f"--kubeconfig={kubeconfig}", f"--identity={self.identity}", f"--namespace={NAMESPACE}"]
        super().__init__(
            "controller", *fixed, *options, log=kubeconfig.with_suffix(".log"), program=program, python=python
        )

    def leads(self) -> dict[str, Any]:
        """Wait until it leads; return the fields of the log line about that."""
        return self.said("this instance leads")


def _credential(token: str) -> str:
    """The API server's key for a token in `user.extra`: each instance has its own token (KEP-4193)."""
    claims = token.split(".")[1]
    found = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    return f"JTI={found['jti']}"
