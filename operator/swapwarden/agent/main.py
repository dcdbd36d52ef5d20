"""The agent's process, `swapwarden agent`: flags, the lock of the node, signals and probes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import gc
import importlib
import logging
import os
import pathlib
import signal
import sys
from asyncio import sslproto
from collections.abc import AsyncIterator
from typing import Final

from swapwarden import options
from swapwarden.agent import agent
from swapwarden.agent.host import realtime, systemd_dropins, worker
from swapwarden.agent.node import swap_metrics
from swapwarden.agent.reconcile import settings
from swapwarden.kube import config, errors
from swapwarden.telemetry import logs, metrics, server

log = logging.getLogger(__name__)

LOCK_SECONDS: Final = 0.02
"""Seconds between tries while another agent runs on the node: the gap that a hand-over may leave."""
TLS_BYTES: Final = 32 << 10
"""Buffer of a connection, held in memory: asyncio's default is 256 KiB, and the agent has two connections."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the agent's flags."""
    parser.add_argument(
        "--node-name", default=os.environ.get("NODE_NAME", ""), help="this node's name (default: $NODE_NAME)"
    )
    parser.add_argument("--cgroup-root", default="/sys/fs/cgroup", help="the node's cgroup v2 file system")
    parser.add_argument("--proc-root", default="/proc", help="where to read meminfo, swaps and the kernel's release")
    parser.add_argument("--sys-root", default="/sys", help="where to read the disks under swap devices")
    for place, what in ((settings.VM, "vm.swappiness and the like"), (settings.ZSWAP, "zswap")):
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
        help="folder with the two systemd drop-in folders for guarantee Strict, to see their files"
        " (default: others install the files)",
    )
    parser.add_argument(
        "--slice-drop-in-dir",
        default="",
        metavar="PATH",
        help="folder with systemd drop-in folders by the names of slices, to see their files"
        " (default: others install the files)",
    )
    parser.add_argument(
        "--print-drop-ins",
        nargs="?",
        const=systemd_dropins.PREFIX,
        metavar="PREFIX",
        help=f"print these two files and end; for slices that begin with PREFIX (default: {systemd_dropins.PREFIX})",
    )
    parser.add_argument(
        "--nri-dir",
        default="",
        metavar="PATH",
        help="folder shared with `swapwarden nri`, which has the container runtime hold limits (default: it does not)",
    )
    parser.add_argument("--kubeconfig", default=None, help="default: in-cluster, $KUBECONFIG, ~/.kube/config")
    parser.add_argument("--metrics-address", default=":8082", help="for /healthz, /readyz and /metrics")
    parser.add_argument(
        "--metrics-top-pods",
        type=options.number(int, 0, swap_metrics.MAX_TOP_PODS, "a number of pods"),
        default=swap_metrics.TOP_PODS,
        metavar="N",
        help="pods that metrics list by themselves, the largest users of swap first (default: %(default)s)",
    )
    parser.add_argument(
        "--resync-interval",
        type=options.number(float, 1, 86400, "a number of seconds"),
        default=300.0,
        metavar="SECONDS",
        help="between full comparisons (default: 300)",
    )
    parser.add_argument("--kubelet-config", default="", metavar="FILE", help="the kubelet's own configuration file")
    parser.add_argument("--kubelet-config-dir", default="", metavar="DIR", help="folder of drop-ins to it")
    parser.add_argument(
        "--check",
        action="store_true",
        help="print what the node shows of its swap, and what falls short; ends with 0: compatible, 1: not, 3: unknown",
    )
    parser.add_argument(
        "--host-root", default="/", help="with --check, where the host's root directory is (default: /)"
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="repair before all ordinary processes of a busy CPU; takes CAP_SYS_NICE",
    )
    logs.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; nothing is put back then. Gives the exit code."""
    if arguments.check:
        # Loaded only then: it takes 0.1 MB.
        return int(importlib.import_module("swapwarden.agent.node.preflight").run(arguments))
    if arguments.print_drop_ins is not None:
        sys.stdout.write(systemd_dropins.printed(arguments.print_drop_ins))
        return 0
    logs.configure(arguments.log_level, arguments.log_format)
    metrics.publish_build("agent")
    paced = arguments.realtime and realtime.begin()
    sslproto.SSLProtocol.max_size = TLS_BYTES
    # All modules are loaded now, and stay. Each full collection would scan them, for as long as ten repairs take.
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(realtime.Paced() if paced else None)
        ) as runner:
            runner.run(_main(arguments))
    except (agent.StartError, errors.ConfigError) as error:
        log.error("the agent cannot start: %s", error)  # noqa: TRY400 the message has it all
        return 2
    return 0


async def _main(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    worker.begin_interrupts()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ended = asyncio.ensure_future(stop.wait())
    serving = asyncio.ensure_future(_serve(arguments))
    try:
        await asyncio.wait({ended, serving}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        log.info("stopping; the cgroups keep their values")
    finally:
        for task in (ended, serving):
            task.cancel()
        await asyncio.gather(ended, serving, return_exceptions=True)


def _address(text: str) -> tuple[str, int]:
    try:
        return server.parse_address(text)
    except argparse.ArgumentTypeError as error:
        raise agent.StartError(f"--metrics-address: {error}") from None


def _directory(flag: str, text: str) -> pathlib.Path:
    path = pathlib.Path(text)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise agent.StartError(f"{flag} {path} cannot be made ({error.strerror}): mount a host path there") from None
    if not os.access(path, os.W_OK):
        raise agent.StartError(f"{flag} {path} cannot be written: mount it read-write")
    return path


class Probes:
    """Answers the kubelet and Prometheus, also before there is an agent."""

    def __init__(self) -> None:
        self.stands_by = False
        """Whether another agent runs on the node. This one is ready then: an update with a surge ends the other only
        once it is."""
        self.agent: agent.Agent | None = None

    def unready(self) -> str | None:
        """Return why it is not ready."""
        if self.agent is None:
            return None if self.stands_by else "starting"
        return self.agent.unready()

    def stuck(self) -> str | None:
        """Return why it is not alive."""
        return None if self.agent is None else self.agent.stuck()

    async def refresh(self) -> None:
        """Update the metrics; while this one stands by, the agent at work reports."""
        if self.agent is not None:
            await self.agent.refresh()


async def _serve(arguments: argparse.Namespace) -> None:
    if not arguments.node_name:
        raise agent.StartError("which node is this? Set NODE_NAME (from spec.nodeName) or give --node-name")
    host, port = _address(arguments.metrics_address)
    run_dir = _directory("--run-dir", arguments.run_dir)
    _directory("--state-dir", arguments.state_dir)
    if arguments.nri_dir:
        _directory("--nri-dir", arguments.nri_dir)
    api_config = config.load(arguments.kubeconfig)
    probes = Probes()
    async with contextlib.AsyncExitStack() as stack:
        with agent.blamed("--metrics-address", arguments.metrics_address):
            await stack.enter_async_context(
                server.serve(host, port, ready=probes.unready, alive=probes.stuck, refresh=probes.refresh)
            )
        probes.stands_by = True
        with agent.blamed("--run-dir", f"{run_dir}, the agent's files on the node,"):
            await stack.enter_async_context(_locked(run_dir / "agent.lock"))
        probes.stands_by = False
        made = agent.Agent(arguments, stack.enter_context(contextlib.ExitStack()))
        await made.start()
        probes.agent = made
        await made.run(api_config)


@contextlib.asynccontextmanager
async def _locked(file: pathlib.Path) -> AsyncIterator[None]:
    """Wait until no other agent runs on this node; the kernel frees the lock however the holder ends."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    logged = False
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not logged:
                    log.info("another agent runs on this node; taking over when it ends", extra={"lock": str(file)})
                    logged = True
                await asyncio.sleep(LOCK_SECONDS)
            else:
                break
        yield
    finally:
        os.close(fd)
