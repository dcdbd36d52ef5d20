"""docs/tutorial.md: its commands are run as they stand there, and what they print is held against what is shown."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed import commands, managers, process, standin
from testbed.controller import Controller
from testbed.controlplane import ControlPlane
from testbed.webhook import Webhook
from tests.integration.agent.agent_process import AgentProcess
from tests.unit.agent.host_tree import HostTree

ME = "tests/integration/test_tutorial.py"
PAGE = "docs/tutorial.md"
NODE = "worker-1"
NAMESPACE, ACCOUNT = "swapwarden-system", "swapwarden-agent"
TIMEOUT = 120.0
# As much as HostTree has.
SIZES = [f"--memory-bytes={4 << 30}", f"--swap-bytes={1 << 30}", "--swap-behavior=LimitedSwap"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane with all that makes pods of Deployments, all of Swapwarden, and a node that is none."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(ControlPlane())
        made.apply_crds(commands.ROOT / "crds")
        stack.enter_context(Webhook(made)).install()
        stack.enter_context(Controller(made))
        # The stand-in says only once that it is Ready.
        managers.start(stack, made, tmp_path, ["--node-monitor-grace-period=1h"])
        stack.enter_context(standin.on_host(made, tmp_path / "node", NODE, SIZES))
        stack.enter_context(agent(made, tmp_path)).wait_ready()
        yield made


def agent(cluster: ControlPlane, folder: Path) -> AgentProcess:
    """The node's agent, with the token of a pod on it."""
    containers = [{"name": "agent", "image": "none"}]
    spec = {"nodeName": NODE, "serviceAccountName": ACCOUNT, "containers": containers}
    cluster.create(f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": "agent"}, "spec": spec})
    kubeconfig = cluster.kubeconfig_for(cluster.token(NAMESPACE, ACCOUNT, pod="agent"), "agent")
    root = folder / "node" / "cgroup"
    (root / "cgroup.controllers").write_text("cpu io memory pids\n")
    host = folder / "host"
    host.mkdir()
    return AgentProcess(host, root, HostTree(host).proc, kubeconfig, node=NODE)


def run(cluster: ControlPlane, command: str) -> str:
    """What a command of the page prints; where it fails, what it says of that."""
    first, _, second = command.partition(" | ")
    kubectl, *arguments = shlex.split(first)
    assert kubectl == "kubectl"
    # Paths of the page are those of the repository.
    arguments = [str(commands.ROOT / each) if each.startswith("examples/") else each for each in arguments]
    try:
        printed = cluster.kubectl(*arguments, timeout=TIMEOUT).stdout
    except process.ProcessError as error:
        return str(error).partition("\n")[2]
    if second:
        swapwarden, *arguments = shlex.split(second)
        assert swapwarden == "swapwarden"
        printed = process.run([sys.executable, "-m", swapwarden, *arguments], timeout=TIMEOUT, text=printed).stdout
    return printed


def test_the_tutorial(cluster: ControlPlane, eventually: Callable[..., None]) -> None:
    for block in commands.run_by(ME, PAGE):
        for command, shown in block.steps():
            printed = ""

            def is_as_shown(command: str = command, shown: list[str] = shown) -> bool:
                nonlocal printed
                printed = run(cluster, command)
                return commands.fits(shown, printed)

            try:
                # Who follows the page looks again, too; what changes something is done once.
                eventually(is_as_shown, command, timeout=60.0 if command.startswith("kubectl get ") else 0.0)
            except AssertionError:
                pytest.fail(f"{PAGE}:{block.line}: {command} printed\n{printed}")
