from __future__ import annotations

import itertools
import os
import queue
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from swapwarden.kube import config
from swapwarden.kube.election import election, elector

from testbed.base.process import Process
from testbed.controlplane.servers import ControlPlane
from tests.integration.conftest import Json
from tests.integration.kube import elector_process
from tests.integration.kube.elector_process import now

Eventually = Callable[..., None]

DURATION, DEADLINE, RETRY = 3.0, 2.0, 0.3
SOON = 1.0
"""The time for all that this machine does besides waiting."""
ROOT = Path(__file__).parents[3]


class Instance:
    """An elector in this process, and its reports."""

    def __init__(self, cfg: config.Config, namespace: str, name: str, identity: str) -> None:
        self.identity = identity
        self.told: queue.Queue[tuple[str, int | str, float]] = queue.Queue()
        self.led: elector.Tenure | None = None
        self.elector = elector.Elector(
            cfg,
            namespace=namespace,
            name=name,
            identity=identity,
            on_started=self._started,
            on_stopped=lambda _, reason: self.told.put(("stopped", reason, now())),
            lease_duration=DURATION,
            renew_deadline=DEADLINE,
            retry_period=RETRY,
        )

    def _started(self, led: elector.Tenure) -> None:
        self.led = led
        self.told.put(("started", led.transitions, now()))

    def leads(self) -> bool:
        return self.led is not None and self.led.left() > 0

    def next(self, timeout: float = 20.0) -> tuple[str, int | str, float]:
        return self.told.get(timeout=timeout)


class Site:
    """A Lease, and its competitors."""

    def __init__(self, control_plane: ControlPlane, tmp_path: Path) -> None:
        self.control_plane = control_plane
        self.namespace = f"test-{uuid.uuid4().hex[:10]}"
        self.name = "leader"
        control_plane.create_namespace(self.namespace)
        self._tmp_path = tmp_path
        self._admin = config.load(str(control_plane.kubeconfig))
        self.instances: list[Instance] = []
        self.processes: list[Process] = []

    @property
    def path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{self.name}"

    def spec(self) -> Json:
        spec = self.control_plane.get(self.path)["spec"]
        assert isinstance(spec, dict)
        return spec

    def exists(self) -> bool:
        return self.control_plane.request("GET", self.path)[0] == 200

    def instance(self, identity: str, cfg: config.Config | None = None) -> Instance:
        made = Instance(cfg or self._admin, self.namespace, self.name, identity)
        self.instances.append(made)
        made.elector.start()
        return made

    def process(self, identity: str) -> Process:
        script = [sys.executable, elector_process.__file__, str(self.control_plane.kubeconfig)]
        argv = [*script, self.namespace, self.name, identity, str(DURATION), str(DEADLINE), str(RETRY)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        made = Process(identity, argv, log=self._tmp_path / f"{identity}.log", env=environment)
        self.processes.append(made)
        return made

    def leaders(self) -> list[Instance]:
        """Who leads, all at one moment."""
        found = [one for one in self.instances if one.leads()]
        # One may have gone before the next one came, between two of the questions.
        return [one for one in found if one is found[-1] or one.leads()]


@pytest.fixture
def site(own: ControlPlane, tmp_path: Path) -> Iterator[Site]:
    made = Site(own, tmp_path)
    yield made
    for process in made.processes:
        process.kill()
    for one in made.instances:
        one.elector.stop(release=False)
        assert not one.elector.alive()


class Watcher:
    """Looks all the time at who leads."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.looks = 0
        self.names: list[str] = []
        """Who led, one after the other."""
        self.together: list[list[str]] = []

    def _look(self) -> None:
        while not self._end.wait(0.002):
            leading = [one.identity for one in self._site.leaders()]
            self.looks += 1
            if len(leading) > 1:
                self.together.append(leading)
            elif leading and leading != self.names[-1:]:
                self.names += leading

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        assert self.looks > 10
        assert self.together == []


def test_of_many_that_begin_together_one_leads_and_hands_over(site: Site, eventually: Eventually) -> None:
    with Watcher(site) as watcher:
        for at in range(5):
            site.instance(f"i{at}")
        for at in range(5):
            eventually(site.leaders, "a leader")
            [leader] = site.leaders()
            assert leader.next()[:2] == ("started", at)
            spec = site.spec()
            assert (spec["holderIdentity"], spec["leaseTransitions"]) == (leader.identity, at)
            assert spec["leaseDurationSeconds"] == DURATION
            eventually(lambda leader=leader: watcher.names[-1:] == [leader.identity], "it is seen to lead")
            begin = now()
            leader.elector.stop()
            assert leader.next()[:2] == ("stopped", "this instance ends")
            assert not leader.elector.alive()
            if at < 4:
                eventually(site.leaders, "the next leader")
                assert now() - begin < DURATION / 2, "nobody waited for the Lease to expire"
    assert sorted(watcher.names) == [f"i{at}" for at in range(5)]
    spec = site.spec()
    assert (spec.get("holderIdentity", ""), spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 4)


def test_a_leader_leads_on(site: Site, eventually: Eventually) -> None:
    first = site.instance("first")
    assert first.next()[0] == "started"
    second = site.instance("second")
    before = site.spec()
    seen: set[str] = set()

    def renewed_often() -> bool:
        seen.add(site.spec()["renewTime"])
        return len(seen) > 1.2 * DURATION / RETRY

    with Watcher(site) as watcher:
        eventually(renewed_often, "renewals for longer than the duration")
    assert watcher.names == ["first"]
    after = site.spec()
    assert {**before, "renewTime": None} == {**after, "renewTime": None}
    assert first.told.empty()
    assert second.told.empty()


def test_a_leader_that_is_killed_is_replaced_when_its_lease_expires(site: Site, eventually: Eventually) -> None:
    first = site.process("first")
    eventually(lambda: any(sample.leads for sample in elector_process.samples(first)), "the first one leads")
    second = site.instance("second")
    eventually(lambda: elector.TRANSITIONS.value() == 0 and second.elector.holder == "first", "it is seen")
    first.kill()
    killed = now()
    what, transitions, at = second.next()
    assert (what, transitions) == ("started", 1)
    # The last renewal was at most one period before, and seen at most one (longest) period after it was made.
    assert DURATION - RETRY - SOON < at - killed < DURATION + RETRY * election.JITTER[1] + SOON
    [*_, (_, last)] = elector_process.reigns(elector_process.samples(first))
    assert at - last > DURATION - RETRY - SOON


def freeze_the_leader(processes: dict[str, Process], eventually: Eventually) -> str:
    """Freeze the one that leads until another one does; give its name."""

    def leading() -> list[str]:
        said = {name: elector_process.samples(process)[-2:] for name, process in processes.items()}
        # Twice: a single report has no length, so it would not count as a reign below.
        return [name for name, last in said.items() if len(last) == 2 and all(sample.leads for sample in last)]

    eventually(lambda: len(leading()) == 1, "a leader")
    [name] = leading()
    process = processes[name]
    process.send_signal(signal.SIGSTOP)
    stopped = now()
    eventually(lambda: set(leading()) - {name}, "another leader")
    taken = now()
    process.send_signal(signal.SIGCONT)
    eventually(lambda: elector_process.samples(process)[-1].before > taken, "it is back")
    said = elector_process.samples(process)
    assert any(sample.leads for sample in said if sample.before < stopped)
    assert not any(sample.leads for sample in said if sample.before > taken)
    return name


def test_a_frozen_instance_knows_at_once_that_its_lead_is_over(site: Site, eventually: Eventually) -> None:
    processes = {name: site.process(name) for name in ("a", "b", "c")}
    frozen = {freeze_the_leader(processes, eventually) for _ in range(2)}
    periods = sorted(
        (*reign, name)
        for name, process in processes.items()
        for reign in elector_process.reigns(elector_process.samples(process))
    )
    assert frozen <= {name for *_, name in periods}
    assert len(periods) >= 3
    for (_, end, _), (begin, _, _) in itertools.pairwise(periods):
        assert end < begin, periods


def test_a_process_that_ends_hands_over(site: Site, eventually: Eventually) -> None:
    first = site.process("first")
    eventually(lambda: any(sample.leads for sample in elector_process.samples(first)), "the first one leads")
    second = site.instance("second")
    eventually(lambda: second.elector.holder == "first", "it is seen")
    assert first.stop() == 0
    ended = now()
    what, transitions, at = second.next()
    assert (what, transitions) == ("started", 1)
    assert at - ended < DURATION / 2


def test_a_deleted_lease_changes_nothing(site: Site, eventually: Eventually) -> None:
    site.control_plane.create(
        site.path.rpartition("/")[0],
        {"metadata": {"name": site.name}, "spec": {"holderIdentity": "", "leaseTransitions": 6}},
    )
    first = site.instance("first")
    assert first.next()[:2] == ("started", 7)
    others = [site.instance(name) for name in ("second", "third")]
    for other in others:
        eventually(lambda other=other: other.elector.holder == "first", "it is seen")
    with Watcher(site) as watcher:
        before = site.spec()
        assert site.control_plane.request("DELETE", site.path)[0] == 200
        eventually(site.exists, "the Lease is back")
        after = site.spec()
        assert {**before, "renewTime": None} == {**after, "renewTime": None}
        # Longer than others wait for a holder whom they cannot see.
        until = now() + DURATION + RETRY
        eventually(lambda: now() > until, "time for others to do wrong")
        assert site.spec()["renewTime"] > after["renewTime"]
    assert watcher.names == ["first"]
    assert first.told.empty()


def test_a_lease_that_others_write_to_is_kept(site: Site, eventually: Eventually) -> None:
    first = site.instance("first")
    first.next()
    conflicts = elector.RENEWALS.value("conflict")
    numbers = itertools.count()

    def edited() -> bool:
        patch = {"metadata": {"labels": {"edited": str(next(numbers))}}}
        assert site.control_plane.request("PATCH", site.path, patch)[0] == 200
        return elector.RENEWALS.value("conflict") >= conflicts + 5

    eventually(edited, "conflicts")
    assert first.leads()
    assert first.told.empty()
    labels = site.control_plane.get(site.path)["metadata"]["labels"]
    assert labels == {"edited": str(next(numbers) - 1)}, "foreign labels stay"


def test_a_lease_of_another_program_is_respected(site: Site) -> None:
    """Its clock is years ahead; only the time during which it did nothing counts."""
    times = dict.fromkeys(("acquireTime", "renewTime"), "2050-01-01T00:00:00.000000Z")
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 2, "leaseTransitions": 3, **times}
    begin = now()
    site.control_plane.create(site.path.rpartition("/")[0], {"metadata": {"name": site.name}, "spec": spec})
    what, transitions, at = site.instance("first").next()
    assert (what, transitions) == ("started", 4)
    assert 2.0 <= at - begin < 2.0 + RETRY + SOON


def test_a_lease_taken_away_by_hand_ends_the_leadership(site: Site) -> None:
    first = site.instance("first")
    first.next()
    patch = {"spec": {"holderIdentity": "other", "leaseDurationSeconds": 1}}
    assert site.control_plane.request("PATCH", site.path, patch)[0] == 200
    assert first.next()[:2] == ("stopped", election.TAKEN.format("other"))
    assert first.next()[:2] == ("started", 1)


def test_who_steps_down_leaves_the_lead_to_others(site: Site, eventually: Eventually) -> None:
    first = site.instance("first")
    first.next()
    second = site.instance("second")
    eventually(lambda: second.elector.holder == "first", "it is seen")
    with Watcher(site) as watcher:
        first.elector.step_down("someone else writes")
        assert not first.leads()
        assert first.next()[:2] == ("stopped", "someone else writes")
        assert second.next()[:2] == ("started", 1)
        # The first may have been seen before it stepped down.
        eventually(lambda: watcher.names[-1:] == ["second"], "it is seen to lead")


@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_without_the_api_server_the_end_is_in_time(site: Site, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elector, "RELEASE_SECONDS", 0.5)
    first = site.instance("first")
    assert first.next()[:2] == ("started", 0)
    control_plane = site.control_plane
    if how == "stopped":
        control_plane.servers.stop_apiserver()
    else:
        control_plane.servers.pause()
    begin = now()
    try:
        what, reason, at = first.next()
        assert (what, reason) == ("stopped", election.NOT_RENEWED.format(DEADLINE))
        # No renewal was sent after the API server had ended.
        assert at < begin + DEADLINE
        assert not first.leads()
        end = now()
        first.elector.stop()
        assert now() - end < elector.STOP_SECONDS
        assert not first.elector.alive()
    finally:
        if how == "stopped":
            control_plane.servers.start_apiserver()
        else:
            control_plane.servers.resume()
    second = site.instance("second")
    what, _, at = second.next()
    assert what == "started"


def test_after_an_outage_there_is_one_leader_again(site: Site, eventually: Eventually) -> None:
    with Watcher(site):
        for name in ("a", "b", "c"):
            site.instance(name)
        eventually(site.leaders, "a leader")
        site.control_plane.servers.pause()
        try:
            eventually(lambda: not site.leaders(), "nobody leads")
        finally:
            site.control_plane.servers.resume()
        eventually(site.leaders, "a leader after the outage")


# --- with the rights that are installed ---


def test_the_controllers_own_rights_are_enough(
    ruled: ControlPlane, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    namespace, name = "swapwarden-system", "swapwarden-controller"
    token = ruled.token(namespace, name)
    cfg = config.load(str(ruled.kubeconfig_for(token, name)))
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
    one = Instance(cfg, namespace, name, "one")
    one.elector.start()
    try:
        assert one.next()[:2] == ("started", 0)
        first = ruled.get(path)
        eventually(lambda: ruled.get(path)["spec"]["renewTime"] != first["spec"]["renewTime"], "a renewal")
        assert ruled.request("DELETE", path)[0] == 200
        eventually(lambda: ruled.request("GET", path)[0] == 200, "the Lease is back")
        assert ruled.get(path)["metadata"]["uid"] != first["metadata"]["uid"]
        assert one.told.empty()
    finally:
        one.elector.stop()
    assert ruled.get(path)["spec"].get("holderIdentity", "") == ""
    assert [
        record.levelname for record in caplog.records if record.name == elector.__name__ and record.levelno > 20
    ] == []


def test_without_rights_the_log_says_which(
    site: Site, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    token = site.control_plane.token(site.namespace, "default")
    cfg = config.load(str(site.control_plane.kubeconfig_for(token, "default")))
    failures = elector.RENEWALS.value("failed")
    one = site.instance("one", cfg)
    eventually(lambda: elector.RENEWALS.value("failed") > failures + 2, "tries")
    assert not one.leads()
    assert f"cannot get the Lease {site.namespace}/leader: " in caplog.text
    assert "the right to get leases in coordination.k8s.io" in caplog.text
