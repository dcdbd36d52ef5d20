"""How far data walks through the product: the modules and calls between an event and its effect, beside their targets.

The agent's node is a directory tree with three pods of two containers each. The controller's node has four pods, and a
scripted API server. sys.setprofile counts every function of the package swapwarden, metrics included; each resumption
of a generator or a coroutine is a call. Comprehensions, lambdas and other packages do not count.
`python -m hack.walks -v` lists the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import pathlib
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import swapwarden
from swapwarden.api import state as api
from swapwarden.cli.kubectl.explain import model, screen
from swapwarden.kube import client, config

from tests.unit.agent import agent_node, cgroup_tree
from tests.unit.cli.kubectl import explained
from tests.unit.controller.nodes import test_reconciler
from tests.unit.kube import scripted

_PACKAGE: Final = f"{pathlib.Path(swapwarden.__file__).parent}/"
_INLINE: Final = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>")
_HOST: Final = "agent/host/"
_WRITES: Final = ("Cgroups.write", "Cgroups.replace")
BOOKED: Final = "`max` written over a 0, until all is counted"
VERIFIED: Final = "until the repair is read back"
NEW_POD: Final = "until its 0 is read back"
COLLECTED: Final = "what a status reports, collected"
STATUS: Final = "a status with conditions"
RECONCILE: Final = "a reconcile of a node with 4 pods, one of them new"
MODEL: Final = "an explanation of one pod"
SCREEN: Final = "its screen"
TARGETS: Final = {
    VERIFIED: "8, 40",
    BOOKED: "8, 40",
    NEW_POD: "10",
    COLLECTED: "5",
    STATUS: "5",
    RECONCILE: "28, 240",
    MODEL: "24",
}
"""The most modules, and the most calls if there is such a target."""
FACTS: Final = api.Facts(2, swap_controller=True, swap_bytes=1 << 30, memory_bytes=4 << 30)


class Walk(NamedTuple):
    """The calls that one event causes, in order: module and function."""

    calls: list[tuple[str, str]]

    @property
    def size(self) -> tuple[int, int]:
        """So many modules, and so many calls."""
        return len({module for module, _ in self.calls}), len(self.calls)

    def until_verified(self) -> Walk:
        """Return its part until the value that was written last has been read back."""
        wrote = max(number for number, call in enumerate(self.calls) if call[1] in _WRITES)
        read = next(number for number in range(wrote, len(self.calls)) if self.calls[number][1] == "Cgroups.read")
        rest = (number for number in range(read, len(self.calls)) if not self.calls[number][0].startswith(_HOST))
        return Walk(self.calls[: next(rest)])


@contextlib.contextmanager
def recording() -> Iterator[Walk]:
    """Yield a walk to which each call in the block is added."""
    found = Walk([])

    def called(frame: types.FrameType, what: str, _: object) -> None:
        code = frame.f_code
        if what == "call" and code.co_filename.startswith(_PACKAGE) and not code.co_qualname.endswith(_INLINE):
            found.calls.append((code.co_filename.removeprefix(_PACKAGE).removesuffix(".py"), code.co_qualname))

    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)


def walk(step: Callable[[], object]) -> Walk:
    """Run a step and record its calls."""
    with recording() as found:
        step()
    return found


async def measure(folder: pathlib.Path) -> dict[str, Walk]:
    """Return the walk of each event; the agent's node is in `folder`."""
    return {**await agent_walks(folder), **await controller_walks(), **explain_walks()}


async def controller_walks() -> dict[str, Walk]:
    """Return the walk of a reconcile that adds a pod to the state of a node, which has others and a connection."""
    async with (
        scripted.Scripted() as server,
        client.Client(config.Config(server=server.url), user_agent="walks") as connection,
    ):
        bench = test_reconciler.Bench(connection, server)
        for version, added in enumerate(("abc", "d"), start=1):
            for name in added:
                bench.pod_comes(name)
            server.answer(test_reconciler.answer(version, generation=version, spec=bench.known.plan("node-1")))
            with recording() as found:
                (_,) = await bench.reconcile()
    return {RECONCILE: found}


def explain_walks() -> dict[str, Walk]:
    """Return the walks of an explanation of a pod that has a share of its node's swap."""
    containers = explained.container("app", "1Gi", "2Gi"), explained.container("proxy", "64Mi", "64Mi")
    read = explained.seen(explained.pod(*containers), explained.profile(reserved="25%"))
    with recording() as found:
        told = model.explain(read)
    return {MODEL: found, SCREEN: walk(lambda: screen.text(told, datetime.datetime.now(datetime.UTC)))}


async def agent_walks(folder: pathlib.Path) -> dict[str, Walk]:
    """Return the walk of each event in an agent, on a node in `folder`."""
    node = agent_node.Node(folder)
    agent = node.start()
    pods = [await node.run(number, f"a{number}", f"b{number}") for number in range(3)]
    agent_node.apply(agent, agent_node.state({0: 0, 1: 0, 2: 0}))

    def hear() -> None:
        agent.catch_up()
        while not agent_node.is_idle(agent):
            agent.catch_up()

    hear()
    found = {}
    cgroup_tree.write(pods[1], "max")
    found[BOOKED] = repair = walk(hear)
    found[VERIFIED] = repair.until_verified()
    found["the event of that write"] = walk(hear)
    node.later = 2.0
    found["its cause, a second later"] = walk(lambda: agent_node.find_causes(agent))
    desired = agent_node.state({0: 0, 1: 0, 2: 64 * agent_node.MIB}, generation=2)
    found["a state that raises one pod of three"] = walk(lambda: agent_node.apply(agent, desired))
    hear()
    node.tree.pod(7)
    found["a new pod, until all is recorded"] = new = walk(hear)
    found[NEW_POD] = new.until_verified()
    hear()
    node.tree.container(pods[0], "new")
    found["a new container"] = walk(hear)
    found[COLLECTED] = walk(lambda: agent_node.snapshot(agent))
    found[STATUS] = walk(lambda: agent_node.built(agent, FACTS))
    found["a full comparison of 4 pods"] = walk(lambda: agent_node.compare(agent))
    node.stop()
    return found


async def main() -> None:
    """Print the table of docs/design/agent.md, with targets."""
    with tempfile.TemporaryDirectory() as folder:
        for event, found in (await measure(pathlib.Path(folder))).items():
            print(f"| {event} | {TARGETS.get(event, '')} | {found.size[0]}, {found.size[1]} |")
            if "-v" in sys.argv:
                print("\n".join(f"    {module}: {name}" for module, name in found.calls))


if __name__ == "__main__":
    asyncio.run(main())
