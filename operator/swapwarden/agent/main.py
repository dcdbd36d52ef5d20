"""The agent's process: `swapwarden agent`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import functools
import gc
import logging
import math
import os
import pathlib
import signal
import sys
import time
from asyncio import sslproto
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

import swapwarden
from swapwarden.agent.desired import problems, spec, state_cache, state_watch
from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.host import cgroupfs, faults, files, priority_events, realtime, systemd_dropins, worker
from swapwarden.agent.inventory import board
from swapwarden.agent.ledger import heartbeat, ledger
from swapwarden.agent.node import diagnostics, node_info, preflight, swap_devices, swap_metrics
from swapwarden.agent.reconcile import dropin_sync, reconciler, sysctls
from swapwarden.agent.report import conditions, status, status_writer, violations
from swapwarden.api import names, state, times
from swapwarden.kube import client, config, errors
from swapwarden.telemetry import build, logs, metrics, server

log = logging.getLogger(__name__)

FACTS_FAILURES = metrics.counter(
    "swapwarden_agent_facts_failures_total",
    "Looks at the node (its swap devices, the kubelet's configuration and the like) that did not end in time; those"
    " before stay.",
)

LOCK_SECONDS: Final = 0.02
"""Between tries while another agent runs on the node: the gap that a hand-over may leave."""
FAULT_SECONDS: Final = 5.0
"""Before a part of the agent that failed unexpectedly starts anew."""
ALIVE_SECONDS: Final = 30.0
"""The longest between signs of life, which bound what is said of a time without an agent. Besides, an idle agent does
nothing but watch its state and, seldom, compare all."""
AWAKE_SECONDS: Final = ALIVE_SECONDS / 2
"""Since the last sign of life, after which what wakes up the agent anyway is an occasion for one."""
PASSING_SECONDS: Final = 120.0
"""Between looks whether what the status tells of the last minutes is over."""
TLS_BYTES: Final = 32 << 10
"""What a connection can take in at once, and holds memory for: asyncio has 256 KiB, and the agent two connections."""
FACTS_SECONDS: Final = 30.0
"""How long a look at the node may take: some of what is looked at is on disks, which may be busy with swapping."""
STUCK_RESYNCS: Final = 3
"""Full comparisons in a row that may fail to happen before the process counts as stuck."""


class StartError(Exception):
    """The agent cannot start; says why and what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the agent's flags."""
    parser.add_argument(
        "--node-name", default=os.environ.get("NODE_NAME", ""), help="this node's name (default: $NODE_NAME)"
    )
    parser.add_argument("--cgroup-root", default="/sys/fs/cgroup", help="the node's cgroup v2 file system")
    parser.add_argument("--proc-root", default="/proc", help="where to read meminfo, swaps and the kernel's release")
    parser.add_argument("--sys-root", default="/sys", help="where to read what is under swap devices")
    for place, what in ((sysctls.VM, "vm.swappiness and the like"), (sysctls.ZSWAP, "zswap")):
        parser.add_argument(
            place.flag, default=None, metavar="PATH", help=f"the node's {place.host}, for {what} (default: left alone)"
        )
    parser.add_argument(
        "--cgroup-anchor",
        default="",
        metavar="PATH",
        help="cgroup below --cgroup-root to search for pods (default: all; with $POD_UID set, the tree with that pod)",
    )
    parser.add_argument(
        "--run-dir", default="/run/swapwarden", help="for the lock and the ledger; must not survive a reboot"
    )
    parser.add_argument(
        "--state-dir", default="/var/lib/swapwarden", help="for the last state; should survive a reboot"
    )
    parser.add_argument(
        "--drop-in-dir",
        default="",
        metavar="PATH",
        help="holds the two folders of systemd's drop-ins for guarantee Strict (default: others install the files)",
    )
    parser.add_argument(
        "--slice-drop-in-dir",
        default="",
        metavar="PATH",
        help="holds folders of systemd's drop-ins by the names of slices, for those that profiles take swap from"
        " (default: others install the files)",
    )
    parser.add_argument(
        "--print-drop-ins",
        nargs="?",
        const=systemd_dropins.PREFIX,
        metavar="PREFIX",
        help=f"print these two files and end; for slices that begin with PREFIX (default: {systemd_dropins.PREFIX})",
    )
    parser.add_argument("--kubeconfig", default=None, help="default: in-cluster, $KUBECONFIG, ~/.kube/config")
    parser.add_argument("--metrics-address", default=":8082", help="for /healthz, /readyz and /metrics")
    parser.add_argument(
        "--metrics-top-pods",
        type=_top_pods,
        default=swap_metrics.TOP_PODS,
        metavar="N",
        help="pods that metrics list by themselves, the largest users of swap first (default: %(default)s)",
    )
    parser.add_argument(
        "--resync-interval",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="between full comparisons (default: 300)",
    )
    parser.add_argument("--kubelet-config", default="", metavar="FILE", help="the kubelet's own configuration file")
    parser.add_argument("--kubelet-config-dir", default="", metavar="DIR", help="folder of drop-ins to it")
    preflight.add_arguments(parser)
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="repair before all ordinary processes of a busy CPU; takes CAP_SYS_NICE",
    )
    logs.add_arguments(parser)


def _seconds(text: str) -> float:
    value = float(text)
    if not 1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 86400 seconds")
    return value


def _top_pods(text: str) -> int:
    value = int(text)
    if not 0 <= value <= swap_metrics.MAX_TOP_PODS:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {swap_metrics.MAX_TOP_PODS} pods")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; nothing is put back then. Gives the exit code."""
    if arguments.check:
        return preflight.run(arguments)
    if arguments.print_drop_ins is not None:
        sys.stdout.write(systemd_dropins.printed(arguments.print_drop_ins))
        return 0
    logs.configure(arguments.log_level, arguments.log_format)
    build.publish("agent")
    paced = arguments.realtime and realtime.begin()
    sslproto.SSLProtocol.max_size = TLS_BYTES
    # All modules are there now, and stay. Each full collection would go through them, for as long as ten repairs take.
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=functools.partial(_loop, paced=paced)) as runner:
            runner.run(_main(arguments))
    except (StartError, errors.ConfigError) as error:
        log.error("the agent cannot start: %s", error)  # noqa: TRY400 the message has it all
        return 2
    return 0


def _loop(*, paced: bool) -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(realtime.Paced() if paced else None)


async def _main(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ended = asyncio.ensure_future(stop.wait())
    agent = asyncio.ensure_future(Agent(arguments).run())
    try:
        await asyncio.wait({ended, agent}, return_when=asyncio.FIRST_COMPLETED)
        if agent.done():
            agent.result()
        log.info("stopping; what the cgroups hold stays")
    finally:
        for task in (ended, agent):
            task.cancel()
        await asyncio.gather(ended, agent, return_exceptions=True)


def _address(text: str) -> tuple[str, int]:
    try:
        return server.parse_address(text)
    except ValueError as error:
        raise StartError(f"--metrics-address: {error}") from None


def _directory(flag: str, text: str) -> pathlib.Path:
    path = pathlib.Path(text)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"{flag} {path} cannot be made ({error.strerror}): mount a host path there") from None
    if not os.access(path, os.W_OK):
        raise StartError(f"{flag} {path} cannot be written: mount it read-write")
    return path


class _Tree(NamedTuple):
    """What there is of pods, as far as it tells something of the node."""

    root: str | None
    """The cgroup above all of them."""
    runs: bool
    """Whether a container was there, by whose name the runtime is known."""


class _More(NamedTuple):
    """What takes longer to see, or is on disks."""

    tree: _Tree
    """What it was looked at for."""
    seen: node_info.NodeLook
    disks: swap_devices.Disks


class _Seen(NamedTuple):
    """What a look at the node gave."""

    facts: state.Facts
    more: _More | None
    """None where it was not looked at."""


class Agent:
    """What the parts of the process share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Check the arguments; StartError names the flag."""
        if not arguments.node_name:
            raise StartError("which node is this? Set NODE_NAME (from spec.nodeName) or give --node-name")
        self._arguments = arguments
        self._node: str = arguments.node_name
        self._address = _address(arguments.metrics_address)
        self._proc = pathlib.Path(arguments.proc_root)
        self._sys = pathlib.Path(arguments.sys_root)
        self._block = self._sys / "block"
        self._run_dir = _directory("--run-dir", arguments.run_dir)
        self._state_dir = _directory("--state-dir", arguments.state_dir)
        self.board = board.Board()
        drop_ins = pathlib.Path(arguments.drop_in_dir) if arguments.drop_in_dir else None
        self._drop_ins = dropin_sync.DropInSync(drop_ins, systemd_dropins.bring, self.board)
        slices = pathlib.Path(arguments.slice_drop_in_dir) if arguments.slice_drop_in_dir else None
        self._slice_drop_ins = dropin_sync.DropInSync(slices, systemd_dropins.bring_slices, self.board)
        self._slices = slices
        self._config = config.load(arguments.kubeconfig)
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._kubelet = preflight.configuration_files(arguments)
        self._seen = node_info.NodeLook()
        self._looked_at: tuple[_Tree, list[state.SwapDevice]] | None = None
        """For which tree of pods, and which swap devices; None: it is time to look again."""
        self._facts_due = asyncio.Event()
        self._looked = asyncio.Event()
        """Set once there was a look at the node, or it took too long."""
        self._looking = worker.Worker("node-facts")
        self._refused = ""
        self._look_again = math.inf
        """Monotonic time at which to see whether what the status tells of the last minutes is over."""
        self._next_sign: asyncio.TimerHandle | None = None
        self._lived = -math.inf
        """Monotonic time of the last sign of life."""
        self._phase = "starting"
        self._stands_by = False
        self._enforcer: reconciler.Enforcer | None = None
        self._status_writer: status_writer.StatusWriter | None = None
        self._conditions = conditions.Series()
        self._usage: swap_metrics.Usage | None = None
        self._boot = files.text(self._proc / "sys/kernel/random/boot_id") or ""
        self._cache = state_cache.StateCache(self._run_dir, self._state_dir, self._node, self._boot)

    async def run(self) -> None:
        """Until cancelled."""
        host, port = self._address
        async with contextlib.AsyncExitStack() as stack:
            with _blamed("--metrics-address", self._arguments.metrics_address):
                await stack.enter_async_context(
                    server.serve(host, port, ready=self.unready, alive=self.stuck, refresh=self._refresh)
                )
            await self._serve()

    async def _serve(self) -> None:
        self._stands_by = True
        run_dir = f"{self._run_dir}, the agent's files on the node,"
        with contextlib.ExitStack() as stack:
            with _blamed("--run-dir", run_dir):
                stack.enter_context(await _locked(self._run_dir / "agent.lock"))
            self._stands_by = False
            with _blamed("--run-dir", run_dir):
                try:
                    self._ledger = ledger.Ledger(self._run_dir)
                except ledger.LedgerError as error:
                    raise StartError(str(error)) from None
                stack.callback(self._ledger.close)
                self._heartbeat = heartbeat.Heartbeat(self._run_dir / "alive")
                stack.callback(self._heartbeat.close)
            given = {sysctls.VM: self._arguments.vm_root, sysctls.ZSWAP: self._arguments.zswap_root}
            self._sysctls = sysctls.Sysctls(
                self._ledger.settings,
                {place: pathlib.Path(root) for place, root in given.items() if root},
                self.board,
            )
            with _blamed("--cgroup-root", self._arguments.cgroup_root):
                cgroups = cgroupfs.Cgroups(self._arguments.cgroup_root, self._page)
            stack.callback(cgroups.close)
            self._enforcer = reconciler.Enforcer(
                cgroups,
                self._ledger,
                proc=self._proc,
                own_uid=os.environ.get("POD_UID", ""),
                anchor=self._arguments.cgroup_anchor.strip("/"),
                away=self._heartbeat.last_seen,
                changed=self.board.touch,
                held_at_zero=lambda unit: unit in self._slice_drop_ins.held,
            )
            stack.callback(self._enforcer.close)
            stack.callback(self._leave, self._enforcer)
            self._cgroups = cgroups
            self._usage = self._reading(cgroups, self._enforcer)
            self._slice_drop_ins.look()
            self._take_facts(_Seen(self._read_facts(None), None))
            stack.enter_context(priority_events.watch(self._proc / "swaps", self._facts_due.set))
            if self._facts.cgroup_version == 2:
                cached = await self._cached()
                self._enforcer.start(cached)
                if cached is not None:
                    self._sysctls.set_desired(cached)
            else:
                log.error("%s is no cgroup v2 file system: nothing will be written", cgroups.root)
            self._phase = ""
            self._facts_due.set()
            await self._follow(self._enforcer)

    def _reading(self, cgroups: cgroupfs.Cgroups, knows: reconciler.Enforcer) -> swap_metrics.Usage:
        top: int = self._arguments.metrics_top_pods
        return swap_metrics.Usage(cgroups, self._proc, top=top, root=lambda: knows.root, known=lambda: knows.known)

    async def _refresh(self) -> None:
        """What an agent that stands by would tell is told by the one at work."""
        if self._enforcer is not None:
            status.publish(self._enforcer.inventory, self._enforcer.progress)
            systemd_zero.publish(self._enforcer.evidence)
            if not self._phase:
                self._conditions.publish(self._verdicts(self._snapshot(self._enforcer)))
        if self._usage is not None:
            await self._usage.refresh()

    def _leave(self, agent: reconciler.Enforcer) -> None:
        """Take one's own files along where everything was put back: the product is about to be removed.

        Without them the next agent is as one that comes up first: it leaves pods alone until a state says otherwise.
        """
        snapshot = self._snapshot(agent)
        if snapshot.mode is names.Mode.RESTORE and snapshot.root is not None and not snapshot.to_restore:
            try:
                self._heartbeat.remove()
                self._ledger.remove()
                for folder in (self._run_dir, self._state_dir):
                    state_cache.remove(folder)
            except OSError as error:
                log.warning("files of this agent are left: %s", error)

    async def _cached(self) -> spec.NodeSpec | None:
        """The last state, in force at once: the API server may be long in coming."""
        found = await self._cache.load(self._page)
        if found is None:
            return None
        if self._boot and found.boot == self._boot and self._ledger.is_new:
            log.warning("the ledger of this boot is gone: was --run-dir cleared?", extra={"dir": str(self._run_dir)})
            self._ledger.mark_incomplete()
        log.info("the cached state is in force", extra={"generation": found.state.metadata.generation})
        state_watch.GENERATION.set(found.state.metadata.generation)
        return spec.parse(found.state, self._page)

    async def _follow(self, agent: reconciler.Enforcer) -> None:
        name = f"swapwarden-agent/{swapwarden.__version__}"
        async with client.Client(self._config, user_agent=name) as api:
            self._status_writer = status_writer.StatusWriter(
                api, self._node, self.board, functools.partial(self._status, agent), self._stands
            )
            states = state_watch.StateWatch(
                api,
                self._node,
                accept=self._accept,
                fetched=self._fetched,
                refused=self._refuse,
                seen=self._shown,
                heard=self._awake,
            )
            async with asyncio.TaskGroup() as group:
                jobs = (states.run, self._report, self._cache.run, self._keep_alive, self._keep_synced)
                heed = functools.partial(self._heed, agent)
                for job in (
                    *jobs,
                    heed,
                    self._keep_facts,
                    self._sysctls.run,
                    self._drop_ins.run,
                    self._slice_drop_ins.run,
                ):
                    group.create_task(_unending(job))

    # What the parts tell each other

    def _accept(self, wire: spec.WireState) -> None:
        try:
            compiled = spec.parse(wire, self._page)
        except ValueError as error:
            self._refuse(f"the state of generation {wire.metadata.generation} has a bad value: {error}")
            log.error("%s; the last state stays in force", self._refused)  # noqa: TRY400 the message has it all
            return
        self._cache.keep(wire)
        if self._enforcer is not None and self._facts.cgroup_version == 2:
            self._enforcer.apply(compiled)
            self._sysctls.set_desired(compiled)
            state_watch.GENERATION.set(compiled.generation)
            state_watch.ACCEPTED.set(time.time())

    def _fetched(self, wire: spec.WireState | None) -> None:
        if self._status_writer is not None:
            self._status_writer.found(None if wire is None else wire.status)

    def _shown(self, wire: spec.WireState) -> None:
        if self._status_writer is not None:
            self._status_writer.seen(wire.status)

    def _refuse(self, reason: str) -> None:
        if reason != self._refused:
            self._refused = reason
            self.board.touch()

    async def _heed(self, agent: reconciler.Enforcer) -> None:
        """Have the parts follow from what others recorded; the status writer does so by itself."""
        revision = -1
        while True:
            revision = await self.board.after(revision)
            self._drop_ins.want(agent.drop_in_prefix)
            self._slice_drop_ins.want(agent.drop_in_slices)
            if self._looked_at is not None and self._looked_at[0] != self._tree():
                self._facts_due.set()

    def _resync(self) -> None:
        if self._enforcer is not None and self._facts.cgroup_version == 2:
            self._enforcer.resync()
            self._sysctls.check()
            self._drop_ins.check()
            self._slice_drop_ins.check()
        self._cache.retry()
        self._looked_at = None
        self._facts_due.set()

    async def _keep_facts(self) -> None:
        while True:
            await self._facts_due.wait()
            self._facts_due.clear()
            try:
                written = frozenset(record.key.path for record in self._ledger.limits if record.wrote)
                look = functools.partial(self._look, self._tree(), written)
                self._take_facts(await self._looking.do(look, FACTS_SECONDS))
            except TimeoutError:
                FACTS_FAILURES.inc()
                log.warning(
                    "a look at the node takes more than %.0f s, as with a disk that hangs; what was seen before stays,"
                    " next try with the next full comparison",
                    FACTS_SECONDS,
                )
            finally:
                # Whatever became of it: a status without facts says more than none.
                self._looked.set()

    async def _report(self) -> None:
        """Not before the node was looked at: what is known of it would go for a moment."""
        await self._looked.wait()
        if self._status_writer is not None:
            await self._status_writer.run()

    def _read_facts(self, root: str | None) -> state.Facts:
        """The facts, which are the kernel's; `root` is the cgroup above all pods."""
        return node_info.read_facts(self._proc, self._block, self._cgroups, root, (str(self._state_dir.absolute()),))

    def _tree(self) -> _Tree:
        root = None if self._enforcer is None else self._enforcer.root
        ran = self._looked_at is not None and self._looked_at[0] == _Tree(root, runs=True)
        return _Tree(root, runs=ran or (self._enforcer is not None and self._enforcer.runs))

    def _look(self, tree: _Tree, written: frozenset[str]) -> _Seen:
        """See what the node has, also on its disks: to be done aside. `written`: cgroups that the agent wrote to."""
        found = self._read_facts(tree.root)
        if self._looked_at == (tree, found.devices):
            return _Seen(found, None)
        seen = node_info.look(self._proc, self._sys, self._cgroups, tree.root, self._kubelet, ours=written)
        return _Seen(found, _More(tree, seen, swap_devices.find(self._block, found.devices)))

    def _take_facts(self, found: _Seen) -> None:
        self._facts: state.Facts = found.facts
        if found.more is not None:
            self._looked_at = found.more.tree, found.facts.devices
            before = self._seen.unreadable
            self._seen, disks = found.more.seen, found.more.disks
            if self._seen.unreadable not in {"", before}:
                log.warning("the kubelet's configuration is not known: %s", self._seen.unreadable)
            if self._enforcer is not None:
                self._enforcer.swap_on(disks)
        self.board.touch()

    def _verdicts(self, snapshot: status.Snapshot) -> Mapping[str, status.Verdict]:
        found = diagnostics.conditions(self._facts, self._seen, snapshot.kubelet_swap, snapshot.lost)
        return conditions.verdicts(snapshot, self._facts, found)

    def _snapshot(self, agent: reconciler.Enforcer) -> status.Snapshot:
        """How things stand, with what the parts beside the reconciler have to report."""
        progress = agent.progress
        settings = progress.settings
        if self._sysctls.concerned:
            settings = (*(settings or ()), *self._sysctls.shortfalls)
        if self._slice_drop_ins.failed:
            message = f"systemd's drop-in files are not as they should be: {self._slice_drop_ins.failed}"
            short = problems.SettingProblem("system.slices", names.Problem.WRITE_FAILED, message)
            settings = (*(settings or ()), short)
        left = self._sysctls.to_restore + self._drop_ins.left + self._slice_drop_ins.left
        return status.collect(
            agent.inventory,
            progress._replace(settings=settings, to_restore=progress.to_restore + left),
            cgroups=self._cgroups,
            limits=self._ledger.limits,
            now=time.monotonic(),
            guarantee=conditions.strict(agent.evidence, mounted=self._drop_ins.mounted, failed=self._drop_ins.failed),
            refused=self._refused,
        )

    def _status(self, agent: reconciler.Enforcer, previous: list[Mapping[str, Any]]) -> dict[str, Any]:
        snapshot = self._snapshot(agent)
        self._look_again = time.monotonic() + PASSING_SECONDS if snapshot.passing else math.inf
        if snapshot.root is not None and not self._facts.swap_controller:
            # A file of the kernel's, for which nobody waits.
            has = node_info.has_swap_controller(self._cgroups, snapshot.root)
            self._facts = msgspec.structs.replace(self._facts, swap_controller=has)
        told = node_info.reported(self._facts, self._seen, snapshot.root)
        now = times.rfc3339(time.time())
        return status.as_json(status.build(snapshot, told, self._verdicts(snapshot), previous, now))

    def _stands(self, written: Mapping[str, Any]) -> None:
        if self._enforcer is not None and violations.acknowledge(self._enforcer.known, written.get("violations", [])):
            self.board.touch()

    async def _keep_synced(self) -> None:
        while True:
            await asyncio.sleep(self._arguments.resync_interval)
            self._resync()

    async def _keep_alive(self) -> None:
        try:
            self._live()
            await asyncio.get_running_loop().create_future()
        finally:
            if self._next_sign is not None:
                self._next_sign.cancel()
                self._next_sign = None

    def _live(self) -> None:
        """Give a sign of life, and the next one in time: by a timer, as a task would wake up the loop twice."""
        if self._next_sign is not None:
            self._next_sign.cancel()
        self._next_sign = asyncio.get_running_loop().call_later(ALIVE_SECONDS, self._live)
        self._lived = time.monotonic()
        self._heartbeat.beat()
        if self._enforcer is not None and self._facts.cgroup_version == 2:
            self._enforcer.catch_up()
        if self._lived >= self._look_again:
            self.board.touch()

    def _awake(self) -> None:
        """Something else woke up the agent."""
        if self._next_sign is not None and time.monotonic() - self._lived >= AWAKE_SECONDS:
            self._live()

    # What the kubelet asks

    def unready(self) -> str | None:
        """Why not ready; None where every file that can hold what is wanted does, or nothing is wanted.

        An agent that stands by is ready: an update with a surge ends the old agent only then.
        """
        if self._stands_by:
            return None
        if self._phase or self._enforcer is None:
            return self._phase or "starting"
        if self._facts.cgroup_version != 2:
            return None
        return str(self._enforcer.problem) if self._enforcer.root is None else None

    def stuck(self) -> str | None:
        """Why not alive. That this is answered says that the event loop turns."""
        if self._phase or self._enforcer is None or self._facts.cgroup_version != 2:
            return None
        idle = time.monotonic() - self._enforcer.last_resync
        if idle > STUCK_RESYNCS * self._arguments.resync_interval:
            return f"the last full comparison was {idle:.0f} s ago"
        return None


async def _unending(job: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a job that never ends. A mistake in one of them must not stop the others, enforcement least of all."""
    while True:
        try:
            await job()
        except Exception:
            faults.FAULTS.inc()
            log.exception("unexpected error; going on in %s s", FAULT_SECONDS)
        await asyncio.sleep(FAULT_SECONDS)


@contextlib.contextmanager
def _blamed(flag: str, value: str) -> Iterator[None]:
    """Say of which flag an error is."""
    try:
        yield
    except OSError as error:
        raise StartError(f"{flag} {value} cannot be used: {error}") from error


@contextlib.contextmanager
def _holding(fd: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(fd)


async def _locked(file: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Wait until no other agent runs on this node; the kernel frees the lock however the holder ends."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    told = False
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    log.info("another agent runs on this node; taking over when it ends", extra={"lock": str(file)})
                    told = True
                await asyncio.sleep(LOCK_SECONDS)
            else:
                return _holding(fd)
    except BaseException:
        os.close(fd)
        raise
