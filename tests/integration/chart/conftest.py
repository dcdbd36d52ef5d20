"""The chart as a clone has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hack.generate import uncommitted
from testbed.base import paths
from testbed.product import helm


@pytest.fixture
def cloned(tmp_path: Path) -> Path:
    """A copy of the chart without the files that `make chart` makes."""
    shutil.copytree(helm.chart(), copy := tmp_path / "chart")
    for path in uncommitted.of_chart():
        (copy / path.relative_to(paths.CHART)).unlink()
    return copy
