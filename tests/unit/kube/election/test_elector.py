"""The thread around an election, at an API server made of a dict."""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import pytest
from swapwarden.kube import client, config, errors
from swapwarden.kube.election import election, elector

Json = dict[str, Any]


CONFIG = config.Config(server="http://localhost:1")
PATIENT = {"lease_duration": 600.0, "renew_deadline": 400.0, "retry_period": 0.01}
HASTY = {"lease_duration": 0.9, "renew_deadline": 0.6, "retry_period": 0.01}
COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within 10 s"
        time.sleep(0.001)


class FakeApi:
    """One Lease as a real API server keeps it, and errors on the way."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.requests: list[tuple[str, str, Json]] = []
        self.trouble: Callable[[str], Exception | bytes | None] = lambda _: None
        """Instead of an answer, by the request's method."""
        self.held: set[str] = set()
        """Methods whose answers are kept back."""
        self.deaf: set[str] = set()
        """Methods that are done and not answered."""
        self._version = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def count(self, method: str) -> int:
        return sum(one[0] == method for one in self.requests)

    def change(self, **spec: Any) -> None:
        """Someone else writes the Lease."""
        before = self.lease or {"metadata": {"name": "l", "uid": "u"}, "spec": {}}
        self.store({**before, "spec": {**before["spec"], **spec}})

    def store(self, body: Json) -> bytes:
        self._version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
        return json.dumps(self.lease).encode()

    async def get(self, path: str, *, timeout: float) -> bytes:  # noqa: ASYNC109 as the client's
        return await self._request("GET", path, b"{}", timeout)

    async def post(self, path: str, body: bytes, *, timeout: float) -> bytes:  # noqa: ASYNC109 as the client's
        return await self._request("POST", path, body, timeout)

    async def put(self, path: str, body: bytes, *, timeout: float) -> bytes:  # noqa: ASYNC109 as the client's
        return await self._request("PUT", path, body, timeout)

    async def _request(self, method: str, path: str, body: bytes, timeout: float) -> bytes:  # noqa: ASYNC109 handed on
        self.requests.append((method, path, json.loads(body)))
        trouble = self.trouble(method)
        if isinstance(trouble, Exception):
            raise trouble
        try:
            async with asyncio.timeout(timeout):
                answer = trouble or self.serve(method, json.loads(body))
                while method in self.held or method in self.deaf:  # noqa: ASYNC110 set by another thread
                    await asyncio.sleep(0.001)
                return answer
        except TimeoutError as error:
            raise errors.Unreachable("no answer in time") from error

    def serve(self, method: str, body: Json) -> bytes:
        if method == "POST":
            if self.lease:
                raise errors.ApiError(409, "AlreadyExists", "it exists")
            return self.store({**body, "metadata": {**body["metadata"], "uid": f"u{self._version}"}})
        if self.lease is None:
            raise errors.ApiError(404, "NotFound", "there is none") if method == "GET" else conflict()
        if method == "GET":
            return json.dumps(self.lease).encode()
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise conflict()
        return self.store(body)


def conflict() -> errors.ApiError:
    return errors.ApiError(409, "Conflict", "the object has been modified")


class Told(NamedTuple):
    what: str
    detail: int | str
    at: float
    thread: str
    leading: bool


class Instance:
    """An elector and its callbacks."""

    def __init__(self, timing: dict[str, float], identity: str = "me") -> None:
        self.told: queue.Queue[Told] = queue.Queue()
        self.elector = elector.Elector(
            CONFIG,
            namespace="ns",
            name="l",
            identity=identity,
            on_started=self._started,
            on_stopped=lambda _, reason: self._tell("stopped", reason),
            **timing,
        )
        self.led: elector.Tenure | None = None

    def _started(self, led: elector.Tenure) -> None:
        self.led = led
        self._tell("started", led.transitions)

    def _tell(self, what: str, detail: int | str) -> None:
        name = threading.current_thread().name
        self.told.put(Told(what, detail, elector.boottime(), name, self.leads()))

    def leads(self) -> bool:
        return self.led is not None and self.led.left() > 0

    def next(self) -> Told:
        return self.told.get(timeout=10.0)


Start = Callable[..., Instance]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    made = FakeApi()
    monkeypatch.setattr(client, "Client", lambda *_, **__: made)
    return made


@pytest.fixture
def start(fake: FakeApi) -> Iterator[Start]:
    started: list[Instance] = []

    def run(timing: dict[str, float] = PATIENT, identity: str = "me") -> Instance:
        made = Instance(timing, identity)
        started.append(made)
        made.elector.start()
        return made

    yield run
    fake.held.clear()
    fake.deaf.clear()
    for one in started:
        one.elector.stop(release=False)
        assert not one.elector.alive()


def test_the_thread_leads_renews_and_releases(fake: FakeApi, start: Start) -> None:
    fake.change(holderIdentity="", leaseTransitions=3)
    one = start()
    assert one.next()[:2] == ("started", 4)
    assert one.leads()
    until(lambda: fake.count("PUT") > 5, "renewals")
    assert fake.lease is not None
    assert (fake.lease["spec"]["holderIdentity"], fake.lease["spec"]["leaseTransitions"]) == ("me", 4)
    assert elector.TRANSITIONS.value() == 4
    one.elector.stop()
    assert one.next()[:2] == ("stopped", "this instance ends")
    assert one.told.empty()
    assert not one.elector.alive()
    spec = fake.lease["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 4)


def test_callbacks_come_from_the_thread_when_it_leads_and_when_it_does_not_any_more(start: Start) -> None:
    one = start()
    started = one.next()
    one.elector.stop()
    stopped = one.next()
    assert (started.thread, started.leading) == ("lease", True)
    assert (stopped.thread, stopped.leading) == ("lease", False)


def test_the_lease_is_released_after_the_callbacks(fake: FakeApi) -> None:
    holders = []

    def stopped(*_: object) -> None:
        assert fake.lease is not None
        holders.append(fake.lease["spec"]["holderIdentity"])

    leading = threading.Event()
    made = elector.Elector(
        CONFIG,
        namespace="ns",
        name="l",
        identity="me",
        on_started=lambda _: leading.set(),
        on_stopped=stopped,
        **PATIENT,
    )
    made.start()
    assert leading.wait(10.0)
    made.stop()
    assert holders == ["me"]
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == ""


def test_foreign_fields_of_the_lease_stay(fake: FakeApi, start: Start) -> None:
    metadata = {"name": "l", "uid": "u", "labels": {"a": "b"}, "managedFields": [{"manager": "x"}]}
    fake.store({"metadata": metadata, "spec": {}})
    one = start()
    one.next()
    assert fake.lease is not None
    assert fake.lease["metadata"]["labels"] == {"a": "b"}
    assert "managedFields" not in fake.lease["metadata"], "an empty list of them would mean something"
    method, path, body = next(request for request in fake.requests if request[0] == "PUT")
    assert (method, path) == ("PUT", f"{COLLECTION}/l")
    assert (body["apiVersion"], body["kind"]) == ("coordination.k8s.io/v1", "Lease")
    assert body["metadata"]["uid"] == "u", "without it a PUT would recreate a deleted Lease"


def test_the_lease_is_made_where_there_is_none(fake: FakeApi, start: Start) -> None:
    assert start().next()[:2] == ("started", 0)
    method, path, body = next(request for request in fake.requests if request[0] == "POST")
    assert (method, path, body["metadata"]) == ("POST", COLLECTION, {"namespace": "ns", "name": "l"})


def test_without_release_the_lease_stays_ours(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    one.elector.stop(release=False)
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == "me"
    assert one.next().what == "stopped"


def test_one_who_does_not_lead_releases_nothing(fake: FakeApi, start: Start) -> None:
    fake.change(holderIdentity="other", leaseDurationSeconds=600)
    one = start()
    until(lambda: fake.count("GET") > 2, "looks")
    one.elector.stop()
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == "other"
    assert fake.count("PUT") == 0
    assert one.told.empty()


def test_a_lease_that_was_taken_meanwhile_is_not_released(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    fake.held.add("PUT")
    before = fake.count("PUT")
    until(lambda: fake.count("PUT") > before, "a renewal on its way")
    fake.change(holderIdentity="other")
    one.elector.stop()
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == "other"


def test_a_lease_that_was_taken_without_our_knowledge_is_released(fake: FakeApi, start: Start) -> None:
    fake.deaf.add("POST")
    one = start()
    until(lambda: fake.lease, "the first write")
    one.elector.stop()
    assert one.told.empty(), "it never led"
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == ""


def test_a_conflict_at_the_release_is_looked_into(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    conflicts = iter([conflict(), conflict()])

    def twice(method: str) -> Exception | None:
        # Renewals are not troubled.
        is_release = method == "PUT" and not fake.requests[-1][2]["spec"]["holderIdentity"]
        return next(conflicts, None) if is_release else None

    fake.trouble = twice
    one.elector.stop()
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == ""
    assert next(conflicts, None) is None


def test_a_refused_release_is_reported(fake: FakeApi, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    one = start()
    one.next()
    refusal = errors.ApiError(500, "InternalError", "etcd is down")
    fake.trouble = lambda method: refusal if method == "PUT" else None
    one.elector.stop()
    assert not one.elector.alive()
    assert any("released" in line and "etcd is down (500 InternalError)" in line for line in caplog.messages)


def test_a_release_takes_no_longer_than_it_may(
    fake: FakeApi, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(elector, "RELEASE_SECONDS", 0.05)
    one = start()
    one.next()
    fake.held.update({"GET", "PUT"})
    one.elector.stop()
    assert not one.elector.alive()
    assert one.next().what == "stopped"
    assert "released" in caplog.text


def test_a_thread_that_does_not_end_is_reported(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    busy, done = threading.Event(), threading.Event()
    monkeypatch.setattr(elector, "STOP_SECONDS", 0.05)
    one = start()
    one.next()

    def block(*_: object) -> None:
        busy.set()
        done.wait(10.0)

    monkeypatch.setattr(one.elector, "_on_stopped", block)
    one.elector.stop()
    assert busy.is_set()
    assert "0.05 s" in caplog.text
    monkeypatch.setattr(elector, "STOP_SECONDS", 10.0)
    done.set()


def test_the_order_of_start_and_stop(fake: FakeApi) -> None:
    one = Instance(PATIENT)
    assert not one.elector.alive()
    assert not one.leads()
    one.elector.step_down("nobody leads here")
    one.elector.stop()
    assert fake.requests == []
    one.elector.start()
    with pytest.raises(RuntimeError, match="twice"):
        one.elector.start()
    assert one.next().what == "started"
    one.elector.stop()
    one.elector.stop()
    one.elector.step_down("it has ended")
    assert one.next().what == "stopped"
    assert one.told.empty()


def test_raised_transitions_are_reported_once_when_they_are_written(fake: FakeApi, start: Start) -> None:
    one = start()
    assert one.next()[:2] == ("started", 0)
    one.elector.count_from(9)
    assert one.next()[:2] == ("started", 9)
    assert fake.lease is not None
    assert fake.lease["spec"]["leaseTransitions"] == 9
    renewals = fake.count("PUT")
    until(lambda: fake.count("PUT") > renewals + 2, "more renewals")
    assert one.told.empty()
    assert fake.lease["spec"]["leaseTransitions"] == 9


def test_stepping_down_takes_effect_at_once_and_leaves_the_lease(fake: FakeApi, start: Start) -> None:
    one = start(HASTY)
    one.next()
    fake.held.add("PUT")
    until(lambda: fake.requests[-1][0] == "PUT", "a renewal on its way")
    one.elector.step_down("someone else writes")
    assert not one.leads()
    assert one.next()[:2] == ("stopped", "someone else writes")
    requests = len(fake.requests)
    fake.held.clear()
    begin = elector.boottime()
    again = one.next()
    assert again.what == "started"
    assert again.at - begin > HASTY["lease_duration"] / 2
    mine = {body["spec"]["holderIdentity"] for method, _, body in fake.requests if method != "GET"}
    assert mine == {"me"}, "it was not released"
    assert [request[0] for request in fake.requests[requests : requests + 2]] == ["GET", "PUT"]


def test_stepping_down_ends_one_leadership_and_not_the_next(fake: FakeApi) -> None:
    led: queue.Queue[elector.Tenure] = queue.Queue()
    made = elector.Elector(
        CONFIG,
        namespace="ns",
        name="l",
        identity="me",
        on_started=led.put,
        on_stopped=lambda *_: None,
        **HASTY,
    )
    made.start()
    first = led.get(timeout=10.0)
    assert 0 < first.left() < HASTY["renew_deadline"]
    made.step_down("someone else writes", first)
    assert first.left() == 0.0
    second = led.get(timeout=10.0)
    made.step_down("an earlier write was refused", first)
    assert (first.left(), second.left() > 0) == (0.0, True)
    renewals = fake.count("PUT")
    until(lambda: fake.count("PUT") > renewals + 2, "renewals")
    assert first.left() == 0.0
    made.stop()
    assert second.left() == 0.0


def test_the_time_that_is_left_ends_before_the_lease_can_be_anothers(start: Start, fake: FakeApi) -> None:
    one = start(HASTY)
    one.next()
    fake.held.add("PUT")
    until(lambda: fake.requests[-1][0] == "PUT", "a renewal on its way")
    leadership = one.led
    assert leadership is not None
    assert leadership.left() < HASTY["renew_deadline"] < HASTY["lease_duration"]
    assert one.next().what == "stopped"
    assert leadership.left() == 0.0


def test_one_that_is_no_candidate_only_looks_until_it_is_one(fake: FakeApi) -> None:
    one = Instance(PATIENT)
    one.elector.start(candidate=False)
    until(lambda: fake.count("GET") > 3, "looks")
    assert {method for method, _, _ in fake.requests} == {"GET"}
    one.elector.stand(candidate=True)
    assert one.next().what == "started"
    one.elector.stand(candidate=False)
    renewals = fake.count("PUT")
    until(lambda: fake.count("PUT") > renewals + 2, "the leader continues to lead")
    one.elector.stop()
    one.elector.stand(candidate=True)


def test_one_that_becomes_a_candidate_is_not_kept_waiting_for_its_next_look(fake: FakeApi) -> None:
    one = Instance({"lease_duration": 600.0, "renew_deadline": 400.0, "retry_period": 300.0})
    one.elector.start(candidate=False)
    until(lambda: fake.count("GET") == 1, "a look")
    one.elector.stand(candidate=True)
    assert one.next().what == "started"
    one.elector.stop()


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How many seconds the clock ran on without the thread."""
    seconds = [0.0]
    real = elector.boottime
    monkeypatch.setattr(elector, "boottime", lambda: real() + seconds[0])
    return seconds


def test_a_clock_that_ran_on_without_the_thread_ends_the_term(fake: FakeApi, start: Start, ahead: list[float]) -> None:
    """As after SIGSTOP and SIGCONT, or when the machine wakes."""
    one = start()
    one.next()
    fake.held.add("PUT")
    until(lambda: fake.requests[-1][0] == "PUT", "a renewal on its way")
    assert one.leads()
    ahead[0] = 1000.0
    assert not one.leads()
    assert one.told.empty(), "the thread does not know yet"
    fake.held.clear()
    assert one.next()[:2] == ("stopped", election.NOT_RENEWED.format(400))


@pytest.mark.parametrize(
    "error",
    [
        errors.Unreachable("cannot connect"),
        errors.ApiError(500, "InternalError", "etcd is down"),
        errors.ApiError(429, "TooManyRequests", "later", retry_after=60.0),
        errors.ApiError(409, "Conflict", "again and again"),
        errors.ApiError(403, "Forbidden", "no"),
        errors.ApiError(401, "Unauthorized", "who?"),
        errors.ConfigError("the token file holds no token"),
        b"<html>a proxy speaks</html>",
        b'{"metadata": {}, "spec": {"leaseTransitions": "many"}}',
    ],
    ids=str,
)
def test_after_any_error_the_thread_retries_until_its_deadline(
    fake: FakeApi, start: Start, ahead: list[float], error: Exception | bytes
) -> None:
    one = start()
    one.next()
    fake.trouble = lambda _: error
    count = len(fake.requests)
    until(lambda: len(fake.requests) > count + 5, "tries")
    assert one.leads()
    assert one.told.empty()
    ahead[0] = PATIENT["renew_deadline"] * (1 - election.MARGIN)
    stopped = one.next()
    assert stopped[:2] == ("stopped", election.NOT_RENEWED.format(400))
    fake.trouble = lambda _: None
    if not isinstance(error, errors.ApiError) or not error.retry_after:
        assert one.next().what == "started", "it competes again when all is well"


def test_answers_that_do_not_come_are_not_waited_for(fake: FakeApi, start: Start) -> None:
    one = start(HASTY)
    one.next()
    fake.held.update({"GET", "PUT"})
    assert one.next()[:2] == ("stopped", election.NOT_RENEWED.format(0.6))
    fake.held.clear()
    assert one.next().what == "started"


def test_a_renewal_done_and_not_answered_costs_no_leadership(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    failed = elector.RENEWALS.value("failed")
    lost = iter([errors.Unreachable("cut")])
    real = fake.serve

    def serve(method: str, body: Json) -> bytes:
        answer = real(method, body)
        if method == "PUT" and (error := next(lost, None)):
            raise error
        return answer

    fake.serve = serve  # type: ignore[method-assign] # the one fault that comes after the deed
    until(lambda: elector.RENEWALS.value("failed") > failed, "the fault")
    count = fake.count("PUT")
    until(lambda: fake.count("PUT") > count + 3, "renewals go on")
    assert one.leads()
    assert one.told.empty()


def test_a_lease_edited_by_others_is_renewed_all_the_same(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    conflicts = elector.RENEWALS.value("conflict")
    fake.change()
    until(lambda: elector.RENEWALS.value("conflict") > conflicts, "the conflict")
    count = fake.count("PUT")
    until(lambda: fake.count("PUT") > count + 3, "renewals go on")
    assert one.told.empty()


def test_a_lease_given_to_another_by_hand_ends_the_leadership(fake: FakeApi, start: Start) -> None:
    one = start()
    one.next()
    fake.change(holderIdentity="other", leaseDurationSeconds=600)
    assert one.next()[:2] == ("stopped", election.TAKEN.format("other"))
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == "other"


def test_a_deleted_lease_is_made_again_by_its_holder(fake: FakeApi, start: Start) -> None:
    fake.change(holderIdentity="", leaseTransitions=8)
    one = start()
    one.next()
    fake.lease = None
    until(lambda: fake.lease, "the Lease is back")
    assert fake.count("POST") == 1
    assert one.told.empty()
    made = next(body for method, _, body in fake.requests if method == "POST")
    assert made["spec"]["leaseTransitions"] == 9


def test_a_missing_right_is_named(fake: FakeApi, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    fake.trouble = lambda method: errors.ApiError(403, "Forbidden", "leases is forbidden") if method == "POST" else None
    start()
    until(lambda: fake.count("POST") > 2, "tries")
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    (warning,) = warnings
    assert all(part in warning for part in ("ns/l", "(403 Forbidden)", "create leases", "controller/rbac.yaml"))


def test_others_are_named_in_the_log(fake: FakeApi, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fake.change(holderIdentity="other", leaseDurationSeconds=600)
    start()
    until(lambda: fake.count("GET") > 3, "looks")
    assert [message.rpartition(" ")[2] for message in caplog.messages] == ["other"]


def test_a_callback_that_fails_ends_the_thread_and_the_term(fake: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    stopped: queue.Queue[str] = queue.Queue()
    led: list[elector.Tenure] = []

    def fail(tenure: elector.Tenure) -> None:
        led.append(tenure)
        raise LookupError("a mistake")

    made = elector.Elector(
        CONFIG,
        namespace="ns",
        name="l",
        identity="me",
        on_started=fail,
        on_stopped=lambda _, why: stopped.put(why),
        **PATIENT,
    )
    made.start()
    assert stopped.get(timeout=10.0) == elector.THREAD_ENDS
    until(lambda: not made.alive(), "the thread's end")
    assert [tenure.left() for tenure in led] == [0.0]
    assert "a mistake" in caplog.text
    made.stop()
    assert fake.lease is not None
    assert fake.lease["spec"]["holderIdentity"] == "me", "nobody is left who could release it"


def test_a_configuration_that_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(errors.ConfigError, match="certificates"):
        elector.Elector(
            config.Config(server="https://localhost:1", ca_data="-----BEGIN nothing"),
            namespace="ns",
            name="l",
            identity="me",
            on_started=lambda _: None,
            on_stopped=lambda *_: None,
        )
