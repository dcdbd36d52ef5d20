"""The command `swapwarden`: start one part, and import nothing of the others."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import swapwarden
from swapwarden import lazily

COMMANDS: Final = {
    "controller": ("swapwarden.controller.main", "plan the swap of all nodes; one instance leads"),
    "webhook": ("swapwarden.webhook.main", "check and default pods at admission"),
    "agent": ("swapwarden.agent.main", "apply the plan to this node's cgroups"),
    "nri": ("swapwarden.nri.main", "hold swap limits of containers by the node's container runtime"),
    "drop-ins": ("swapwarden.agent.drop_ins", "install or remove systemd's drop-in files on a node, and end"),
    "await-daemonset": ("swapwarden.cli.daemonset", "wait for a DaemonSet's pods; list the nodes without a ready one"),
    "profiles": ("swapwarden.cli.profiles", "apply the profiles in an installation's values"),
    "uninstall": ("swapwarden.cli.uninstall", "make all nodes restore earlier values before Swapwarden is removed"),
    "plan": ("swapwarden.cli.plan", "show from files what every pod would get; needs no cluster"),
}
"""Module and description of each command; a module has add_arguments(parser) and run(arguments) -> exit status."""


OPERATOR: Final = frozenset({"aiohttp", "cryptography", "kopf", "prometheus_client", "uvloop"})
"""Modules of the package's extra `operator`."""

LEAN: Final = "agent"
"""The command that runs on every node, where each megabyte counts."""


class Formatter(argparse.HelpFormatter):
    """Formats help without shutil, which argparse's own formatter loads, and with it four compressors: 0.5 MB.

    argparse makes one for each argument that is added.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


PR_SET_THP_DISABLE: Final = 41
"""The option of prctl() that disables huge pages (include/uapi/linux/prctl.h)."""


def _keep_pages_small() -> None:
    """Disable huge pages for this process; kernels without them refuse, which does not matter.

    Many kernels use them wherever they fit (/sys/kernel/mm/transparent_hugepage/enabled: always): 2 MiB for a few KiB.
    """
    importlib.import_module("ctypes").CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


@contextlib.contextmanager
def _lean() -> Iterator[None]:
    """Import as little as possible inside of the block."""
    # If typing_extensions is installed, msgspec imports it for names that typing also has: 3.5 MB, 90 ms.
    # 0.4 MB: nothing here uses msgspec.inspect, and urllib.parse uses ipaddress for IPv6 addresses alone.
    with lazily.without("typing_extensions"), lazily.at_first_use("ipaddress", "msgspec.inspect"):
        yield


def _columns() -> int:
    """Return the width of the terminal in characters, as shutil.get_terminal_size does."""
    with contextlib.suppress(KeyError, ValueError):
        if (columns := int(os.environ["COLUMNS"])) > 0:
            return columns
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no standard output, or one that is no terminal
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]  # as above
    return 80


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status. SystemExit if argparse refuses it or shows help."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        module, parsed = _parsed(given)
        return int(module.run(parsed))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in OPERATOR:
            raise
        needs = f"swapwarden {given[0] if given else ''}".strip()
        sys.stderr.write(f"error: {needs} needs {missing}: pip install 'swapwarden[operator]'\n")
        return 1


def _parsed(given: list[str]) -> tuple[Any, argparse.Namespace]:
    """Return the command's module and its arguments. The parser is freed before the command runs."""
    parser = argparse.ArgumentParser(
        prog="swapwarden",
        description="A say in swap for every pod, and an enforced swap policy for every node.",
        formatter_class=Formatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {swapwarden.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    module = None
    for name, (path, summary) in COMMANDS.items():
        chosen = given[:1] == [name]
        command = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", formatter_class=Formatter
        )
        if chosen:
            if name == LEAN:
                _keep_pages_small()
            with _lean() if name == LEAN else contextlib.nullcontext():
                module = importlib.import_module(path)
            module.add_arguments(command)
    parsed = parser.parse_args(given)
    if module is None:
        parser.error("the first argument must be a command")
    return module, parsed


if __name__ == "__main__":
    sys.exit(main())
