"""When a container could swap, from a recorder's samples: what the e2e tests count as an exposure."""

from __future__ import annotations

import pytest

from testbed.vm.nodevm import Sample
from tests.e2e import cgroups
from tests.e2e.cgroups import Window

POD = "poda.slice"
SANDBOX, APP, SIDE = (f"{POD}/{name}.scope" for name in ("sandbox", "app", "side"))
MIB = 1 << 20
NONE = None


def samples(*rows: tuple[float, str, str, int | None]) -> list[Sample]:
    """Return samples of a pod whose slice and sandbox were made without a limit, as systemd makes them."""
    made: list[tuple[float, str, str, int | None]] = [(0.0, POD, "created", NONE), (0.1, SANDBOX, "created", NONE)]
    return [Sample(at, f"kubepods.slice/{path}", event, limit, 0) for at, path, event, limit in [*made, *rows]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([], [], id="a sandbox is no container"),
        pytest.param([(1.0, APP, "created", 0)], [], id="the container is at 0"),
        pytest.param([(0.5, POD, "written", 0), (1.0, APP, "created", MIB)], [], id="the pod is at 0"),
        pytest.param([(1.0, APP, "created", MIB)], [Window(1.0, None, None)], id="neither is"),
        pytest.param(
            [(1.0, APP, "created", NONE), (1.5, APP, "written", 0)],
            [],
            id="it has its value before anything runs in it",
        ),
        pytest.param(
            [(1.0, APP, "created", NONE), (2.5, APP, "written", 0)], [Window(1.0, 2.5, None)], id="it has it too late"
        ),
        pytest.param(
            [
                (1.0, APP, "created", MIB),
                (3.0, POD, "written", 0),
                (5.0, POD, "written", NONE),
                (6.0, APP, "gone", NONE),
            ],
            [Window(1.0, 3.0, None), Window(5.0, 6.0, None)],
            id="the pod's limit ends it, and its loss begins another",
        ),
        pytest.param(
            [
                (1.0, APP, "created", 0),
                (1.2, SIDE, "created", MIB),
                (4.0, APP, "written", 0),
                (5.0, SIDE, "written", 0),
            ],
            [Window(1.2, 5.0, None)],
            id="one of two is enough",
        ),
        pytest.param(
            [(1.0, "podb.slice/other.scope", "created", MIB), (1.0, "podb.slice", "created", NONE)],
            [],
            id="another pod's",
        ),
    ],
)
def test_a_container_could_swap_while_neither_it_nor_its_pod_was_at_0(
    rows: list[tuple[float, str, str, int | None]], expected: list[Window]
) -> None:
    assert cgroups.in_effect(samples(*rows), POD, 0.0) == expected


def test_windows_are_cut_at_both_ends() -> None:
    seen = samples((1.0, APP, "created", MIB), (3.0, APP, "written", 0), (7.0, APP, "written", MIB))
    assert cgroups.in_effect(seen, POD, 2.0, 6.0) == [Window(2.0, 3.0, None)]
    assert cgroups.in_effect(seen, POD, 4.0, 6.0) == []
