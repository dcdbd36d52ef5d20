"""Wires the agent's parts together: each has its own job, and decides for itself."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import pathlib
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import swapwarden
from swapwarden.agent.desired import spec, state_cache, state_watch
from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.host import cgroupfs, faults, files, inotify, worker
from swapwarden.agent.inventory import board
from swapwarden.agent.ledger import ledger
from swapwarden.agent.node import headroom_reader, kubelet_config, node_watch, swap_metrics
from swapwarden.agent.pressure import sampler
from swapwarden.agent.reclaim import reclaimer
from swapwarden.agent.reconcile import reconciler, settings
from swapwarden.agent.report import report, status_writer
from swapwarden.api import names
from swapwarden.kube import client, config

log = logging.getLogger(__name__)

_BYTES: Final = 32


FAULT_SECONDS: Final = 5.0
"""Seconds before a part of the agent that failed unexpectedly is restarted."""
ALIVE_SECONDS: Final = 30.0
"""The longest time between beats: reports of a time without an agent are exact to that. Otherwise an idle agent only
watches its state and rarely compares all."""
AWAKE_SECONDS: Final = ALIVE_SECONDS / 2
"""Time since the last beat, after which the agent also beats when something else wakes it up."""
STUCK_RESYNCS: Final = 3
"""Full comparisons in a row that may fail to happen before the process counts as stuck."""


class StartError(Exception):
    """The agent cannot start; says why and what to do."""


@contextlib.contextmanager
def blamed(flag: str, value: str) -> Iterator[None]:
    """Turn an OSError into a StartError that names the flag."""
    try:
        yield
    except OSError as error:
        raise StartError(f"{flag} {value} cannot be used: {error}") from error


def _path(text: str) -> pathlib.Path | None:
    return pathlib.Path(text) if text else None


class Heartbeat:
    """A file with a time of the monotonic clock, which all processes share until a reboot.

    Its directory must not survive a reboot. Only one agent on the node may open it.
    """

    def __init__(self, file: pathlib.Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Open or create `file`. OSError if its directory cannot be written."""
        self._file = file
        self._clock = clock
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.last_seen = self._read()
        """When the previous agent was last alive, or None."""

    def _read(self) -> float | None:
        text = os.pread(self._fd, _BYTES, 0).decode("ascii", "replace").strip("\x00\n ")
        if not text.replace(".", "", 1).isdecimal():
            return None
        last = float(text)
        return last if last <= self._clock() else None

    def beat(self) -> None:
        """Record that this agent is alive. A failure only makes a later report less exact."""
        try:
            os.pwrite(self._fd, f"{self._clock():.3f}".ljust(_BYTES - 1).encode() + b"\n", 0)
        except OSError as error:
            log.debug("cannot record that this agent is alive", extra={"file": str(self._file), "error": str(error)})

    def close(self) -> None:
        """Record the last time, and close the file."""
        self.beat()
        os.close(self._fd)

    def remove(self) -> None:
        """Remove the file, since the product is being removed. OSError if that fails."""
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()


class Pulse:
    """Gives signs of life in time, with work that should not wake up the agent by itself. For the event loop only."""

    def __init__(
        self,
        alive: Heartbeat,
        node: node_watch.NodeWatch,
        reconciles: reconciler.NodeReconciler,
        reports: report.Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._alive = alive
        self._node = node
        self._reconciler = reconciles
        self._report = reports
        self._clock = clock
        self._next: asyncio.TimerHandle | None = None
        self._last = float("-inf")

    async def run(self) -> None:
        """Beat until cancelled, by a timer: a task would wake up the event loop twice."""
        try:
            self._beat()
            await asyncio.get_running_loop().create_future()
        finally:
            if self._next is not None:
                self._next.cancel()
                self._next = None

    def awake(self) -> None:
        """Beat if it is time, since something else woke up the agent."""
        if self._next is not None and self._clock() - self._last >= AWAKE_SECONDS:
            self._beat()

    def _beat(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = asyncio.get_running_loop().call_later(ALIVE_SECONDS, self._beat)
        self._last = self._clock()
        self._alive.beat()
        if self._node.has_cgroup_v2:
            self._reconciler.catch_up()
        self._report.expire()


class Agent:
    """The agent of one node, the only one that runs there."""

    def __init__(self, arguments: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        """Open the node's files, which `stack` closes. StartError names the flag."""
        self._arguments = arguments
        proc, run_dir, state_dir = map(pathlib.Path, (arguments.proc_root, arguments.run_dir, arguments.state_dir))
        with blamed("--run-dir", f"{run_dir}, the agent's files on the node,"):
            try:
                self._ledger = ledger.Ledger(run_dir)
            except ledger.LedgerError as error:
                raise StartError(str(error)) from None
            stack.callback(self._ledger.close)
            alive = Heartbeat(run_dir / "alive")
            stack.callback(alive.close)
        with blamed("--cgroup-root", arguments.cgroup_root):
            cgroups = cgroupfs.Cgroups(arguments.cgroup_root, os.sysconf("SC_PAGE_SIZE"))
        stack.callback(cgroups.close)
        # Apart: a disk that hangs must not keep the kernel's settings waiting for a thread.
        disks, kernel = worker.Worker(), worker.Worker()
        for each in (disks, kernel):
            stack.callback(each.close)
        self._board = board.Board()
        pods, slices = _path(arguments.drop_in_dir), _path(arguments.slice_drop_in_dir)
        self._drop_ins = systemd_zero.DropInView(pods, slices, self._board, disks)
        self._drop_ins.observe()
        given = {settings.VM: arguments.vm_root, settings.ZSWAP: arguments.zswap_root}
        roots = {place: pathlib.Path(root) for place, root in given.items() if root}
        self._sysctls = settings.Sysctls(self._ledger.settings, roots, self._board, kernel)
        self._reconciler = reconciler.NodeReconciler(
            cgroups,
            self._ledger,
            self._board,
            proc=proc,
            own_uid=os.environ.get("POD_UID", ""),
            anchor=arguments.cgroup_anchor.strip("/"),
            away=alive.last_seen,
            nri_dir=_path(arguments.nri_dir),
        )
        stack.callback(self._reconciler.close)
        known = self._reconciler.inventory
        sys = pathlib.Path(arguments.sys_root)
        sources = node_watch.Sources(proc, sys, kubelet_config.given(arguments), state_dir)
        self._node = node_watch.NodeWatch(sources, cgroups, known, self._ledger.limits, self._board, disks=disks)
        stack.enter_context(inotify.watch_priority(proc / "swaps", self._node.check))
        headroom = headroom_reader.HeadroomReader(cgroups, proc, sys / "block", known)
        self._pressure = sampler.Sampler(headroom, cgroups, proc, known, self._board)
        self._report = report.Report(
            self._reconciler, self._node, self._board, cgroups, self._ledger.runtime, pressure=self._pressure
        )
        self._reclaim = reclaimer.Runner(cgroups, proc, run_dir, self._board)
        stack.callback(self._reclaim.close)
        self._usage = swap_metrics.SwapUsage(
            cgroups, proc, sys, top=arguments.metrics_top_pods, known=known, runtime=self._ledger.runtime
        )
        boot = files.text(proc / "sys/kernel/random/boot_id") or ""
        self._cache = state_cache.StateCache(run_dir, state_dir, arguments.node_name, boot, disks)
        self._pulse = Pulse(alive, self._node, self._reconciler, self._report)
        stack.callback(self._leave, alive)

    async def start(self) -> None:
        """Put the last state in force: the API server may be long in coming."""
        if not self._node.has_cgroup_v2:
            log.error("%s is no cgroup v2 file system: nothing will be written", self._arguments.cgroup_root)
            return
        cached = await self._cached()
        self._reconciler.start(cached)
        if cached is not None:
            self._sysctls.set_desired(cached)
            self._pressure.set_desired(cached.pressure)

    async def _cached(self) -> spec.NodeSpec | None:
        stored = await self._cache.load(self._reconciler.inventory.page)
        if stored is None:
            return None
        if self._cache.is_of_this_boot(stored) and self._ledger.is_new:
            run_dir = self._arguments.run_dir
            log.warning("the ledger of this boot is gone: was --run-dir cleared?", extra={"dir": run_dir})
            self._ledger.mark_incomplete()
        log.info("the cached state is in force", extra={"generation": stored.state.metadata.generation})
        state_watch.GENERATION.set(stored.state.metadata.generation)
        return spec.parse(stored.state, self._reconciler.inventory.page)

    async def run(self, api_config: config.Config) -> None:
        """Reconcile and report until cancelled."""
        self._node.check()
        node = self._arguments.node_name
        async with client.Client(api_config, user_agent=f"swapwarden-agent/{swapwarden.__version__}") as api:
            writer = status_writer.StatusWriter(api, node, self._board, self._report)
            follow = functools.partial(self._follow, state_watch.StateWatch(api, node), writer)
            write = functools.partial(self._write, writer)
            jobs: list[Callable[[], Coroutine[Any, Any, None]]] = [follow, write, self._heed, self._keep_synced]
            jobs += [self._cache.run, self._pulse.run, self._node.run, self._sysctls.run, self._drop_ins.run]
            jobs.append(self._pressure.run)
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(_unending(job))

    async def _follow(self, states: state_watch.StateWatch, writer: status_writer.StatusWriter) -> None:
        async with contextlib.aclosing(states.events()) as events:
            async for event in events:
                match event:
                    case state_watch.Fetched(status, state):
                        writer.fetched(status)
                        self._pressure.resume(status)
                        self._accept(state)
                    case state_watch.Changed(status, state):
                        writer.seen(status)
                        self._accept(state)
                    case state_watch.Refused(why):
                        self._refuse(why)
                    case state_watch.Contact():
                        self._pulse.awake()

    def _accept(self, wire: spec.ReceivedState | None) -> None:
        if wire is None:
            return
        try:
            desired = spec.parse(wire, self._reconciler.inventory.page)
        except ValueError as error:
            self._refuse(f"the state of generation {wire.metadata.generation} cannot be understood: {error}")
            log.error("%s; the last state stays in force", self._board.refused)  # noqa: TRY400 the message has it all
            return
        self._refuse("")
        self._cache.keep(wire)
        if self._node.has_cgroup_v2:
            self._reconciler.set_desired(desired)
            self._sysctls.set_desired(desired)
            self._pressure.set_desired(desired.pressure)
            state_watch.GENERATION.set(desired.generation)
            state_watch.ACCEPTED.set(time.time())

    def _refuse(self, why: str) -> None:
        if why != self._board.refused:
            self._board.refused = why
            self._board.touch()

    async def _write(self, writer: status_writer.StatusWriter) -> None:
        """Write after the first look at the node: a status without its facts would remove those of the agent before."""
        await self._node.looked.wait()
        await writer.run()

    async def _heed(self) -> None:
        """Pass new records to the parts that depend on them; the status writer reads the board by itself."""
        revision = -1
        while True:
            revision = await self._board.after(revision)
            self._node.check_tree()
            configuration = self._node.look.configuration
            owns = frozenset() if configuration is None else configuration.owns
            self._reconciler.look(self._node.disks, owns)
            self._follow_reclaim()

    def _follow_reclaim(self) -> None:
        known = self._reconciler.inventory
        self._reclaim.follow(self._reconciler.work.in_force.spec, known.root_path, known.pods.values())

    async def _keep_synced(self) -> None:
        while True:
            await asyncio.sleep(self._arguments.resync_interval)
            if self._node.has_cgroup_v2:
                self._reconciler.resync()
                self._sysctls.check()
                self._drop_ins.check()
                self._follow_reclaim()
            self._cache.retry()
            self._node.check_all()

    def _leave(self, alive: Heartbeat) -> None:
        """Remove the agent's own files once all is restored: the product is about to be removed.

        Without them the next agent is as one that starts for the first time: it leaves pods alone until a state says
        otherwise.
        """
        snapshot = self._report.snapshot()
        restores = snapshot.spec is not None and snapshot.spec.mode is names.Mode.RESTORE
        if restores and snapshot.tree.root is not None and not snapshot.to_restore:
            try:
                self._reclaim.remove()
                alive.remove()
                self._ledger.remove()
                self._cache.remove()
            except OSError as error:
                log.warning("files of this agent are left: %s", error)

    # For probes and metrics

    def unready(self) -> str | None:
        """Return why some files do not hold their desired values; None if all do, or none are desired."""
        if not self._node.has_cgroup_v2 or self._reconciler.inventory.root is not None:
            return None
        return str(self._reconciler.tasks.problem)

    def stuck(self) -> str | None:
        """Return why this is not alive. An answer shows that the event loop turns."""
        idle = time.monotonic() - self._reconciler.tasks.comparison.last
        if self._node.has_cgroup_v2 and idle > STUCK_RESYNCS * self._arguments.resync_interval:
            return f"the last full comparison was {idle:.0f} s ago"
        return None

    async def refresh(self) -> None:
        """Bring the metrics up to date."""
        self._ledger.publish()
        await self._report.publish()
        await self._usage.refresh()


async def _unending(job: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a job that never ends. A mistake in one of them must not stop the others, repairs least of all."""
    while True:
        try:
            await job()
        except Exception:
            faults.FAULTS.inc()
            log.exception("unexpected error; continuing in %s s", FAULT_SECONDS)
        await asyncio.sleep(FAULT_SECONDS)
