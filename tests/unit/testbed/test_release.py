"""The e2e suite installs its release, and removes only what it made."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any, cast

import pytest

from testbed.base.process import ProcessError
from tests.e2e import release
from tests.e2e.provider import Provider, ProviderError
from tests.e2e.release import Release


class FakeCluster:
    """Knows one release, and what helm was asked for."""

    image = "registry:5000/team/swapwarden:1.2"

    def __init__(self, *, has_release: bool, works: bool = True) -> None:
        self.has_release = has_release
        self._works = works
        self.systems = ["linux"]
        self.calls: list[Sequence[str]] = []

    def helm(self, *args: str, timeout: float = 0.0) -> subprocess.CompletedProcess[str]:
        del timeout
        self.calls.append(args)
        if args[0] == "list":
            return subprocess.CompletedProcess(args, 0, f"{release.NAME}\n" if self.has_release else "", "")
        self.has_release = args[0] != "uninstall"
        if not self._works:
            raise ProcessError("not all is Ready")
        return subprocess.CompletedProcess(args, 0, "", "")

    def get(self, path: str) -> Any:
        assert path == "/api/v1/nodes"
        return {"items": [{"metadata": {"labels": {"kubernetes.io/os": each}}} for each in self.systems]}

    def did(self, action: str) -> bool:
        return any(call[0] == action for call in self.calls)


def of(cluster: FakeCluster) -> Release:
    return Release(cast("Provider", cluster))


def test_installs_the_clusters_image_and_removes_it() -> None:
    cluster = FakeCluster(has_release=False)
    made = of(cluster)
    made.install()
    assert {"--set=image.repository=registry:5000/team/swapwarden", "--set=image.tag=1.2"} <= {*cluster.calls[-1]}
    made.remove()
    assert not cluster.has_release


def test_leaves_the_release_of_others_alone() -> None:
    cluster = FakeCluster(has_release=True)
    made = of(cluster)
    with pytest.raises(ProviderError, match="uninstall it first"):
        made.install()
    made.remove()
    assert cluster.has_release
    assert not cluster.did("install")


def test_removes_what_failed_half_way() -> None:
    cluster = FakeCluster(has_release=False, works=False)
    made = of(cluster)
    with pytest.raises(ProcessError):
        made.install()
    with pytest.raises(ProcessError):
        made.remove()
    assert cluster.did("uninstall")


def test_removes_nothing_twice() -> None:
    cluster = FakeCluster(has_release=False)
    made = of(cluster)
    made.install()
    made.uninstall()
    cluster.calls.clear()
    made.remove()
    assert not cluster.did("uninstall")


def test_agents_are_on_every_node_with_linux() -> None:
    cluster = FakeCluster(has_release=False)
    cluster.systems = ["linux", "windows", "linux", "linux"]
    assert [of(cluster).replicas(component) for component in ("agent", "controller", "webhook")] == [3, 2, 2]


@pytest.mark.parametrize(
    ("reference", "values"),
    [
        ("swapwarden", {"image.repository": "swapwarden"}),
        ("a/b:1", {"image.repository": "a/b", "image.tag": "1"}),
        ("host:5000/b", {"image.repository": "host:5000/b"}),
        ("host:5000/b:1", {"image.repository": "host:5000/b", "image.tag": "1"}),
        ("a/b@sha256:0f", {"image.repository": "a/b", "image.digest": "sha256:0f"}),
    ],
)
def test_image_values(reference: str, values: dict[str, str]) -> None:
    assert release.image_values(reference) == values
