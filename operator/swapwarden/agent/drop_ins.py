"""`swapwarden drop-ins`: installs or removes systemd's drop-in files on a node, and ends.

The agent's pod runs it as an init container: a writer of these files can have systemd start any unit of the node as
root, so the agent itself must not be one.
"""

from __future__ import annotations

import argparse
import logging
import pathlib
import signal
from collections.abc import Callable, Iterator
from typing import Final

from swapwarden.agent.host import systemd_dropins
from swapwarden.telemetry import logs

log = logging.getLogger(__name__)

ACTIONS: Final = ("install", "remove")
WAIT: Final = "wait"
"""Does nothing until it is ended, as the container of a DaemonSet must once the init container is done."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `swapwarden drop-ins`."""
    parser.add_argument("action", choices=[*ACTIONS, WAIT], help=f"what to do; {WAIT}: nothing, until SIGTERM")
    parser.add_argument(
        "--drop-in-dir", default="", metavar="PATH", help="folder with the two folders for guarantee Strict"
    )
    parser.add_argument(
        "--slice-drop-in-dir", default="", metavar="PATH", help="folder with folders by the names of slices"
    )
    parser.add_argument(
        "--best-effort",
        action="store_true",
        help="exit with 0 also after a failure, which is logged: the agent must start in any case",
    )
    parser.add_argument(
        "--cgroup-root", default="", metavar="PATH", help="the node's cgroups, by which a slice with pods gets no file"
    )
    logs.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do the work in each folder; return the exit status."""
    logs.configure(arguments.log_level, arguments.log_format)
    if arguments.action == WAIT:
        ends = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        signal.sigwait(ends)
        return 0
    work = _install(arguments.cgroup_root) if arguments.action == "install" else systemd_dropins.remove
    done = [_do(arguments.action, work, folder) for folder in _folders(arguments)]
    return 0 if all(done) or arguments.best_effort else 1


def _do(action: str, work: Callable[[pathlib.Path], None], folder: pathlib.Path) -> bool:
    try:
        work(folder)
    except OSError as error:
        path = f"{systemd_dropins.UNITS}/{folder.name}/{systemd_dropins.FILE}"
        log.error("cannot %s %s: %s", action, path, error)  # noqa: TRY400 the message has it all
        return False
    return True


def _install(root: str) -> Callable[[pathlib.Path], None]:
    def install(folder: pathlib.Path) -> None:
        if root and systemd_dropins.has_pods(pathlib.Path(root), folder):
            raise OSError("pods are in this slice: take it out of agent.dropIns.slices")
        systemd_dropins.install(folder)

    return install


def _folders(arguments: argparse.Namespace) -> Iterator[pathlib.Path]:
    for given, find in (
        (arguments.drop_in_dir, systemd_dropins.pod_folders),
        (arguments.slice_drop_in_dir, systemd_dropins.slice_folders),
    ):
        folders = find(pathlib.Path(given)) if given else []
        if given and not folders:
            log.error("%s has no systemd drop-in folder", given)
        yield from folders
