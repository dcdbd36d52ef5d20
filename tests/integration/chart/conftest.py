"""The chart as a clone has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hack.generate import uncommitted
from testbed.product import helm


@pytest.fixture
def cloned(tmp_path: Path) -> Path:
    """A copy of the chart without the files that `make chart` makes."""
    made = {str(path) for path in uncommitted.of_chart()}
    copy = tmp_path / "chart"
    shutil.copytree(
        helm.chart(), copy, ignore=lambda where, found: {each for each in found if f"{where}/{each}" in made}
    )
    return copy
