"""python -m testbed setup PART... | demo | cluster up|down: prepare tests and demos, and run the demos."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable

from testbed.base import host, process, term
from testbed.controlplane import assets, kubeversions, programs, servers
from testbed.run import demo, democluster, e2e
from testbed.standin import runtime
from testbed.vm import cluster, kernelvm

# Each sets up one part. Parts that may need root come first: an error after minutes of building would be late.
PARTS: dict[str, Callable[[], object]] = {
    "kernel": lambda: f"Linux {kernelvm.ensure().release}",
    "cluster": cluster.ensure,
    "controlplane": lambda: " ".join(map(str, dataclasses.astuple(assets.ensure()))),
    "oldest": lambda: assets.apiserver(kubeversions.known()[0]),
    "kubectl": assets.kubectl,
    "helm": programs.helm,
    "nfd": programs.nfd,
    "nri": lambda: " ".join(str(runtime.program(version)) for version in (*runtime.OLDER, *runtime.VERSIONS)),
    "promtool": programs.promtool,
}
FOR_DEMO = ("kernel", "controlplane", "helm")
_E2E = "e2e"


def parts(named: Iterable[str]) -> list[str]:
    """Return the parts of the testbed that NAMED stand for, in set-up order; `e2e` stands for its provider's."""
    wanted = {*named}
    if _E2E in wanted:
        wanted.update(e2e.PARTS[e2e.choose(os.environ)])
    return [part for part in PARTS if part in wanted]


def main() -> int:
    """Run the command line; exit status 1 with one clear message if the machine lacks something."""
    parser = argparse.ArgumentParser(prog="python -m testbed", description="The test equipment of Swapwarden.")
    commands = parser.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="fetch or build the tools of tests and demo; quick if they exist")
    setup.add_argument("part", nargs="+", choices=[*PARTS, _E2E])
    commands.add_parser("demo", help="run the main job on a real API server and a real kernel")
    demo_cluster = commands.add_parser("cluster", help="a whole cluster with Swapwarden, to look around in")
    demo_cluster.add_argument("action", choices=["up", "down", "hold"], help="hold: be it, in the foreground")
    options = parser.parse_args()
    chosen = getattr(options, "part", FOR_DEMO)
    process.exit_on_sigterm()
    try:
        host.need_linux()
        if options.command == "cluster":
            {"up": democluster.up, "down": democluster.down, "hold": democluster.hold}[options.action]()
            return 0
        for name in parts(chosen):
            with term.step(f"setting up {name}"):
                found = PARTS[name]()
            if found:
                term.say(f"  {found}")
        if options.command == "demo":
            demo.run()
    except (host.SetupError, process.ProcessError, servers.ControlPlaneError, kernelvm.VMError) as error:
        term.say(f"can't go on: {error}")
        return 1
    except demo.DemoError as error:
        term.say(f"this does not hold: {error}")
        return 1
    except KeyboardInterrupt:
        term.say("stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
