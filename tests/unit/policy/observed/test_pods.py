from __future__ import annotations

import re
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.inventory import records
from swapwarden.api import names, quantity, state
from swapwarden.policy.observed import pods, resources
from swapwarden.policy.observed.pods import WholePod, WirePod
from swapwarden.policy.swap import limits

from tests.unit.objects import MI, Kind, container, pod


def project(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any) -> pods.PodRow:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", **metadata},
        "spec": {"containers": [{"name": "app", "image": "web:1"}], **(spec or {})},
        "status": status or {},
    }
    return pods.project(msgspec.json.decode(msgspec.json.encode(document), type=WirePod))


def memory(request: str | None = None, limit: str | None = None) -> dict[str, Any]:
    return {
        "requests": {} if request is None else {"memory": request},
        "limits": {} if limit is None else {"memory": limit},
    }


def test_a_bare_pod() -> None:
    row = project({"nodeName": "node-1"}, creationTimestamp="2026-01-01T00:00:00Z")
    assert row == pods.PodRow(
        key="u-1",
        uid="u-1",
        namespace="shop",
        name="web",
        node="node-1",
        terminal=False,
        critical=False,
        qos=resources.Class.BEST_EFFORT,
        policy=None,
        swap_limit=None,
        created="2026-01-01T00:00:00Z",
        started="",
        containers=(pods.ContainerRow("app", resources.Kind.APP, 0, 0),),
    )


def test_annotations_are_kept_as_written() -> None:
    row = project(
        annotations={
            "swapwarden.dev/swap-policy": "whatever",
            "swapwarden.dev/swap-limit": "1Gi",
            "swap-limit.swapwarden.dev/app": "x",
            "swap-limit.swapwarden.dev/debug": "1Gi",
        },
        spec={"ephemeralContainers": [{"name": "debug"}]},
    )
    assert (row.policy, row.swap_limit) == ("whatever", "1Gi")
    assert [one.swap_limit for one in row.containers] == ["x", None]


def test_annotations_about_memory_count_for_containers_of_the_spec() -> None:
    high = {f"{names.CONTAINER_HIGH_PREFIX}{name}": "1Mi" for name in ("app", "init", "debug")}
    spec = {"initContainers": [{"name": "init"}], "ephemeralContainers": [{"name": "debug"}]}
    row = project(spec, annotations={names.MEMORY_RESERVATION_ANNOTATION: "Soft", **high})
    soft = names.ReservationPolicy.SOFT
    assert row.asks == resources.MemoryAsks(soft, container_high=(("init", MI), ("app", MI)))
    assert project(annotations={names.LIMIT_ANNOTATION: "1Gi"}).asks is None


def test_requests_of_the_extended_resource() -> None:
    asked: dict[str, Any] = {"resources": {"limits": {"swapwarden.dev/swap": "1Gi", "cpu": "1"}}}
    # The API server fills in the same request; a status says it once more.
    status = {"containerStatuses": [{"name": "app", "resources": {"limits": {"memory": "1Gi"}}}]}
    row = project({"initContainers": [{"name": "init", **asked}], "containers": [{"name": "app", **asked}]}, status)
    assert [one.swap_resource for one in row.containers] == [2**30, 2**30]
    assert row.qos is project({"containers": [{"name": "app", "resources": {"limits": {"cpu": "1"}}}]}).qos
    assert row.limited()
    assert not project().limited()
    assert project(annotations={"swapwarden.dev/swap-limit": "1Gi"}).limited()


@pytest.mark.parametrize(
    ("phase", "terminal"), [("Pending", False), ("Running", False), ("Succeeded", True), ("Failed", True)]
)
def test_terminal(phase: str, *, terminal: bool) -> None:
    assert project(status={"phase": phase}).terminal is terminal


AGENT = {"app.kubernetes.io/name": "swapwarden", "app.kubernetes.io/component": "agent", "pod-template": "x"}


@pytest.mark.parametrize(
    ("labels", "ready", "agent"),
    [
        (AGENT, "True", True),
        (AGENT, "False", False),
        (AGENT, None, False),
        ({**AGENT, "app.kubernetes.io/component": "controller"}, "True", False),
        ({**AGENT, "app.kubernetes.io/name": "other"}, "True", False),
        ({}, "True", False),
    ],
)
def test_an_agent_is_a_ready_pod_with_its_labels(labels: dict[str, str], ready: str | None, *, agent: bool) -> None:
    conditions = [{"type": "Initialized", "status": "True"}] + ([{"type": "Ready", "status": ready}] if ready else [])
    assert project(status={"conditions": conditions}, labels=labels).agent is agent


HASH = "0123456789abcdef0123456789abcdef"
MIRROR = {"kubernetes.io/config.mirror": HASH, "kubernetes.io/config.hash": HASH, "kubernetes.io/config.source": "file"}
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-of-node-1", "controller": True}


def mirror(owner: dict[str, Any] | None = OWNER, annotations: dict[str, str] = MIRROR, **fields: Any) -> pods.PodRow:
    owners = {"ownerReferences": [owner]} if owner else {}
    return project({"nodeName": "node-1"}, fields.pop("status", {}), annotations=annotations, **owners, **fields)


def test_the_mirror_of_a_static_pod_counts_for_the_cgroup_of_its_file_on_its_own_node() -> None:
    row = mirror()
    assert (row.key, row.uid) == (HASH, "u-1")
    assert row.on("uid-of-node-1") is row
    assert row.on("uid-of-another").key == "u-1"
    assert row.on("uid-of-another").on("uid-of-node-1") == row


@pytest.mark.parametrize(
    "owner",
    [
        None,
        {**OWNER, "kind": "ReplicaSet"},
        {**OWNER, "apiVersion": "example.com/v1"},
        {**OWNER, "name": "node-2"},
        {**OWNER, "uid": ""},
    ],
)
def test_a_mirror_that_its_node_does_not_own_names_no_cgroup_but_its_own(owner: dict[str, Any] | None) -> None:
    row = mirror(owner)
    assert row.key == row.on("uid-of-node-1").key == "u-1"


@pytest.mark.parametrize(
    "annotations",
    [
        {"kubernetes.io/config.mirror": HASH},
        # No mirror: the annotations are just something that the pod's author wrote.
        {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": HASH},
        {"kubernetes.io/config.hash": HASH},
        {"kubernetes.io/config.hash": HASH, "kubernetes.io/config.source": "api"},
    ],
)
def test_a_pod_that_is_no_mirror_names_no_cgroup_but_its_own(annotations: dict[str, str]) -> None:
    assert mirror(annotations=annotations).on("uid-of-node-1").key == "u-1"


@given(st.from_regex(re.compile(state.POD_KEY), fullmatch=True) | st.text(max_size=140))
def test_a_mirrors_key_is_one_that_an_agent_can_find(key: str) -> None:
    row = mirror(annotations={**MIRROR, "kubernetes.io/config.hash": key})
    found = records.pod_uid(f"pod{key}") == key and "\n" not in key
    assert row.key == (key if found else "u-1")


def test_a_forged_mirror_that_a_finalizer_keeps_has_ended() -> None:
    deleted: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert not mirror().terminal
    for owner in (None, OWNER):
        assert mirror(owner, **deleted).terminal
    assert not mirror(**deleted, status={"startTime": "2026-01-01T00:00:00Z"}).terminal, "its kubelet runs it"
    assert not project(**deleted).terminal, "it may run until its time is over"
    assert (project(**deleted).ending, project().ending) == (True, False)


@pytest.mark.parametrize("text", ["", "containerd://", "containerd://a<b", "containerd://" + "a" * 129, "x"])
def test_what_cannot_be_a_containers_id_is_none(text: str) -> None:
    status = {"name": "app", "containerID": text, "state": {"running": {}}}
    assert project(status={"containerStatuses": [status]}).containers[0].id == ""


def test_a_pod_from_a_file_has_its_name_for_a_key() -> None:
    assert project(uid="").key == "shop/web"


@pytest.mark.parametrize(
    ("spec", "annotations", "critical"),
    [
        ({}, {}, False),
        ({"priority": 1_999_999_999}, {}, False),
        ({"priority": 2_000_000_000}, {}, True),
        ({"priority": 0, "priorityClassName": "system-node-critical"}, {}, False),
        ({"priorityClassName": "system-node-critical"}, {}, True),
        ({"priorityClassName": "system-cluster-critical"}, {}, True),
        ({"priorityClassName": "high"}, {}, False),
        ({}, {"kubernetes.io/config.source": "file"}, True),
        ({}, {"kubernetes.io/config.source": "http"}, True),
        ({}, {"kubernetes.io/config.source": "api"}, False),
        ({}, {"kubernetes.io/config.mirror": "h"}, True),
    ],
)
def test_critical(spec: dict[str, Any], annotations: dict[str, str], *, critical: bool) -> None:
    assert project(spec, annotations=annotations).critical is critical


def test_containers_in_order_with_their_kinds() -> None:
    row = project(
        {
            "containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, {"name": "j"}],
            "ephemeralContainers": [{"name": "e"}],
        }
    )
    found = [(one.name, one.kind) for one in row.containers]
    assert found == [
        ("i", Kind.INIT),
        ("s", Kind.SIDECAR),
        ("j", Kind.INIT),
        ("a", Kind.APP),
        ("b", Kind.APP),
        ("e", Kind.EPHEMERAL),
    ]


@pytest.mark.parametrize(
    ("asked", "in_force", "expected"),
    [
        (memory("1Mi", "2Mi"), None, (1, 2)),
        (memory("1Mi"), None, (1, 0)),
        (memory(limit="2Mi"), None, (2, 2)),
        (memory("1Mi", "2Mi"), memory("3Mi", "4Mi"), (3, 4)),
        # A limit was added and is not in force yet.
        (memory("1Mi", "2Mi"), memory("3Mi"), (3, 0)),
        (memory("1Mi", "2Mi"), {}, (0, 0)),
        (memory("0", "2Mi"), None, (0, 2)),
    ],
)
def test_requests_in_force_go_before_those_asked_for(
    asked: dict[str, Any], in_force: dict[str, Any] | None, expected: tuple[int, int]
) -> None:
    status: dict[str, Any] = {"name": "app", **({} if in_force is None else {"resources": in_force})}
    row = project({"containers": [{"name": "app", "resources": asked}]}, {"containerStatuses": [status]})
    (container,) = row.containers
    assert (container.request // MI, container.limit // MI) == expected


@pytest.mark.parametrize(
    ("resources", "of_container", "expected"),
    [
        (None, memory("1Mi"), WholePod()),
        ({}, memory("1Mi"), WholePod()),
        ({"requests": {"cpu": 1}}, memory("1Mi"), WholePod(stated=True)),
        (memory("2Mi", "3Mi"), memory("1Mi"), WholePod(stated=True, request=2 * MI, limit=3 * MI)),
        # The API server fills in what a file leaves out: from the containers, else from the limit.
        (memory(limit="3Mi"), memory("1Mi"), WholePod(stated=True, request=0, limit=3 * MI)),
        (memory(limit="3Mi"), memory(), WholePod(stated=True, request=3 * MI, limit=3 * MI)),
    ],
)
def test_memory_of_the_pod_as_a_whole(
    resources: dict[str, Any] | None, of_container: dict[str, Any], expected: WholePod
) -> None:
    spec = {"containers": [{"name": "app", "resources": of_container}], "resources": resources}
    assert project(spec).whole == expected
    more = project({**spec, "overhead": {"memory": "5Mi", "cpu": "250m"}}).whole
    assert more == expected._replace(overhead=5 * MI)


def test_pods_without_it_share_one_object() -> None:
    assert project().whole is project({"containers": [{"name": "b"}]}).whole


def test_an_id_only_of_what_runs() -> None:
    def status(name: str, state: str) -> dict[str, Any]:
        return {"name": name, "containerID": f"cri-o://{name}-1", "state": {state: {"startedAt": "2026"}}}

    row = project(
        {
            "containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
            "initContainers": [{"name": "i", "restartPolicy": "Always"}],
            "ephemeralContainers": [{"name": "e"}],
        },
        {
            "containerStatuses": [status("b", "terminated"), status("a", "running")],
            "initContainerStatuses": [status("i", "running")],
            "ephemeralContainerStatuses": [status("e", "running")],
        },
    )
    assert {one.name: one.id for one in row.containers} == {"i": "i-1", "a": "a-1", "b": "", "c": "", "e": "e-1"}


def test_the_qos_class_in_the_status_takes_precedence() -> None:
    spec = {"containers": [{"name": "app", "resources": memory("1Mi")}]}
    assert project(spec).qos is resources.Class.BURSTABLE
    assert project(spec, {"qosClass": "Guaranteed"}).qos is resources.Class.GUARANTEED


def test_quantities_names_all_of_them() -> None:
    wire = msgspec.convert(
        {
            "metadata": {"name": "web"},
            "spec": {
                "resources": {"limits": {"cpu": 1}},
                "containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"memory": "x"}}}],
                "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "y"}}}],
            },
            "status": {"containerStatuses": [{"name": "a", "resources": {"limits": {"memory": 5}}}]},
        },
        WirePod,
    )
    assert dict(pods.quantities(wire)) == {
        "spec.resources.limits.cpu": "1",
        "spec.containers[1].resources.requests.memory": "x",
        "spec.initContainers[0].resources.limits.cpu": "y",
        "status.containerStatuses[0].resources.limits.memory": "5",
    }
    with pytest.raises(quantity.QuantityError):
        pods.project(wire)


@pytest.mark.parametrize("labels", [{}, {"app": "web"}, {"app": "web", "example.com/empty": "", "z": "1"}])
def test_labels_come_back_as_they_were(labels: dict[str, str]) -> None:
    assert pods.parse_labels(project(labels=labels).labels) == labels


def test_of_labels_that_nobody_else_has_nothing_is_kept_beyond_the_pod() -> None:
    def come_and_go(number: int) -> None:
        project(labels={f"key-{number}-{each}": "x" * 63 for each in range(1000)})

    come_and_go(0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 51):
            come_and_go(number)
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 50 * 1000 * 63 / 10


@pytest.mark.parametrize(
    ("message", "holder"),
    [
        *((f"it holds{pods.held_by(each)}", each) for each in names.Holder),
        ("", ""),
        ("it holds", ""),
        (f"it holds{pods.held_by('somebody else')}", ""),
        (f"it holds{pods.held_by(names.Holder.SYSTEMD)} and more", ""),
    ],
)
def test_the_holder_of_the_limit_ends_the_message(message: str, holder: str) -> None:
    condition = {"type": "swapwarden.dev/SwapPolicyEnforced", "status": "True", "reason": "R", "message": message}
    assert project(status={"conditions": [condition]}).enforced == pods.Enforced("True", "R", holder)


@pytest.mark.parametrize("letter", ["x", "1", "\U0001f600"])
def test_of_texts_that_are_too_long_to_mean_anything_little_is_kept(letter: str) -> None:
    text = letter * 50_000
    condition = {"type": "swapwarden.dev/SwapPolicyEnforced", "status": text, "reason": text}
    row = project(
        status={"conditions": [condition]},
        annotations={
            "swapwarden.dev/swap-policy": text,
            "swapwarden.dev/swap-limit": text,
            "swap-limit.swapwarden.dev/app": text,
        },
    )
    assert len(repr(row)) < 2000
    # Cut, they are as little a policy and as little quantities as before.
    assert limits.forbids_swap(row.policy)
    for limit in (row.swap_limit, row.containers[0].swap_limit):
        assert limit is not None
        assert not quantity.is_quantity(limit)


def test_pods_with_the_same_labels_share_them() -> None:
    labels = {"app": "web", "pod-template-hash": "5d4f8c7b9"}
    assert project(labels=labels).labels is project(uid="u-2", labels=labels).labels


@pytest.mark.parametrize(
    ("change", "only"),
    [
        ({"containers": (container(id="c2"),), "started": "2026-01-01T00:00:00Z", "agent": True}, True),
        ({"containers": (container(id=""),)}, True),
        ({"containers": (container(id="c1", request=1),)}, False),
        ({"containers": (container(id="c1"), container("debug", kind=resources.Kind.EPHEMERAL))}, False),
        ({"node": "other"}, False),
        ({"terminal": True}, False),
        ({"policy": "Disabled"}, False),
    ],
)
def test_what_a_start_brings(change: dict[str, Any], *, only: bool) -> None:
    row = pod(container(id="c1"))
    assert pods.only_started(row, msgspec.structs.replace(row, **change)) is only


@pytest.mark.parametrize(("source", "defaulted"), [(None, False), ("namespace", True), ("me", False)])
def test_whose_word_the_policy_is(source: str | None, defaulted: bool) -> None:
    annotations = {"swapwarden.dev/swap-policy": "Disabled"}
    if source is not None:
        annotations["swapwarden.dev/policy-source"] = source
    assert project(annotations=annotations).defaulted is defaulted


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, True),
        ({"status": "False"}, False),
        ({"reason": "EvictionByEvictionAPI"}, False),
        # A tenant can have such pods evicted at any time.
        ({"message": 'Usage of EmptyDir volume "tmp" exceeds the limit "1Mi". '}, False),
    ],
)
def test_a_pod_that_the_kubelet_evicted_for_want_of_memory(changed: dict[str, str], found: bool) -> None:
    message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52880Ki. "
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message}
    assert project(status={"phase": "Failed", "conditions": [condition | changed]}).evicted is found
