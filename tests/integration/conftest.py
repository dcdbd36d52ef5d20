"""The product on the session's control plane: what it installs, and its webhook as a real process."""

from __future__ import annotations

import collections
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.base import process
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from testbed.product.webhook import Webhook
from tests.integration import preloaded

CRDS = Path(__file__).parents[2] / "crds"
DEAREST = (
    "chart/test_release.py",
    "controller/test_rollout.py",
    "chart/test_uninstall.py",
    "chart/test_chart.py",
    "controller/test_leadership.py",
    "hostile/test_stored_objects.py",
    "agent/test_agent_process.py",
    "chart/test_label_publisher.py",
    "controller/test_certificates.py",
    "agent/test_survival.py",
    "controller/test_restored.py",
    "chart/test_startup_taint.py",
    "webhook/test_modes.py",
    "webhook/test_policies.py",
    "webhook/test_process.py",
    "webhook/test_hostile.py",
    "webhook/test_memory.py",
    "webhook/test_restart.py",
    "controller/test_tenants.py",
    "controller/test_skew.py",
    "cli/test_check_admission.py",
)
"""Modules that take longest, by time. If one came last, one processor would wait for it."""
POLL = 0.05
"""Seconds between two looks. One is often a connection to the API server, which costs both ends milliseconds."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest modules, and go on with those of most tests; workers share them in this order."""
    here = Path(__file__).parent
    order = {here / module: place for place, module in enumerate(DEAREST)}
    tests = collections.Counter(item.path for item in items)
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(here)]
    ordered = sorted(
        (items[place] for place in places),
        key=lambda item: (order.get(item.path, len(order)), -tests[item.path], item.path),
    )
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


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


@pytest.fixture(scope="module")
def ruled(crds: ControlPlane) -> Iterator[ControlPlane]:
    """The session's control plane, with the rights and, for one module, the admission policies of deploy/manifests."""
    crds.apply(*manifests.other_manifests())
    crds.wait_for_policies()
    yield crds
    crds.kubectl(
        "delete", "--ignore-not-found", "--wait=false", *(f"--filename={path}" for path in manifests.policies())
    )
    crds.wait_for_policies()


@pytest.fixture(scope="module")
def webhook(crds: ControlPlane) -> Iterator[Webhook]:
    """A running and registered `swapwarden webhook`, with the rights and the admission policies of deploy/manifests.

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
