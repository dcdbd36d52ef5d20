"""A cluster that has no Swapwarden."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.controlplane import ControlPlane
from tests.integration.cli.conftest import Plugin


@pytest.fixture(scope="module")
def own() -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        yield running


def test_that_swapwarden_is_not_there_is_said(own: ControlPlane) -> None:
    done = Plugin(own.kubeconfig)("nodes")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Swapwarden is not installed in this cluster")
