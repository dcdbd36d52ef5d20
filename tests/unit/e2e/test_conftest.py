from __future__ import annotations

import os
import types
from pathlib import Path

import pytest

from tests.e2e import conftest
from tests.e2e.conftest import CLUSTER_BYTES


@pytest.mark.parametrize(
    ("environment", "cores", "room", "workers"),
    [
        ({"E2E_PROVIDER": "node-vm"}, 2, 2 * CLUSTER_BYTES, 2),
        ({"E2E_PROVIDER": "node-vm"}, 64, 20 * CLUSTER_BYTES, 2),
        ({"E2E_PROVIDER": "node-vm"}, 2, 2 * CLUSTER_BYTES - 1, 0),
        ({"E2E_PROVIDER": "node-vm"}, 1, 2 * CLUSTER_BYTES, 0),
        ({"E2E_PROVIDER": "node-vm", "E2E_CLUSTERS": "1"}, 2, 2 * CLUSTER_BYTES, 0),
        ({"E2E_PROVIDER": "existing", "E2E_CONTEXT": "mine", "E2E_IMAGE": "image"}, 2, 2 * CLUSTER_BYTES, 0),
        ({"E2E_PROVIDER": "unknown"}, 2, 2 * CLUSTER_BYTES, 0),
    ],
)
def test_two_clusters_where_they_are_the_suites_own_and_have_room(
    environment: dict[str, str], cores: int, room: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(conftest, "_room", lambda: room)
    assert conftest.pytest_xdist_auto_num_workers() == workers


def test_modules_stay_whole_and_what_removes_swapwarden_is_last() -> None:
    folder = Path(conftest.__file__).parent
    names = ["test_admission.py", "test_node.py", "test_upgrade.py", "test_admission.py", "test_workloads.py"]
    items = [types.SimpleNamespace(path=folder / name) for name in names]
    elsewhere = types.SimpleNamespace(path=Path("/elsewhere/test_node.py"))
    items.insert(0, elsewhere)
    conftest.pytest_collection_modifyitems(items)  # type: ignore[arg-type]  # only the path is looked at
    assert items[0] is elsewhere
    assert [item.path.name for item in items[1:]] == [
        "test_node.py",
        "test_admission.py",
        "test_admission.py",
        "test_workloads.py",
        "test_upgrade.py",
    ]
