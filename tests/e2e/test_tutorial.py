"""docs/tutorial.md: its commands are tested as they stand there, and their output is compared with the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hack.docs import commands
from tests.e2e.conftest import Wait
from tests.e2e.provider import Provider
from tests.e2e.release import Release

ME = "tests/e2e/test_tutorial.py"
PAGE = "docs/tutorial.md"
EXAMPLES = "-f examples/workloads.yaml -f examples/profile.yaml -f examples/namespaces.yaml"


@pytest.fixture
def page(cluster: Provider, swapwarden: Release, eventually: Wait) -> Iterator[list[commands.Block]]:
    """The commands of the page; however many are run, the next test finds a node without a profile."""
    if not cluster.owns_swap:
        pytest.skip(f"{PAGE} shows a node of its own, with swap of a known size, and its one profile is for all nodes")
    yield commands.run_by(ME, PAGE)
    cluster.shell(f"kubectl delete --ignore-not-found {EXAMPLES}")
    eventually(lambda: swapwarden.state()["spec"]["profileRef"]["name"] == "(built-in)", "no profile is left")


def only_looks(command: str) -> bool:
    """Return whether a command changes nothing: a reader would also repeat it."""
    return command.startswith(("kubectl get ", "kubectl swap ")) or " -- cat " in command


def test_the_tutorial(cluster: Provider, page: list[commands.Block], eventually: Wait) -> None:
    sizes: dict[str, str] = {}
    for block in page:
        for command, shown in block.steps():
            printed = ""

            def is_as_shown(command: str = command, shown: list[str] = shown) -> bool:
                nonlocal printed
                printed = cluster.shell(command).stdout
                return commands.fits(shown, printed, sizes)

            try:
                eventually(is_as_shown, command, timeout=120.0 if only_looks(command) else 0.0)
            except AssertionError:
                pytest.fail(f"{PAGE}:{block.line}: {command} printed\n{printed}")
