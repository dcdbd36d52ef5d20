"""A cluster that has no Swapwarden."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.controlplane import ControlPlane
from tests.integration.cli.conftest import Plugin


@pytest.fixture(scope="module")
def bare() -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        yield running


def test_it_is_said(bare: ControlPlane) -> None:
    done = Plugin(bare.kubeconfig)("nodes")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Swapwarden is not installed in this cluster")
