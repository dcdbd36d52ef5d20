"""Keeps the cpu.weight of the agent's own pod: its share of a busy CPU, for which no CPU is reserved.

The kubelet derives a pod's weight from its CPU request, and the scheduler sets that much aside on each node. A weight
costs others nothing while the agent sleeps, and decides how soon a repair is made where all CPUs are busy. systemd
holds the kubelet's value for the pod's slice, and writes it back along with the limits of all pods when it reads its
units again: just when the agent has most to do. So the file is watched as those are.

The weight counts among the pods of one QoS class: what the class gets is decided by the requests of all its pods, and
is the kubelet's. The container's own cgroup may not be written (it is the root of the agent's cgroup namespace, see
nsdelegate in the kernel's cgroup-v2 documentation), and has nobody to share the pod with.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from swapwarden.agent import cgroupfs, inotify
from swapwarden.kube import backoff
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

WEIGHT = metrics.reading(
    "gauge",
    "swapwarden_agent_cpu_weight",
    "cpu.weight of the agent's own pod as the agent saw it last, where it was given --cpu-weight.",
)
REWRITES = metrics.counter(
    "swapwarden_agent_cpu_weight_rewrites_total",
    "Times that another writer changed the cpu.weight of the agent's own pod, and the agent wrote its own again.",
)
FAILURES = metrics.counter(
    "swapwarden_agent_cpu_weight_failures_total",
    "Times that the cpu.weight of the agent's own pod could not be read, written or watched.",
)

MOST: Final = 10_000
"""The kernel's range is 1 to this (CGROUP_WEIGHT_MAX in include/linux/cgroup.h); 100 is what a cgroup begins with."""
CONTEST_SECONDS: Final = (0.02, 30.0)
"""First and longest bound of the wait before writing again what another writer keeps changing."""
CALM_SECONDS: Final = 0.5
"""How far apart changes are no contest: systemd reads its units again now and then."""
FAILED_SECONDS: Final = (2.0, 300.0)
"""First and longest bound of the wait after a failure."""


class OwnWeight:
    """Not thread-safe: everything runs in one event loop."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        weight: int,
        own: Callable[[], str | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`weight` is what the file must hold; 0: nothing is done. `own` gives the path of the agent's own pod."""
        self._fs = cgroups
        self._weight = weight
        self._own = own
        self._clock = clock
        self._path: str | None = None
        self._inotify: inotify.Inotify | None = None
        self._holds = False
        """Whether the file was seen to hold the weight."""
        self._wrote = float("-inf")
        self._failed = ""
        self._timer: asyncio.TimerHandle | None = None
        self._contest = backoff.Backoff(*CONTEST_SECONDS)
        self._failures = backoff.Backoff(*FAILED_SECONDS)

    def find(self) -> None:
        """Begin, as soon as the pod is known; after that it does nothing."""
        if self._weight and self._path is None:
            self.check()

    def check(self) -> None:
        """Compare the file with what it must hold; watch it, if that was not possible before."""
        if not self._weight:
            return
        path = self._own()
        if path != self._path:
            self._unwatch()
            self._path, self._holds = path, False
        self._settle()

    def catch_up(self) -> None:
        """Take in what inotify has to tell by now. It is done anyway: this is for who wants the weight first."""
        if self._inotify is not None and self._inotify.read() and self._timer is None:
            self._settle()

    def close(self) -> None:
        """End; what the file holds stays, and goes with the pod."""
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._path is None:
            return
        try:
            self._watch(self._path)
            wait = self._bring(self._path)
        except (cgroupfs.CgroupError, OSError) as error:
            FAILURES.inc()
            wait = self._failures.next()
            if str(error) != self._failed:
                log.warning(
                    "the agent's own cpu.weight cannot be kept: on a busy node it repairs late; trying again",
                    extra={"cgroup": f"/{self._path}", "error": str(error)},
                )
            self._failed = str(error)
        if wait is not None:
            self._timer = asyncio.get_running_loop().call_later(wait, self._settle)

    def _bring(self, path: str) -> float | None:
        """Bring the file to the weight; gives the seconds after which to go on, None for never."""
        found = self._fs.weight(path)
        WEIGHT.hold({(): float(found)})
        if found == self._weight:
            self._holds = True
            self._failed = ""
            self._failures.reset()
            return None
        now = self._clock()
        if self._holds:
            self._holds = False
            REWRITES.inc()
            if now - self._wrote < CALM_SECONDS:
                return self._contest.next()
            self._contest.reset()
        self._wrote = now
        self._fs.set_weight(path, self._weight)
        again = self._fs.weight(path)
        WEIGHT.hold({(): float(again)})
        self._holds = again == self._weight
        return None if self._holds else self._contest.next()

    def _watch(self, path: str) -> None:
        if self._inotify is None:
            made = inotify.Inotify()
            try:
                made.add(self._fs.absolute(path, cgroupfs.CPU_WEIGHT), inotify.CONTENT)
            except OSError:
                made.close()
                raise
            self._inotify = made
            asyncio.get_running_loop().add_reader(made.fileno(), self.catch_up)

    def _unwatch(self) -> None:
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None
