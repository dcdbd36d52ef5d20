"""The thread that moves idle memory to swap, as the event loop sees it. Where nobody asks for it, there is none."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import threading
import time
from collections.abc import Iterable
from typing import Final

from swapwarden.agent.desired import problems, spec
from swapwarden.agent.host import cgroupfs, faults, memory_reclaim
from swapwarden.agent.inventory import board, records
from swapwarden.agent.reclaim import history, reclaimer
from swapwarden.api import names
from swapwarden.api import state as api

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 60.0
"""After an unexpected error."""
END_SECONDS: Final = 2.0
"""How long an agent that ends waits for the piece under way."""


class Runner:
    """For the event loop, beside the thread's own methods."""

    def __init__(
        self, cgroups: cgroupfs.Cgroups, proc: pathlib.Path, run_dir: pathlib.Path, reports: board.Board
    ) -> None:
        self._cgroups = cgroups
        self._proc = proc
        self._run_dir = run_dir
        self._board = reports
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._order = reclaimer.ReclaimOrder()
        self._thread: threading.Thread | None = None
        self._turns: reclaimer.Reclaimer | None = None
        self._published = float("-inf")

    def follow(self, state: spec.NodeSpec | None, root: str | None, pods: Iterable[records.Pod]) -> None:
        """Take the state in force and the pods there are."""
        if state is None or state.reclaim is None or root is None or state.mode is not names.Mode.ENFORCE:
            order = reclaimer.ReclaimOrder()
        else:
            order = reclaimer.ReclaimOrder(state.reclaim, root, tuple(self._targets(state, pods)))
        if order != self._order:
            self._order = order
            if self._thread is None and order.targets:
                self._begin()
            if self._turns is not None:
                self._turns.order = order
                self._wake.set()
        if self._turns is not None:
            self._show(self._turns.view)

    def close(self) -> None:
        """End after the piece under way; a thread that hangs in the kernel is left behind."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def remove(self) -> None:
        """End, and leave no file behind. OSError if that fails."""
        self.close()
        (self._run_dir / history.FILE).unlink(missing_ok=True)

    def _targets(self, state: spec.NodeSpec, pods: Iterable[records.Pod]) -> Iterable[reclaimer.ReclaimTarget]:
        for pod in pods:
            entry = state.pods.get(pod.uid)
            if entry is None or entry.reclaim in {None, names.ReclaimMode.OFF} or not pod.containers:
                continue
            if pod.file.status.draining:
                continue
            since = max(self._began, *(each.since for each in pod.containers.values()))
            ids = frozenset(each.id[: api.ID_LENGTH] for each in pod.containers.values())
            yield reclaimer.ReclaimTarget(pod.uid, pod.path, names.ReclaimMode(entry.reclaim), since, ids)

    def _show(self, view: reclaimer.View) -> None:
        """Have the status show what changed: amounts rarely, a problem at once."""
        asked = bool(self._order.targets)
        problem = problems.SettingProblem("reclaim", names.Problem.NOT_SUPPORTED, view.problem)
        shown = (problem,) if asked and view.problem else ()
        status = board.SettingStatus(concerned=bool(shown), problems=shown)
        pods = view.pods if asked else ()
        now = time.monotonic()
        late = now - self._published >= reclaimer.PUBLISH_SECONDS or not pods
        if status != self._board.reclaim or (late and pods != self._board.reclaimed):
            self._published = now
            self._board.reclaim, self._board.reclaimed = status, pods
            self._board.touch()

    def _begin(self) -> None:
        try:
            fs = memory_reclaim.ReclaimFiles(self._cgroups.root, self._cgroups.page)
        except OSError as error:
            log.warning("idle memory is not moved to swap: %s", error)
            return
        past = history.History(self._run_dir, time.monotonic())
        self._turns = reclaimer.Reclaimer(fs, self._proc, past, self._stop)
        self._turns.order = self._order
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._turns, fs, past, loop), name="reclaim", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            fs.close()
            self._thread = self._turns = None
            self._order = reclaimer.ReclaimOrder()
            log.warning("idle memory is not moved to swap: %s", error)

    def _run(
        self,
        turns: reclaimer.Reclaimer,
        fs: memory_reclaim.ReclaimFiles,
        past: history.History,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Be the thread."""
        published, problem = time.monotonic(), ""
        try:
            while not self._stop.is_set():
                try:
                    wait = turns.turn()
                except Exception as error:  # noqa: BLE001 the thread must not end
                    faults.fault("reclaim", error)
                    wait = RETRY_SECONDS
                now = time.monotonic()
                if turns.view.problem != problem or now - published >= reclaimer.PUBLISH_SECONDS:
                    published, problem = now, turns.view.problem
                    self._publish(loop, turns)
                self._wake.wait(wait)
                self._wake.clear()
        finally:
            past.save()
            past.close()
            fs.close()

    def _publish(self, loop: asyncio.AbstractEventLoop, turns: reclaimer.Reclaimer) -> None:
        try:
            loop.call_soon_threadsafe(lambda: self._show(turns.view))
        except RuntimeError:  # the loop has ended
            self._stop.set()
