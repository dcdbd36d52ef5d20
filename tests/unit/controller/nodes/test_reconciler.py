"""One node's state and labels at an API server that gives scripted answers."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.api.notices import Notice
from swapwarden.controller import notices
from swapwarden.controller.nodes import label_publisher, reconciler
from swapwarden.controller.term import Deposed, Term, TermOver
from swapwarden.controller.watches import node_features
from swapwarden.controller.writers import fenced
from swapwarden.controller.writers import nodes as node_writer
from swapwarden.controller.writers import states as state_writer
from swapwarden.kube import client, errors, ratelimit
from swapwarden.policy.observed import states
from swapwarden.policy.profile import compiled

from tests.unit.controller.known import Known, Led, term
from tests.unit.kube.scripted import CUT, HANG, Request, Scripted, failure, reply
from tests.unit.objects import container, make_override, named_profile, node, pod, state_object, state_row

TERM = 7
RATE = 10.0
STATE = f"{names.STATES_PATH}/node-1"
NODE = f"{node_writer.NODES}/node-1"
LABELED = {names.NFD_SWAP_LABEL: "true", names.SWAP_LABEL: "true", names.BEHAVIOR_LABEL: "Kubelet"}
OFF = state.Facts(2, swap_controller=True, swap_bytes=0, memory_bytes=2**33)
TRUSTED = "node-restriction.kubernetes.io/trusted"
NO_SWAP = named_profile(behavior=names.Behavior.NO_SWAP)


class Told:
    """In place of the recorder."""

    def __init__(self) -> None:
        self.reasons: list[tuple[str, str]] = []

    def post(self, *posted: Notice) -> None:
        for notice in posted:
            assert notice.urgent == (notice.reason == notices.NOT_PLANNED)
            assert notice.type == "Warning"
            assert notice.message
            self.reasons.append((notice.regarding.name, notice.reason))


class Bench:
    """A reconciler, with its inputs and requests."""

    def __init__(self, api: client.Client, server: Scripted) -> None:
        self.server = server
        self.clock = time.monotonic
        self.again: list[tuple[str, float]] = []
        self.told = Told()
        self.writes = ratelimit.Throttle(RATE, lambda: 0.0)
        self.known = Known()
        self.features = node_features.Features(api, "ns", names.Publisher.DIRECT, changed=lambda _: None)
        self._api = api
        self.begins(term(TERM))
        self.known.node_changed("node-1", None, node(labels=LABELED))

    def begins(self, term: Term) -> None:
        """From now on it is this term."""
        self.term = term
        writes = fenced.Fenced(self._api, term, self.writes)
        self.reconciler = reconciler.Reconciler(
            self._api,
            self.known.cluster,
            writes,
            apply=self.known.apply,
            again=lambda name, delay: self.again.append((name, delay)),
            recorder=self.told,  # type: ignore[arg-type]  # a recorder is more than is needed here
            labels=label_publisher.LabelPublisher(
                self.known.inventory,
                self.features,
                writes,
                grace=600,
                attested={TRUSTED: "yes"},
                again=lambda name, delay: self.again.append((name, delay)),
                now=self.monotonic,
            ),
            extended_resource=True,
            now=self.monotonic,
        )

    def monotonic(self) -> float:
        """The time that the test sets."""
        return self.clock()

    async def reconcile(self) -> list[Request]:
        """Reconcile the node; the requests that were made for it."""
        before = len(self.server.requests)
        await self.reconciler.reconcile("node-1")
        assert self.server.unused == 0
        return self.server.requests[before:]

    def planned(self, version: int = 1, **fields: Any) -> states.StateRow:
        """The state as the plan is now, with an epoch; the watch has reported it."""
        spec = msgspec.structs.replace(self.known.plan("node-1"), epoch=fields.pop("epoch", 3))
        row = state_row(version=version, spec=spec, **fields)
        self.known.state_changed("node-1", self.known.inventory.state_of("node-1"), row)
        return row

    def row(self) -> states.StateRow:
        found = self.known.inventory.state_of("node-1")
        assert found is not None
        return found

    def no_swap(self) -> None:
        """The profile gives no swap, and the node says so."""
        self.known.profiles_changed({"p": NO_SWAP})
        self.known.inventory.labelled(self.known.nodes["node-1"], {names.BEHAVIOR_LABEL: "NoSwap"})

    def pod_comes(self, name: str = "a", **fields: Any) -> None:
        self.known.pod_changed(f"default/{name}", None, pod(container(), name=name, uid=f"uid-{name}", **fields))


@pytest.fixture
def bench(api: client.Client, server: Scripted) -> Bench:
    return Bench(api, server)


def answer(version: int, **fields: Any) -> bytes:
    return reply(state_object(state_row(version=version, **fields)))


async def test_a_node_without_a_state_gets_one_that_it_owns(bench: Bench) -> None:
    bench.pod_comes(policy="Disabled")
    bench.server.answer(answer(9, epoch=TERM))
    [made] = await bench.reconcile()
    assert (made.method, made.path) == ("POST", names.STATES_PATH)
    body = json.loads(made.body)
    [owner] = body["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-of-node-1"}
    assert body["spec"]["epoch"] == TERM
    assert body["spec"]["pods"] == {"uid-a": {"reason": "PolicyDisabled", "swapMax": "0"}}
    assert bench.row().version == 9


async def test_nothing_is_written_where_nothing_differs(bench: Bench) -> None:
    bench.pod_comes()
    bench.planned(epoch=3)
    assert await bench.reconcile() == [], "an older term alone is no difference"


async def test_only_what_differs_is_written_with_the_term_and_for_this_object_only(bench: Bench) -> None:
    bench.pod_comes("a")
    row = bench.planned(version=4)
    bench.pod_comes("b", policy="Disabled")
    bench.server.answer(answer(5))
    [patch] = await bench.reconcile()
    assert (patch.method, patch.path) == ("PATCH", STATE)
    assert patch.headers["content-type"] == "application/merge-patch+json"
    assert json.loads(patch.body) == {
        "metadata": {"uid": row.uid, "managedFields": [{}]},
        "spec": {"pods": {"uid-b": {"reason": "PolicyDisabled", "swapMax": "0"}}, "epoch": TERM},
    }


async def test_a_state_that_nobody_owns_becomes_the_nodes(bench: Bench) -> None:
    bench.planned(owner="")
    bench.server.answer(answer(2))
    [patch] = await bench.reconcile()
    body = json.loads(patch.body)
    assert [owner["uid"] for owner in body["metadata"]["ownerReferences"]] == ["uid-of-node-1"]
    assert body["spec"] == {"epoch": TERM}


async def test_a_recreated_node_is_planned_and_leaves_the_earlier_ones_state_to_the_garbage_collector(
    bench: Bench,
) -> None:
    row = bench.planned(settled=True, applied=True, observed=1)
    bench.known.node_changed("node-1", None, node(uid="new", labels=LABELED))
    assert await bench.reconcile() == []
    bench.pod_comes(policy="Disabled")
    bench.server.answer(answer(2))
    [patch] = await bench.reconcile()
    assert "ownerReferences" not in json.loads(patch.body)["metadata"]
    bench.known.state_changed("node-1", row, None)
    bench.known.inventory.lose_state("node-1", row.uid)
    bench.server.answer(answer(3, uid="another", owner="new"))
    [made] = await bench.reconcile()
    assert [owner["uid"] for owner in json.loads(made.body)["metadata"]["ownerReferences"]] == ["new"]


async def test_who_does_not_lead_writes_nothing(bench: Bench) -> None:
    bench.begins(term(TERM, Led(0.0)))
    bench.known.node_changed("node-1", None, node())
    assert await bench.reconcile() == []


async def test_a_term_that_ends_during_a_write_writes_no_labels_after_it(bench: Bench) -> None:
    bench.known.node_changed("node-1", None, node())
    release = asyncio.Event()
    bench.server.answer(release, answer(2))
    led = Led()
    bench.begins(term(TERM, led))
    work = asyncio.create_task(bench.reconcile())
    await bench.server.seen(1)
    led.seconds = 0.0
    release.set()
    with pytest.raises(TermOver):
        await work
    assert [request.path for request in bench.server.requests] == [names.STATES_PATH]


async def test_a_write_is_not_waited_for_beyond_the_end_of_its_term(bench: Bench) -> None:
    before = fenced.WRITES.value("state", "over")
    bench.server.answer(HANG)
    work = asyncio.create_task(bench.reconcile())
    await bench.server.seen(1)
    bench.term.end()
    with pytest.raises(TermOver):
        await work
    assert fenced.WRITES.value("state", "over") == before + 1


async def test_a_state_that_is_gone_is_recreated(bench: Bench) -> None:
    row = bench.planned()
    bench.pod_comes()
    bench.server.answer(failure(404, "NotFound", "no such state"))
    await bench.reconcile()
    assert bench.again == [("node-1", 0.0)]
    bench.server.answer(answer(8, uid="new"))
    [made] = await bench.reconcile()
    assert made.method == "POST"
    bench.known.state_changed("node-1", row, None)
    assert bench.row().uid == "new", "the late news of the deletion is not about the new one"


@pytest.mark.parametrize("known", [False, True])
async def test_a_conflict_is_looked_at(bench: Bench, known: bool) -> None:
    """Someone made a state before us, or another one in the place of the one that was known."""
    if known:
        bench.planned(version=3)
        bench.pod_comes()
    bench.server.answer(failure(409, "AlreadyExists", "there is one"))
    bench.server.answer(answer(6, uid="theirs"))
    assert [request.method for request in await bench.reconcile()] == ["PATCH" if known else "POST", "GET"]
    assert bench.again == [("node-1", 0.0)]
    bench.pod_comes("b")
    bench.server.answer(answer(7, uid="theirs"))
    [patch] = await bench.reconcile()
    assert json.loads(patch.body)["metadata"]["uid"] == "theirs"


async def test_a_conflict_about_the_known_version_is_not_retried_at_once(bench: Bench) -> None:
    row = bench.planned(version=3)
    bench.pod_comes()
    bench.server.answer(failure(409, "Conflict", "too many writers"))
    bench.server.answer(reply(state_object(row)))
    with pytest.raises(errors.ApiError, match="too many writers"):
        await bench.reconcile()
    assert bench.again == []


async def test_what_the_watch_reports_during_a_write_counts_for_the_next_one(bench: Bench) -> None:
    bench.known.node_changed("node-1", None, node())
    release = asyncio.Event()
    bench.server.answer(release, answer(2))
    work = asyncio.create_task(bench.reconcile())
    await bench.server.seen(1)
    bench.known.node_changed("node-1", node(), node(labels=LABELED))
    release.set()
    assert [request.path for request in await work] == [names.STATES_PATH], "it has its labels by now"


async def test_what_an_agent_reported_before_the_answer_to_a_write_makes_the_node_due(bench: Bench) -> None:
    bench.planned(version=1)
    bench.pod_comes()
    bench.known.due.clear()
    facts = state.Facts(2, swap_controller=True, swap_bytes=2**30, memory_bytes=2**33)
    stored = state_object(state_row(version=5, spec=bench.known.plan("node-1")))
    bench.server.answer(reply({**stored, "status": {"facts": msgspec.to_builtins(facts)}}))
    await bench.reconcile()
    assert [due.node for due in bench.known.due] == ["node-1"], "it was planned without that"


async def test_a_later_term_deposes(bench: Bench) -> None:
    bench.planned()
    bench.pod_comes()
    bench.server.answer(
        failure(422, "Invalid", f'NodeSwapState "node-1" is invalid: spec.epoch: {state.EPOCH_REFUSAL}')
    )
    with pytest.raises(Deposed, match="refused term 7 for node node-1"):
        await bench.reconcile()


async def test_another_refusal_does_not_depose(bench: Bench) -> None:
    bench.planned()
    bench.pod_comes()
    bench.server.answer(failure(422, "Invalid", "spec.pods: Too many"))
    with pytest.raises(errors.ApiError, match="Too many"):
        await bench.reconcile()


async def test_a_write_whose_answer_is_lost_is_tried_again_as_it_was(bench: Bench) -> None:
    bench.planned(version=3)
    bench.pod_comes()
    bench.server.answer(CUT)
    with pytest.raises(errors.Unreachable):
        await bench.reconcile()
    lost = bench.server.requests[-1]
    bench.server.answer(answer(5))
    [again] = await bench.reconcile()
    assert again.body == lost.body


async def test_writes_are_counted_by_answer(bench: Bench) -> None:
    def counts() -> list[float]:
        return [fenced.WRITES.value("state", result) for result in ("ok", "422", "unreachable")]

    before = counts()
    bench.pod_comes()
    bench.server.answer(failure(422, "Invalid", "no"))
    with pytest.raises(errors.ApiError):
        await bench.reconcile()
    bench.server.answer(CUT)  # a kept connection that is closed is no failure yet
    bench.server.answer(CUT)
    with pytest.raises(errors.Unreachable):
        await bench.reconcile()
    bench.server.answer(answer(1))
    await bench.reconcile()
    assert [after - was for after, was in zip(counts(), before, strict=True)] == [1, 1, 1]


# --- labels ---


async def test_labels_are_set_on_this_node_only(bench: Bench) -> None:
    bench.planned()
    bench.known.node_changed("node-1", None, node())
    bench.server.answer(reply({}))
    [patch] = await bench.reconcile()
    assert (patch.method, patch.path) == ("PATCH", NODE)
    assert json.loads(patch.body) == {"metadata": {"uid": "uid-of-node-1", "labels": LABELED}}
    assert await bench.reconcile() == [], "the watch has not reported yet, but these labels are known"


async def test_a_label_of_node_feature_discovery_is_left_to_it(bench: Bench) -> None:
    now = 1000.0
    bench.clock = lambda: now
    bench.known.node_changed("node-1", None, node(labels=LABELED, swap_bytes=0, nfd=frozenset({names.NFD_SWAP_LABEL})))
    bench.planned(facts=OFF)
    assert await bench.reconcile() == []
    now += 600
    bench.server.answer(reply({}))
    [patch] = await bench.reconcile()
    assert json.loads(patch.body)["metadata"]["labels"] == {names.SWAP_LABEL: None, names.BEHAVIOR_LABEL: None}


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (409, "Conflict")])
async def test_a_node_that_went_meanwhile_needs_no_labels(bench: Bench, status: int, reason: str) -> None:
    bench.planned()
    bench.known.node_changed("node-1", None, node())
    bench.server.answer(failure(status, reason, "gone"))
    assert len(await bench.reconcile()) == 1
    assert bench.again == []


async def test_labels_that_are_refused_are_tried_again(bench: Bench) -> None:
    bench.planned()
    bench.known.node_changed("node-1", None, node())
    bench.server.answer(failure(403, "Forbidden", "the controller may only change labels of a node"))
    with pytest.raises(errors.ApiError, match="may only change labels"):
        await bench.reconcile()


async def test_a_node_that_is_deleted_while_its_state_is_written(bench: Bench) -> None:
    release = asyncio.Event()
    bench.server.answer(release, answer(2))
    work = asyncio.create_task(bench.reconcile())
    await bench.server.seen(1)
    bench.known.node_changed("node-1", node(), None)
    release.set()
    assert len(await work) == 1


async def test_a_label_waits_for_its_time_again_in_a_new_term_and_on_a_new_node(bench: Bench) -> None:
    now = 1000.0
    bench.clock = lambda: now
    off = node(labels=LABELED, swap_bytes=0)
    bench.known.node_changed("node-1", None, off)
    bench.planned(facts=OFF)
    assert await bench.reconcile() == []
    assert bench.again == [("node-1", 600.0)]
    now += 590
    bench.begins(term(TERM + 1))
    assert await bench.reconcile() == []
    now += 590
    assert await bench.reconcile() == [], "others may have led, and swap may have been on, in between"
    bench.known.node_changed("node-1", off, None)
    assert bench.known.due[-1].node == "node-1", "the memory of a node must go with it"
    assert await bench.reconcile() == []
    bench.known.node_changed("node-1", None, off)
    assert await bench.reconcile() == []
    now += 590
    assert await bench.reconcile() == [], "it is another node"
    now += 10
    bench.server.answer(reply({}))
    [patch] = await bench.reconcile()
    assert json.loads(patch.body)["metadata"]["labels"] == dict.fromkeys(LABELED)


async def test_a_value_that_changes_does_so_at_once(bench: Bench) -> None:
    bench.known.profiles_changed({"p": NO_SWAP})
    bench.planned()
    bench.server.answer(reply({}))
    [patch] = await bench.reconcile()
    assert json.loads(patch.body)["metadata"]["labels"] == {names.BEHAVIOR_LABEL: "NoSwap"}
    assert [name for name, delay in bench.again if delay > 0] == ["node-1"], "the other one waits for its time"


async def test_the_trusted_label_takes_an_administrators_word_and_the_agents(bench: Bench) -> None:
    device = state.SwapDevice("/dev/dm-0", "partition", 2**30, backing="NVMe", encrypted=True)
    facts = state.Facts(2, swap_controller=True, swap_bytes=2**30, memory_bytes=2**33, devices=[device])
    bench.planned(facts=facts)
    bench.server.answer(reply({}))
    [patch] = await bench.reconcile()
    told = {names.BACKING_LABEL: "nvme", names.ENCRYPTED_LABEL: "true"}
    assert json.loads(patch.body)["metadata"]["labels"] == {**told, names.VOUCHED_LABEL: "false"}
    carried = {**LABELED, **told, names.VOUCHED_LABEL: "false", TRUSTED: "yes"}
    bench.known.node_changed("node-1", None, node(labels=carried))
    bench.server.answer(reply({}))
    [patch] = await bench.reconcile()
    assert json.loads(patch.body)["metadata"]["labels"] == {names.VOUCHED_LABEL: "true"}
    clear = msgspec.structs.replace(facts, devices=[msgspec.structs.replace(device, encrypted=False)])
    bench.planned(version=2, facts=clear)
    bench.server.answer(reply({}))
    [patch] = await bench.reconcile()
    assert json.loads(patch.body)["metadata"]["labels"] == {
        names.ENCRYPTED_LABEL: "false",
        names.VOUCHED_LABEL: "false",
    }


# --- NodeFeatures ---

FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/ns/nodefeatures"
FEATURE = f"{FEATURES}/swapwarden-node-1"


def feature(labels: dict[str, str], version: int = 1, owner: str = "uid-of-node-1") -> dict[str, Any]:
    return {
        "metadata": {
            "name": "swapwarden-node-1",
            "uid": "uid-of-feature",
            "resourceVersion": str(version),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": owner}],
        },
        "spec": {"labels": labels},
    }


@pytest.fixture
def asking(bench: Bench) -> Bench:
    """Labels go to NodeFeatures; the node carries none yet."""
    bench.features.in_use = True
    bench.known.node_changed("node-1", None, node())
    bench.planned()
    return bench


async def test_a_node_gets_a_nodefeature_that_it_owns_and_no_label(asking: Bench) -> None:
    asking.server.answer(reply(feature(LABELED)))
    [made] = await asking.reconcile()
    assert (made.method, made.path) == ("POST", FEATURES)
    body = json.loads(made.body)
    assert body["metadata"]["labels"]["nfd.node.kubernetes.io/node-name"] == "node-1"
    assert body["metadata"]["ownerReferences"] == feature({})["metadata"]["ownerReferences"]
    assert body["spec"] == {"features": {"attributes": {}, "flags": {}, "instances": {}}, "labels": LABELED}
    assert await asking.reconcile() == [], "the watch has not reported yet, but this one is known"


async def test_a_nodefeature_changes_at_once_and_loses_a_label_when_it_was_wrong_for_long(asking: Bench) -> None:
    now = 1000.0
    asking.clock = lambda: now
    asking.features.wrote(node_features.decode(json.dumps(feature(LABELED)).encode()))
    asking.no_swap()
    asking.planned(version=2)
    asking.server.answer(reply(feature({**LABELED, names.BEHAVIOR_LABEL: "NoSwap"}, 2)))
    [patch] = await asking.reconcile()
    assert (patch.method, patch.path) == ("PATCH", FEATURE)
    body = json.loads(patch.body)
    assert body["metadata"]["uid"] == "uid-of-feature"
    assert body["spec"] == {"labels": {names.BEHAVIOR_LABEL: "NoSwap"}}
    assert ("node-1", 600.0) in asking.again
    now += 600
    asking.server.answer(reply(feature({}, 3)))
    [patch] = await asking.reconcile()
    assert json.loads(patch.body)["spec"] == {"labels": {names.SWAP_LABEL: None}}


async def test_a_node_that_is_another_one_of_its_name_takes_the_nodefeature_over(asking: Bench) -> None:
    asking.features.wrote(node_features.decode(json.dumps(feature(LABELED, owner="another")).encode()))
    asking.server.answer(reply(feature(LABELED, 2)))
    [patch] = await asking.reconcile()
    assert json.loads(patch.body)["metadata"]["ownerReferences"][0]["uid"] == "uid-of-node-1"


async def test_labels_of_before_stay_on_the_node_until_nfd_has_them_and_go_in_time(asking: Bench) -> None:
    now = 1000.0
    asking.clock = lambda: now
    asking.known.node_changed("node-1", None, node(labels=LABELED))
    asking.features.wrote(node_features.decode(json.dumps(feature(LABELED)).encode()))
    assert await asking.reconcile() == []
    asking.known.node_changed("node-1", None, node(labels=LABELED, swap_bytes=0, nfd=frozenset({names.SWAP_LABEL})))
    asking.planned(version=2, facts=OFF)
    assert await asking.reconcile() == []
    now += 600
    asking.server.answer(reply(feature({}, 2)))
    asking.server.answer(reply({}))
    asked, taken = await asking.reconcile()
    assert json.loads(asked.body)["spec"]["labels"] == dict.fromkeys(LABELED)
    assert json.loads(taken.body)["metadata"]["labels"] == dict.fromkeys(LABELED.keys() - {names.SWAP_LABEL})


async def test_a_nodefeature_that_is_gone_without_a_word_is_recreated(asking: Bench) -> None:
    asking.features.wrote(node_features.decode(json.dumps(feature({})).encode()))
    asking.server.answer(failure(404, "NotFound", "gone"))
    with pytest.raises(errors.ApiError, match="gone"):
        await asking.reconcile()
    asking.server.answer(reply(feature(LABELED, 2)))
    [made] = await asking.reconcile()
    assert (made.method, made.path) == ("POST", FEATURES)


async def test_no_label_is_written_before_it_is_known_where_to(asking: Bench) -> None:
    asking.features.in_use = None
    assert await asking.reconcile() == []


async def test_a_node_whose_name_no_label_can_hold_is_labelled_directly(bench: Bench) -> None:
    bench.features.in_use = True
    assert bench.features.serves("n" * 63) is True
    assert bench.features.serves("n" * 64) is False


# --- events ---


OFFERING = named_profile(behavior=names.Behavior.WORKLOAD_CONTROLLED, extended_resource=True)


def offers(request: Request) -> object:
    """The amount of the extended resource in a request."""
    assert (request.method, request.path) == ("PATCH", f"{NODE}/status")
    body = json.loads(request.body)
    assert body["metadata"] == {"uid": "uid-of-node-1"}
    return body["status"]["capacity"][names.SWAP_RESOURCE]


OFFERED = {**LABELED, names.BEHAVIOR_LABEL: "WorkloadControlled"}


async def test_the_extended_resource_appears_with_the_applied_profile_and_disappears_with_it(bench: Bench) -> None:
    bench.known.node_changed("node-1", None, node(labels=OFFERED))
    bench.known.profiles_changed({"p": OFFERING})
    bench.planned(version=1)
    assert await bench.reconcile() == [], "no agent has applied it"
    bench.known.due.clear()
    bench.planned(version=2, applied=True, observed=1)
    assert [due.node for due in bench.known.due] == ["node-1"]
    bench.server.answer(reply({}))
    [made] = await bench.reconcile()
    assert offers(made) == str(2**30)
    assert await bench.reconcile() == [], "it is known before the watch reports it"
    # The kubelet has set it to 0.
    bench.known.node_changed("node-1", None, node(labels=OFFERED, swap_resource=0))
    bench.server.answer(reply({}))
    [made] = await bench.reconcile()
    assert offers(made) == str(2**30)
    bench.known.profiles_changed({"p": named_profile(behavior=names.Behavior.WORKLOAD_CONTROLLED)})
    bench.planned(version=3, applied=True, observed=1)
    bench.server.answer(reply({}))
    [made] = await bench.reconcile()
    assert offers(made) is None
    assert await bench.reconcile() == []


@pytest.mark.parametrize(
    ("report", "shown"),
    [
        ({"settled": True, "unapplied": "Draining: 1 cgroup"}, True),
        ({"settled": True, "unapplied": "Incompatible: no", "incompatible": "NoCgroupV2: no"}, False),
        ({"unapplied": "WriteFailed: 1 cgroup"}, False),
    ],
    ids=["draining", "incompatible", "failing"],
)
async def test_pods_that_drain_do_not_keep_the_resource_waiting(
    bench: Bench, report: dict[str, Any], *, shown: bool
) -> None:
    """An idle process may keep its pages in swap as long as it lives."""
    bench.known.node_changed("node-1", None, node(labels=OFFERED))
    bench.known.profiles_changed({"p": OFFERING})
    bench.planned(version=1)
    bench.known.due.clear()
    bench.planned(version=2, observed=1, **report)
    assert [due.node for due in bench.known.due] == ["node-1"] * shown
    if shown:
        bench.server.answer(reply({}))
    assert [offers(made) for made in await bench.reconcile()] == [str(2**30)] * shown


async def test_a_report_makes_no_work_where_nothing_of_the_profile_can_be_shown(bench: Bench) -> None:
    bench.known.node_changed("node-1", None, node(labels=OFFERED, swap_bytes=0))
    bench.known.profiles_changed({"p": OFFERING})
    for version in (1, 2):
        bench.known.due.clear()
        bench.planned(version=version, applied=True, observed=1)
    assert bench.known.due == []


async def test_an_extended_resource_that_is_refused_is_tried_again(bench: Bench) -> None:
    bench.known.node_changed("node-1", None, node(labels=OFFERED))
    bench.known.profiles_changed({"p": OFFERING})
    bench.planned(version=1, applied=True, observed=1)
    bench.server.answer(failure(403, "Forbidden", "no rights"))
    with pytest.raises(errors.ApiError, match="no rights"):
        await bench.reconcile()
    bench.server.answer(failure(409, "Conflict", "uid"))
    await bench.reconcile()
    node_now = bench.known.nodes["node-1"]
    assert node_now.swap_resource is None


TAINT = {"key": names.SWAP_TAINT, "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("given", "labels", "body"),
    [
        (named_profile(), {}, {}),
        (OFFERING, OFFERED, {}),
        (named_profile(taint_effect=names.TaintEffect.NO_SCHEDULE), LABELED, {"spec": {"taints": [TAINT]}}),
    ],
    ids=["labels", "resource", "taint"],
)
async def test_reports_of_the_watch_during_a_write_count(
    bench: Bench, given: compiled.Profile, labels: dict[str, str], body: dict[str, Any]
) -> None:
    """Others may have removed the written labels. No later report would show it."""
    bench.known.node_changed("node-1", None, node(labels=labels))
    bench.known.profiles_changed({"p": given})
    bench.planned(version=1, applied=True, observed=1)
    arrived = asyncio.Event()
    bench.server.answer(arrived, reply({"metadata": {"name": "node-1"}, **body}))
    looking = asyncio.create_task(bench.reconciler.reconcile("node-1"))
    await bench.server.seen(1)
    later = node(labels={**labels, "zone": "a"})
    bench.known.node_changed("node-1", bench.known.nodes["node-1"], later)
    arrived.set()
    await looking
    assert bench.known.nodes["node-1"] == later
    bench.server.answer(reply({"metadata": {"name": "node-1"}, **body}))
    assert len(await bench.reconcile()) == 1


async def test_owners_of_pods_have_one_notice(bench: Bench) -> None:
    bench.no_swap()
    bench.pod_comes("limited", swap_limit="1Gi")
    bench.server.answer(answer(2))
    await bench.reconcile()
    assert bench.told.reasons == [("limited", "ProfileNoSwap")]
    bench.planned(version=3)
    bench.pod_comes("wrong", policy="Sometimes")
    bench.server.answer(answer(4))
    await bench.reconcile()
    assert bench.told.reasons[1:] == [("wrong", "InvalidPolicy")]


async def test_another_leader_does_not_repeat_notices(bench: Bench) -> None:
    """The writer of the state has posted its notices."""
    bench.no_swap()
    bench.pod_comes("limited", swap_limit="1Gi")
    bench.planned()
    assert await bench.reconcile() == []
    bench.pod_comes("other")
    bench.server.answer(answer(2))
    await bench.reconcile()
    assert bench.told.reasons == []


async def test_a_notice_in_audit_does_not_replace_one_in_enforce(bench: Bench) -> None:
    bench.known.profiles_changed({"p": named_profile(behavior=names.Behavior.NO_SWAP, mode=names.Mode.AUDIT)})
    bench.pod_comes("limited", swap_limit="1Gi")
    bench.pod_comes("forbidden", policy="Disabled")
    bench.server.answer(answer(2))
    await bench.reconcile()
    assert sorted(bench.told.reasons) == [("forbidden", "Audit"), ("limited", "Audit")]
    bench.planned(version=3)
    bench.pod_comes("plain")
    bench.server.answer(answer(4))
    await bench.reconcile()
    assert len(bench.told.reasons) == 2, "they were told"
    bench.planned(version=5)
    bench.no_swap()
    bench.server.answer(answer(6))
    await bench.reconcile()
    assert bench.told.reasons[2:] == [("limited", "ProfileNoSwap")]


async def test_plans_of_another_version_have_had_their_notices(bench: Bench) -> None:
    bench.no_swap()
    bench.pod_comes("limited", swap_limit="1Gi")
    row = bench.planned()
    spec = {**json.loads(row.spec), "mode": "FromTheFuture"}
    newer = msgspec.structs.replace(row, version=2, spec=json.dumps(spec).encode())
    bench.known.state_changed("node-1", row, newer)
    bench.server.answer(answer(3))
    assert len(await bench.reconcile()) == 1
    assert bench.told.reasons == []


async def test_a_write_that_failed_posts_no_notice(bench: Bench) -> None:
    bench.no_swap()
    bench.pod_comes("limited", swap_limit="1Gi")
    bench.server.answer(failure(500, "InternalError", "no"))
    with pytest.raises(errors.ApiError):
        await bench.reconcile()
    bench.server.answer(failure(409, "AlreadyExists", "there is one"))
    bench.server.answer(answer(2))
    await bench.reconcile()
    assert bench.told.reasons == []


async def test_a_node_that_needs_namespaces_is_left_as_it_is_until_they_are_known(bench: Bench) -> None:
    entry = make_override(namespaces=(compiled.LabelExpression("team", "Exists"),), policy=names.Policy.DISABLED)
    bench.known.profiles_changed({"p": named_profile(overrides=(entry,))})
    bench.pod_comes()
    assert await bench.reconcile() == []
    bench.known.namespaces_known({"default": {"team": "a"}})
    bench.server.answer(answer(9, epoch=TERM))
    [made] = await bench.reconcile()
    assert json.loads(made.body)["spec"]["pods"] == {"uid-a": {"reason": "OverrideDisabled", "swapMax": "0"}}


# --- how much is written ---


async def test_each_write_counts_and_looks_that_need_none_do_not(bench: Bench) -> None:
    bench.known.node_changed("node-1", None, node())
    bench.server.answer(answer(2))
    bench.server.answer(reply({}))
    assert [request.path for request in await bench.reconcile()] == [names.STATES_PATH, NODE]
    for _ in range(int(RATE) - 2):
        assert bench.writes.delay() == 0
        assert await bench.reconcile() == []
        bench.writes.acquire()
    assert bench.writes.delay() > 0


@pytest.mark.parametrize(("header", "seconds"), [({"Retry_After": "7"}, 7.0), ({}, 0.0)])
async def test_a_server_that_has_too_much_to_do_is_left_alone_for_as_long_as_it_says(
    bench: Bench, header: dict[str, str], seconds: float
) -> None:
    bench.planned()
    bench.pod_comes()
    bench.server.answer(failure(429, "TooManyRequests", "later", **header))
    with pytest.raises(errors.ApiError, match="later"):
        await bench.reconcile()
    assert bench.writes.delay() == pytest.approx(seconds + 1 / RATE)


# --- what does not fit, and what a definition lacks ---


async def test_one_owner_in_each_namespace_that_is_left_out_has_one_notice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_PODS", 2)

    def left() -> list[float]:
        return [sample.value for sample in notices.LEFT_OUT.samples()]

    async def reconcile(version: int) -> None:
        bench.server.answer(answer(version))
        await bench.reconcile()

    for name in ("a", "b"):
        bench.pod_comes(name, started="2026-01-01T00:00:00Z")
    await reconcile(2)
    assert (bench.told.reasons, left()) == ([], [])
    for number, namespace in enumerate(("one", "one", "two")):
        row = pod(container(), uid=f"uid-{number}", name=f"pod-{number}", namespace=namespace)
        bench.known.pod_changed(f"{namespace}/pod-{number}", None, row)
    await reconcile(3)
    assert bench.told.reasons == [("pod-0", "NotPlanned"), ("pod-2", "NotPlanned")]
    assert left() == [3]
    await reconcile(4)
    assert len(bench.told.reasons) == 2
    bench.known.pod_changed("two/pod-2", row, None)
    await reconcile(5)
    assert left() == [2]
    bench.known.pod_changed("two/pod-2", None, row)
    await reconcile(6)
    assert bench.told.reasons[2:] == [("pod-2", "NotPlanned")], "it began again"
    bench.known.node_changed("node-1", bench.known.nodes["node-1"], None)
    await bench.reconcile()
    assert left() == []


async def test_notices_are_limited_to_so_many_namespaces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_PODS", 1)
    for number in range(notices.MAX_NAMESPACES + 10):
        row = pod(container(), uid=f"uid-{number}", name=f"pod-{number}", namespace=f"ns-{number}")
        bench.known.pod_changed(f"ns-{number}/pod", None, row)
    for version in (2, 3):
        bench.server.answer(answer(version))
        await bench.reconcile()
    assert len(bench.told.reasons) == notices.MAX_NAMESPACES
    bench.known.node_changed("node-1", bench.known.nodes["node-1"], None)
    await bench.reconcile()
    assert not list(notices.LEFT_OUT.samples()), "nothing is left for other tests"


LACKS = 'NodeSwapState.swapwarden.dev "node-1" is invalid: patch: strict decoding error: unknown field "spec.guarantee"'


async def test_what_an_older_definition_takes_is_written_and_the_rest_is_tried_again_later(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    bench.clock = lambda: now
    bench.planned(version=1)
    bench.known.profiles_changed({"p": named_profile(guarantee=names.Guarantee.STRICT)})

    def written(version: int, **fields: Any) -> bytes:
        reason = names.Reason.KUBELET_DECIDES
        spec = state.StateSpec(state.ProfileRef("p", 1), default_reason=reason, epoch=TERM, **fields)
        return answer(version, spec=spec, epoch=TERM)

    async def reconcile(*answers: bytes) -> list[str]:
        for one in answers:
            bench.server.answer(one)
        return [one.query["fieldValidation"] for one in await bench.reconcile()]

    assert await reconcile(failure(422, "Invalid", LACKS)) == ["Strict"]
    assert bench.again == [("node-1", 0.0)]
    assert state_writer.LACKING.value() == 1
    (record,) = caplog.records
    assert "spec.guarantee" in record.getMessage()
    assert "apply crds/" in record.getMessage()
    assert await reconcile(written(2)) == ["Ignore"]
    assert await reconcile() == [], "dropped fields are not written again and again"
    bench.known.state_changed("node-1", None, states.decode(msgspec.json.encode(state_object(bench.row()))))
    assert await reconcile() == []
    bench.pod_comes(policy="Disabled")
    assert await reconcile(written(3, pods=bench.known.plan("node-1").pods)) == ["Ignore"], "all else is written"
    now += state_writer.AGAIN_SECONDS
    assert await reconcile(failure(400, "BadRequest", LACKS)) == ["Strict"]
    now += state_writer.AGAIN_SECONDS
    found = written(4, pods=bench.known.plan("node-1").pods, guarantee=names.Guarantee.STRICT)
    assert await reconcile(found) == ["Strict"]
    assert state_writer.LACKING.value() == 0
    assert await reconcile() == []


async def test_a_state_is_made_at_an_older_definition(bench: Bench) -> None:
    bench.pod_comes(policy="Disabled")
    bench.server.answer(failure(400, "BadRequest", LACKS))
    await bench.reconcile()
    bench.server.answer(answer(2))
    [made] = await bench.reconcile()
    assert (made.method, made.query["fieldValidation"]) == ("POST", "Ignore")
    assert state_writer.LACKING.value() == 1
    bench.reconciler.close()
    assert state_writer.LACKING.value() == 0, "the next leader measures"


async def test_another_refusal_is_no_older_definition(bench: Bench) -> None:
    bench.server.answer(failure(422, "Invalid", "spec.pods: Too many"))
    with pytest.raises(errors.ApiError, match="Too many"):
        await bench.reconcile()
    assert state_writer.LACKING.value() == 0


async def test_a_pod_that_an_older_definition_refuses_keeps_no_other_from_its_plan(bench: Bench) -> None:
    now = 1000.0
    bench.clock = lambda: now
    keys = {name: f"{number:032x}" for number, name in enumerate(("a", "b"))}
    for name, key in keys.items():
        bench.known.pod_changed(f"default/{name}", None, pod(container(), name=name, uid=key, policy="Disabled"))
    refusal = failure(422, "Invalid", f'is invalid: spec.pods.{keys["a"]}.reason: Unsupported value: "Novel"')

    async def reconcile(answered: bytes) -> set[str]:
        bench.server.answer(answered)
        [made] = await bench.reconcile()
        return set(json.loads(made.body)["spec"]["pods"])

    assert await reconcile(refusal) == set(keys.values())
    stored = state.StateSpec(
        profile_ref=state.ProfileRef(names.BUILT_IN_PROFILE),
        default_reason=names.Reason.KUBELET_DECIDES,
        epoch=TERM,
        pods={keys["b"]: bench.known.plan("node-1").pods[keys["b"]]},
    )
    assert await reconcile(answer(2, spec=stored)) == {keys["b"]}
    assert state_writer.LACKING.value() == 1
    assert await bench.reconcile() == []
    now += state_writer.AGAIN_SECONDS
    assert await reconcile(answer(3, spec=bench.known.plan("node-1"))) == {keys["a"]}
    assert state_writer.LACKING.value() == 0
