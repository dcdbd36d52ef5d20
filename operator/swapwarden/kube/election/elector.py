"""One instance of a leader election: a thread of its own reads and writes the Lease as the election decides."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

import swapwarden
from swapwarden.api import decoding, formats
from swapwarden.kube import backoff, client, config, errors
from swapwarden.kube.election import election
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

RENEWALS = metrics.counter(
    "swapwarden_lease_renewals_total",
    "Attempts to take or renew the Lease: ok, conflict (another instance changed it first), failed.",
    labels=("result",),
    known=[("ok",), ("conflict",), ("failed",)],
)
TRANSITIONS = metrics.gauge("swapwarden_lease_transitions", "Changes of the Lease from one holder to another.")

RELEASE_SECONDS: Final = 5.0
STOP_SECONDS: Final = 10.0
THREAD_ENDS: Final = "the thread that holds the Lease ends"


class Tenure:
    """The time from taking the Lease until losing it. Any thread may use it."""

    def __init__(self, transitions: int) -> None:
        self.transitions = transitions
        """The transitions that the Lease counts."""
        self._until = float("-inf")
        self._ended = False

    def left(self) -> float:
        """Return the seconds for which this instance leads without a renewal; always 0 once the Lease is lost."""
        return 0.0 if self._ended else max(0.0, self._until - boottime())

    def extend(self, until: float) -> None:
        """Extend the leadership until then: the Lease was renewed."""
        self._until = until

    def end(self) -> None:
        """End the leadership; no renewal revives it."""
        self._ended = True


def boottime() -> float:
    """Return the seconds on a clock that runs on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def stamp() -> str:
    """Return the time as metav1.MicroTime."""
    return formats.rfc3339(time.time(), "microseconds")


class _LeaseObject:
    """The Lease at the API server."""

    def __init__(self, api: client.Client, namespace: str, name: str) -> None:
        self.api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.namespace, self.name = namespace, name

    async def get(self, timeout: float) -> election.Lease | None:  # noqa: ASYNC109 handed on
        try:
            answer = await self.api.get(f"{self._collection}/{self.name}", timeout=timeout)
        except errors.ApiError as error:
            if error.status == 404:
                return None
            raise
        return decoding.decode(answer, election.Lease)

    async def put(self, over: election.Lease | None, spec: election.Spec, timeout: float) -> election.Lease:  # noqa: ASYNC109 handed on
        # With the uid, a PUT does not recreate a deleted Lease; the API server would for Leases.
        metadata = over.metadata if over else {"namespace": self.namespace, "name": self.name}
        body = msgspec.json.encode(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {key: value for key, value in metadata.items() if key != "managedFields"},
                "spec": spec,
            }
        )
        if over is None:
            answer = await self.api.post(self._collection, body, timeout=timeout)
        else:
            answer = await self.api.put(f"{self._collection}/{self.name}", body, timeout=timeout)
        return decoding.decode(answer, election.Lease)


class Elector:
    """Compete for a Lease in a thread of its own: a busy event loop of the caller costs no renewal."""

    def __init__(
        self,
        cfg: config.Config,
        *,
        namespace: str,
        name: str,
        identity: str,
        on_started: Callable[[Tenure], None],
        on_stopped: Callable[[Tenure, str], None],
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
    ) -> None:
        """Both callbacks run in the elector's thread; `on_stopped` also gets the reason.

        `on_started` is called again for the same leadership when count_from() has raised its transitions. They take
        turns and must not block. Durations are in seconds; see Timing. ConfigError if `cfg` cannot be used.
        """
        timing = election.Timing(lease_duration, renew_deadline, retry_period)
        self._election = election.Election(identity, timing, lambda: backoff.between(*election.JITTER))
        self._backoff = backoff.Backoff(retry_period / 4, retry_period)
        self._on_started = on_started
        self._on_stopped = on_stopped
        api = client.Client(cfg, user_agent=f"swapwarden-controller/{swapwarden.__version__}")
        self._lease = _LeaseObject(api, namespace, name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._release = False
        self._leadership: Tenure | None = None
        self._said = ""

    def start(self, *, candidate: bool = True) -> None:
        """Begin to watch the Lease, and compete for it as a `candidate`. RuntimeError at a second call."""
        if self._thread is not None:
            raise RuntimeError("start() was called twice")
        self._election.candidate = candidate
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name="lease", daemon=False)
        self._thread.start()

    def stop(self, *, release: bool = True) -> None:
        """Stop leading, release the Lease if `release` is set, and end the thread.

        Takes a round trip or two, or up to STOP_SECONDS if the API server does not answer. Callbacks must not call it.
        """
        if self._thread is None:
            return
        self._release = release
        self._call(self._stopping.set)
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            log.error("the thread that holds the Lease has not ended within %g s", STOP_SECONDS)

    def stand(self, *, candidate: bool) -> None:
        """Compete for the Lease from now on, or only watch it. A leader continues to lead. For any thread."""
        self._call(functools.partial(self._stand, candidate=candidate))

    def step_down(self, reason: str, leadership: Tenure | None = None) -> None:
        """Stop leading now: the caller knows that another instance leads, or should. For any thread.

        Has no effect if `leadership` is not the current one; None stands for the current one. The Lease is not
        released; this instance competes for it again once it has expired.
        """
        led = self._leadership
        if led is None or led.left() <= 0 or leadership not in {None, led}:
            return
        led.end()
        self._call(self._step_down, led, reason)

    def count_from(self, transitions: int) -> None:
        """Raise the Lease's transitions to at least this number: after a deletion it counts from 0 again.

        `on_started` is then called again, usually within a retry period. For any thread; no effect if this instance no
        longer leads. At most MAX_TRANSITIONS.
        """
        self._call(self._election.count_from, transitions)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call back in the thread, if it runs."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the thread has ended
                self._loop.call_soon_threadsafe(callback, *arguments)

    @property
    def holder(self) -> str:
        """Return the holder in the last observed Lease; empty for none. For any thread."""
        return self._election.observed.holder

    def alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._main())
        except Exception:
            log.exception(THREAD_ENDS)

    async def _main(self) -> None:
        try:
            async with self._lease.api, asyncio.TaskGroup() as tasks:
                competing = tasks.create_task(self._compete())
                await self._stopping.wait()
                competing.cancel()
                self._depose("this instance ends")
                if self._release and self._election.tried:
                    await self._give_back()
        finally:
            self._depose(THREAD_ENDS)

    async def _compete(self) -> None:
        while True:
            match self._election.step(boottime(), stamp()):
                case election.Sleep(until):
                    self._woken.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, until - boottime())):
                            await self._woken.wait()
                case election.Stop(reason):
                    self._depose(reason)
                case election.Look():
                    await self._look()
                case election.WriteLease() as write:
                    await self._write(write)

    async def _look(self) -> None:
        try:
            lease = await self._lease.get(self._election.timeout(boottime()))
        except (errors.KubeError, msgspec.DecodeError) as error:
            self._failed("get", error)
            return
        before = self.holder
        self._election.observe(lease, boottime())
        self._report(before)

    async def _write(self, write: election.WriteLease) -> None:
        sent = boottime()
        verb = "create" if write.over is None else "update"
        try:
            lease = await self._lease.put(
                write.over, self._election.spec(write.term, stamp()), self._election.timeout(sent)
            )
        except (errors.KubeError, msgspec.DecodeError) as error:
            self._failed(verb, error)
            return
        RENEWALS.inc("ok")
        self._backoff.reset()
        self._said = ""
        before = self.holder
        began = self._election.renewed(write, lease, sent, boottime())
        self._report(before)
        if began:
            log.info("this instance holds the Lease", extra={"transitions": write.term.transitions})
            self._leadership = Tenure(write.term.transitions)
        led = self._leadership
        if led is None or not self._election.leading:
            return
        led.extend(self._election.deadline)
        if began or write.term.transitions != led.transitions:
            led.transitions = write.term.transitions
            self._on_started(led)

    def _report(self, before: str) -> None:
        TRANSITIONS.set(self._election.observed.transitions)
        if self.holder != before and not self._election.leading:
            log.info("the Lease is held by %s", self.holder or "nobody")

    def _failed(self, verb: str, error: Exception) -> None:
        conflict = isinstance(error, errors.ApiError) and error.status == 409
        RENEWALS.inc("conflict" if conflict else "failed")
        wait = self._backoff.after(error)
        # A leader that waits longer loses an attempt before its deadline.
        self._election.failed(
            boottime(), min(wait, self._election.timing.retry_period) if self._election.leading else wait
        )
        said = f"cannot {verb} the Lease {self._lease.namespace}/{self._lease.name}: {error}"
        if isinstance(error, errors.ApiError) and error.status == 403:
            said += (
                f"; grant this instance's service account the right to {verb} leases in coordination.k8s.io"
                f" in namespace {self._lease.namespace}, as the chart does (templates/controller/rbac.yaml)"
            )
        log.log(logging.DEBUG if conflict or said == self._said else logging.WARNING, said)
        self._said = said

    def _stand(self, *, candidate: bool) -> None:
        self._election.stand(boottime(), candidate=candidate)
        self._woken.set()

    def _step_down(self, leadership: Tenure, reason: str) -> None:
        if self._leadership is leadership:
            self._depose(reason, self._election.cooldown())

    def _depose(self, reason: str, cooldown: float = 0.0) -> None:
        led, self._leadership = self._leadership, None
        if led is None:
            return
        led.end()
        self._election.stepped_down(boottime(), cooldown)
        log.info("this instance stops leading: %s", reason)
        self._on_stopped(led, reason)

    async def _give_back(self) -> None:
        """Release the Lease if this instance holds it. A failed request may have been executed, so read it first."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                while (lease := await self._lease.get(RELEASE_SECONDS)) and self._election.is_mine(lease):
                    try:
                        await self._lease.put(lease, election.released(lease, stamp()), RELEASE_SECONDS)
                    except errors.ApiError as error:
                        if error.status != 409:
                            raise
                        await asyncio.sleep(self._backoff.next())
                    else:
                        log.info("the Lease is released")
                        return
        except (errors.KubeError, msgspec.DecodeError, TimeoutError) as error:
            log.warning("the Lease could not be released; other instances wait until it expires: %s", error)
