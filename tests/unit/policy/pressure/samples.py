from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from swapwarden.api import state
from swapwarden.policy.pressure.candidates import Candidate

from tests.unit.objects import GI, MI

NODE = 8 * GI


def candidate(key: str, **fields: Any) -> Candidate:
    """A pod that nothing spares while it exceeds its request."""
    return Candidate(**{"key": key, "uid": key, "namespace": "a", "name": key, "controller": "ReplicaSet", **fields})


def report(signal: str = "Headroom", /, **usage: tuple[int, ...]) -> state.PressureReport:
    """Working set, swap in MiB, and refaults by pod."""
    found = []
    for name, (memory, *more) in usage.items():
        swap, refaults = [*more, 0, 0][:2]
        found.append(state.PressuredPod(name, memory * MI, swap * MI, refaults))
    return state.PressureReport(1, signal, "Node", pods=found)


KINDS = st.sampled_from(["ReplicaSet", "Job", "DaemonSet", ""])
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        key=st.sampled_from([f"p{n}" for n in range(8)]),
        uid=st.sampled_from([f"p{n}" for n in range(8)]),
        namespace=st.sampled_from(["a", "b", "kube-system"]),
        name=st.sampled_from(["x", "y"]),
        priority=st.integers(-2, 2),
        request=st.integers(0, 4).map(lambda n: n * 100 * MI),
        swap=st.integers(0, 4).map(lambda n: n * 100 * MI),
        running=st.booleans(),
        ending=st.booleans(),
        static=st.booleans(),
        critical=st.booleans(),
        controller=KINDS,
        kept=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda one: one.uid,
)
REPORTS = st.builds(
    state.PressureReport,
    seq=st.just(1),
    signal=st.sampled_from(["Headroom", "Stall"]),
    pods=st.lists(
        st.builds(
            state.PressuredPod,
            pod=st.sampled_from([f"p{n}" for n in range(8)]),
            working_set_bytes=st.integers(0, 9).map(lambda n: n * 100 * MI),
            swap_bytes=st.integers(0, 9).map(lambda n: n * 100 * MI),
            refaults=st.integers(0, 1),
        ),
        max_size=8,
        unique_by=lambda one: one.pod,
    ),
)
