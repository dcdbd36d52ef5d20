"""The product on the session's control plane: what it installs, and its webhook as a real process."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.base import process
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from testbed.product.webhook import Webhook
from tests.integration import preloaded

CRDS = Path(__file__).parents[2] / "crds"
Json = dict[str, Any]
Eventually = Callable[[Callable[[], object], str], None]

POLL = 0.05
"""Seconds between two looks. One is often a connection to the API server, which costs both ends milliseconds."""


@pytest.fixture(scope="session", autouse=True)
def _collecting_little() -> Iterator[None]:
    """Programs in Go (helm, kubectl, etcd) spend memory instead of a third of their CPU time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOGC", "400")
        yield


@pytest.fixture(scope="session", autouse=True)
def _preloaded() -> Iterator[None]:
    """The controller and the webhook are forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process.Process, "POPEN", staticmethod(preloaded.popen))
        yield


@pytest.fixture(scope="module")
def executed() -> Iterator[None]:
    """The controller and the webhook are executed all the same: forked ones have the metrics of all parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process.Process, "POPEN", subprocess.Popen)
        yield


@pytest.fixture(scope="session")
def crds(control_plane: ControlPlane) -> ControlPlane:
    """The session's control plane, with the product's two kinds."""
    control_plane.apply_crds(CRDS)
    return control_plane


@pytest.fixture
def stoppable(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The session's, whose API server a test may stop: it runs again afterwards, even if the test failed."""
    yield control_plane
    if not control_plane.ready():
        control_plane.servers.start_apiserver()


@pytest.fixture(scope="module")
def ruled(crds: ControlPlane) -> Iterator[ControlPlane]:
    """The session's control plane, with the rights and, for one module, the admission policies of build/manifests."""
    crds.apply(*manifests.other_manifests())
    crds.wait_for_policies()
    yield crds
    crds.kubectl(
        "delete", "--ignore-not-found", "--wait=false", *(f"--filename={path}" for path in manifests.policies())
    )
    crds.wait_for_policies()


@pytest.fixture(scope="module")
def webhook(crds: ControlPlane) -> Iterator[Webhook]:
    """A running and registered `swapwarden webhook`, with the rights and the admission policies of build/manifests.

    For one module: other modules want pods that no admission has looked at.
    """
    with Webhook(crds) as running:
        try:
            running.install()
            yield running
        finally:
            running.uninstall()


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], object], str], None]:
    """Wait until a condition holds; the text names it."""

    def wait(condition: Callable[[], object], what: str, timeout: float = 20.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {timeout:.0f} s"
            time.sleep(POLL)

    return wait
