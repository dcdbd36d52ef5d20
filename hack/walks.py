"""How far events walk through the agent: its modules and calls, from reading an event to what follows from it.

The node is a directory tree with three pods of two containers each. sys.setprofile counts every function of the package
swapwarden, metrics included; each resumption of a generator is a call. Comprehensions, lambdas and other packages do
not count. `python -m hack.walks -v` lists the calls.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys
import tempfile
import types
from collections.abc import Callable
from typing import Final, NamedTuple

import swapwarden
from swapwarden.api import state as api

from tests.unit.agent import agent_node, cgroup_tree

_PACKAGE: Final = f"{pathlib.Path(swapwarden.__file__).parent}/"
_INLINE: Final = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>")
_HOST: Final = "agent/host/"
_WRITES: Final = ("Cgroups.write", "Cgroups.replace")
BOOKED: Final = "`max` written over a 0, until all is counted"
VERIFIED: Final = "until the repair is read back"
NEW_POD: Final = "until its 0 is read back"
COLLECTED: Final = "what a status reports, collected"
STATUS: Final = "a status with conditions"
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


def walk(step: Callable[[], object]) -> Walk:
    """Run a step and record its calls."""
    calls: list[tuple[str, str]] = []

    def called(frame: types.FrameType, what: str, _: object) -> None:
        code = frame.f_code
        if what == "call" and code.co_filename.startswith(_PACKAGE) and not code.co_qualname.endswith(_INLINE):
            calls.append((code.co_filename.removeprefix(_PACKAGE).removesuffix(".py"), code.co_qualname))

    sys.setprofile(called)
    try:
        step()
    finally:
        sys.setprofile(None)
    return Walk(calls)


async def measure(folder: pathlib.Path) -> dict[str, Walk]:
    """Return the walk of each event, on a node in `folder`."""
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
    wanted = agent_node.state({0: 0, 1: 0, 2: 64 * agent_node.MIB}, generation=2)
    found["a state that raises one pod of three"] = walk(lambda: agent_node.apply(agent, wanted))
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
    """Print the table of docs/design/agent.md."""
    with tempfile.TemporaryDirectory() as folder:
        for event, found in (await measure(pathlib.Path(folder))).items():
            print(f"| {event} | {found.size[0]} | {found.size[1]} |")
            if "-v" in sys.argv:
                print("\n".join(f"    {module}: {name}" for module, name in found.calls))


if __name__ == "__main__":
    asyncio.run(main())
