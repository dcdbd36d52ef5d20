"""The steps by which a leader handles a node under memory pressure: which pod leaves it, or why none does. Pure.

`next_step` gives one step at a time. The caller takes the step, has NodePressure remember the answer, and asks again,
until a step ends the turn. There is one eviction from a node at a time. Its pod is recorded in the node's state before
the request, so that a new leader finds the record and finishes that eviction, whatever became of the request; it
chooses no second pod.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from swapwarden.api import state
from swapwarden.policy.pressure.limits import HoldReason, Limited
from swapwarden.policy.pressure.ranking import Ranked
from swapwarden.policy.pressure.thresholds import Eviction

STALE_SECONDS: Final = 15.0
"""How old a report may be from which a pod is evicted."""
PATIENCE_SECONDS: Final = 30.0
"""How long a new leader waits for a report before it gives up a recorded eviction that was never asked for. Each agent
reports more often while its node is under pressure."""
TAINT_SECONDS: Final = 2.0
"""How long an eviction waits for the node's taint."""
BLOCKED_SECONDS: Final = 60.0
"""How long a pod that the API server would not evict is not asked about again."""
MAX_ASKED: Final = 6
"""Pods of one node about which one report asks: enough to ask about all pods of a report within BLOCKED_SECONDS. Those
that can never be evicted must not hide one that can."""
OBSERVE: Final = "Observe"
"""The profile's mode in place of a reason to hold: in mode Enforce, the pod would be evicted."""


class PodLife(enum.Enum):
    """The life of a pod."""

    ALIVE = enum.auto()
    ENDING = enum.auto()
    """The pod was deleted, and its containers may still run."""
    GONE = enum.auto()
    """The pod ended, or another one has its name."""


class EvictionAnswer(enum.StrEnum):
    """The API server's answer to an eviction, or to its dry run."""

    ALLOWED = "Allowed"
    BUDGET = "Budget"
    """A disruption budget forbids it now."""
    SEVERAL_BUDGETS = "SeveralBudgets"
    """The pod has several budgets: it can never be evicted."""
    REPLACED = "Replaced"
    """Another pod has the name now."""
    GONE = "Gone"


# The steps. A turn ends with Rest or Conclude.


class Adopt(msgspec.Struct, frozen=True):
    """Take over the eviction that the node's state has recorded, or that it has none (None)."""

    victim: state.EvictedPod | None


class LookAtPod(msgspec.Struct, frozen=True):
    """Read whether the recorded pod still runs. Answer: PodLife."""

    victim: state.EvictedPod


class Read(msgspec.Struct, frozen=True):
    """Read the node's pods and rank them by its report. Answer: a tuple of Ranked."""


class Ask(msgspec.Struct, frozen=True):
    """Ask by a dry run whether the API server would evict the pod. Answer: EvictionAnswer.

    In mode Enforce, also wait until the rate of writes allows the record.
    """

    victim: Ranked


class Record(msgspec.Struct, frozen=True):
    """Write into the node's state which pod is evicted."""

    victim: state.EvictedPod


class Evict(msgspec.Struct, frozen=True):
    """Request the eviction of the recorded pod. Answer: EvictionAnswer."""

    victim: Ranked
    report: state.PressureReport
    """The report by which it exceeds."""


class Announce(msgspec.Struct, frozen=True):
    """Count and announce an eviction that was executed."""

    request: Evict


class Clear(msgspec.Struct, frozen=True):
    """Remove the record."""

    result: Literal["Gone", "Cancelled"] | None
    """The result of the eviction, to be counted; None if it was counted already."""
    counts: bool
    """Whether the pod was evicted, or may yet be: then a new leader must know."""


class Rest(msgspec.Struct, frozen=True):
    """Do nothing until something changes, or for this many seconds."""

    seconds: float | None = None


class Conclude(msgspec.Struct, frozen=True):
    """Make known the decision on the last report."""

    hold: str | None
    """Why no pod is evicted: a HoldReason or OBSERVE. None: one is."""
    named: Ranked | None = None
    """The pod that mode Observe names and leaves alone."""
    allowed: bool = False
    """Whether the API server would evict it; else it was not asked."""


Step = Adopt | LookAtPod | Read | Ask | Record | Evict | Announce | Clear | Rest | Conclude
Answer = PodLife | EvictionAnswer | tuple[Ranked, ...] | None


class Attempt(msgspec.Struct):
    """The eviction of a node's recorded pod."""

    victim: state.EvictedPod
    since: float
    """When this instance recorded the pod, or came upon the record."""
    request: Evict | None = None
    """This instance's request, if it was executed or may yet be."""
    unsure: bool = False
    """Whether a request had no answer: it may yet be executed."""
    announced: bool = False
    refused: bool = False
    """Whether the API server would not evict the pod."""


class Answers(msgspec.Struct):
    """The answers in one turn, all about one report."""

    life: PodLife | None = None
    """The life of the recorded pod; None: nobody looked."""
    ranked: tuple[Ranked, ...] | None = None
    """The node's pods in the order in which they would leave; None: nobody read them."""
    asked: int = 0
    """How many dry runs the API server refused."""
    allowed: str = ""
    """The UID of the pod that the API server would evict."""
    recorded: bool = False
    """Whether a pod was chosen and recorded."""


class NodePressure(msgspec.Struct):
    """The leader's memory of a node under pressure. Times in seconds, of one monotonic clock."""

    seq: int = 0
    """The number of the last report; 0 without one."""
    fresh: bool = False
    """Whether that report was made in this term."""
    arrived: float = 0.0
    decided: bool = False
    """Whether a decision on it was made known."""
    blocked: dict[str, float] = {}
    """The time until which a pod is not asked about, by its UID."""
    ending_since: float | None = None
    """Since when there has always been a pod that is about to end; None: there is none."""
    attempt: Attempt | None = None
    """The eviction under way."""
    turn: Answers = msgspec.field(default_factory=Answers)

    def reported(self, seq: int, now: float, *, fresh: bool) -> None:
        """Take in a new report: answers about an earlier one count no more."""
        self.seq, self.fresh, self.arrived, self.decided, self.turn = seq, fresh, now, False, Answers()

    def relieved(self) -> None:
        """Take in that the node is no longer under pressure."""
        self.seq, self.blocked, self.ending_since = 0, {}, None

    def answered(self, step: Step, answer: Answer, now: float) -> None:
        """Remember the answer to a step."""
        turn = self.turn
        match step, answer:
            case Adopt(victim), _:
                # Also after Clear, which has removed the record.
                self.attempt = None if victim is None else Attempt(victim, now)
                turn.life, turn.recorded = None, False
            case LookAtPod(), PodLife():
                turn.life = answer
            case Read(), tuple():
                turn.ranked = answer
                self.blocked = {uid: until for uid, until in self.blocked.items() if until > now}
                since = now if self.ending_since is None else self.ending_since
                self.ending_since = since if is_one_ending(answer) else None
            case Ask(victim), EvictionAnswer.ALLOWED:
                turn.allowed = victim.pod.uid
            case Ask(victim), _:
                turn.asked += 1
                self.blocked[victim.pod.uid] = now + BLOCKED_SECONDS
            case Record(victim), _:
                self.attempt, turn.life, turn.recorded = Attempt(victim, now), None, True
            case Evict(), EvictionAnswer():
                self._requested(step, answer, now)
            case Announce(), _ if self.attempt is not None:
                self.attempt.announced = True
            case Conclude(), _:
                self.decided = True

    def _requested(self, step: Evict, answer: EvictionAnswer, now: float) -> None:
        attempt, pod = self.attempt, step.victim.pod.uid
        if attempt is None or attempt.victim.uid != pod:  # the record was removed meanwhile
            return
        if answer is EvictionAnswer.ALLOWED:
            # The API server has deleted the pod, which now has some time to end.
            attempt.request, self.turn.life = step, PodLife.ENDING
        elif answer in {EvictionAnswer.GONE, EvictionAnswer.REPLACED}:
            self.turn.life = PodLife.GONE
        else:
            attempt.refused, self.blocked[pod] = True, now + BLOCKED_SECONDS
            # As many refusals end a turn, whether by a dry run or by a request.
            self.turn.asked += 1

    def failed(self, step: Step, now: float, *, unsure: bool, refused: bool) -> None:
        """Remember that a step failed. `unsure`: it may yet be executed. `refused`: nor will it be later."""
        self.turn.life = None
        if isinstance(step, Record) and unsure:
            # It counts, and is met again like that of an earlier leader.
            self.attempt = Attempt(step.victim, now)
        elif isinstance(step, Evict) and self.attempt is not None:
            self.attempt.refused = refused
            if unsure:
                self.attempt.request, self.attempt.unsure = step, True


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node under memory pressure at one moment."""

    now: float
    report: state.PressureReport | None
    """The report in its state; None without pressure."""
    victim: state.EvictedPod | None = None
    """The record in its state."""
    enforce: bool = False
    """Whether pods of the node are evicted (mode Enforce). Else they are only named."""
    asks: bool = True
    """Whether dry runs are allowed."""
    current: bool = True
    """Whether its agent is Ready and, to evict pods, reports by the profile in force."""
    untainted: bool = False
    """Whether it still lacks the taint of its profile: without it, the next pod may land here again."""
    wide: bool = False
    """Whether most nodes of its profile are under pressure (limits.is_widespread)."""
    settling: bool = False
    """Whether an eviction from the node has yet to show (limits.Evictions)."""
    kubelet: bool = False
    """Whether the kubelet evicts pods of the node (limits.Evictions)."""
    limited: Limited | None = None
    """The limit that forbids another eviction now (limits.Evictions)."""
    bounds: Eviction = Eviction()


def next_step(node: NodePressure, seen: Situation) -> Step:
    """Return the next step of a turn: of the first row that applies.

    | eviction of the node   | observed                                             | step                            |
    |------------------------|------------------------------------------------------|---------------------------------|
    | none, or of other pod  | a record                                             | Adopt it                        |
    | any                    | no record                                            | Adopt that                      |
    | refused                |                                                      | Clear                           |
    | recorded               | nobody has looked at the pod in this turn            | LookAtPod                       |
    | requested              | the pod ends or is gone, which nobody has announced  | Announce                        |
    | recorded               | the pod is gone                                      | Clear (Gone, if not announced)  |
    | recorded               | the pod runs, no pressure to evict pods by           | Clear (Cancelled)               |
    | recorded               | the pod runs under pressure, pods were not read      | Read                            |
    | recorded               | the pod runs and still exceeds                       | Evict                           |
    | recorded               | the pod runs and no longer exceeds                   | Clear (Cancelled)               |

    A recorded pod that ends, or runs while the report does not count yet, is left alone. Then the report is next:

    | eviction of the node   | observed                                             | step                            |
    |------------------------|------------------------------------------------------|---------------------------------|
    | any                    | no report, or one that was decided on (Enforce)      | Rest                            |
    | by this report         |                                                      | Conclude without a reason       |
    | any                    | the profile's taint is about to come (Enforce)       | Rest a moment                   |
    | any                    | something forbids all evictions                      | Conclude (the reason)           |
    | none                   | pods were not read                                   | Read                            |
    | none                   | all are spared or blocked, or a pod is about to end  | Conclude (the reason)           |
    | none                   | the first pod, without dry runs                      | Conclude (Observe)              |
    | none                   | the first pod, and no dry run has allowed it         | Ask                             |
    | none                   | the same, after MAX_ASKED dry runs                   | Conclude (Blocked)              |
    | none                   | the first pod, allowed, in mode Observe              | Conclude (Observe)              |
    | none                   | the first pod, allowed                               | Record                          |
    """
    attempt = node.attempt
    if seen.victim != (None if attempt is None else attempt.victim):
        return Adopt(seen.victim)
    step = None if attempt is None else _finish(node, attempt, seen)
    return step if step is not None else _decide(node, seen)


def _finish(node: NodePressure, attempt: Attempt, seen: Situation) -> Step | None:  # noqa: PLR0911 the first table's rows
    """Return the next step of an eviction under way; None if it only has to wait."""
    life, ranked = node.turn.life, node.turn.ranked
    if attempt.refused:
        return Clear(None, attempt.unsure)
    if life is None:
        return LookAtPod(attempt.victim)
    if life is not PodLife.ALIVE:
        if attempt.request is not None and not attempt.announced:
            return Announce(attempt.request)
        # The kubelet evicts too: for the pod that it evicted, the API server would take the request, and delete it.
        if life is PodLife.GONE:
            return Clear(None if attempt.announced else "Gone", counts=True)
        return None
    cancel = Clear("Cancelled", attempt.unsure)
    if seen.report is None or not node.seq or not seen.enforce:
        return cancel
    chosen_now = node.turn.recorded
    if not chosen_now and not _counts(node, seen):
        # Whether the pressure lasts is known after the agent's next report: the last one is old, or of an earlier term.
        return None if seen.now - attempt.since < PATIENCE_SECONDS else cancel
    if seen.kubelet or (seen.wide and not chosen_now):
        return cancel
    if ranked is None:
        return Read()
    chosen = next((one for one in ranked if one.pod.uid == attempt.victim.uid and one.spared is None), None)
    return cancel if chosen is None else Evict(chosen, seen.report)


def _decide(node: NodePressure, seen: Situation) -> Step:  # noqa: PLR0911 the second table's rows
    """Return the next step of the decision on the last report."""
    turn, report = node.turn, seen.report
    if report is None or not node.seq or (seen.enforce and node.decided):
        return Rest()
    if turn.recorded and node.attempt is not None:
        return Conclude(None)
    if seen.enforce and seen.untainted and seen.now - node.arrived < TAINT_SECONDS:
        return Rest(TAINT_SECONDS / 4)
    if (reason := _forbids(node, seen)) is not None:
        return Conclude(reason)
    if turn.ranked is None:
        return Read()
    # A pod that ends is waited for as long as one that is evicted may take: anybody can give a pod years to end, and
    # delete it.
    since = seen.now if node.ending_since is None else node.ending_since
    patient = seen.now - since <= seen.bounds.grace + seen.bounds.settle
    chosen = choose(turn.ranked, node.blocked, patient=patient)
    if isinstance(chosen, HoldReason):
        return Conclude(chosen)
    if not seen.asks:
        return Conclude(OBSERVE, chosen)
    pod = chosen.pod
    if turn.allowed != pod.uid:
        return Ask(chosen) if turn.asked < MAX_ASKED else Conclude(HoldReason.BLOCKED)
    if not seen.enforce:
        return Conclude(OBSERVE, chosen, allowed=True)
    return Record(state.EvictedPod(pod.uid, pod.namespace, pod.name, report.seq))


def _counts(node: NodePressure, seen: Situation) -> bool:
    """Return whether the last report may be acted on: to evict pods, it must be recent."""
    return node.fresh and seen.current and not (seen.enforce and seen.now - node.arrived > STALE_SECONDS)


def _forbids(node: NodePressure, seen: Situation) -> HoldReason | None:
    """Return the reason to hold whatever the node's pods are: then nobody needs to read them."""
    if not _counts(node, seen):
        return HoldReason.STALE
    if seen.enforce and (seen.settling or seen.victim is not None):
        return HoldReason.SETTLING
    if seen.kubelet:
        return HoldReason.KUBELET_EVICTING
    if seen.wide:
        return HoldReason.WIDESPREAD
    return seen.limited if seen.enforce else None


def choose(ranked: Sequence[Ranked], blocked: Collection[str], *, patient: bool = True) -> Ranked | HoldReason:
    """Return the pod that would leave its node first, or why none does.

    `blocked` are UIDs of pods that the API server would not evict now. Unless it is `patient`, it waits for no pod that
    is about to end.
    """
    if patient and is_one_ending(ranked):
        return HoldReason.POD_TERMINATING
    able = [one for one in ranked if one.spared is None]
    if not able:
        return HoldReason.NO_CANDIDATE
    return next((one for one in able if one.pod.uid not in blocked), HoldReason.BLOCKED)


def is_one_ending(ranked: Sequence[Ranked]) -> bool:
    """Return whether a pod is about to end whose memory the node would notice."""
    return any(one.pod.ending and one.measured is not None and not one.small for one in ranked)
