"""Upgrade, rollback, removal and a second installation, with pods that come and go meanwhile."""

from __future__ import annotations

import collections
import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import pytest
import yaml
from swapwarden.cli import uninstall

from deploy.build import image
from testbed.base import paths, process
from tests.e2e import cgroups, release
from tests.e2e.cgroups import MIB, TIMEOUT, Window
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider, ProviderError
from tests.e2e.release import Release
from tests.e2e.test_labels import LABELS
from tests.e2e.test_nri import held, is_connected, units_value

DISABLED = {"annotations": {"swapwarden.dev/swap-policy": "Disabled"}}
RESOURCES = {"requests": {"memory": str(16 * MIB)}, "limits": {"memory": str(32 * MIB)}}
NEXT = "e2e-next"
LANDED = "c47d324"
"""The oldest commit from which CHANGELOG.md promises an upgrade; installations of later ones are nearer to this."""
CRDS = sorted(each.stem for each in paths.CRDS.glob("*.yaml"))
LEFT = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
EVERYTHING = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,leases,networkpolicies,poddisruptionbudgets"
HOOKS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"


class Background:
    """Repeats a step on a thread of its own. `failed` has its errors."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failed: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def pause(self, seconds: float) -> bool:
        """Wait so long, or until this is to end: then it is true."""
        return self._ended.wait(seconds)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 the test says that there was none
                self.failed.append(f"{type(error).__name__}: {error}")
                self.pause(1.0)


class Questions(Background):
    """Pods with a policy that are sent to the API server and its webhook, and then not made."""

    def __init__(self, cluster: Provider, namespace: Namespace) -> None:
        super().__init__(self._ask)
        self._cluster = cluster
        container = {"name": "main", "image": cluster.busybox}
        metadata = {"name": "question", "namespace": namespace.name, **DISABLED}
        self._pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        self._path = f"/api/v1/namespaces/{namespace.name}/pods?dryRun=All"
        self.answered = 0
        self.late: list[str] = []
        """Those that had no answer within the webhook's five seconds, for all that starts meanwhile on one CPU."""

    def _ask(self) -> None:
        try:
            self._cluster.post(self._path, self._pod)
        except ProviderError as error:
            if "context deadline exceeded" not in str(error):
                raise
            self.late.append(str(error))
        else:
            self.answered += 1
        # The webhook runs on an emulated CPU, as all that is upgraded meanwhile.
        self.pause(2.0)


class Metrics(Background):
    """Keeps the exposures of each pod from agents' metrics. They end with the agent, so they are read often."""

    def __init__(self, swapwarden: Release) -> None:
        super().__init__(self.look)
        self._swapwarden = swapwarden
        self._known: dict[tuple[str, str], int] = collections.defaultdict(int)

    def look(self) -> None:
        """Ask all agents that there are."""
        for pod in self._swapwarden.pods("agent"):
            with contextlib.suppress(ProviderError, process.ProcessError):  # it starts, or it ends
                text = self._swapwarden.metrics(pod["metadata"]["name"], "agent")
                for uid, found in release.exposures(text).items():
                    key = pod["metadata"]["uid"], uid
                    self._known[key] = max(self._known[key], found.count)
        self.pause(1.0)

    def exposures(self, uid: str) -> int:
        """How often agents have said that the pod was above its value."""
        return sum(count for (_, of_pod), count in self._known.items() if of_pod == uid)


class Churn(Background):
    """Pods with policy Disabled, one after the other."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(self._one)
        self._namespace = namespace
        self.uids: list[str] = []

    def _one(self) -> None:
        # One at a time: containerd's own timeouts are short for an emulated CPU.
        name = f"churn-{len(self.uids) + 1}"
        self._namespace.create_pod(name, metadata=DISABLED, resources=RESOURCES)
        self.uids.append(self._namespace.pod(name)["metadata"]["uid"])
        while not self._namespace.is_ready(name) and not self.pause(1.0):
            pass
        self._namespace.delete_pod(name)
        while self._is_there(name) and not self.pause(1.0):
            pass
        # The upgraded parts start on the same emulated CPU meanwhile.
        self.pause(5.0)

    def _is_there(self, name: str) -> bool:
        try:
            self._namespace.pod(name)
        except ProviderError:
            return False
        return True


def of_running(samples: list[Any], uid: str) -> list[Window]:
    """When a pod could swap, from the start of its first container to the end of its last."""
    of_pod = cgroups.slice_of(uid)
    mine = [each for each in samples if of_pod in each.path]
    # The first scope is the sandbox.
    scopes = [each for each in mine if each.path.endswith(".scope")]
    created = [each.at for each in scopes if each.event == "created"][1:]
    gone = [each.at for each in scopes if each.event == "gone"]
    if not created:
        return []
    end = max(gone) if len(gone) == len(created) + 1 else float("inf")
    return cgroups.in_effect(mine, of_pod, created[0], end)


@pytest.fixture
def next_image(node: Node, swapwarden: Release) -> Iterator[str]:
    """The image tag of the upgrade, with the same content: only the rollout of all parts is new."""
    name = f"{image.REFERENCE.partition(':')[0]}:{NEXT}"
    images = ["ctr", "--namespace=k8s.io", "images"]
    node.run([*images, "tag", "--force", image.REFERENCE, name], timeout=TIMEOUT)
    yield NEXT
    if NEXT in images_of(swapwarden):
        swapwarden.rollback()
    node.run([*images, "rm", name], timeout=TIMEOUT)


def images_of(swapwarden: Release) -> set[str]:
    """The tags that the parts run."""
    pods = [pod for component in ("agent", "controller", "nri", "webhook") for pod in swapwarden.pods(component)]
    return {each["image"].rpartition(":")[2] for pod in pods for each in pod["spec"]["containers"]}


def test_upgrade_and_rollback_while_pods_come_and_go(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, next_image: str, eventually: Wait
) -> None:
    before = images_of(swapwarden)
    assert before == {image.REFERENCE.rpartition(":")[2]}
    with (
        node.record() as recording,
        Metrics(swapwarden) as published,
        Questions(cluster, namespace) as questions,
        Churn(namespace) as churn,
    ):
        namespace.create_pod("steady", metadata=DISABLED, resources=RESOURCES)
        steady = namespace.wait_ready("steady")["metadata"]["uid"]
        # One controller only: no claim of this test is about two, and each takes a minute of an emulated CPU to start.
        swapwarden.upgrade(**{"image.tag": next_image, "controller.replicas": "1"})
        eventually(lambda: images_of(swapwarden) == {next_image}, "all parts run the new image, and no other")
        during, answered = len(churn.uids), questions.answered
        swapwarden.rollback()
        eventually(lambda: images_of(swapwarden) == before, "all parts run the old image again")
        eventually(lambda: len(churn.uids) > during + 1, "pods come and go still")
        samples = recording.samples()
        seen = {uid: of_running(samples, uid) for uid in [*churn.uids, steady]}
        published.look()
        for uid, found in seen.items():
            assert len(found) <= published.exposures(uid), "\n".join([uid, *map(str, found)])
    assert (churn.failed, questions.failed, published.failed) == ([], [], [])
    assert len(questions.late) <= 1, "\n".join(questions.late)
    assert during >= 2
    # A rollback takes 40 seconds and less, and each question two besides its answer.
    assert min(answered, questions.answered - answered) >= 10
    eventually(lambda: swapwarden.planned(steady) == "0", "the pod that was there all the time is planned")
    folder = cgroups.find(node, cgroups.slice_of(steady))
    assert cgroups.swap_max(node, folder) == "0"
    eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the plan is in force")


def test_uninstall_restores_the_earlier_values_and_a_second_installation_is_upgraded(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    namespace.create_pod("disabled", metadata=DISABLED, resources=RESOURCES)
    namespace.create_pod("plain", resources=RESOURCES)
    pods = {name: namespace.wait_ready(name) for name in ("disabled", "plain")}
    folders = {name: cgroups.of_pod(node, pod) for name, pod in pods.items()}
    scopes = {name: cgroups.of_container(node, pod) for name, pod in pods.items()}
    kubelets = cgroups.swap_max(node, scopes["plain"])
    assert int(kubelets) > 0
    eventually(lambda: units_value(node, scopes["disabled"]) == "0", "the runtime holds the container")
    eventually(lambda: cgroups.swap_max(node, folders["disabled"]) == "0", "the policy is in force")
    with swapwarden.profile("e2e-kept") as apply:
        apply(behavior="LimitedSwap", reserved="50%")
        eventually(lambda: cgroups.swap_max(node, node.kubepods) != "max", "the profile is in force")
        scope = scopes["plain"]
        eventually(lambda: int(cgroups.swap_max(node, scope)) < int(kubelets), "also for the pod without policy")

        said = swapwarden.uninstall()
        assert uninstall.ALL_RESTORED in said
        assert cgroups.swap_max(node, folders["disabled"]) == "max"
        assert cgroups.swap_max(node, folders["plain"]) == "max"
        # Both have the same resources.
        for each in scopes.values():
            assert (cgroups.swap_max(node, each), units_value(node, each)) == (kubelets, kubelets)
        assert cgroups.swap_max(node, node.kubepods) == "max"
        found = cluster.get(f"/api/v1/nodes/{cluster.node_name}")
        assert not LABELS & found["metadata"]["labels"].keys()
        ours = [found["metadata"]["labels"], found["metadata"]["annotations"], found["spec"].get("taints")]
        assert "swapwarden" not in json.dumps(ours)
        assert cluster.get("/apis/swapwarden.dev/v1alpha1/nodeswapstates")["items"] == []
        selector = f"--selector=app.kubernetes.io/instance={release.NAME}"
        for kinds in (LEFT, HOOKS):
            assert cluster.kubectl("get", kinds, selector, "-o=name").stdout == ""

        def left() -> list[str]:
            where = [f"--namespace={release.NAMESPACE}", "-o=name"]
            return sorted(cluster.kubectl("get", EVERYTHING, *where).stdout.split())

        # Pods end a little after what owns them.
        eventually(lambda: not any(name.startswith("pod/") for name in left()), "all pods have ended")
        places = ["/var/lib/swapwarden", "/run/swapwarden", "/run/swapwarden-nri"]
        files = ["find", *places, "-not", "-type", "d", "-not", "-name", "agent.lock"]
        assert node.run(files, timeout=TIMEOUT).stdout == ""
        assert left() == ["configmap/kube-root-ca.crt", "serviceaccount/default"]
        # The webhook is also gone: a policy is an annotation like any other now.
        namespace.create_pod("later", metadata=DISABLED)
        assert cgroups.swap_max(node, cgroups.of_pod(node, namespace.wait_ready("later"))) == "max"

        install_the_version_before(cluster, swapwarden)
        for name in ("disabled", "later"):
            folder = cgroups.of_pod(node, namespace.pod(name))
            eventually(lambda folder=folder: cgroups.swap_max(node, folder) == "0", f"{name} holds 0 again")  # type: ignore[misc]  # mypy infers no lambda with defaults
        eventually(lambda: cgroups.swap_max(node, node.kubepods) != "max", "people's own profile counts again")
        for name in ("disabled", "later"):
            pod = namespace.pod(name)
            eventually(lambda pod=pod: held(node, pod) == ("0", "0"), f"the runtime holds {name} again")  # type: ignore[misc]  # as above
        eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the plan is in force")
        upgrade_from_the_version_before(node, swapwarden, namespace, ["disabled", "later"], eventually)
        assert {name: schemas(cluster, name) for name in CRDS} == {name: read_schemas(name) for name in CRDS}
    eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the plan is in force")


def install_the_version_before(cluster: Provider, swapwarden: Release) -> None:
    """Install it as it was: its image, its chart, and with them the agent's files that it writes."""
    try:
        landed = image.of_commit(LANDED)
    except image.NoCommitError as error:
        swapwarden.install()
        pytest.skip(f"no upgrade from an earlier version was tried: {error}")
    cluster.load_image(landed / image.IMAGE)
    swapwarden.install(landed / image.TREE / paths.CHART.relative_to(paths.ROOT), **{"image.tag": LANDED})
    assert images_of(swapwarden) == {LANDED}


def upgrade_from_the_version_before(
    node: Node, swapwarden: Release, namespace: Namespace, names: Sequence[str], eventually: Wait
) -> None:
    """Upgrade it to this one. Of the pods, which run and have policy Disabled, none could swap meanwhile."""
    pods = {name: namespace.pod(name) for name in names}
    with node.record() as recording:
        swapwarden.upgrade()
        eventually(lambda: is_connected(swapwarden), "the runtime has the plugin of this version")
        eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the plan is in force")
        samples = recording.samples()
    assert images_of(swapwarden) == {image.REFERENCE.rpartition(":")[2]}
    for name, pod in pods.items():
        folder = cgroups.of_pod(node, pod)
        mine = [each for each in samples if each.path.endswith((folder.name, cgroups.container_id(pod) + ".scope"))]
        assert {each.max_bytes for each in mine} <= {0}, (name, mine)
        assert (cgroups.swap_max(node, folder), held(node, pod)) == ("0", ("0", "0")), name
    namespace.create_pod("newest", metadata=DISABLED, resources=RESOURCES)
    newest = namespace.wait_ready("newest")
    eventually(lambda: held(node, newest) == ("0", "0"), "the runtime holds a new pod's container")
    eventually(lambda: cgroups.swap_max(node, cgroups.of_pod(node, newest)) == "0", "and the agent holds its cgroup")


def schemas(cluster: Provider, name: str) -> Any:
    """Return the schema of each version of a CRD in the cluster."""
    return _schemas(cluster.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"))


def read_schemas(name: str) -> Any:
    """Return the same of this version."""
    return _schemas(yaml.safe_load((paths.CRDS / f"{name}.yaml").read_text(encoding="utf-8")))


def _schemas(definition: Any) -> Any:
    return {each["name"]: each["schema"]["openAPIV3Schema"] for each in definition["spec"]["versions"]}
