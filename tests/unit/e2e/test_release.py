"""The e2e suite removes only the release that it made."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import cast

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

    def did(self, action: str) -> bool:
        return any(call[0] == action for call in self.calls)


def of(cluster: FakeCluster) -> Release:
    return Release(cast("Provider", cluster))


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
