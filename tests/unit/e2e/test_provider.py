"""The e2e suite uses the named cluster, and no other."""

import json
import os
import stat
from pathlib import Path

import pytest

from testbed.controlplane import assets, programs
from tests.e2e import provider_kind
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
    monkeypatch.setattr(assets, "kubectl", lambda: made.path)
    monkeypatch.delenv("E2E_NODE", raising=False)
    return made


def test_existing_refuses_a_context_that_the_file_does_not_have(kubectl: FakeKubectl) -> None:
    with (
        pytest.raises(ProviderError, match=r"/config has no such context. It has: kind-dev, production"),
        Existing("dev", "a/b:1", "/config"),
    ):
        pass
    assert len(kubectl.calls()) == 1


def test_every_call_names_file_and_context(kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2E_NODE", "b")
    with Existing("kind-dev", "a/b:1", "/config") as existing:
        assert existing.node_name == "b"
        assert existing.node is None
        with pytest.raises(ProviderError):
            existing.get("/nothing")
    assert all("--kubeconfig=/config" in call for call in kubectl.calls())
    assert all("--context=kind-dev" in call for call in kubectl.calls()[1:])


def test_helm_is_led_nowhere_by_the_environment(
    kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    helm = tmp_path / "helm"
    helm.write_text('#!/bin/sh\necho "$@"\nenv | grep ^HELM_\n', encoding="ascii")
    helm.chmod(0o755)
    monkeypatch.setattr(programs, "helm", lambda: helm)
    monkeypatch.setenv("HELM_KUBEAPISERVER", "https://production")
    monkeypatch.setenv("HELM_KUBETOKEN", "secret")
    monkeypatch.setenv("HELM_CACHE_HOME", "/cache")
    monkeypatch.setenv("E2E_NODE", "a")
    with Existing("kind-dev", "a/b:1", "/config") as existing:
        said = existing.helm("list").stdout.splitlines()
    assert said == ["--kubeconfig=/config --kube-context=kind-dev list", "HELM_CACHE_HOME=/cache"]
    assert kubectl.calls()


def test_kind_removes_the_clusters_of_runs_that_are_gone() -> None:
    gone = 1 << 30  # beyond what the kernel gives
    mine, theirs = f"swapwarden-{os.getpid()}", ["kind", "swapwarden-dev", f"my-swapwarden-{gone}"]
    assert provider_kind.leftovers([mine, *theirs, f"swapwarden-{gone}"]) == [f"swapwarden-{gone}"]
