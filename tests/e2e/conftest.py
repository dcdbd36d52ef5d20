"""One cluster for the whole suite, and a namespace for each test."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.e2e import provider
from tests.e2e.provider import Provider

PATIENCE = 300.0
ARTIFACTS = Path(os.environ.get("E2E_ARTIFACTS", "build/e2e"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Provider]:
    """The cluster that the environment asks for; see provider.py."""
    with provider.make() as made:
        yield made


@pytest.fixture(scope="session")
def node(cluster: Provider) -> provider.Node:
    """The node's own system; tests that need it are skipped where it is not ours."""
    if cluster.node is None:
        pytest.skip(f"the provider {cluster.name} gives no access to a node")
    return cluster.node


@pytest.fixture
def eventually() -> Callable[[Callable[[], object], str], None]:
    """Wait until a condition holds; the text says what was waited for."""

    def wait(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {timeout:.0f} s"
            time.sleep(0.2)

    return wait


@pytest.fixture
def namespace(cluster: Provider) -> Iterator[Namespace]:
    """A namespace of one test's own; it is deleted with all in it."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    yield Namespace(cluster, name)
    cluster.kubectl("delete", "namespace", name, "--wait=false")


class Namespace:
    """Pods of one test."""

    def __init__(self, cluster: Provider, name: str) -> None:
        self._cluster = cluster
        self.name = name

    def create_pod(self, name: str, *, metadata: dict[str, Any] | None = None, **spec: Any) -> None:
        """Create a pod on the suite's node. One container that sleeps, unless SPEC says otherwise.

        `resources` and `command` are those of that container; all else is the pod's spec.
        """
        # The controller manager makes the service account a moment after the namespace.
        container = {
            "name": "main",
            "image": self._cluster.busybox,
            "imagePullPolicy": "IfNotPresent",
            "command": spec.pop("command", ["sleep", "86400"]),
            "resources": spec.pop("resources", {}),
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
        self._cluster.kubectl(
            "wait", "--for=create", "serviceaccount/default", f"--namespace={self.name}", "--timeout=120s"
        )
        self._cluster.kubectl("create", "-f", "-", text=json.dumps(pod))

    def pod(self, name: str) -> Any:
        """A pod as the API server has it."""
        return self._cluster.get(f"/api/v1/namespaces/{self.name}/pods/{name}")

    def is_ready(self, name: str) -> bool:
        """Whether the pod is Ready."""
        conditions = self.pod(name)["status"].get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

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
        cluster = cast("Provider", found)
        parts = {
            "events": cluster.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp").stdout,
            "pods": cluster.kubectl("get", "pods", "--all-namespaces", "-o", "wide").stdout,
            "logs": cluster.logs(200),
        }
        folder = ARTIFACTS / f"{item.name}-{call.when}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in parts.items():
            (folder / f"{name}.txt").write_text(content, encoding="utf-8")
            report.sections.append((f"{name} (all of it in {folder})", "\n".join(content.splitlines()[-40:])))
    return report
