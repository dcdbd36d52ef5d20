"""Fixtures of all tiers: the real parts that the testbed starts, and guards of other people's clusters."""

import gc
import os
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from testbed.base import child
from testbed.base.process import Process
from testbed.controlplane.servers import ControlPlane
from testbed.vm.kernelvm import GuestProcess, KernelVM

TESTS = Path(__file__).parent

# How long an example takes says how busy the machine is.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


def pytest_configure() -> None:
    """A worker of pytest-xdist ends with the pytest that started it, also if that is killed during a test."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        child.die_with(os.getppid())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector the hundreds of thousands of objects that tests are, now and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's folder says which tier it belongs to."""
    for item in items:
        tier = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if tier in {"integration", "kernel", "e2e"}:
            item.add_marker(tier)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the programs' output with the failure of a test that uses them."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for name, value in item.funcargs.items():
            if isinstance(value, ControlPlane):
                report.sections.append((f"{name}: the end of its logs ({call.when})", value.servers.logs(15)))
            elif isinstance(value, KernelVM):
                report.sections.append((f"{name} ({call.when})", value.console(15)))
            elif isinstance(value, Process | GuestProcess) and value.log.exists():
                report.sections.append((f"{name}: the end of its output ({call.when})", value.tail()))
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_other_cluster() -> Iterator[None]:
    """Nothing in the tests may find a cluster that they did not make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", os.devnull)
        patch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real etcd and kube-apiserver for the whole session. Who stops it starts it again; who fills it has another."""
    with ControlPlane() as running:
        yield running


@pytest.fixture
def fresh_namespace(control_plane: ControlPlane) -> str:
    """A new namespace with a default service account. It stays: no controller manager runs that could empty it."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    control_plane.create_namespace(name)
    return name


@pytest.fixture(scope="session")
def kernel_vm() -> Iterator[KernelVM]:
    """A VM with cgroup v2 and swap for the whole session. Tests make cgroups of their own in it, and remove them."""
    with KernelVM() as running:
        yield running
