"""The command `swapwarden`: picks the part that is asked for and imports nothing of the others."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Sequence
from typing import Final

import swapwarden
from swapwarden import lazily

COMMANDS: Final = {
    "controller": ("swapwarden.controller.main", "plan the swap of all nodes; one instance leads"),
    "webhook": ("swapwarden.webhook.main", "check and default pods at admission"),
    "agent": ("swapwarden.agent.main", "hold what is planned in this node's cgroups"),
    "profiles": ("swapwarden.cli.profiles", "make the profiles of an installation what its values say"),
    "uninstall": ("swapwarden.cli.uninstall", "have all nodes put back what was there, before Swapwarden is removed"),
    "plan": ("swapwarden.cli.plan", "show from files what every pod would get; needs no cluster"),
}
"""Module and description of each command; a module has add_arguments(parser) and run(arguments) -> exit status."""


LEAN: Final = "agent"
"""The command that runs on every node, where each megabyte counts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status. SystemExit where argparse says no or shows its help."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="swapwarden", description="A say in swap for every pod, and an enforced swap policy for every node."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {swapwarden.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    module = None
    for name, (path, summary) in COMMANDS.items():
        chosen = given[:1] == [name]
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if chosen:
            # msgspec takes from typing_extensions, where that is there, what typing has as well: 3.5 MB, 90 ms.
            with lazily.without("typing_extensions") if name == LEAN else contextlib.nullcontext():
                module = importlib.import_module(path)
            module.add_arguments(command)
    parsed = parser.parse_args(given)
    if module is None:
        parser.error("the command comes first")
    return int(module.run(parsed))


if __name__ == "__main__":
    sys.exit(main())
