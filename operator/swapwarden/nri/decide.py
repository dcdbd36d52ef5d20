"""Decide the value of memory.swap.max of a container: pure, from the pod's annotations and the agent's decisions.

The agent's decisions are kept while it is away.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from swapwarden.api import names
from swapwarden.nri import messages

NONE: Final = "0"
MAX_SETTINGS: Final = 16_384
"""Settings of all pods together; one more for each pod."""
_ALLOWING: Final = frozenset(each.value for each in names.Policy if each is not names.Policy.DISABLED)


class Hold(NamedTuple):
    """A value that the agent decided."""

    value: str
    at_most: bool
    """Whether the value only replaces larger ones."""


class PodHolds(NamedTuple):
    """The agent's decision on a pod."""

    default: Hold | None
    """The setting of containers that are not named; None leaves them alone."""
    containers: dict[str, Hold]
    """Settings by container name."""
    decided: bool
    """Whether the agent has the pod's plan: a default of its namespace then has no say any more."""

    def of(self, container: str) -> Hold | None:
        """Return the setting of a container."""
        return self.containers.get(container, self.default)


class Decisions:
    """Decisions by pod UID. While the agent sends all of them again, the earlier ones stay in force."""

    def __init__(self) -> None:
        self._pods: dict[str, PodHolds] = {}
        self._incoming: dict[str, PodHolds] | None = None

    def of(self, uid: str) -> PodHolds | None:
        """Return the decision on a pod."""
        if self._incoming is not None and uid in self._incoming:
            return self._incoming[uid]
        return self._pods.get(uid)

    def begin(self) -> None:
        """Begin to replace all decisions."""
        self._incoming = {}

    def end(self) -> None:
        """Forget the decisions that were not sent again since begin()."""
        if self._incoming is not None:
            self._pods, self._incoming = self._incoming, None

    def interrupt(self) -> None:
        """Keep the earlier decisions and those that arrived since begin(): the agent left before end()."""
        if self._incoming is not None:
            self._pods |= self._incoming
            self._incoming = None

    def put(self, pods: dict[str, PodHolds]) -> None:
        """Add or replace decisions on pods. ValueError if they are more than a node can have."""
        current = self._pods if self._incoming is None else self._incoming
        current |= pods
        if sum(1 + len(each.containers) for each in current.values()) > MAX_SETTINGS:
            for uid in pods:
                del current[uid]
            raise ValueError(f"more than {MAX_SETTINGS} settings")

    def remove(self, uids: list[str]) -> None:
        """Forget pods that are gone."""
        for uid in uids:
            self._pods.pop(uid, None)
            if self._incoming is not None:
                self._incoming.pop(uid, None)


def forbids(policy: str | None) -> bool:
    """Return whether a pod with this annotation gets no swap: Disabled, or invalid."""
    return policy is not None and policy not in _ALLOWING


def acts(mode: str) -> bool:
    """Return whether anything is adjusted in a mode: one of names.Mode, or empty if no agent knows it."""
    return mode in {names.Mode.ENFORCE, ""}


def setting(pod: messages.PodSandbox, container: str, decided: PodHolds | None, mode: str) -> Hold | None:
    """Return the setting of a container; None if it has none. `decided` is None without a decision of the agent."""
    if not acts(mode):
        return None
    if forbids(pod.policy):
        # Overrides of a profile may lift a default of the namespace, never the pod's own choice.
        lifted = pod.source == names.SOURCE_NAMESPACE and decided is not None and decided.decided
        if not lifted:
            return Hold(NONE, at_most=False)
    return decided.of(container) if decided is not None else None


def adjusted(hold: Hold | None, asked: str | None) -> str | None:
    """Return the value to set; None if there is none, or if the request already has it (from another plugin).

    `asked` is the request's value; None if it has none.
    """
    if hold is None or asked == hold.value:
        return None
    if hold.at_most and asked is not None and _bytes(asked) <= _bytes(hold.value):
        return None
    return hold.value


def created(request: messages.Event, decided: PodHolds | None, mode: str) -> str | None:
    """Return the value to set for a container that is being created; None to leave it as it is."""
    if request.container.original is not None:
        # Another swapwarden was asked before this one, during an update of both: two that set a value are refused.
        return None
    return adjusted(setting(request.pod, request.container.name, decided, mode), request.container.value)


def kept(request: messages.Event, decided: PodHolds | None, mode: str) -> str | None:
    """Return the value that an update of a container must not replace; None if the update may pass as it is.

    Only a value that the runtime already has for the container is kept: to lower the limit of one that may have swap in
    use is for the agent.
    """
    container = request.container
    hold = setting(request.pod, container.name, decided, mode)
    replaced = container.original is not None and container.original != (container.value or "")
    if hold is None and decided is None and replaced and container.value and acts(mode):
        # A plugin set it, and the agent has not been here since to change that.
        hold = Hold(container.value, at_most=False)
    value = adjusted(hold, request.asked)
    return value if value == container.value else None


def _bytes(value: str) -> float:
    """Return what a value of memory.swap.max allows; unknown ones count as no limit."""
    return int(value) if value.isascii() and value.isdigit() else float("inf")
