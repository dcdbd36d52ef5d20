"""Who leads: of several instances at most one at a time, the holder of a coordination.k8s.io/v1 Lease.

The Lease is read and written as client-go's tools/leaderelection does, so that it looks as people expect. Where the two
differ, this one is more careful:

- A leader counts its time on CLOCK_BOOTTIME, which runs on while the machine sleeps, from before it sent the renewal;
  others count from after they saw it. is_leading() looks at the clock itself, so it is right in a process that was
  frozen, too.
- A Lease in our name that this process did not write (that of a container before a restart, or of another instance
  that was given the same name) is another's until it expires.
- When the Lease is deleted, the holder makes it again. Others wait for a whole duration first: there may be a holder
  whom they have not seen. (One who has just come and never saw a Lease makes it at once, or each installation would
  begin with a wait. Then, and where a Lease is deleted twice within seconds, two may lead until the first one's next
  renewal.)
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

import swapwarden
from swapwarden.kube import backoff, client, config, decoding, errors
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

RENEWALS = metrics.counter(
    "swapwarden_lease_renewals_total",
    "Tries to take or renew the Lease: ok, conflict (another one changed it first), failed.",
    labels=("result",),
    known=[("ok",), ("conflict",), ("failed",)],
)
TRANSITIONS = metrics.gauge("swapwarden_lease_transitions", "How often the Lease went from one holder to another.")

MARGIN: Final = 0.05
"""Share of the renew deadline by which a leader stops before its time is over, so that it is done telling by then."""
SPREAD: Final = (0.8, 1.2)
"""What the retry period of those who do not lead is multiplied by, at random."""
RELEASE_SECONDS: Final = 5.0
STOP_SECONDS: Final = 10.0

MOST_TRANSITIONS: Final = 2**31 - 1
"""That a Lease can count."""

_NEVER: Final = float("-inf")


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """A Lease's spec. Times are texts: they are compared with nothing but themselves."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """A Lease as the API server gave it."""

    metadata: dict[str, Any]
    spec: Spec = Spec()


@dataclasses.dataclass(frozen=True)
class Timing:
    """All in seconds; ValueError where they do not fit together."""

    lease_duration: float
    """How long others wait for a holder that is silent."""
    renew_deadline: float
    """How long a holder leads without a renewal. What it has sent until then has the rest of the duration to arrive."""
    retry_period: float
    """Between two renewals, and between two looks at another's Lease."""

    def __post_init__(self) -> None:
        """Refuse what would let two lead, or one lose its Lease at the first hitch."""
        if not 0 < self.retry_period < self.renew_deadline < self.lease_duration:
            raise ValueError(
                "of a Lease, the retry period must be above 0 and below the renew deadline, and that below the lease"
                f" duration; they are {self.retry_period:g} s, {self.renew_deadline:g} s and {self.lease_duration:g} s"
            )


@dataclasses.dataclass(frozen=True)
class Term:
    """One time of leading. The time of acquisition tells it from all others of the same holder."""

    acquire_time: str
    transitions: int


@dataclasses.dataclass(frozen=True)
class Sleep:
    """Nothing is to be done before this time."""

    until: float


@dataclasses.dataclass(frozen=True)
class Look:
    """Read the Lease; then saw(), or failed()."""


@dataclasses.dataclass(frozen=True)
class Write:
    """Write the Lease for `term`; then wrote(), or failed()."""

    term: Term
    over: Lease | None
    """What the Lease must still be; None where there must be none."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """Lead no more; then stopped()."""

    reason: str


class Claim:
    """What one instance does about the Lease. Knows only what it is told: no clock, no API server.

    All times are seconds on one clock of this machine that never stands still nor goes back.
    """

    def __init__(self, identity: str, timing: Timing, spread: Callable[[], float]) -> None:
        """`spread` gives the factors that keep instances from coming all at the same moment."""
        self._identity = identity
        self._timing = timing
        self._spread = spread
        self.leading = False
        self.candidate = True
        """Whether it takes a Lease that is free. One that only looks has waited for its holder all the same."""
        self.valid_until = _NEVER
        """This instance leads before this time."""
        self._term: Term | None = None
        # The term that a write on its way may begin or prolong. A term that was stopped is not prolonged any more.
        self._open: Term | None = None
        self._seen: Lease | None = None
        self._exists = False
        self._changed = _NEVER
        # For so long there may be a holder that was never seen, whatever is seen after the deletion.
        self._gone_until = _NEVER
        self._fresh = False
        self._due = _NEVER
        # Until when one that is no candidate waits with its next look.
        self._watching = _NEVER

    @property
    def tried(self) -> bool:
        """Whether this process ever tried to take the Lease."""
        return self._term is not None

    @property
    def deadline(self) -> float:
        """When this instance stops to lead unless it renews the Lease."""
        return self.valid_until - MARGIN * self._timing.renew_deadline

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last seen; empty for nobody."""
        return (self._seen.spec.holder_identity or "") if self._seen else ""

    @property
    def transitions(self) -> int:
        """Those of the Lease when it was last seen."""
        return (self._seen.spec.lease_transitions or 0) if self._seen else 0

    def is_mine(self, lease: Lease) -> bool:
        """Whether this process wrote it."""
        return (
            self._term is not None
            and lease.spec.holder_identity == self._identity
            and lease.spec.acquire_time == self._term.acquire_time
        )

    def free_at(self) -> float:
        """From when on this instance may take the Lease."""
        if self._seen is None:
            return _NEVER
        if not self._exists or not self.holder or self.is_mine(self._seen):
            return self._gone_until
        return max(self._gone_until, self._changed + self._duration(self._seen))

    def _duration(self, lease: Lease) -> float:
        return lease.spec.lease_duration_seconds or self._timing.lease_duration

    def step(self, now: float, stamp: str) -> Step:
        """What to do now. `stamp` is the wall clock's time, for people to read."""
        if self.leading and (reason := self._lost(now)):
            return Stop(reason)
        if now < self._due:
            return self._sleep()
        if not self._fresh:
            return Look()
        if not self.leading:
            if not self.candidate or now < self.free_at():
                self._due = self._watching = now + self._pause()
                if self.candidate:
                    self._due = min(self.free_at(), self._due)
                return self._sleep()
            ours = self._seen is None or self.is_mine(self._seen)
            self._term = Term(stamp, self.transitions + (0 if ours else 1))
        if self._term is None:
            raise AssertionError("a leader has a term")
        self._open = self._term
        return Write(self._term, self._seen if self._exists else None)

    def _sleep(self) -> Sleep:
        if self.leading:
            return Sleep(min(self._due, self.deadline))
        self._fresh = False
        return Sleep(self._due)

    def _lost(self, now: float) -> str:
        if now >= self.deadline:
            return f"the Lease was not renewed for {self._timing.renew_deadline:g} s"
        if self._fresh and self._exists and self._seen and not self.is_mine(self._seen):
            return f"the Lease went to {self.holder or 'nobody'}"
        return ""

    def _pause(self) -> float:
        return self._timing.retry_period * self._spread()

    def saw(self, lease: Lease | None, now: float) -> None:
        """The Lease as it is; None where there is none. `now` is after the answer came."""
        if (
            self._seen
            and self._exists
            and (lease is None or lease.metadata.get("uid") != self._seen.metadata.get("uid"))
        ):
            self._gone_until = now + max(self._duration(self._seen), self._timing.lease_duration)
        if lease is not None:
            if self._seen is None or not self._exists or lease.spec != self._seen.spec:
                self._changed = now
            self._seen = lease
        self._exists = lease is not None
        self._fresh = True

    def wrote(self, write: Write, lease: Lease, sent: float, now: float) -> bool:
        """The Lease was written, by a request sent after `sent`; whether this instance leads from now on."""
        self.saw(lease, now)
        if write.term is not self._open:
            self._fresh = False
            return False
        valid_until = sent + self._timing.renew_deadline
        self._due = sent + self._timing.retry_period
        if not self.leading and now >= valid_until - MARGIN * self._timing.renew_deadline:
            self._fresh = False
            return False
        self.valid_until = valid_until
        began, self.leading = not self.leading, True
        return began

    def stand(self, now: float, *, candidate: bool) -> None:
        """Take a Lease that is free, or leave it to others, from now on."""
        # A wait for another reason stays: after a failure, or for others to come first.
        if candidate and self._due == self._watching:
            self._due = now
        self.candidate = candidate

    def failed(self, now: float, wait: float) -> None:
        """A look or a write failed, or nobody knows; try again after `wait` seconds."""
        self._fresh = False
        # One who stepped down meanwhile waits for longer.
        self._due = max(self._due, now + wait)

    def count_from(self, transitions: int) -> None:
        """While this instance leads: have the Lease count at least so many transitions from the next renewal on."""
        if self.leading and self._term is not None and self._term.transitions < transitions:
            self._term = dataclasses.replace(self._term, transitions=transitions)

    def stopped(self, now: float, aside: float = 0.0) -> None:
        """This instance does not lead any more; it competes again, but not within `aside` seconds."""
        self.leading = False
        self.valid_until = _NEVER
        self._open = None
        self._fresh = False
        self._due = now + aside + self._pause()

    def aside(self) -> float:
        """For how many seconds one who steps down leaves the Lease to others: until it has expired for all of them."""
        return self._timing.lease_duration + self._timing.retry_period

    def timeout(self, now: float) -> float:
        """How many seconds a request may take: a second try must be possible before the deadline."""
        half = self._timing.renew_deadline / 2
        return min(half, self.deadline - now) if self.leading else half

    def renewed(self, term: Term, stamp: str) -> Spec:
        """The spec to write for a term."""
        return Spec(
            holder_identity=self._identity,
            lease_duration_seconds=math.ceil(self._timing.lease_duration),
            acquire_time=term.acquire_time,
            renew_time=stamp,
            lease_transitions=term.transitions,
        )


Step = Sleep | Look | Write | Stop


class Leadership:
    """One time of leading: from when the Lease was taken until it is lost. For any thread."""

    def __init__(self, transitions: int) -> None:
        self.transitions = transitions
        """Those that the Lease counts."""
        self._until = _NEVER
        self._ended = False

    def left(self) -> float:
        """Seconds for which this instance leads unless the Lease is renewed; 0 for good once it was lost."""
        return 0.0 if self._ended else max(0.0, self._until - _boottime())

    def extend(self, until: float) -> None:
        """The Lease was renewed: this instance leads until then."""
        self._until = until

    def end(self) -> None:
        """It is over; no renewal changes that."""
        self._ended = True


def released(lease: Lease, stamp: str) -> Spec:
    """The spec of a Lease that nobody holds, as client-go leaves it."""
    return Spec(
        holder_identity="",
        lease_duration_seconds=1,
        acquire_time=stamp,
        renew_time=stamp,
        lease_transitions=lease.spec.lease_transitions,
    )


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _stamp() -> str:
    """The time as metav1.MicroTime."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Elector:
    """Competes for a Lease in a thread of its own: what keeps the caller's event loop busy costs it no renewal."""

    def __init__(
        self,
        cfg: config.Config,
        *,
        namespace: str,
        name: str,
        identity: str,
        on_started: Callable[[Leadership], None],
        on_stopped: Callable[[Leadership, str], None],
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
    ) -> None:
        """`on_stopped` gets the reason, too; both are called in the elector's thread.

        `on_started` is called once more for the same leadership where count_from() has raised its transitions. The two
        take turns, and must not block. Durations are in seconds; see Timing. ConfigError where `cfg` cannot be used.
        """
        timing = Timing(lease_duration, renew_deadline, retry_period)
        self._claim = Claim(identity, timing, lambda: backoff.between(*SPREAD))
        self._retry_period = retry_period
        self._backoff = backoff.Backoff(retry_period / 4, retry_period)
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._name = name
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._api = client.Client(cfg, user_agent=f"swapwarden-controller/{swapwarden.__version__}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._release = False
        self._leadership: Leadership | None = None
        self._said = ""
        self._holder = ""

    def start(self, *, candidate: bool = True) -> None:
        """Begin to watch the Lease, and to compete for it where it is a `candidate`. Once only."""
        if self._thread is not None:
            raise RuntimeError("an elector is started once only")
        self._claim.candidate = candidate
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name="lease", daemon=False)
        self._thread.start()

    def stop(self, *, release: bool = True) -> None:
        """Lead no more, leave the Lease to others at once where `release` is set, and end the thread.

        Takes a round trip or two, or up to STOP_SECONDS where the API server does not answer. Not for callbacks.
        """
        if self._loop is None or self._thread is None:
            return
        self._release = release
        with contextlib.suppress(RuntimeError):  # the loop is closed: the thread has ended already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            log.error("the thread that holds the Lease has not ended within %g s", STOP_SECONDS)

    def is_leading(self) -> bool:
        """Whether this instance leads now. For any thread."""
        leadership = self._leadership
        return leadership is not None and leadership.left() > 0

    def stand(self, *, candidate: bool) -> None:
        """Compete for the Lease from now on, or only watch it. Who leads goes on to. For any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody competes here
                self._loop.call_soon_threadsafe(functools.partial(self._stand, candidate=candidate))

    def step_down(self, reason: str, leadership: Leadership | None = None) -> None:
        """Lead no more from now on: the caller knows that another one leads, or should. For any thread.

        Only where `leadership` still is what this instance leads by; None stands for whichever that is. The Lease is
        not released; this instance competes for it again once it has expired.
        """
        led = self._leadership
        if self._loop is None or led is None or led.left() <= 0 or leadership not in {None, led}:
            return
        led.end()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody leads here
            self._loop.call_soon_threadsafe(self._step_down, led, reason)

    def count_from(self, transitions: int) -> None:
        """Have the Lease count at least so many transitions: it was deleted, and its holders counted further before.

        `on_started` is called again when it does, within a retry period as a rule. For any thread; no effect where this
        instance does not lead any more. At most MOST_TRANSITIONS.
        """
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody leads here
                self._loop.call_soon_threadsafe(self._claim.count_from, transitions)

    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._main())
        except Exception:
            log.exception("the thread that holds the Lease ends")

    async def _main(self) -> None:
        try:
            async with self._api, asyncio.TaskGroup() as tasks:
                competing = tasks.create_task(self._compete())
                await self._stopping.wait()
                competing.cancel()
                self._depose("this instance ends")
                if self._release and self._claim.tried:
                    await self._give_back()
        finally:
            self._depose("the thread that holds the Lease ends")

    async def _compete(self) -> None:
        while True:
            match self._claim.step(_boottime(), _stamp()):
                case Sleep(until):
                    self._woken.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, until - _boottime())):
                            await self._woken.wait()
                case Stop(reason):
                    self._depose(reason)
                case Look():
                    await self._look()
                case Write() as write:
                    await self._write(write)

    async def _look(self) -> None:
        try:
            lease = await self._get(self._claim.timeout(_boottime()))
        except (errors.KubeError, msgspec.DecodeError) as error:
            self._failed("get", error)
            return
        self._claim.saw(lease, _boottime())
        self._told()

    async def _write(self, write: Write) -> None:
        sent = _boottime()
        verb = "create" if write.over is None else "update"
        try:
            lease = await self._put(write.over, self._claim.renewed(write.term, _stamp()), self._claim.timeout(sent))
        except (errors.KubeError, msgspec.DecodeError) as error:
            self._failed(verb, error)
            return
        RENEWALS.inc("ok")
        self._backoff.reset()
        self._said = ""
        began = self._claim.wrote(write, lease, sent, _boottime())
        self._told()
        if began:
            log.info("this instance holds the Lease", extra={"transitions": write.term.transitions})
            self._leadership = Leadership(write.term.transitions)
        led = self._leadership
        if led is None or not self._claim.leading:
            return
        led.extend(self._claim.deadline)
        if began or write.term.transitions != led.transitions:
            led.transitions = write.term.transitions
            self._on_started(led)

    def _told(self) -> None:
        TRANSITIONS.set(self._claim.transitions)
        if self._claim.holder != self._holder and not self._claim.leading:
            log.info("the Lease is held by %s", self._claim.holder or "nobody")
        self._holder = self._claim.holder

    def _failed(self, verb: str, error: Exception) -> None:
        conflict = isinstance(error, errors.ApiError) and error.status == 409
        RENEWALS.inc("conflict" if conflict else "failed")
        wait = self._backoff.after(error)
        # A leader that waits for longer has one try less before its deadline.
        self._claim.failed(_boottime(), min(wait, self._retry_period) if self._claim.leading else wait)
        said = f"cannot {verb} the Lease {self._namespace}/{self._name}: {error}"
        if isinstance(error, errors.ApiError) and error.status == 403:
            said += (
                f"; grant this instance's service account the right to {verb} leases in coordination.k8s.io"
                f" in namespace {self._namespace}, as deploy/manifests/controller-rbac.yaml does"
            )
        log.log(logging.DEBUG if conflict or said == self._said else logging.WARNING, said)
        self._said = said

    def _stand(self, *, candidate: bool) -> None:
        self._claim.stand(_boottime(), candidate=candidate)
        self._woken.set()

    def _step_down(self, leadership: Leadership, reason: str) -> None:
        if self._leadership is leadership:
            self._depose(reason, self._claim.aside())

    def _depose(self, reason: str, aside: float = 0.0) -> None:
        led, self._leadership = self._leadership, None
        if led is None:
            return
        led.end()
        self._claim.stopped(_boottime(), aside)
        log.info("this instance gives up to lead: %s", reason)
        self._on_stopped(led, reason)

    async def _give_back(self) -> None:
        """Release the Lease if it is ours. That a request failed, or was cut off, says nothing: look first."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                while (lease := await self._get(RELEASE_SECONDS)) and self._claim.is_mine(lease):
                    try:
                        await self._put(lease, released(lease, _stamp()), RELEASE_SECONDS)
                    except errors.ApiError as error:
                        if error.status != 409:
                            raise
                        await asyncio.sleep(self._backoff.next())
                    else:
                        log.info("the Lease is released")
                        return
        except (errors.KubeError, msgspec.DecodeError, TimeoutError) as error:
            log.warning("the Lease could not be released; others wait until it expires: %s", error)

    async def _get(self, timeout: float) -> Lease | None:  # noqa: ASYNC109 handed on
        try:
            answer = await self._api.get(f"{self._leases}/{self._name}", timeout=timeout)
        except errors.ApiError as error:
            if error.status == 404:
                return None
            raise
        return decoding.decode(answer, Lease)

    async def _put(self, over: Lease | None, spec: Spec, timeout: float) -> Lease:  # noqa: ASYNC109 handed on
        # With the uid a PUT does not make a Lease anew that was deleted; of a Lease the API server would.
        metadata = over.metadata if over else {"namespace": self._namespace, "name": self._name}
        body = msgspec.json.encode(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {key: value for key, value in metadata.items() if key != "managedFields"},
                "spec": spec,
            }
        )
        if over is None:
            answer = await self._api.post(self._leases, body, timeout=timeout)
        else:
            answer = await self._api.put(f"{self._leases}/{self._name}", body, timeout=timeout)
        return decoding.decode(answer, Lease)
