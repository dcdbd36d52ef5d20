"""Upgrade, rollback, removal and a second installation, with pods that come and go meanwhile."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from typing import Any, Self

import pytest

from testbed import image, process
from tests.e2e import cgroups, release
from tests.e2e.cgroups import MIB, TIMEOUT, Window
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider, ProviderError
from tests.e2e.release import Release
from tests.e2e.test_labels import LABELS

DISABLED = {"annotations": {"swapwarden.dev/swap-policy": "Disabled"}}
RESOURCES = {"requests": {"memory": str(16 * MIB)}, "limits": {"memory": str(32 * MIB)}}
NEXT = "e2e-next"
LEFT = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
EVERYTHING = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,leases,networkpolicies,poddisruptionbudgets"
HOOKS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"


class Churn:
    """Pods with policy Disabled, one after the other, and what agents say of exposures, on a thread of its own."""

    def __init__(self, namespace: Namespace, swapwarden: Release) -> None:
        self._namespace = namespace
        self._swapwarden = swapwarden
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.uids: list[str] = []
        self.refused: list[str] = []
        self._exposures: dict[str, float] = collections.defaultdict(float)
        self._before = 0.0

    def __enter__(self) -> Self:
        self._before = self.exposures()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def exposures(self) -> float:
        """How many exposures agents have published since this began, those that are gone included."""
        self._look()
        return sum(self._exposures.values()) - self._before

    def _run(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            name = f"churn-{number}"
            try:
                self._namespace.create_pod(name, metadata=DISABLED, resources=RESOURCES)
            except process.ProcessError as error:
                self.refused.append(str(error))
                continue
            self.uids.append(self._namespace.pod(name)["metadata"]["uid"])
            while not self._namespace.is_ready(name) and not self._ended.wait(1.0):
                self._look()
            # One at a time: containerd's own timeouts are short for an emulated CPU.
            self._namespace.delete_pod(name)
            while self._is_there(name) and not self._ended.wait(1.0):
                self._look()

    def _is_there(self, name: str) -> bool:
        try:
            self._namespace.pod(name)
        except ProviderError:
            return False
        return True

    def _look(self) -> None:
        for pod in self._swapwarden.pods("agent"):
            try:
                text = self._swapwarden.metrics(pod["metadata"]["name"], "agent")
            except (ProviderError, process.ProcessError):
                continue  # it starts, or it ends
            found = sum(release.series(text, "swapwarden_agent_exposures_total").values())
            self._exposures[pod["metadata"]["uid"]] = max(self._exposures[pod["metadata"]["uid"]], found)


def of_running(samples: list[Any], uid: str) -> list[Window]:
    """When a pod was above 0 from the start of its first container to the end of its last."""
    of_pod = cgroups.slice_of(uid)
    mine = [each for each in samples if of_pod in each.path]
    # The first scope is the sandbox.
    scopes = [each for each in mine if each.path.endswith(".scope")]
    created = [each.at for each in scopes if each.event == "created"][1:]
    gone = [each.at for each in scopes if each.event == "gone"]
    if not created:
        return []
    end = max(gone) if len(gone) == len(created) + 1 else float("inf")
    return cgroups.windows(mine, of_pod, created[0], end)


@pytest.fixture
def next_image(node: Node) -> Iterator[str]:
    """The tag of the image that is upgraded to: the same content, so that a rollout of all parts is what is new."""
    name = f"{image.REFERENCE.partition(':')[0]}:{NEXT}"
    images = ["ctr", "--namespace=k8s.io", "images"]
    node.run([*images, "tag", "--force", image.REFERENCE, name], timeout=TIMEOUT)
    yield NEXT
    node.run([*images, "rm", name], timeout=TIMEOUT)


def images_of(swapwarden: Release) -> set[str]:
    """The tags that the parts run."""
    pods = [pod for component in ("agent", "controller", "webhook") for pod in swapwarden.pods(component)]
    return {each["image"].rpartition(":")[2] for pod in pods for each in pod["spec"]["containers"]}


def test_upgrade_and_rollback_while_pods_come_and_go(
    node: Node, swapwarden: Release, namespace: Namespace, next_image: str, eventually: Wait
) -> None:
    before = images_of(swapwarden)
    assert before == {image.REFERENCE.rpartition(":")[2]}
    with node.record() as recording, Churn(namespace, swapwarden) as churn:
        namespace.create_pod("steady", metadata=DISABLED, resources=RESOURCES)
        steady = namespace.wait_ready("steady")["metadata"]["uid"]
        swapwarden.upgrade(**{"image.tag": next_image})
        eventually(lambda: images_of(swapwarden) == {next_image}, "all parts run the new image, and no other")
        during = len(churn.uids)
        swapwarden.rollback()
        eventually(lambda: images_of(swapwarden) == before, "all parts run the old image again")
        eventually(lambda: len(churn.uids) > during + 1, "pods come and go still")
        assert churn.refused == []
        samples = recording.samples()
        seen = {uid: of_running(samples, uid) for uid in [*churn.uids, steady]}
        listed = "\n".join(f"{uid}: {each}" for uid, found in seen.items() for each in found)
        assert sum(map(len, seen.values())) <= churn.exposures(), listed
    assert during >= 2
    eventually(lambda: swapwarden.planned(steady) == "0", "the pod that was there all the time is planned")
    folder = cgroups.find(node, cgroups.slice_of(steady))
    assert cgroups.swap_max(node, folder) == "0"
    eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the plan is in force")


def test_uninstall_puts_back_what_was_there_and_a_second_installation_works(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    namespace.create_pod("disabled", metadata=DISABLED, resources=RESOURCES)
    namespace.create_pod("plain", resources=RESOURCES)
    pods = {name: namespace.wait_ready(name) for name in ("disabled", "plain")}
    folders = {name: cgroups.of_pod(node, pod) for name, pod in pods.items()}
    kubelets = cgroups.swap_max(node, cgroups.of_container(node, pods["plain"]))
    assert int(kubelets) > 0
    eventually(lambda: cgroups.swap_max(node, folders["disabled"]) == "0", "the policy is in force")
    with swapwarden.profile("e2e-kept") as apply:
        apply(behavior="LimitedSwap", systemReserved="50%")
        eventually(lambda: cgroups.swap_max(node, node.kubepods) != "max", "the profile is in force")
        scope = cgroups.of_container(node, pods["plain"])
        eventually(lambda: int(cgroups.swap_max(node, scope)) < int(kubelets), "for the pod without policy, too")

        said = swapwarden.uninstall()
        assert "all agents have put back what was there" in said
        assert cgroups.swap_max(node, folders["disabled"]) == "max"
        assert cgroups.swap_max(node, folders["plain"]) == "max"
        assert cgroups.swap_max(node, scope) == kubelets
        assert cgroups.swap_max(node, node.kubepods) == "max"
        labels = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["metadata"]["labels"]
        assert not LABELS & labels.keys()
        assert cluster.get("/apis/swapwarden.dev/v1alpha1/nodeswapstates")["items"] == []
        selector = f"--selector=app.kubernetes.io/instance={release.NAME}"
        for kinds in (LEFT, HOOKS):
            assert cluster.kubectl("get", kinds, selector, "-o=name").stdout == ""

        def left() -> list[str]:
            where = [f"--namespace={release.NAMESPACE}", "-o=name"]
            return sorted(cluster.kubectl("get", EVERYTHING, *where).stdout.split())

        # Pods end a little after what owns them.
        eventually(lambda: not any(name.startswith("pod/") for name in left()), "all pods have ended")
        assert left() == ["configmap/kube-root-ca.crt", "serviceaccount/default"]
        # The webhook is gone, too: a policy is an annotation like any other now.
        namespace.create_pod("later", metadata=DISABLED)
        assert cgroups.swap_max(node, cgroups.of_pod(node, namespace.wait_ready("later"))) == "max"

        swapwarden.install()
        for name in ("disabled", "later"):
            folder = cgroups.of_pod(node, namespace.pod(name))
            eventually(lambda folder=folder: cgroups.swap_max(node, folder) == "0", f"{name} holds 0 again")  # type: ignore[misc]  # mypy infers no lambda with defaults
        eventually(lambda: cgroups.swap_max(node, node.kubepods) != "max", "people's own profile counts again")
    eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the plan is in force")
