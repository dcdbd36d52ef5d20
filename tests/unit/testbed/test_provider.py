"""The e2e suite goes where it is told to, and nowhere else."""

import json
import stat
from pathlib import Path

import pytest

from testbed import assets
from tests.e2e import provider
from tests.e2e.provider import ProviderError
from tests.e2e.provider_existing import Existing

KUBECTL = """\
#!/bin/sh
echo "$@" >>{log}
case "$*" in
*get-contexts*) printf 'kind-dev\\nproduction\\n' ;;
*--raw=/api/v1/nodes) echo '{nodes}' ;;
*) exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("environment", "docker", "name"),
    [
        ({}, True, "kind"),
        ({}, False, "node-vm"),
        ({"E2E_PROVIDER": ""}, False, "node-vm"),
        ({"E2E_PROVIDER": "node-vm"}, True, "node-vm"),
        ({"E2E_PROVIDER": "existing", "E2E_CONTEXT": "dev"}, True, "existing"),
        # A context alone is not an order to touch it.
        ({"E2E_CONTEXT": "production"}, False, "node-vm"),
    ],
)
def test_choose(environment: dict[str, str], docker: bool, name: str) -> None:
    assert provider.choose(environment, has_docker=lambda: docker) == name


def test_a_provider_that_is_not_there_is_named() -> None:
    with pytest.raises(
        ProviderError, match="E2E_PROVIDER=minikube: there is no such provider; use one of kind, node-vm"
    ):
        provider.choose({"E2E_PROVIDER": "minikube"}, has_docker=lambda: True)


def test_existing_needs_to_be_told_the_context() -> None:
    with pytest.raises(ProviderError, match="say with E2E_CONTEXT"):
        provider.choose({"E2E_PROVIDER": "existing"}, has_docker=lambda: True)


class FakeKubectl:
    def __init__(self, folder: Path, nodes: list[str]) -> None:
        self.log = folder / "calls"
        self.path = folder / "kubectl"
        items = json.dumps({"items": [{"metadata": {"name": name}} for name in nodes]})
        self.path.write_text(KUBECTL.format(log=self.log, nodes=items), encoding="ascii")
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    def calls(self) -> list[str]:
        return self.log.read_text(encoding="ascii").splitlines()


@pytest.fixture
def kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeKubectl:
    made = FakeKubectl(tmp_path, ["a", "b"])
    monkeypatch.setattr(assets, "ensure", lambda: assets.Assets(tmp_path, tmp_path, made.path))
    monkeypatch.delenv("E2E_NODE", raising=False)
    return made


def test_existing_refuses_a_context_that_the_file_does_not_have(kubectl: FakeKubectl) -> None:
    with (
        pytest.raises(ProviderError, match=r"/config has no such context. It has: kind-dev, production"),
        Existing("dev", "/config"),
    ):
        pass
    assert len(kubectl.calls()) == 1


def test_every_call_names_file_and_context(kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2E_NODE", "b")
    with Existing("kind-dev", "/config") as existing:
        assert existing.node_name == "b"
        assert existing.node is None
        with pytest.raises(ProviderError):
            existing.get("/nothing")
    assert all("--kubeconfig=/config" in call for call in kubectl.calls())
    assert all("--context=kind-dev" in call for call in kubectl.calls()[1:])


@pytest.mark.usefixtures("kubectl")
def test_among_several_nodes_one_has_to_be_named() -> None:
    with (
        pytest.raises(ProviderError, match="say with E2E_NODE which node to use; there are: a, b"),
        Existing("kind-dev", "/config"),
    ):
        pass
