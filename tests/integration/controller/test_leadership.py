"""Several controllers, one leader: a late one writes nothing, and no term has two writers.

Leases last for 3 s here, so that who is frozen, or away, for long is so for seconds.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import pytest
from swapwarden.kube.election import election

from testbed.product.controller import ACCOUNT, NAMESPACE, Controller
from tests.integration import needs
from tests.integration.conftest import Json
from tests.integration.controller import clocks
from tests.integration.controller.cluster import FAST, STATES, Cluster
from tests.integration.kube.proxy import Proxy

Eventually = Callable[..., None]

OWN_LEASE = "--lease-duration=15"
"""The default: as long as in a cluster."""
LONG = "--lease-duration=600"
"""Far longer than any test waits for anything: who leads did not wait for the Lease to run out."""

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/swapwarden-controller"
DISABLED = {"swapwarden.dev/swap-policy": "Disabled"}
NO_MORE = "this instance does not lead any more"
REFUSED = 422


class Write(NamedTuple):
    """A write of a state, done or refused, as the API server's audit log has it."""

    term: int
    writer: str
    """The token that it came with: each instance has its own."""
    status: int


class Audit:
    """The writes of states since now by who is called like the controller."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = len(cluster.cp.servers.audited())

    def writes(self) -> list[Write]:
        found = []
        for event in self._cluster.cp.servers.audited()[self._before :]:
            if event["objectRef"]["resource"] != "nodeswapstates":
                continue
            spec = event.get("requestObject", {}).get("spec", {})
            user = event["user"]
            if "epoch" in spec and user["username"] == f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}":
                [writer] = user["extra"]["authentication.kubernetes.io/credential-id"]
                found.append(Write(spec["epoch"], writer, event["responseStatus"]["code"]))
        return found

    def done(self, controller: Controller) -> list[str]:
        """The writes of an instance, also of other kinds."""
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self._cluster.cp.servers.audited()[self._before :]
            if event["user"].get("extra", {}).get("authentication.kubernetes.io/credential-id")
            == [controller.credential]
            and event["responseStatus"]["code"] < REFUSED
        ]

    def terms(self, controller: Controller) -> set[int]:
        """In which terms an instance wrote, or tried to."""
        return {write.term for write in self.writes() if write.writer == controller.credential}


@pytest.fixture(autouse=True)
def audit(cluster: Cluster) -> Iterator[Audit]:
    """In each of the tests here: no term has two writers."""
    log = Audit(cluster)
    yield log
    writers: dict[int, set[str]] = collections.defaultdict(set)
    for write in log.writes():
        writers[write.term].add(write.writer)
    assert {term: found for term, found in writers.items() if len(found) > 1} == {}


class Between:
    """A proxy before the API server, in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._proxy = Proxy(port)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._proxy.__aenter__(), self._loop).result(10)
        self.url = self._proxy.url
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.__aexit__(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def hold_requests(self) -> None:
        """Keep back what clients send; what they are sent they get."""
        self._loop.call_soon_threadsafe(lambda: self._proxy.stall(answers=False))

    def seen(self) -> tuple[int, int]:
        """How many connections were opened so far; of how many something is kept back."""
        return self._proxy.connections, self._proxy.kept

    def go_on(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.go_on)


def test_a_second_replica_takes_over_when_the_leader_is_killed(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n7")
    with Controller(cluster.cp, FAST) as first:
        epoch = first.leads()["epoch"]
        eventually(lambda: cluster.spec("n7"), "the first one plans")
        with Controller(cluster.cp, FAST) as second:
            eventually(lambda: second.health("/readyz")[0] == 200, "the second one stands by")
            first.process.send_signal(signal.SIGKILL)
            assert second.leads()["epoch"] > epoch
            pod = cluster.pod("n7", "app", {"swapwarden.dev/swap-policy": "Disabled"})
            eventually(lambda: cluster.swap_max("n7", pod) == "0", "the second one plans")
            assert cluster.spec("n7")["epoch"] > epoch


def test_a_leader_that_wakes_up_late_writes_nothing(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n8")
    with Controller(cluster.cp, FAST) as first:
        first.leads()
        eventually(lambda: cluster.spec("n8"), "the first one plans")
        with Controller(cluster.cp, FAST) as second:
            first.process.send_signal(signal.SIGSTOP)
            epoch = second.leads()["epoch"]
            pod = cluster.pod("n8", "app", {"swapwarden.dev/swap-policy": "Disabled"})
            eventually(lambda: cluster.swap_max("n8", pod) == "0", "the second one plans")
            first.process.send_signal(signal.SIGCONT)
            first.said(NO_MORE)
            assert cluster.spec("n8")["epoch"] == epoch


def test_the_api_server_refuses_a_stale_leaders_write(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n9")
    with Controller(cluster.cp, FAST) as running:
        epoch = running.leads()["epoch"]
        eventually(lambda: cluster.spec("n9"), "the plan")
        token = cluster.cp.token("swapwarden-system", "swapwarden-controller")
        late = {"spec": {"epoch": epoch - 1, "beforePlan": "Unmanaged"}}
        status, answer = cluster.cp.request("PATCH", f"{STATES}/n9", late, token=token)
        assert status == 422
        assert "a newer controller leads" in answer["message"]
        # Someone with a later term writes: this controller sees that it was deposed, and takes a later one yet.
        newer = {"spec": {"epoch": epoch + 5}}
        assert cluster.cp.request("PATCH", f"{STATES}/n9", newer, token=token)[0] == 200
        pod = cluster.pod("n9", "app", {"swapwarden.dev/swap-policy": "Disabled"})
        eventually(lambda: cluster.swap_max("n9", pod) == "0", "planned in a later term")
        assert cluster.spec("n9")["epoch"] > epoch + 5


def write_on_its_way(cluster: Cluster, leader: Controller, between: Between, eventually: Eventually) -> Json:
    """Have the leader send a write for n10, of a new pod, that does not arrive; the pod.

    Its Lease is renewed meanwhile, which may take the connection that was open. A write that has to open another is
    never sent, as nobody answers. Then it is tried once more.
    """
    for attempt in range(5):
        pods = leader.metric("swapwarden_informer_objects", resource="pods")
        between.hold_requests()
        opened, _ = between.seen()
        pod = cluster.pod("n10", f"app-{attempt}", DISABLED)

        def sent(pods: float = pods) -> bool:
            seen = leader.metric("swapwarden_informer_objects", resource="pods") > pods
            return seen and leader.metric("swapwarden_queue_depth", queue="nodes") == 0 and between.seen()[1] > 0

        eventually(sent, "its write is on its way")
        if between.seen()[0] == opened:
            return pod
        between.go_on()
        eventually(lambda pod=pod: cluster.swap_max("n10", pod) == "0", "it is written in the end")
    raise AssertionError("each time it opened a connection")


def is_labelled(cluster: Cluster, node: str) -> bool:
    if not cluster.knows_swap() and cluster.spec(node):
        cluster.report(node)  # only its agent reports its swap
    return "node.swapwarden.dev/swap" in cluster.cp.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]


@pytest.mark.parametrize(
    ("leases", "deleted"),
    [(0, False), (0, True), (4, False)],
    ids=["", "after its Lease was deleted", "for four leases"],
)
def test_a_write_on_its_way_when_the_leader_freezes_is_refused_when_it_arrives(
    cluster: Cluster, eventually: Eventually, audit: Audit, leases: int, deleted: bool
) -> None:
    """`leases`: for how many durations of a Lease at least, as a minute is four of those in a cluster."""
    frozen = leases * float(FAST.partition("=")[2])
    cluster.node("n10")
    if deleted:
        # The number of the next term stands in a state then, and not in the Lease; and there is nothing to write.
        with Controller(cluster.cp, FAST) as earlier:
            earlier.leads()
            eventually(lambda: cluster.spec("n10") and is_labelled(cluster, "n10"), "all is written")
            earlier.stop()
        assert cluster.cp.request("DELETE", LEASE)[0] == 200
    with Between(cluster.cp.port) as between, Controller(cluster.cp, FAST, server=between.url) as first:
        term = first.leads()["epoch"]
        # One write at a time is on its way for a node: none other may be held back than the one that this is about.
        eventually(lambda: cluster.spec("n10") and is_labelled(cluster, "n10"), "all is written")
        assert (audit.terms(first) == set()) is deleted
        with Controller(cluster.cp, FAST) as second:
            eventually(lambda: second.health("/readyz")[0] == 200, "the second one stands by")
            pod = write_on_its_way(cluster, first, between, eventually)
            first.process.send_signal(signal.SIGSTOP)
            since = time.monotonic()
            later = second.leads()["epoch"]
            assert later > term
            eventually(lambda: cluster.swap_max("n10", pod) == "0", "the second one plans")
            eventually(lambda: time.monotonic() - since >= frozen, "it was frozen for long", timeout=2 * frozen + 10)
            # Before it wakes up: it would then take back writes that have not arrived.
            between.go_on()
            refused = Write(term, first.credential, REFUSED)
            eventually(lambda: refused in audit.writes(), "the late write is refused")
            first.process.send_signal(signal.SIGCONT)
            first.said(NO_MORE)
            assert cluster.spec("n10")["epoch"] == later


@needs.NODES_TELL_SWAP
def test_no_write_of_any_kind_lands_after_the_leaders_time(
    cluster: Cluster, eventually: Eventually, audit: Audit
) -> None:
    names = [f"n15-{number}" for number in range(6)]
    for name in names:
        cluster.node(name, {"group": "n15"})
    with Between(cluster.cp.port) as between, Controller(cluster.cp, FAST, server=between.url) as first:
        first.leads()
        eventually(lambda: all(cluster.spec(name) and is_labelled(cluster, name) for name in names), "all is written")
        with Controller(cluster.cp, FAST) as second:
            eventually(lambda: second.health("/readyz")[0] == 200, "the second one stands by")
            between.hold_requests()
            before = audit.done(first)
            # Writes of labels and of a profile's status, by connections that are open.
            for name in names:
                label = {"metadata": {"labels": {"node.swapwarden.dev/swap-behavior": None}}}
                assert cluster.cp.request("PATCH", f"/api/v1/nodes/{name}", label)[0] == 200
            cluster.profile("n15", {"group": "n15"}, swap={"behavior": "LimitedSwap"})
            second.leads()
            eventually(
                lambda: all(behavior(cluster, name) == "LimitedSwap" for name in names), "the second one's labels"
            )
            assert between.seen()[1] > 1, "writes are on their way"
            between.go_on()
            first.said(NO_MORE)
            renewals = first.metric("swapwarden_api_requests_total", method="GET", code="200")
            eventually(
                lambda: first.metric("swapwarden_api_requests_total", method="GET", code="200") > renewals + 3,
                "requests arrive again",
            )
            assert between.seen()[1] == 0
            assert audit.done(first) == before
            assert first.metric("swapwarden_controller_writes_total", result="over") > 0
            assert {behavior(cluster, name) for name in names} == {"LimitedSwap"}


def behavior(cluster: Cluster, node: str) -> str | None:
    found: dict[str, str] = cluster.cp.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    return found.get("node.swapwarden.dev/swap-behavior")


def test_a_write_in_flight_is_done_before_the_lease_is_given_back(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n10")
    with Between(cluster.cp.port) as between, Controller(cluster.cp, OWN_LEASE, server=between.url) as leader:
        leader.leads()
        eventually(lambda: cluster.spec("n10") and is_labelled(cluster, "n10"), "all is written")
        pod = write_on_its_way(cluster, leader, between, eventually)
        leader.process.send_signal(signal.SIGTERM)
        leader.said("stopping; what the states say stays in force")
        assert cluster.cp.get(LEASE)["spec"]["holderIdentity"] == leader.identity
        between.go_on()
        assert leader.stop() == 0
        written, released = cluster.cp.get(f"{STATES}/n10"), cluster.cp.get(LEASE)
        assert cluster.swap_max("n10", pod) == "0"
        assert released["spec"]["holderIdentity"] == ""
        versions = [int(each["metadata"]["resourceVersion"]) for each in (written, released)]
        assert versions == sorted(versions)


@pytest.mark.parametrize("missing", ["pods", "namespaces"])
def test_an_instance_that_is_not_in_sync_neither_leads_nor_reports_to_lead(
    cluster: Cluster, eventually: Eventually, missing: str
) -> None:
    cluster.cp.request("DELETE", LEASE)
    quiet = {"matchLabels": {"team": "quiet"}}
    by_namespace = {"name": "quiet", "namespaceSelector": quiet, "swap": {"policy": "Disabled"}}
    cluster.profile("n16", {"group": "n16"}, overrides=[by_namespace])
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/swapwarden-controller"
    whole = cluster.cp.get(role)["rules"]
    blind = [rule for rule in whole if rule["resources"] != [missing]]
    assert len(blind) < len(whole)
    cluster.cp.request("PATCH", role, {"rules": blind})
    try:
        with Controller(cluster.cp, FAST) as running:
            eventually(
                lambda: running.health("/readyz")[1].strip().endswith(f"waiting for {missing}"), "all else is known"
            )
            # For longer than an election takes.
            asked = running.metric("swapwarden_api_requests_total", method="GET", code="404")
            eventually(
                lambda: running.metric("swapwarden_api_requests_total", method="GET", code="404") > asked + 5,
                "looks at the Lease",
            )
            assert running.metric("swapwarden_leader") == 0
            assert cluster.cp.request("GET", LEASE)[0] == 404
            cluster.cp.request("PATCH", role, {"rules": whole})
            running.leads()
            assert running.metric("swapwarden_leader") == 1
    finally:
        cluster.cp.request("PATCH", role, {"rules": whole})


def test_of_two_that_begin_at_once_one_leads_and_the_other_after_it(
    cluster: Cluster, eventually: Eventually, audit: Audit
) -> None:
    cluster.node("n11")
    cluster.cp.request("DELETE", LEASE)
    with concurrent.futures.ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        starting = [pool.submit(Controller, cluster.cp, FAST) for _ in range(2)]
        both = [stack.enter_context(one.result()) for one in starting]
        eventually(lambda: cluster.spec("n11"), "one of them plans")
        for one in both:
            eventually(lambda one=one: one.health("/readyz")[0] == 200, "both are in sync")
        pod = cluster.pod("n11", "first", DISABLED)
        eventually(lambda: cluster.swap_max("n11", pod) == "0", "the plan of a pod")
        [leader] = [one for one in both if one.lines("this instance leads")]
        [other] = [one for one in both if one is not leader]
        assert (leader.metric("swapwarden_leader"), other.metric("swapwarden_leader")) == (1, 0)
        assert audit.terms(other) == set()
        leader.process.send_signal(signal.SIGKILL)
        assert other.leads()["epoch"] > max(audit.terms(leader))
        pod = cluster.pod("n11", "second", DISABLED)
        eventually(lambda: cluster.swap_max("n11", pod) == "0", "the other one plans")
        eventually(lambda: audit.terms(other), "the API server has logged its write")


def test_an_api_server_that_restarts_leaves_one_leader(cluster: Cluster, eventually: Eventually, audit: Audit) -> None:
    cluster.node("n12")
    with Controller(cluster.cp, FAST) as first:
        first.leads()
        eventually(lambda: cluster.spec("n12"), "the plan")
        with Controller(cluster.cp, FAST) as second:
            eventually(lambda: second.health("/readyz")[0] == 200, "the second one stands by")
            cluster.cp.servers.stop_apiserver()
            first.said(NO_MORE)
            cluster.cp.servers.start_apiserver()
            pod = cluster.pod("n12", "app", DISABLED)
            eventually(lambda: cluster.swap_max("n12", pod) == "0", "planned after it", timeout=60.0)
            eventually(lambda: first.metric("swapwarden_leader") + second.metric("swapwarden_leader") == 1, "one leads")
            assert len(audit.terms(first) | audit.terms(second)) > 1, "one before it, one after it"


def test_what_the_time_of_day_is_does_not_matter(
    cluster: Cluster, eventually: Eventually, tmp_path: pathlib.Path
) -> None:
    def renewed() -> str:
        found: str = cluster.cp.get(LEASE)["spec"]["renewTime"]
        return found

    cluster.node("n13")
    with Controller(cluster.cp, FAST, program=(clocks.__file__, str(tmp_path))) as first:
        first.leads()
        eventually(lambda: cluster.spec("n13"), "the plan")
        with Controller(cluster.cp, FAST) as second:
            eventually(lambda: second.health("/readyz")[0] == 200, "the second one stands by")
            year, today = 366 * 24 * 3600.0, renewed()
            for ahead in (year, -year):
                clocks.put(tmp_path, clocks.WALL, ahead)
                eventually(lambda ahead=ahead: (renewed() > today) is (ahead > 0), "a renewal at another time of day")
                done = first.metric("swapwarden_lease_renewals_total", result="ok")
                # For longer than a Lease lasts: they come each 2/15 of it.
                eventually(
                    lambda done=done: first.metric("swapwarden_lease_renewals_total", result="ok") > done + 9,
                    "more renewals",
                )
            assert first.lines(NO_MORE) == []
            assert second.lines("this instance leads") == []
            pod = cluster.pod("n13", "app", DISABLED)
            eventually(lambda: cluster.swap_max("n13", pod) == "0", "the first one plans on")


def test_a_leader_whose_machine_slept_knows_at_once_and_begins_a_new_term(
    cluster: Cluster, eventually: Eventually, audit: Audit, tmp_path: pathlib.Path
) -> None:
    cluster.node("n14")
    with Controller(cluster.cp, FAST, program=(clocks.__file__, str(tmp_path))) as first:
        term = first.leads()["epoch"]
        eventually(lambda: audit.terms(first) == {term}, "the plan")
        clocks.put(tmp_path, clocks.SLEPT, 3600.0)
        assert first.said(NO_MORE)["reason"].startswith(election.NOT_RENEWED.partition("{")[0])
        pod = cluster.pod("n14", "app", DISABLED)
        eventually(lambda: cluster.swap_max("n14", pod) == "0", "it plans again")
        assert min(audit.terms(first) - {term}) > term


def test_a_clean_end_gives_the_lease_back(cluster: Cluster) -> None:
    with Controller(cluster.cp, LONG) as first:
        first.leads()
        assert first.stop() == 0
    with Controller(cluster.cp, LONG) as second:
        second.leads()
