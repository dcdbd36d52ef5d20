"""The request and the machine's abilities choose the cluster of the e2e suite."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.base.host import SetupError
from testbed.run import e2e

DOCKER = {
    "ServerVersion": "29.1.0",
    "Name": "here",
    "KernelVersion": "6.1.0",
    "CgroupVersion": "2",
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
}
# The output of the client alone.
NO_DAEMON = {"ID": "", "ServerVersion": "", "Name": "", "SecurityOptions": None, "ServerErrors": ["Cannot connect"]}
SWAPS = "Filename\tType\tSize\tUsed\tPriority\n/dev/vda2\tpartition\t1\t0\t-2\n"
NO_SWAPS = "Filename\tType\tSize\tUsed\tPriority\n"


def obstacle(docker: dict[str, Any], *, swaps: str = SWAPS, is_root: bool = True) -> str:
    return e2e.obstacle(docker, hostname="here", kernel="6.1.0", swaps=swaps, is_root=is_root)


@pytest.mark.parametrize(
    ("docker", "why"),
    [
        ({}, "no docker daemon answers"),
        (NO_DAEMON, "no docker daemon answers"),
        ({"host": {"os": "linux"}}, "no docker daemon answers"),  # podman under docker's name
        (DOCKER | {"Name": "there"}, "not on this machine but on there"),
        (DOCKER | {"KernelVersion": "6.12.0"}, "not on this machine"),  # a VM with this machine's name
        (DOCKER | {"SecurityOptions": ["name=rootless"]}, "runs rootless"),
        (DOCKER | {"CgroupVersion": "1"}, "no cgroup v2"),
    ],
)
def test_docker_is_in_the_way_of_kind(docker: dict[str, Any], why: str) -> None:
    assert why in obstacle(docker)


def test_the_machine_is_in_the_way_of_kind() -> None:
    assert not obstacle(DOCKER)
    assert "this machine's swap, and there is none" in obstacle(DOCKER, swaps=NO_SWAPS)
    assert "not root" in obstacle(DOCKER, is_root=False)


@pytest.mark.parametrize(
    ("environment", "why_not_kind", "name"),
    [
        ({}, "", "kind"),
        ({}, "no swap", "node-vm"),
        ({"E2E_PROVIDER": ""}, "no swap", "node-vm"),
        ({"E2E_PROVIDER": "kind"}, "", "kind"),
        ({"E2E_PROVIDER": "node-vm"}, "", "node-vm"),
        ({"E2E_PROVIDER": "existing", "E2E_CONTEXT": "dev", "E2E_IMAGE": "a/b:1"}, "", "existing"),
        # A context alone is not an order to touch it.
        ({"E2E_CONTEXT": "production", "E2E_IMAGE": "a/b:1"}, "no swap", "node-vm"),
    ],
)
def test_choose(environment: dict[str, str], why_not_kind: str, name: str) -> None:
    assert e2e.choose(environment, lambda: why_not_kind) == name


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"E2E_PROVIDER": "minikube"}, "E2E_PROVIDER=minikube: there is no such provider"),
        ({"E2E_PROVIDER": "kind"}, "E2E_PROVIDER=kind: the daemon sleeps"),
        ({"E2E_PROVIDER": "existing", "E2E_IMAGE": "a/b:1"}, "needs E2E_CONTEXT"),
        ({"E2E_PROVIDER": "existing", "E2E_CONTEXT": "dev"}, "needs E2E_IMAGE"),
    ],
)
def test_refuses_what_can_not_be(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        e2e.choose(environment, lambda: "the daemon sleeps")
