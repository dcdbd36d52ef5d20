"""A changed profile reaches its nodes in waves, and stops where it does harm."""

from __future__ import annotations

import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from swapwarden.policy.fleet import profile_status

from testbed.base import paths
from testbed.product import manifests
from testbed.product.controller import NAMESPACE, Controller
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import FACTS, FAST, PROFILES, STATES, Cluster

NODES = [f"wave-{number}" for number in range(6)]


class Agents:
    """Answers for all nodes.

    Those in `slow` do not answer when their state names another generation than the first, and those in `staying` when
    it names no profile any more. Those in `broken` say that they are degraded by what it says, those in `polling` in
    any case; `using` has how much swap pods use that a change would take.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.slow: set[str] = set()
        self.staying: set[str] = set()
        self.broken: set[str] = set()
        self.polling: set[str] = set()
        self.using: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            for name in NODES:
                self._answer(name)

    def _answer(self, name: str) -> None:
        found = self._cluster.state(name)
        if not found or (name in self.slow and found["spec"]["profileRef"].get("generation", 0) > 1):
            return
        if name in self.staying and found["spec"]["profileRef"]["name"] != "waves":
            return
        generation, degraded = found["metadata"]["generation"], name in self.broken | self.polling
        applied = {"type": "Applied", "status": "True", "reason": "AsSpecified"}
        reason = "WriteFailed" if name in self.broken else "Polling"
        bad = {"type": "Degraded", "status": str(degraded), "reason": reason, "message": "no"}
        wanted = {"observedGeneration": generation, "facts": FACTS, "conditions": [applied, bad]}
        wanted["profileRef"] = {"generation": 0, **found["spec"]["profileRef"]}
        if "preview" in found["spec"]:
            used = self.using.get(name, 0)
            cost = {"pods": int(used > 0), "bytes": used}
            wanted["previewCost"] = {"profileRef": found["spec"]["preview"]["profileRef"], **cost}
        if found.get("status") != wanted:
            self._cluster.cp.request("PATCH", f"{STATES}/{name}/status", {"status": {"previewCost": None, **wanted}})


@pytest.fixture
def agents(cluster: Cluster) -> Iterator[Agents]:
    for name in NODES:
        cluster.node(name, {"group": "waves"})
    with Agents(cluster) as running:
        yield running


@pytest.fixture(scope="module")
def started() -> Iterator[list[Controller]]:
    """The controllers so far: all but the last have ended."""
    found: list[Controller] = []
    yield found
    for each in found:
        each.stop()


@pytest.fixture
def controller(cluster: Cluster, started: list[Controller]) -> Controller:
    """The running controller: another test's, unless that has ended it."""
    if not started or started[-1].process.poll() is not None:
        started.append(Controller(cluster.cp, FAST))
    started[-1].leads()
    return started[-1]


def change(cluster: Cluster, **spec: Any) -> int:
    """Change the profile; its generation now."""
    status, found = cluster.cp.request("PATCH", f"{PROFILES}/waves", {"spec": spec})
    assert status == 200, found
    return int(found["metadata"]["generation"])


def on(cluster: Cluster, generation: int) -> list[str]:
    """The nodes whose states name this generation of the profile."""
    wanted = {"name": "waves", "generation": generation}
    return [name for name in NODES if cluster.spec(name).get("profileRef") == wanted]


def answered(cluster: Cluster, generation: int) -> list[str]:
    """Those of them whose agents have acted on it."""
    wanted = {"name": "waves", "generation": generation}
    return [name for name in on(cluster, generation) if cluster.state(name)["status"].get("profileRef") == wanted]


def uid_of(cluster: Cluster, name: str) -> str:
    return str(cluster.state(name).get("metadata", {}).get("uid", ""))


def progressing(cluster: Cluster) -> tuple[str, str]:
    return cluster.conditions("waves").get("Progressing", ("", ""))


def begin(cluster: Cluster, eventually: Eventually) -> None:
    cluster.profile("waves", {"group": "waves"}, swap={"behavior": "LimitedSwap"}, rollout={"maxUnavailable": 2})
    eventually(lambda: on(cluster, 1) == NODES, "all nodes follow the profile")
    eventually(lambda: cluster.conditions("waves").get("Ready") == ("True", "Applied"), "and have applied it")
    assert progressing(cluster) == ("False", "Complete")


REVISIONS = f"/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions"


def kept_of(cluster: Cluster, name: str = "waves") -> set[int]:
    """The generations of a profile that ControllerRevisions keep."""
    uid = cluster.cp.get(f"{PROFILES}/{name}")["metadata"]["uid"]
    found = cluster.cp.get(f"{REVISIONS}?labelSelector=swapwarden.dev/profile-uid={uid}")["items"]
    assert all(each["data"]["spec"]["nodeSelector"] == {"matchLabels": {"group": name}} for each in found)
    return {each["revision"] for each in found}


def first_wave(cluster: Cluster, agents: Agents, eventually: Eventually) -> int:
    """Change the profile while agents are slow, and wait for the first two nodes; the new generation."""
    begin(cluster, eventually)
    agents.slow.update(NODES)
    second = change(cluster, swap={"behavior": "NoSwap"})
    eventually(lambda: on(cluster, second) == NODES[:2], "the first wave")
    return second


@pytest.mark.usefixtures("controller")
def test_a_change_reaches_some_nodes_and_others_when_these_answer(
    cluster: Cluster, agents: Agents, eventually: Eventually
) -> None:
    second = first_wave(cluster, agents, eventually)
    eventually(lambda: progressing(cluster) == ("True", "Waiting"), "the status says that it waits")
    kept = cluster.pod(NODES[2], "kept", memory="1Gi")
    changed = cluster.pod(NODES[0], "changed", memory="1Gi")
    eventually(lambda: cluster.swap_max(NODES[0], changed) == "0", "a new pod under the new generation")
    eventually(lambda: cluster.swap_max(NODES[2], kept) == str(2**28), "a new pod under the old one")
    agents.slow.discard(NODES[0])
    eventually(lambda: on(cluster, second) == NODES[:3], "one place in the wave is free")
    agents.slow.clear()
    eventually(lambda: on(cluster, second) == NODES, "all nodes, in the end")
    eventually(lambda: cluster.swap_max(NODES[2], kept) == "0", "the pod follows its node")
    eventually(lambda: progressing(cluster) == ("False", "Complete"), "the status says that it is done")
    assert kept_of(cluster) == {second, 1}, "the newest, and the one before"


@pytest.mark.usefixtures("controller")
def test_states_that_are_deleted_in_the_middle_of_it_give_no_node_what_it_did_not_have(
    cluster: Cluster, agents: Agents, eventually: Eventually
) -> None:
    second = first_wave(cluster, agents, eventually)
    before = {name: uid_of(cluster, name) for name in NODES}
    for _ in range(2):
        assert cluster.cp.request("DELETE", STATES)[0] == 200
        eventually(
            lambda before=before: all(uid_of(cluster, name) not in {"", uid} for name, uid in before.items()),  # type: ignore[misc] # a default has no type
            "all states are recreated",
        )
        for name in NODES:
            pod = cluster.pod(name, f"{name}-{before[name]}", {"swapwarden.dev/swap-policy": "Disabled"})
            eventually(lambda name=name, pod=pod: cluster.swap_max(name, pod) == "0", "and are planned on")  # type: ignore[misc] # a default has no type
        eventually(lambda: progressing(cluster) == ("True", "Waiting"), "the status waits for the first wave")
        assert on(cluster, second) == NODES[:2]
        assert kept_of(cluster) == {second, 1}
        before = {name: uid_of(cluster, name) for name in NODES}
    agents.slow.clear()
    eventually(lambda: on(cluster, second) == NODES, "all nodes, in the end")
    eventually(lambda: progressing(cluster) == ("False", "Complete"), "the status says that it is done")


def test_a_degraded_node_stops_it_over_a_restart_too(
    cluster: Cluster, controller: Controller, agents: Agents, eventually: Eventually
) -> None:
    second = first_wave(cluster, agents, eventually)
    agents.broken.add(NODES[1])
    agents.slow.clear()
    eventually(lambda: progressing(cluster) == ("False", "Stopped"), "it stops by itself")
    assert NODES[5] not in on(cluster, second)
    controller.process.send_signal(signal.SIGKILL)
    with Controller(cluster.cp, FAST) as other:
        other.leads()
        pod = cluster.pod(NODES[5], "later", memory="1Gi")
        eventually(lambda: cluster.swap_max(NODES[5], pod) == str(2**28), "the next leader knows the old generation")
        assert NODES[5] not in on(cluster, second)
        agents.broken.clear()
        eventually(lambda: on(cluster, second) == NODES, "it continues when the node is well again")


def is_there(cluster: Cluster) -> bool:
    return bool(cluster.cp.request("GET", f"{PROFILES}/waves")[0] == 200)


def left(cluster: Cluster) -> list[str]:
    """The nodes whose states name no profile any more."""
    return [name for name in NODES if cluster.spec(name)["profileRef"]["name"] == "(built-in)"]


def test_a_profile_that_is_deleted_leaves_its_nodes_in_waves_under_any_leader(
    cluster: Cluster, controller: Controller, agents: Agents, eventually: Eventually
) -> None:
    begin(cluster, eventually)
    finalizers = cluster.cp.get(f"{PROFILES}/waves")["metadata"]["finalizers"]
    assert finalizers == ["swapwarden.dev/release-nodes"]
    agents.staying.update(NODES)
    assert cluster.cp.request("DELETE", f"{PROFILES}/waves")[0] == 200
    eventually(lambda: left(cluster) == NODES[:2], "the first wave")
    eventually(lambda: progressing(cluster) == ("True", "Waiting"), "the status says that it waits")
    kept = cluster.pod(NODES[2], "kept", memory="1Gi")
    eventually(lambda: cluster.swap_max(NODES[2], kept) == str(2**28), "a new pod under the profile as it was")
    controller.process.send_signal(signal.SIGKILL)
    with Controller(cluster.cp, FAST) as other:
        other.leads()
        later = cluster.pod(NODES[5], "later", memory="1Gi")
        eventually(lambda: cluster.swap_max(NODES[5], later) == str(2**28), "the next leader continues the end")
        assert left(cluster) == NODES[:2]
        agents.staying.discard(NODES[0])
        eventually(lambda: left(cluster) == NODES[:3], "one place in the wave is free")
        agents.broken.add(NODES[2])
        agents.staying.discard(NODES[2])
        eventually(lambda: progressing(cluster) == ("False", "Stopped"), "it does worse")
        agents.staying.clear()
        assert is_there(cluster)
        agents.broken.clear()
        eventually(lambda: not is_there(cluster), "the profile is gone when its last node has left it")
        assert left(cluster) == NODES


@pytest.mark.usefixtures("controller")
def test_a_profile_that_is_deleted_in_the_middle_of_a_rollout_leaves_its_nodes_in_waves(
    cluster: Cluster, agents: Agents, eventually: Eventually
) -> None:
    second = first_wave(cluster, agents, eventually)
    assert cluster.cp.request("DELETE", f"{PROFILES}/waves")[0] == 200
    eventually(lambda: cluster.cp.get(f"{PROFILES}/waves")["status"]["observedGeneration"] > second, "it is known")
    kept = cluster.pod(NODES[2], "kept", memory="1Gi")
    eventually(lambda: cluster.swap_max(NODES[2], kept) == str(2**28), "no node gets the other generation any more")
    assert on(cluster, second) == NODES[:2]
    agents.slow.clear()
    eventually(lambda: not is_there(cluster), "the profile is gone in the end")
    assert left(cluster) == NODES


@pytest.mark.usefixtures("controller")
def test_a_profile_of_no_node_is_gone_at_once(cluster: Cluster, eventually: Eventually) -> None:
    cluster.profile("waves", {"group": "nobody"})
    eventually(lambda: cluster.conditions("waves").get("Ready") == ("True", "NoNodes"), "it is known")
    assert cluster.cp.request("DELETE", f"{PROFILES}/waves")[0] == 200
    eventually(lambda: not is_there(cluster), "nobody holds it")


@pytest.mark.usefixtures("controller")
def test_all_at_once_if_asked(cluster: Cluster, agents: Agents, eventually: Eventually) -> None:
    begin(cluster, eventually)
    agents.slow.update(NODES)
    agents.broken.add(NODES[0])
    second = change(cluster, swap={"behavior": "NoSwap"}, rollout={"maxUnavailable": "100%"})
    eventually(lambda: on(cluster, second) == NODES, "no node waits for another")


@pytest.mark.usefixtures("controller")
def test_the_cost_of_a_change_is_reported_before_and_held_if_asked(
    cluster: Cluster, agents: Agents, eventually: Eventually
) -> None:
    begin(cluster, eventually)
    agents.using = {NODES[0]: 2**20, NODES[3]: 2**21}
    rules = {"maxUnavailable": "50%", "onSwapInUse": "Hold"}
    second = change(cluster, swap={"behavior": "NoSwap"}, rollout=rules)
    kept = [NODES[0], NODES[3]]
    eventually(lambda: on(cluster, second) == [name for name in NODES if name not in kept], "the nodes without use")
    eventually(lambda: progressing(cluster) == ("False", "Held"), "the status says that it holds")
    told = cluster.cp.get(f"{PROFILES}/waves")["status"]["pendingReclaim"]
    assert told == {"nodes": 2, "pods": 2, "bytes": 3 * 2**20}
    agents.using = {NODES[3]: 2**21}
    eventually(lambda: NODES[0] in on(cluster, second), "a node where less is in use")
    assert NODES[3] not in on(cluster, second)
    third = change(cluster, rollout={"onSwapInUse": "Proceed"})
    eventually(lambda: on(cluster, third) == NODES, "all nodes, if users want that")
    eventually(lambda: "preview" not in cluster.spec(NODES[3]), "nobody is asked any more")
    eventually(
        lambda: cluster.cp.get(f"{PROFILES}/waves")["status"]["pendingReclaim"]["pods"] == 0, "nothing left to take"
    )


@pytest.mark.usefixtures("controller")
def test_a_paused_rollout_admits_no_node_until_it_continues(
    cluster: Cluster, agents: Agents, eventually: Eventually
) -> None:
    second = first_wave(cluster, agents, eventually)
    change(cluster, rollout={"paused": True})
    eventually(lambda: progressing(cluster) == ("False", "Paused"), "the status says that it is paused")
    agents.slow.clear()
    eventually(lambda: len(answered(cluster, second)) == 2, "the first wave has answered")
    # Six nodes are read after that; a rollout that continues would have begun with the next of them long before.
    new = cluster.pod(NODES[5], "new", memory="1Gi")
    eventually(lambda: cluster.swap_max(NODES[5], new) == str(2**28), "plans are made as before")
    third = cluster.cp.get(f"{PROFILES}/waves")["metadata"]["generation"]
    assert on(cluster, second) == NODES[:2]
    assert on(cluster, third) == []
    resumed = change(cluster, rollout={"paused": False})
    eventually(lambda: on(cluster, resumed) == NODES, "all nodes, once it continues")
    eventually(lambda: progressing(cluster) == ("False", "Complete"), "the status says that it is done")


@pytest.mark.parametrize("value", [0, "0%", "101%", "half", -1])
def test_an_invalid_number_of_nodes_is_refused(cluster: Cluster, value: object) -> None:
    body = {
        "apiVersion": "swapwarden.dev/v1alpha1",
        "kind": "NodeSwapProfile",
        "metadata": {"name": "bad"},
        "spec": {"nodeSelector": {}, "rollout": {"maxUnavailable": value}},
    }
    status, answer = cluster.cp.request("POST", PROFILES, body)
    assert status == 422
    assert "must be a number of nodes from 1, or percents of them from 1% to 100%" in answer["message"]


@pytest.mark.usefixtures("controller")
def test_nodes_that_were_degraded_before_come_in_waves_and_stop_nobody(
    cluster: Cluster, agents: Agents, eventually: Eventually
) -> None:
    agents.polling.update(NODES)
    eventually(lambda: all(cluster.state(name).get("status") for name in NODES), "all agents have reported")
    second = first_wave(cluster, agents, eventually)
    eventually(lambda: progressing(cluster) == ("True", "Waiting"), "it waits for these")
    assert on(cluster, second) == NODES[:2]
    agents.broken.add(NODES[1])
    agents.slow.clear()
    eventually(lambda: progressing(cluster) == ("False", "Stopped"), "one does worse than before")
    agents.broken.clear()
    eventually(lambda: on(cluster, second) == NODES, "the others do as badly as before")
    eventually(lambda: progressing(cluster) == ("False", "Complete"), "it is done")


PROFILES_CRD = paths.CRDS / "nodeswapprofiles.swapwarden.dev.yaml"


@pytest.fixture
def newer_definition(cluster: Cluster, eventually: Eventually) -> Iterator[None]:
    """The API server takes what this version of the controller does not know."""
    crd = manifests.read(PROFILES_CRD.read_text(encoding="utf-8"))[0]
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["swap"]["properties"]["behavior"]["enum"].append("Newfangled")
    cluster.cp.apply(manifests.written([crd]))
    body = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile", "metadata": {"name": "probe"}}
    body["spec"] = {"nodeSelector": {}, "swap": {"behavior": "Newfangled"}}
    eventually(lambda: cluster.cp.request("POST", f"{PROFILES}?dryRun=All", body)[0] == 201, "the newer definition")
    yield
    cluster.cp.apply(PROFILES_CRD)


@pytest.mark.usefixtures("newer_definition")
def test_the_last_version_that_is_understood_stays_in_force_over_a_restart(
    cluster: Cluster, controller: Controller, agents: Agents, eventually: Eventually
) -> None:
    begin(cluster, eventually)
    # The status says Applied a moment before.
    eventually(lambda: kept_of(cluster) == {1}, "the generation is kept for another leader")
    controller.process.send_signal(signal.SIGKILL)
    change(cluster, swap={"behavior": "Newfangled"})
    with Controller(cluster.cp, FAST) as other:
        other.leads()
        eventually(lambda: cluster.conditions("waves").get("Ready") == ("False", "Invalid"), "the status says so")
        conditions = cluster.cp.get(f"{PROFILES}/waves")["status"]["conditions"]
        told = next(one["message"] for one in conditions if one["type"] == "Ready")
        assert "spec.swap.behavior" in told
        assert told.endswith(profile_status.STAYS_IN_FORCE.format(1))
        pod = cluster.pod(NODES[5], "later", memory="1Gi")
        eventually(lambda: cluster.swap_max(NODES[5], pod) == str(2**28), "a new pod gets what that one gives")
        assert on(cluster, 1) == NODES
        other.process.send_signal(signal.SIGKILL)
        with Controller(cluster.cp, FAST) as third:
            third.leads()
            agents.slow.update(NODES)
            back = change(cluster, swap={"behavior": "NoSwap"})
            eventually(lambda: on(cluster, back) == NODES[:2], "a version that is understood, in waves")
            assert kept_of(cluster) == {1, back}


def large(size: int) -> dict[str, Any]:
    """A spec of about `size` bytes that cannot be compressed: overrides by many namespaces."""
    numbers = random.Random(size)  # noqa: S311 nothing is to be kept secret
    values = [f"n{numbers.getrandbits(230):058x}" for _ in range(size // 62)]
    overrides: list[dict[str, Any]] = [
        {"name": f"n{number}", "swap": {"policy": "Disabled"}, "podSelector": {"matchExpressions": []}}
        for number in range(32)
    ]
    for at in range(0, len(values), 64):
        expression = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": values[at : at + 64]}
        overrides[at // 64 % 32]["podSelector"]["matchExpressions"].append(expression)
    return {"overrides": [each for each in overrides if each["podSelector"]["matchExpressions"]]}


@pytest.mark.usefixtures("controller", "agents")
def test_a_profile_of_which_etcd_takes_no_second_copy_reaches_its_nodes(
    cluster: Cluster, eventually: Eventually
) -> None:
    spec = large(1_300_000)
    cluster.profile("waves", {"group": "waves"}, rollout={"maxUnavailable": 2}, **spec)
    eventually(lambda: on(cluster, 1) == NODES, "all nodes follow the profile")
    second = change(cluster, swap={"behavior": "NoSwap"})
    eventually(lambda: on(cluster, second) == NODES, "a change also reaches all of them")
    assert kept_of(cluster) == {second, 1}, "both are kept"
    assert cluster.conditions("waves")["Degraded"] == ("False", "AsExpected")


@pytest.mark.usefixtures("agents")
def test_the_past_of_a_profile_of_88_kb_is_known_after_a_restart(
    cluster: Cluster, controller: Controller, agents: Agents, eventually: Eventually
) -> None:
    spec = large(88_000)
    cluster.profile(
        "waves", {"group": "waves"}, swap={"behavior": "LimitedSwap"}, rollout={"maxUnavailable": 2}, **spec
    )
    eventually(lambda: on(cluster, 1) == NODES, "all nodes follow the profile")
    agents.slow.update(NODES)
    second = change(cluster, swap={"behavior": "NoSwap"})
    eventually(lambda: on(cluster, second) == NODES[:2], "the first wave")
    controller.process.send_signal(signal.SIGKILL)
    with Controller(cluster.cp, FAST) as other:
        other.leads()
        pod = cluster.pod(NODES[5], "later", memory="1Gi")
        eventually(lambda: cluster.swap_max(NODES[5], pod) == str(2**28), "the next leader knows the old generation")
        assert on(cluster, second) == NODES[:2]
        agents.slow.clear()
        eventually(lambda: on(cluster, second) == NODES, "it goes on")
        assert cluster.conditions("waves")["Degraded"] == ("False", "AsExpected")


LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/swapwarden-controller"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


@pytest.fixture
def hanging(cluster: Cluster) -> Iterator[None]:
    """Statuses of the profile `hangs` are asked about at somebody who never answers."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        rule = {"apiGroups": ["swapwarden.dev"], "apiVersions": ["*"], "operations": ["UPDATE"]}
        hook = {
            "name": "hangs.example.org",
            "clientConfig": {"url": f"https://127.0.0.1:{mute.getsockname()[1]}/"},
            "rules": [{**rule, "resources": ["nodeswapprofiles/status"]}],
            "matchConditions": [{"name": "one", "expression": "request.name == 'hangs'"}],
            "failurePolicy": "Fail",
            "timeoutSeconds": 30,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        cluster.cp.create(HOOKS, {"metadata": {"name": "hangs"}, "webhooks": [hook]})
        yield
        cluster.cp.request("DELETE", f"{HOOKS}/hangs")


@pytest.mark.usefixtures("hanging", "agents")
def test_a_status_that_hangs_keeps_no_other_profile_from_its_rollout(
    cluster: Cluster, started: list[Controller], eventually: Eventually
) -> None:
    for each in started:
        each.stop()
    with Controller(cluster.cp, "--lease-duration=60") as running:
        cluster.node("hangs")
        cluster.profile("hangs", {"group": "hangs"})
        running.leads()
        begin(cluster, eventually)
        second = change(cluster, swap={"behavior": "NoSwap"})
        eventually(lambda: on(cluster, second) == NODES, "wave by wave")
        assert "status" not in cluster.cp.get(f"{PROFILES}/hangs")
    # A write was cut off, so that the Lease is not given back.
    assert cluster.cp.request("DELETE", LEASE)[0] == 200


@pytest.fixture
def refused(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """No state of the first node may name generation 2, until this is called."""
    rule = {"apiGroups": ["swapwarden.dev"], "apiVersions": ["*"], "operations": ["UPDATE"]}
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{**rule, "resources": ["nodeswapstates"]}]},
        "validations": [
            {
                "expression": f"object.metadata.name != '{NODES[0]}'"
                " || object.spec.profileRef.?generation.orValue(0) != 2"
            }
        ],
    }
    cluster.cp.create(POLICIES, {"metadata": {"name": "refused"}, "spec": policy})
    binding = {"policyName": "refused", "validationActions": ["Deny"]}
    cluster.cp.create(BINDINGS, {"metadata": {"name": "refused"}, "spec": binding})

    def end() -> None:
        for path in (BINDINGS, POLICIES):
            cluster.cp.request("DELETE", f"{path}/refused")

    yield end
    end()


def test_a_turn_that_came_in_an_earlier_term_is_forgotten(
    cluster: Cluster, controller: Controller, agents: Agents, eventually: Eventually, refused: Callable[[], None]
) -> None:
    begin(cluster, eventually)
    probe = {"spec": {"profileRef": {"name": "waves", "generation": 2}, "epoch": 1000}}
    path = f"{STATES}/{NODES[0]}?dryRun=All"
    eventually(lambda: cluster.cp.request("PATCH", path, probe)[0] == 422, "the policy is in force")
    agents.slow.update(NODES)
    second = change(cluster, swap={"behavior": "NoSwap"})
    eventually(lambda: on(cluster, second) == [NODES[1]], "one of the first wave has it, the other cannot get it")
    agents.broken.add(NODES[1])
    agents.slow.clear()
    eventually(lambda: progressing(cluster) == ("False", "Stopped"), "it does worse")
    # Somebody with a later term writes: this controller stops to lead, and leads again.
    terms, epoch = len(controller.lines("this instance leads")), cluster.spec(NODES[3])["epoch"] + 5
    assert cluster.cp.request("PATCH", f"{STATES}/{NODES[3]}", {"spec": {"epoch": epoch}})[0] == 200
    eventually(lambda: len(controller.lines("this instance leads")) > terms, "the next term")
    refused()
    eventually(lambda: cluster.cp.request("PATCH", path, probe)[0] == 200, "the policy is gone")
    pod = cluster.pod(NODES[0], "later", memory="1Gi")
    eventually(lambda: cluster.swap_max(NODES[0], pod) == str(2**28), "the node continues with its earlier plan")
    assert on(cluster, second) == [NODES[1]]
    agents.broken.clear()
    eventually(lambda: on(cluster, second) == NODES, "and is admitted when it continues")
