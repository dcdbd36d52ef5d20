"""One cluster for the whole suite, and a namespace for each test."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
import types
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from testbed.base import host, process
from testbed.run import e2e
from testbed.vm import nodevm
from testbed.vm.guestlink import VMError
from tests.e2e import cgroups, provider
from tests.e2e.provider import Provider, ProviderError
from tests.e2e.release import Release

PATIENCE = 600.0
# A question also costs time on the machine that runs the node's emulated CPU.
POLL = 0.5
PREFIX = "e2e-"
ORDER = {"test_node.py": -1, "test_upgrade.py": 1}
MOST_CLUSTERS = 2
CLUSTER_BYTES = 6 << 30
"""Of memory for each: its node's, what that writes to its disk, and the control plane."""
DEFAULT_ARTIFACTS = Path("build/e2e")
ARTIFACTS = Path(os.environ.get("E2E_ARTIFACTS") or DEFAULT_ARTIFACTS)


def pytest_xdist_auto_num_workers() -> int:
    """Return how many workers share the modules, each with a cluster of its own; 0 for this process alone.

    A node VM has one processor, on which tests often wait; all other clusters can only be had once.
    """
    if os.environ.get("E2E_CLUSTERS") == "1":
        return 0
    try:
        is_ours = e2e.choose(os.environ) == e2e.NODE_VM
    except host.SetupError:  # The tests say that.
        return 0
    fitting = min(MOST_CLUSTERS, os.cpu_count() or 1, _room() // CLUSTER_BYTES)
    return fitting if is_ours and fitting > 1 else 0


def _room() -> int:
    """Return the bytes of memory that are available, also to files in memory, where nodes have their own."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    files = shutil.disk_usage(nodevm.IN_MEMORY).free
    return min(available, files)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Provider]:
    """The cluster that the environment asks for; see testbed/run/e2e.py. Output of an earlier run is removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    if ARTIFACTS == DEFAULT_ARTIFACTS and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        shutil.rmtree(ARTIFACTS, ignore_errors=True)
    with provider.make() as made:
        yield made


def _stop(number: int, _frame: types.FrameType | None) -> None:
    """End the run so that fixtures clean up; pytest takes SystemExit for a test's failure, and continues."""
    pytest.exit(f"stopped by {signal.Signals(number).name}", returncode=128 + number)


@pytest.fixture(scope="session")
def swapwarden(cluster: Provider) -> Iterator[Release]:
    """Swapwarden, installed by its chart. Tests leave it as they find it."""
    found = Release(cluster)
    try:
        found.install()
        yield found
    finally:
        if cluster.outlives_run:
            found.remove()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Test the kubelet alone before Swapwarden is installed, and its removal after all else.

    Modules stay whole: workers share them in this order.
    """
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(Path(__file__).parent)]
    ordered = sorted((items[place] for place in places), key=lambda item: ORDER.get(item.path.name, 0))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


@pytest.fixture(scope="session")
def node(cluster: Provider) -> provider.Node:
    """The node's own system; tests that need it are skipped where it is not ours."""
    if cluster.node is None:
        pytest.skip(f"the provider {cluster.name} gives no access to a node")
    return cluster.node


class Wait(Protocol):
    """Wait until a condition holds; the text names it in a failure. A question may fail meanwhile."""

    def __call__(self, condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None: ...


@pytest.fixture(scope="session")
def eventually() -> Wait:
    """See Wait."""

    def wait(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
        deadline = time.monotonic() + timeout
        while True:
            failure = ""
            try:
                if condition():
                    return
            except (ProviderError, process.ProcessError, VMError, OSError) as error:
                failure = f"; the last question failed: {error}"
            assert time.monotonic() < deadline, f"{what}: not within {timeout:.0f} s{failure}"
            time.sleep(POLL)

    return wait


@pytest.fixture
def namespace(cluster: Provider) -> Iterator[Namespace]:
    """A namespace of one test's own; it is deleted with all in it."""
    with new_namespace(cluster) as made:
        yield made


@contextlib.contextmanager
def new_namespace(cluster: Provider, labels: dict[str, str] | None = None) -> Iterator[Namespace]:
    """As the fixture, with LABELS."""
    name = f"{PREFIX}{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}
    cluster.kubectl("create", "-f", "-", text=json.dumps(body))
    try:
        yield Namespace(cluster, name)
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def nobody_else(cluster: Provider, eventually: Wait) -> None:
    """For tests that count: the pods of earlier tests are gone."""

    def others() -> list[str]:
        names = [each["metadata"]["name"] for each in cluster.get("/api/v1/namespaces")["items"]]
        return [name for name in names if name.startswith(PREFIX)]

    eventually(lambda: not others(), "the namespaces of earlier tests are gone")


class Namespace:
    """Pods of one test."""

    def __init__(self, cluster: Provider, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self._has_account = False

    def create_pod(self, name: str, *, metadata: dict[str, Any] | None = None, **spec: Any) -> None:
        """Create a pod on the suite's node. One container that sleeps, unless SPEC says otherwise.

        `resources` and `command` are those of that container; all else is the pod's spec, `resources` too where it has
        `containers`.
        """
        # The controller manager makes the service account a moment after the namespace.
        container = {
            "name": "main",
            "image": self._cluster.busybox,
            "imagePullPolicy": "IfNotPresent",
            "command": spec.pop("command", ["sleep", "86400"]),
            "resources": {} if "containers" in spec else spec.pop("resources", {}),
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name, **(metadata or {})},
            "spec": {
                "nodeName": self._cluster.node_name,
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
                **spec,
            },
        }
        if not self._has_account:
            account = ["--for=create", "serviceaccount/default", f"--namespace={self.name}", "--timeout=120s"]
            self._cluster.kubectl("wait", *account)
            self._has_account = True
        self._cluster.kubectl("create", "-f", "-", text=json.dumps(pod))

    def pod(self, name: str) -> Any:
        """A pod as the API server has it."""
        return self._cluster.get(f"/api/v1/namespaces/{self.name}/pods/{name}")

    def logs(self, name: str) -> str:
        """Return the output of the one container of a pod."""
        return self._cluster.kubectl("logs", name, f"--namespace={self.name}").stdout

    def is_ready(self, name: str) -> bool:
        """Whether the pod is Ready."""
        conditions = self.pod(name)["status"].get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def scheduled(self, name: str) -> Any:
        """The pod's condition PodScheduled; empty before there is one."""
        conditions = self.pod(name)["status"].get("conditions", [])
        return next((each for each in conditions if each["type"] == "PodScheduled"), {})

    def delete_pod(self, name: str) -> None:
        """Delete a pod, without waiting for its end."""
        self._cluster.kubectl("delete", "pod", name, f"--namespace={self.name}", "--wait=false")

    def wait_ready(self, name: str, timeout: float = PATIENCE) -> Any:
        """The pod, once it is Ready."""
        self._cluster.kubectl(
            "wait",
            "--for=condition=Ready",
            f"pod/{name}",
            f"--namespace={self.name}",
            f"--timeout={timeout:.0f}s",
            timeout=timeout + 30,
        )
        return self.pod(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what helps beside the failure of a test, and all of it into the artifacts' folder."""
    report = yield
    found = item.funcargs.get("cluster") if isinstance(item, pytest.Function) else None
    if report.failed and found:
        folder = ARTIFACTS / f"{item.name}-{call.when}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in _evidence(cast("Provider", found)):
            (folder / f"{name}.txt").write_text(content, encoding="utf-8")
            report.sections.append((f"{name} (all of it in {folder})", "\n".join(content.splitlines()[-40:])))
    return report


def _evidence(cluster: Provider) -> Iterator[tuple[str, str]]:
    """Yield evidence of a failure by name; unavailable evidence gives the reason."""
    everywhere = "--all-namespaces"
    parts: dict[str, Callable[[], str]] = {
        "events": lambda: cluster.kubectl("get", "events", everywhere, "--sort-by=.lastTimestamp").stdout,
        "pods": lambda: cluster.kubectl("get", "pods", everywhere, "-o=wide").stdout,
        "states": lambda: cluster.kubectl("get", "nodeswapprofiles,nodeswapstates", "-o=yaml").stdout,
        "cgroups": lambda: cgroups.dump(cluster.node) if cluster.node else "",
        "swapwarden": lambda: Release(cluster).logs(200),
        # These also work without an API server.
        "containers": lambda: cgroups.container_logs(cluster.node) if cluster.node else "",
        "logs": lambda: cluster.logs(200),
    }
    for name, read in parts.items():
        try:
            yield name, read()
        except Exception as error:  # noqa: BLE001 what is looked into may be what is broken
            yield name, f"not available: {error}"
