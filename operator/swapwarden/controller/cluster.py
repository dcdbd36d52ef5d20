"""What is known of the cluster, and what follows from it for each node. No I/O and no clock."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

import msgspec

from swapwarden.api import names, state
from swapwarden.controller.inventory import states
from swapwarden.policy import plan, rollout
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.plan import NodePlan
from swapwarden.policy.profile import compiled, overrides, requirements
from swapwarden.policy.swap import limits

COALESCE_SECONDS: Final = 0.025
"""How long changes of a node's pods gather before they are written: etcd stores the whole object with each write."""


PATIENT_SECONDS: Final = 1.0
"""The same where nothing but the start of a pod's containers, or its end, is new: the pod's own limit stands already,
and a pod's containers start one after the other."""


class Governed(msgspec.Struct, frozen=True):
    """A node that a profile governs, and how far it is with it."""

    node: str
    applied: bool
    """Whether its agent says that the cgroups hold a plan by this generation of the profile."""
    degraded: str
    """What its agent says is wrong; empty where nothing is."""
    pending: str = ""
    """Why it has not applied the plan; empty where it has."""
    incompatible: str = ""
    """Why its agent can do nothing there; empty where it can."""
    has_agent: bool = True
    unmet: str = ""
    """What its profile requires and it does not have; empty where it has all, and where swap is off."""


Overdue = AbstractSet[tuple[str, bool]]
"""Nodes whose agents have not answered for long: after their turn had come (True), or before."""


class Dirty(Protocol):
    """Has a node looked at in `delay` seconds; where that is `urgent`, before others.

    `owner` is the namespace for whose pods it is; empty where it is for no pod's sake.
    """

    def __call__(self, name: str, delay: float, /, *, urgent: bool = False, owner: str = "") -> None: ...


class Cluster:
    """Rows of Nodes, Pods, states and profiles, and the index from nodes to their pods.

    `dirty` is called when the plan of a node may have become another, `reported()` when what agents or selections say
    of profiles may have. Agents are pods in the namespace `agent_pods`, or run outside of pods where that is None.
    """

    def __init__(self, dirty: Dirty, reported: Callable[[], None], *, agent_pods: str | None = None) -> None:
        self._dirty = dirty
        self._reported = reported
        self._agent_pods = agent_pods
        self.restoring = False
        """Whether all nodes are to put back what was there, instead of their plans."""
        self.nodes: dict[str, nodes.NodeRow] = {}
        self._pods: dict[str, dict[str, pods.PodRow]] = {}
        # How many pods of a node have not ended: to count them anew with each one that comes would, of 100,000 on one
        # node, hold up everything else for minutes.
        self._unended: collections.Counter[str] = collections.Counter()
        self._states: dict[str, states.StateRow] = {}
        # What states said whose agents had reported, while those that are there now do not: with the UID of the Node,
        # and without the plan itself.
        self._last: dict[str, tuple[str, states.StateRow]] = {}
        self._written: dict[str, states.StateRow] = {}
        self._profiles: dict[str, compiled.Profile] = {}
        self._history: Mapping[state.ProfileRef, compiled.Profile] = {}
        # Nodes that may follow the profile that selects them, before their state says so.
        self._turns: dict[str, compiled.Profile] = {}
        self._namespaces: namespaces.Labels | None = None
        self._selections: dict[str, compiled.Selection] = {}

    # What the watches say

    def node_changed(self, name: str, _: nodes.NodeRow | None, new: nodes.NodeRow | None) -> None:
        """A Node is another now, or gone (None)."""
        self._selections.pop(name, None)
        before = self.nodes.get(name)
        if new is None:
            self.nodes.pop(name, None)
            self._turns.pop(name, None)
            self._last.pop(name, None)
        else:
            self.nodes[name] = new
            if before is None or before.uid != new.uid:
                found = self._pods.get(name, {})
                found.update({key: row.on(new.uid) for key, row in found.items()})
            self._check_turn(name)
        # One that is gone, too: what was remembered of it must go with it.
        self._dirty(name, COALESCE_SECONDS)
        self._reported()

    def pod_changed(self, key: str, old: pods.PodRow | None, new: pods.PodRow | None) -> None:
        """A Pod is another now, or gone (None); `key` is its namespace and name."""
        if old is not None and old.node and (new is None or new.node != old.node):
            self._put(old.node, key, None)
            self._dirty(old.node, PATIENT_SECONDS, owner=old.namespace)
        if new is not None and new.node:
            node = self.nodes.get(new.node)
            self._put(new.node, key, new.on(node.uid) if node is not None else new)
            urgent = self._is_urgent(new) and (old is None or old.node != new.node)
            if self._is_crowded(new.node):
                # Each write moves a large object, and most of these pods never run: whoever makes them must not have
                # the API server, and this process, work on this node alone.
                self._dirty(new.node, PATIENT_SECONDS, urgent=urgent, owner=new.namespace)
            elif urgent:
                self._dirty(new.node, 0.0, urgent=True, owner=new.namespace)
            else:
                # Under behavior Kubelet a container's own limit may be all that limits it.
                patient = old is not None and not new.limited() and pods.only_started(old, new)
                self._dirty(new.node, PATIENT_SECONDS if patient else COALESCE_SECONDS, owner=new.namespace)
        if self._agent_on(old) != self._agent_on(new):
            self._reported()

    def _put(self, node: str, key: str, row: pods.PodRow | None) -> None:
        """Keep a pod of a node, or forget it (None)."""
        found = self._pods.setdefault(node, {})
        before = found.get(key)
        if row is not None:
            found[key] = row
        else:
            found.pop(key, None)
        self._unended[node] += _has_not_ended(row) - _has_not_ended(before)
        if not found:
            del self._pods[node], self._unended[node]

    def _is_crowded(self, node: str) -> bool:
        """Whether there are more pods than a state has room for; those that ended need none."""
        return self._unended[node] > state.MAX_PODS

    def namespaces_known(self, known: namespaces.Labels | None) -> None:
        """These are all Namespaces, now and as long as nothing else is said; None: they are not known."""
        self._namespaces = known
        if known is not None:
            for name in self.nodes:
                if self._asks_for_namespaces(name):
                    self._dirty(name, COALESCE_SECONDS)

    def namespace_changed(self, namespace: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> None:
        """A Namespace has other labels now, or has come, or is gone (None)."""
        if self._namespaces is None:
            return
        concerned = {
            plan.reference(profile)
            for profile in (*self._profiles.values(), *self._history.values())
            if profile.needs_namespaces() and profile.overrides_in(old) != profile.overrides_in(new)
        }
        if not concerned:
            return
        for name, found in self._pods.items():
            if (
                name in self.nodes
                and any(plan.reference(profile) in concerned for profile in self._planned_by(name))
                and any(row.namespace == namespace for row in found.values())
            ):
                self._dirty(name, COALESCE_SECONDS, owner=namespace)

    def state_changed(self, name: str, old: states.StateRow | None, new: states.StateRow | None) -> None:
        """A NodeSwapState is another now, or gone (None)."""
        before, last = self.state_of(name), self.standing(name)
        if new is None:
            if old is not None:
                self.lost(name, old.uid)
        else:
            self._states[name] = new
            if name in self._written and new.version >= self._written[name].version:
                del self._written[name]
        after = self.state_of(name)
        self._keep(name, last)
        self._note(name, after)
        awaited = after is not None and (
            (self.is_awaited(name) and after.settled) or (after.applied and self._waits_to_show(name))
        )
        if after is None or before is None or _planned_from(before) != _planned_from(after) or awaited:
            self._dirty(name, COALESCE_SECONDS)

    def profiles_changed(
        self,
        found: Mapping[str, compiled.Profile],
        history: Mapping[state.ProfileRef, compiled.Profile] | None = None,
    ) -> None:
        """These are the profiles now, by name; `history` has what they said in earlier generations."""
        self._history = history or {}
        if found == self._profiles:
            return
        self._profiles = dict(found)
        before, self._selections = self._selections, {}
        for name in self.nodes:
            if name not in before or before[name].profile != self.selection(name).profile:
                self._dirty(name, COALESCE_SECONDS)
        for name in list(self._turns):
            self._check_turn(name)
        self._reported()

    # What this controller did

    def wrote(self, row: states.StateRow) -> bool:
        """The API server's answer to a write, or to a GET; whether it is newer than what was known."""
        before, last = self.state_of(row.name), self.standing(row.name)
        if before is not None and row.version <= before.version:
            return False
        self._written[row.name] = row
        self._keep(row.name, last)
        self._note(row.name, row)
        if row.facts != (before.facts if before else None):
            # The agent reported while the write was on its way: what was written was planned without that.
            self._dirty(row.name, COALESCE_SECONDS)
        return True

    def labelled(self, before: nodes.NodeRow, labels: Mapping[str, str | None]) -> None:
        """This controller set these labels of a Node, or took them away (None); the watch is yet to tell.

        `before` is the row that this was decided from. Where the watch has told of another one meanwhile, that counts:
        it may be newer than the answer, and nothing would be told of it again.
        """
        if self.nodes.get(before.name) is before:
            merged = {key: value for key, value in {**before.labels, **labels}.items() if value is not None}
            self.nodes[before.name] = msgspec.structs.replace(before, labels=merged)

    def tainted(self, before: nodes.NodeRow, taints: tuple[nodes.WireTaint, ...]) -> None:
        """A Node has these taints after a write of this controller; as in labelled()."""
        if self.nodes.get(before.name) is before:
            self.nodes[before.name] = msgspec.structs.replace(before, taints=taints)

    def offered(self, before: nodes.NodeRow, amount: int | None) -> None:
        """A Node offers so much of the extended resource after a write of this controller; as in labelled()."""
        if self.nodes.get(before.name) is before:
            self.nodes[before.name] = msgspec.structs.replace(before, swap_resource=amount)

    def lost(self, name: str, uid: str) -> None:
        """The node's state with this uid is gone. One that was made since, of which the watch is yet to tell, stays."""
        last = self.standing(name)
        for known in (self._states, self._written):
            if name in known and known[name].uid == uid:
                del known[name]
        self._keep(name, last)

    def standing(self, name: str) -> states.StateRow | None:
        """A node's state with what its agent reported last, also where that was deleted; None where none is known.

        Where it was made anew, and its agent has yet to report, the profile that it names is its own, and what an agent
        says is as before.
        """
        row, node = self.report_of(name), self.nodes.get(name)
        uid, last = self._last.get(name, ("", None))
        if node is None or last is None or uid != node.uid:
            return row
        if row is None:
            return last
        facts = row.facts if row.facts is not None else last.facts
        if row.observed:
            return msgspec.structs.replace(row, facts=facts)
        asked = {"profile": row.profile, "before": row.before, "proposed": row.proposed}
        return msgspec.structs.replace(last, **asked, facts=facts, generation=last.observed + 1)

    def _keep(self, name: str, last: states.StateRow | None) -> None:
        """Remember what a node's state said until its agent has reported all of it anew."""
        row, node = self.report_of(name), self.nodes.get(name)
        anew = row is not None and row.observed and row.facts is not None
        if anew or node is None or last is None or not (last.observed or last.facts is not None):
            self._last.pop(name, None)
        else:
            self._last[name] = node.uid, msgspec.structs.replace(last, spec=b"")

    def begin_term(self, turns: dict[str, compiled.Profile]) -> None:
        """Keep there whose turn comes; what came in an earlier term is forgotten: others may have led since."""
        self._turns = turns

    def _note(self, name: str, row: states.StateRow | None) -> None:
        # A turn is for once: a node that leaves the profile and comes back has to wait for another.
        turn = self._turns.get(name)
        if row is not None and turn is not None and row.profile == plan.reference(turn):
            del self._turns[name]
        self._reported()

    # What follows

    def state_of(self, name: str) -> states.StateRow | None:
        """The newest that is known of a node's state."""
        return self._written.get(name) or self._states.get(name)

    def report_of(self, name: str) -> states.StateRow | None:
        """A node's state, to read what its agent reports; None while it belongs to an earlier Node of that name.

        The garbage collector is about to delete that one: what an agent found on another machine says nothing of this.
        """
        node, row = self.nodes.get(name), self.state_of(name)
        return row if node is not None and row is not None and row.owner in {"", node.uid} else None

    def is_awaited(self, name: str) -> bool:
        """Whether a node carries the startup taint: pods wait for its agent."""
        node = self.nodes.get(name)
        return node is not None and node.place(names.STARTUP_TAINT) is not None

    def _waits_to_show(self, name: str) -> bool:
        """Whether a node is to have a taint or a resource, by its profile, that it does not have yet."""
        node = self.nodes.get(name)
        if node is None:
            return False
        profile = self.in_force(name)
        taint = profile.taint_effect is not None and node.place(names.SWAP_TAINT) is None
        return taint or (profile.extended_resource and node.swap_resource is None)

    def largest_epoch(self) -> int:
        """The largest leadership term in any state; 0 where there is none."""
        return max((row.epoch for known in (self._states, self._written) for row in known.values()), default=0)

    def pods_on(self, name: str) -> Iterable[pods.PodRow]:
        """The pods of a node, ended ones included."""
        return self._pods.get(name, {}).values()

    def is_urgent(self, name: str) -> bool:
        """Whether a node has pods that must not swap."""
        return any(self._is_urgent(row) for row in self.pods_on(name))

    def facts(self, name: str) -> nodes.NodeFacts:
        """What decisions about a known node are made from.

        What its agent found counts as long as the Node is there, also where the state is deleted: another agent, or
        none, does not make another machine of it.
        """
        row = self.standing(name)
        return nodes.facts(self.nodes[name], row.facts if row is not None else None)

    def selection(self, name: str) -> compiled.Selection:
        """The profile that governs a known node."""
        found = self._selections.get(name)
        if found is None:
            found = self._selections[name] = compiled.select(self._profiles.values(), self.nodes[name].labels)
        return found

    def in_force(self, name: str) -> compiled.Profile:
        """The profile that a known node follows: the one that its state names, until its turn comes for another.

        Of a state that was deleted, what it said last counts. Where nobody knows any more what that profile said, and
        where no profile selects the node, the turn comes at once.
        """
        target, row = self.selection(name).profile, self.standing(name)
        wanted = plan.reference(target)
        # Where no agent has ever answered, a plan does nothing, good or bad.
        if row is None or row.observed == 0 or target == compiled.BUILT_IN:
            return target
        if row.profile == wanted or self._has_turn(name):
            return target
        return self._recall(row.profile) or target

    def _recall(self, reference: state.ProfileRef) -> compiled.Profile | None:
        """What a profile said in some generation; None where that is not known."""
        for known in (self._profiles.get(reference.name), compiled.BUILT_IN):
            if known is not None and plan.reference(known) == reference:
                return known
        return self._history.get(reference)

    def selections(self) -> Iterator[tuple[str, compiled.Selection]]:
        """Yield each node that a profile governs, the built-in one left out."""
        for name in self.nodes:
            selection = self.selection(name)
            if selection.profile.name != names.BUILT_IN_PROFILE:
                yield name, selection

    def rollout_of(
        self, profile: compiled.Profile, found: Iterable[str], overdue: Overdue = frozenset()
    ) -> rollout.Progress:
        """Where the rollout of a profile stands; `found` are the nodes that it governs."""
        wanted = plan.reference(profile)
        members = [self._member(name, wanted, overdue) for name in found]
        return rollout.progress(members, profile.max_unavailable, hold=profile.hold)

    def advance(self, judged: compiled.Profile, found: Collection[str], overdue: Overdue = frozenset()) -> None:
        """It is these nodes' turn to follow the profile as it was judged, where they would be next now, too.

        Since then the profile may have become another, or a node degraded.
        """
        if not found or self._profiles.get(judged.name) != judged:
            return
        members = [name for name, selection in self.selections() if selection.profile.name == judged.name]
        for name in self.rollout_of(judged, members, overdue).next:
            if name in found:
                self._turns[name] = judged
                self._dirty(name, COALESCE_SECONDS)

    def _has_turn(self, name: str) -> bool:
        """Whether the turn of a known node has come to follow the profile that selects it."""
        turn, target = self._turns.get(name), self.selection(name).profile
        return turn is not None and (turn.uid, plan.reference(turn)) == (target.uid, plan.reference(target))

    def _check_turn(self, name: str) -> None:
        """Drop a turn that is for another profile than selects the node now: should it be selected again, it waits."""
        if name in self._turns and not self._has_turn(name):
            del self._turns[name]

    def _member(self, name: str, wanted: state.ProfileRef, overdue: Overdue) -> rollout.Member:
        row = self.standing(name)
        if row is None or row.observed == 0:
            return rollout.Member(name, updated=True, silent=True)
        named, turned = row.profile == wanted, self._has_turn(name)
        cost = row.cost if row.cost is not None and row.cost.profile == wanted else None
        return rollout.Member(
            name,
            updated=named or turned,
            answered=row.acted == row.profile and (named or not turned),
            degraded=degraded_for(row),
            before=row.before if named else _wrong(row, wanted),
            overdue=(name, named or turned) in overdue,
            asked=_has_answered(row, wanted),
            pods=cost.pods if cost else 0,
            bytes=cost.bytes if cost else 0,
        )

    def _before(self, name: str, planned: state.ProfileRef) -> list[str]:
        """What was wrong on a node before this generation of a profile came to it."""
        row = self.standing(name)
        if row is None or row.observed == 0:
            return []
        return list(row.before if row.profile == planned else _wrong(row, planned))

    def needs_namespaces(self) -> bool:
        """Whether the overrides of some profile ask for labels of Namespaces, as it is or as some node follows it."""
        asking = {named for named, profile in self._history.items() if profile.needs_namespaces()}
        followed = (row.profile in asking for name in self.nodes if (row := self._naming(name)) is not None)
        return any(profile.needs_namespaces() for profile in self._profiles.values()) or (
            bool(asking) and any(followed)
        )

    def lacks_namespaces(self, name: str) -> bool:
        """Whether a known node cannot be planned before all Namespaces are known."""
        return self._namespaces is None and not self.restoring and self._asks_for_namespaces(name)

    def _asks_for_namespaces(self, name: str) -> bool:
        return any(profile.needs_namespaces() for profile in self._planned_by(name))

    def _planned_by(self, name: str) -> tuple[compiled.Profile, compiled.Profile]:
        """The profiles that a known node's plan is made from: what it follows, and what is to come."""
        return self.in_force(name), self.selection(name).profile

    def plan(self, name: str) -> state.StateSpec:
        """What a known node's state should say; the epoch is left at 0."""
        return self.plan_all(name).spec

    def plan_all(self, name: str) -> NodePlan:
        """What a known node's state should say, and the pods for which it has no room."""
        profile = self.in_force(name)
        if self.restoring:
            return NodePlan(plan.restore_node(profile))
        made = plan.plan_all(profile, self.facts(name), self.pods_on(name), self._namespaces or {})
        if profile != compiled.BUILT_IN and (before := self._before(name, made.spec.profile)):
            made = made._replace(spec=msgspec.structs.replace(made.spec, degraded_before=before))
        target = self.selection(name).profile
        if made.spec.profile == plan.reference(target):
            return made
        coming = plan.plan_node(target, self.facts(name), self.pods_on(name), self._namespaces or {})
        proposal = plan.proposal(made.spec, coming)
        return made._replace(spec=msgspec.structs.replace(made.spec, proposal=proposal))

    def generations(self) -> dict[str, collections.Counter[int]]:
        """How many states name which generation of each profile, by the profile's name."""
        named: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        for name in self.nodes:
            row = self._naming(name)
            if row is not None:
                named[row.profile.name][row.profile.generation] += 1
        return named

    def _naming(self, name: str) -> states.StateRow | None:
        """What names the profile that a node follows: its state, or one that was deleted."""
        return self.state_of(name) or self.standing(name)

    def governed(self, name: str) -> Governed:
        """How far a known node is with its profile."""
        row = self.report_of(name)
        pending = self._pending(name)
        return Governed(
            name,
            applied=not pending,
            degraded=row.degraded if row else "",
            pending=pending,
            incompatible=row.incompatible if row else "",
            has_agent=self.has_agent(name),
            unmet=self._unmet(name),
        )

    def _unmet(self, name: str) -> str:
        facts = self.facts(name)
        found = requirements.unmet(self.selection(name).profile, facts) if facts.swap_bytes else None
        return "; ".join(f"{requirement}: {text}" for requirement, text in (found or {}).items())

    def is_applied(self, name: str) -> bool:
        """Whether a known node's agent says that the cgroups hold a plan by the profile that its state names."""
        row = self.report_of(name)
        return row is not None and row.applied and row.acted == row.profile

    def has_agent(self, name: str) -> bool:
        """Whether an agent is at work on a node: its pod is Ready there; or, of agents outside of pods, it ever was."""
        if self._agent_pods is not None:
            return any(self._agent_on(row) for row in self.pods_on(name))
        row = self.report_of(name)
        return row is not None and row.observed > 0

    def _agent_on(self, row: pods.PodRow | None) -> str:
        """The node that a pod is a Ready agent on; empty where it is none."""
        return row.node if row is not None and row.agent and row.namespace == self._agent_pods else ""

    def _pending(self, name: str) -> str:
        """Why a known node has not applied a plan by this generation of its profile; empty where it has."""
        row = self.report_of(name)
        wanted = plan.reference(self.selection(name).profile)
        if plan.reference(self.in_force(name)) != wanted:
            return "its turn has not come"
        if row is None or row.profile != wanted:
            return "its plan is not written yet"
        if row.acted != row.profile:
            return "its agent has not seen the plan yet"
        return "" if row.applied else row.unapplied or "its agent has not reported yet"

    def _is_urgent(self, row: pods.PodRow) -> bool:
        """Whether a new pod must not wait for others: each moment it could swap although it may not."""
        if row.terminal or limits.forbids_swap(row.policy):
            return not row.terminal
        if row.node not in self.nodes:
            return False
        profile = self.in_force(row.node)
        try:
            place = overrides.find(profile, row, self._namespaces or {})
        except overrides.UnknownNamespaceError:
            return False
        return place is not None and profile.overrides[place].policy is names.Policy.DISABLED


def _has_not_ended(row: pods.PodRow | None) -> bool:
    return row is not None and not row.terminal


def degraded_for(row: states.StateRow) -> str:
    """Why a node's agent says that it is degraded, as far as it is compared with what it is later."""
    return row.degraded.partition(":")[0][: state.MAX_REASON]


def _has_answered(row: states.StateRow, wanted: state.ProfileRef) -> bool:
    """Whether a node's agent has said what this profile would take from its pods, or cannot say it."""
    # An agent of an older version takes the state, and does not answer what it does not know.
    mute = row.cost is None and row.observed >= row.generation
    return row.proposed == wanted and (mute or (row.cost is not None and row.cost.profile == wanted))


def _wrong(row: states.StateRow, wanted: state.ProfileRef) -> tuple[str, ...]:
    """What is wrong on a node that is yet to follow this profile."""
    silent = row.acted != row.profile or not _has_answered(row, wanted)
    return tuple(filter(None, (degraded_for(row), rollout.NO_ANSWER if silent else "")))


def _planned_from(row: states.StateRow) -> tuple[object, ...]:
    """The part of a state that a difference between plan and state can come from."""
    return row.uid, row.owner, row.spec, row.facts
