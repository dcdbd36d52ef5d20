"""Who else writes, by value, level and beat."""

from __future__ import annotations

import msgspec
import pytest
from swapwarden.agent.drift import other_writers
from swapwarden.agent.host import cgroupfs

CRIO = "kubepods.slice/kubepods-pod1.slice/crio-1.scope"
CONTAINERD = "kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope"


def told(*writes: other_writers.ObservedWrite, every: float = 20.0, rounds: int = 4) -> str:
    """Return the description after so many rounds of these writes."""
    signs = other_writers.OtherWriters()
    now = 0.0
    for _ in range(rounds):
        for number, write in enumerate(writes):
            signs.note(write, now + number / 10)
        now += every
    return signs.described(now)


@pytest.mark.parametrize("value", [0, 4096])
@pytest.mark.parametrize("inner", ["", "/container"])
def test_wasp_agent(value: int, inner: str) -> None:
    write = other_writers.ObservedWrite("container", CRIO + inner, value, high_below_max=False)
    assert "every 20 s, as wasp-agent does" in told(write, write)
    assert "every 22 s, as wasp-agent does" in told(write, every=22.0, rounds=5)


def test_the_units_own_number_is_reported_only_with_the_rhythm_of_wasp_agent() -> None:
    number = other_writers.ObservedWrite("container", CRIO, 4096, high_below_max=False, quiet=True)
    assert "every 20 s, as wasp-agent does" in told(number)
    assert told(number, msgspec.structs.replace(number, quiet=False)).count("wasp-agent") == 1, "the same is said once"
    assert (
        told(number, rounds=3)
        == told(number, every=60.0)
        == told(msgspec.structs.replace(number, path=CONTAINERD))
        == ""
    )


@pytest.mark.parametrize(
    ("write", "every", "rounds"),
    [
        (other_writers.ObservedWrite("container", CONTAINERD, 0, high_below_max=False), 20.0, 4),
        (other_writers.ObservedWrite("container", CRIO, 0, high_below_max=False), 60.0, 4),
        (other_writers.ObservedWrite("container", CRIO, 0, high_below_max=False), 20.0, 3),
        (other_writers.ObservedWrite("container", CRIO, cgroupfs.NO_LIMIT, high_below_max=False), 20.0, 4),
        (other_writers.ObservedWrite("pod", CRIO, 0, high_below_max=True), 20.0, 4),
        (other_writers.ObservedWrite("kubepods", "kubepods.slice", 0, high_below_max=False), 20.0, 4),
    ],
)
def test_nobody_is_named_on_less_evidence(write: other_writers.ObservedWrite, every: float, rounds: int) -> None:
    said = told(write, every=every, rounds=rounds)
    assert said.startswith("another writer gives ")
    assert "as" not in said.split()


def test_the_memory_qos_plugin() -> None:
    write = other_writers.ObservedWrite("container", CONTAINERD, cgroupfs.NO_LIMIT, high_below_max=True)
    assert "memory-qos plugin of NRI" in told(write, rounds=1)
    assert "memory-qos" not in told(write, msgspec.structs.replace(write, high_below_max=False), rounds=1)


def test_irregular_writes_have_no_rhythm() -> None:
    signs = other_writers.OtherWriters()
    for now in (0.0, 20.0, 23.0, 60.0, 65.1, 90.0):
        signs.note(other_writers.ObservedWrite("pod", "kubepods/pod1", 4096, high_below_max=False), now)
    assert signs.described(90.0) == "another writer gives a number of bytes to pods"


def test_each_kind_of_write_is_reported_until_it_is_long_ago() -> None:
    signs = other_writers.OtherWriters()
    signs.note(other_writers.ObservedWrite("pod", "kubepods/pod1", 0, high_below_max=False), 0.0)
    signs.note(other_writers.ObservedWrite("kubepods", "kubepods", cgroupfs.NO_LIMIT, high_below_max=False), 100.0)
    both = "another writer gives max to kubepods; another writer gives 0 to pods"
    assert signs.described(200.0) == both
    assert signs.described(650.0) == both.partition(";")[0]
    assert signs.described(701.0) == ""
    signs.note(other_writers.ObservedWrite("pod", "kubepods/pod1", 0, high_below_max=False), 2000.0)
    assert signs.described(2000.0) == both.partition("; ")[2]
