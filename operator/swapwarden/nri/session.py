"""One registration with the container runtime: its requests and their answers, without the socket.

Whatever arrives, each request gets exactly one answer, and it is empty if something is wrong: an error would keep the
container from starting, on each node that has this plugin.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Final

from swapwarden.api import runtime_link
from swapwarden.api.runtime_link import FromPlugin
from swapwarden.nri import decide, frames, inventory, knowledge, link, logs, messages, orders, protobuf
from swapwarden.nri.inventory import SANDBOX, Item

REGISTER_SECONDS: Final = 15.0
"""Time for the runtime to register the plugin; its library gives a plugin 5 s by default."""
MAX_WAITING: Final = 64
"""Pods whose start waits for the agent; the runtime starts one at a time."""

_METHODS: Final = {number: method for method, number in messages.EVENTS.items()}
_REGISTER_STREAM: Final = 1


class SessionError(Exception):
    """The runtime refuses the plugin, or does not continue the protocol."""


class RuntimeSession:
    """The state of one connection to the runtime. Times are of the clock, in seconds."""

    def __init__(
        self,
        known: knowledge.Knowledge,
        *,
        send: Callable[[bytes], None],
        notify: Callable[[bytes], bool],
        carry: orders.Carry,
        clock: Callable[[], float],
    ) -> None:
        """`send` sends bytes to the runtime; `notify` sends a packet to the agent: False if none is connected.

        `carry` is courier.Courier.carry.
        """
        self._known = known
        self._send = send
        self._notify = notify
        self._clock = clock
        self._reader = frames.FrameReader()
        self._waiting: dict[int, tuple[int, float]] = {}
        """Streams of the requests that the agent must answer first, by number, and until when."""
        self._numbers = itertools.count(1)
        self.orders = orders.RuntimeOrders(known, ask=self._ask, carry=carry, notify=notify, clock=clock)
        self._listed = messages.Synchronize([], [], more=True)
        """The parts of the runtime's list that arrived."""
        self._until = clock() + REGISTER_SECONDS

    def begin(self, registration: bytes) -> None:
        """Register the plugin."""
        self._call(_REGISTER_STREAM, "RegisterPlugin", registration, REGISTER_SECONDS)

    def due(self) -> float | None:
        """Return when expire() must be called next."""
        times = [until for _, until in self._waiting.values()]
        if self.orders.until is not None:
            times.append(self.orders.until)
        if self._known.runtime is None:
            times.append(self._until)
        return min(times, default=None)

    def expire(self) -> None:
        """Give up waiting for answers that are late. SessionError if the runtime does not register the plugin."""
        now = self._clock()
        for number in [number for number, (_, until) in self._waiting.items() if until <= now]:
            self._known.counts["late"] += 1
            self.sandbox_done(number)
        self.orders.expire()
        if self._known.runtime is None and self._until <= now:
            raise SessionError("the runtime did not configure the plugin")

    # --- the agent ---

    def sandbox_done(self, number: int) -> None:
        """Let the start of a pod continue, if it waits."""
        if waiting := self._waiting.pop(number, None):
            self._answer(waiting[0], b"")

    def agent_gone(self) -> None:
        """Let all pods start that wait for the agent."""
        for number in list(self._waiting):
            self.sandbox_done(number)

    # --- the runtime ---

    def receive(self, data: memoryview) -> None:
        """Handle bytes of the runtime. SessionError or frames.FrameError if the connection is of no use."""
        for message in self._reader.feed(data):
            if message.connection == frames.PLUGIN and message.kind == frames.REQUEST:
                self._request(message)
            elif message.connection == frames.RUNTIME and message.kind == frames.RESPONSE:
                self._response(message)

    def _request(self, message: frames.TtrpcMessage) -> None:
        self._known.counts["requests"] += 1
        method = ""
        answer: bytes | None = b""
        notices: list[Iterable[bytes]] = []
        try:
            method, payload = messages.read_request(message.payload)
            if method == "StateChange":
                change = messages.read_state_change(payload)
                answer = self._about(_METHODS.get(change.event, ""), change.request, message.stream, notices)
            elif method == "Configure":
                answer = messages.configured(messages.EVENTS.values(), required=self._known.required)
                if self._configure(payload).validates() and self._known.required:
                    # To object to nothing: the runtime refuses a container if one that it must ask does not answer.
                    answer = messages.configured((*messages.EVENTS.values(), messages.VALIDATION), required=True)
            elif method == "Synchronize":
                answer = self._synchronize(messages.read_synchronize(payload), notices)
            elif method in messages.EVENTS:
                answer = self._about(method, messages.read_event(payload), message.stream, notices)
        except Exception as error:  # noqa: BLE001 whatever it is, it must not keep a container from starting
            self._known.failed(method, error)
        if answer is not None:
            self._answer(message.stream, answer)
        # Made after the answer, for which a container waits, and only while an agent takes them.
        all(map(self._notify, itertools.chain.from_iterable(notices)))

    def _about(self, method: str, request: messages.Event, stream: int, notices: list[Iterable[bytes]]) -> bytes | None:
        """Return the answer to an event; None if it is sent later."""
        pod, container = request.pod, request.container
        held = self._known.inventory
        match method:
            case "CreateContainer":
                return self._create(request, notices)
            case "UpdateContainer":
                return self._resize(request, notices)
            case "RemoveContainer":
                held.remove(pod.uid, container.name, container.id)
                notices.append(link.notice(FromPlugin.REMOVED, id=container.id))
            case "RemovePodSandbox":
                held.remove(pod.uid, SANDBOX, pod.id)
                notices.append(link.notice(FromPlugin.REMOVED, id=pod.id))
            case "RunPodSandbox":
                held.put(pod.uid, SANDBOX, Item(pod.id, None, None))
                number = next(self._numbers)
                packet = link.encode(FromPlugin.SANDBOX, seq=number, uid=pod.uid, id=pod.id, cgroup=pod.cgroup)
                if self._notify(packet) and decide.acts(self._known.mode) and len(self._waiting) < MAX_WAITING:
                    self._waiting[number] = stream, self._clock() + runtime_link.SANDBOX_SECONDS
                    return None
        return b""

    def _create(self, request: messages.Event, notices: list[Iterable[bytes]]) -> bytes:
        pod, container = request.pod, request.container
        known = self._known
        decided = known.decisions.of(pod.uid)
        value = decide.created(request, decided, known.mode) if known.adjusts else None
        before = container.value if container.original is None else container.original or None
        answer = b"" if value is None else messages.adjustment(value, before or "")
        now, original = (container.value, container.original) if value is None else (value, before or "")
        known.counts["adjusted"] += value is not None
        known.inventory.put(pod.uid, container.name, Item(container.id, now, original))
        about = {"uid": pod.uid, "id": container.id, "name": container.name, "value": now, "original": before}
        notices.append(link.notice(FromPlugin.CREATED, **about))
        return answer

    def _resize(self, request: messages.Event, notices: list[Iterable[bytes]]) -> bytes:
        container = request.container
        known = self._known
        value = decide.kept(request, known.decisions.of(request.pod.uid), known.mode) if known.adjusts else None
        answer = b"" if value is None else messages.updated(container.id, value)
        now = value if value is not None else request.asked if request.asked is not None else container.value
        known.counts["kept"] += value is not None
        if now is not None:
            known.inventory.set_value(container.id, now)
        notices.append(link.notice(FromPlugin.RESIZED, id=container.id, value=now))
        return answer

    def _configure(self, payload: protobuf.Data) -> messages.Runtime:
        self._known.away = ""
        self._known.runtime = messages.Runtime("", "", "", 0)
        self._known.runtime = runtime = messages.read_configure(payload)
        logs.info("runtime", f"registered with {runtime.name} {runtime.version}", nri=runtime.nri)
        self._notify(self._known.described())
        return runtime

    def _synchronize(self, part: messages.Synchronize, notices: list[Iterable[bytes]]) -> bytes:
        pods, containers, _ = self._listed
        held = self._known.inventory
        held.omitted += inventory.extend(pods, part.pods, inventory.MAX_PODS)
        held.omitted += inventory.extend(containers, part.containers, inventory.MAX_ITEMS)
        if not part.more:
            held.replace(pods, containers)
            pods.clear()
            containers.clear()
            self._known.synchronized = True
            notices.append(link.listed(held.items()))
        return messages.synchronized(more=part.more)

    def _response(self, message: frames.TtrpcMessage) -> None:
        try:
            outcome = messages.read_response(message.payload)
        except ValueError as error:
            outcome = messages.CallOutcome(str(error), b"")
        if message.stream == _REGISTER_STREAM and outcome.error is not None:
            raise SessionError(outcome.error)
        self.orders.answered(message.stream, outcome)

    def _ask(self, stream: int, payload: bytes) -> None:
        self._call(stream, "UpdateContainers", payload, orders.UPDATE_SECONDS)

    def _call(self, stream: int, method: str, payload: bytes, timeout: float) -> None:
        body = messages.request(method, payload, timeout)
        self._send(frames.framed(frames.TtrpcMessage(frames.RUNTIME, stream, frames.REQUEST, body)))

    def _answer(self, stream: int, payload: bytes) -> None:
        body = messages.response(payload)
        self._send(frames.framed(frames.TtrpcMessage(frames.PLUGIN, stream, frames.RESPONSE, body)))
