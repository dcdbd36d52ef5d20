"""The profile that each node follows, all inputs of its reconcile, computed once, and what follows for its state."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from swapwarden.api import names, state
from swapwarden.policy import plan
from swapwarden.policy.fleet import rollout
from swapwarden.policy.fleet.inventory import NodeInventory
from swapwarden.policy.node import labels, settings
from swapwarden.policy.node.observations import NodeProblem
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.observed.states import StateRow
from swapwarden.policy.plan import NodePlan
from swapwarden.policy.profile import compiled, overrides
from swapwarden.policy.swap import limits


class Admissions:
    """The admissions of one term: nodes that may follow another profile, or leave one that is being deleted.

    The next leader may know of other problems, so it admits by itself.
    """

    def __init__(self) -> None:
        self.turns: dict[str, compiled.Profile] = {}
        """Nodes that may follow the profile that selects them, before their state says so."""
        self._left: dict[str, set[str]] = {}

    def admit(self, admitted: Collection[str], profile: compiled.Profile) -> None:
        """Let these nodes follow the profile."""
        self.turns.update(dict.fromkeys(admitted, profile))

    def release(self, released: Collection[str], ending: compiled.Profile) -> None:
        """Let these nodes leave a profile that is being deleted."""
        self.admit(released, compiled.BUILT_IN)
        self._left.setdefault(ending.uid, set()).update(released)

    def left(self, uid: str) -> Collection[str]:
        """Return the nodes that were admitted to leave the profile with this UID."""
        return self._left.get(uid, ())

    def has_left(self, name: str) -> bool:
        """Return whether a node was admitted to leave a profile."""
        return any(name in left for left in self._left.values())

    def is_admitted(self, name: str, target: compiled.Profile) -> bool:
        """Return whether a node is admitted to this profile in this generation."""
        turn = self.turns.get(name)
        return turn is not None and (turn.uid, plan.reference(turn)) == (target.uid, plan.reference(target))

    def state_named(self, row: StateRow) -> None:
        """Use up the admission of a node whose state names its profile: a node that returns waits for a new one."""
        turn = self.turns.get(row.name)
        if turn is not None and row.profile == plan.reference(turn):
            del self.turns[row.name]

    def withdraw(self, name: str) -> None:
        """Drop a node's admission."""
        self.turns.pop(name, None)

    def keep_ending(self, uids: Collection[str]) -> None:
        """Forget which nodes left profiles that no longer exist."""
        self._left = {uid: left for uid, left in self._left.items() if uid in uids}


class NodeView(msgspec.Struct, frozen=True):
    """A node with all inputs of the decisions about it."""

    node: nodes.NodeRow
    pods: Collection[pods.PodRow]
    """Ended ones included."""
    state: StateRow | None
    """The node's newest known state; it and the next two are an inventory.KnownStates."""
    report: StateRow | None
    """The node's state, to read its agent's report; None while that belongs to an earlier Node of that name."""
    standing: StateRow | None
    """The node's state with the agent's last report, even if that state was deleted."""
    has_agent: bool
    """Whether a Ready agent is on it."""
    facts: nodes.NodeFacts
    target: compiled.Profile
    """The profile that selects it."""
    profile: compiled.Profile
    """The profile in force: the one that it follows until it is admitted to another."""
    namespaces: namespaces.Labels
    lacks_namespaces: bool
    """Whether it cannot be planned before all Namespaces are known."""
    restoring: bool
    leaving: bool
    """Whether it leaves a profile that is being deleted, or left it lately."""
    refused: bool
    """Whether the profile that its state names has settings that are unsafe for it."""

    @property
    def enforced(self) -> bool:
        """Whether its agent enforces a plan by the profile that its state names."""
        return self.report is not None and self.report.enforced and self.report.acted == self.report.profile


class Planner:
    """The profiles, and the decisions that follow from them for the nodes of an inventory."""

    def __init__(self, inventory: NodeInventory) -> None:
        self.inventory = inventory
        self.restoring = False
        """Whether all nodes must restore their original values, in place of their plans."""
        self.profiles: dict[str, compiled.Profile] = {}
        self.ending: dict[str, compiled.Profile] = {}
        """Profiles that are being deleted, by name: they select no node, and the nodes that follow them wait to
        leave."""
        self._history: Mapping[state.ProfileRef, compiled.Profile] = {}
        self.admissions = Admissions()
        """The admissions of this term; empty while this instance does not lead."""
        self.namespaces: namespaces.Labels | None = None
        self._selections: dict[str, compiled.Selection] = {}

    def set_profiles(
        self,
        profiles: Mapping[str, compiled.Profile],
        history: Mapping[state.ProfileRef, compiled.Profile],
        ending: Mapping[str, compiled.Profile],
    ) -> list[str] | None:
        """Take in the profiles by name; `history` has their earlier generations.

        Return the nodes that another profile selects now, or whose profile no longer exists; None if nothing has
        changed.
        """
        self._history = history
        if profiles == self.profiles and ending == self.ending:
            return None
        gone = self.ending.keys() - ending.keys()
        self.admissions.keep_ending({profile.uid for profile in ending.values()})
        self.profiles, self.ending = dict(profiles), dict(ending)
        before, self._selections = self._selections, {}
        freed = {
            name for name in self.inventory.nodes if (row := self.inventory.naming(name)) and row.profile.name in gone
        }
        changed = [
            name
            for name in self.inventory.nodes
            if name in freed or name not in before or before[name].profile != self.selection(name).profile
        ]
        for name in list(self.admissions.turns):
            self.check_admission(name)
        return changed

    def node_changed(self, name: str) -> None:
        """Take in a changed or deleted Node."""
        self._selections.pop(name, None)
        if name not in self.inventory.nodes:
            self.admissions.withdraw(name)
        else:
            self.check_admission(name)

    def check_admission(self, name: str) -> None:
        """Drop an admission to a profile that no longer selects the node: if selected again, the node waits."""
        if name in self.admissions.turns and not self.is_admitted(name):
            self.admissions.withdraw(name)

    def is_admitted(self, name: str) -> bool:
        """Return whether a known node is admitted to the profile that selects it."""
        return self.admissions.is_admitted(name, self.selection(name).profile)

    def selection(self, name: str) -> compiled.Selection:
        """Return the profile that governs a known node."""
        selection = self._selections.get(name)
        if selection is None:
            labels = self.inventory.nodes[name].labels
            selection = self._selections[name] = compiled.select(self.profiles.values(), labels)
        return selection

    def in_force(self, name: str) -> compiled.Profile:
        """Return the profile that a known node follows: the one in its state, until it is admitted to another."""
        return self._in_force(name, self.inventory.known(name).standing, self.selection(name).profile)

    def _in_force(self, name: str, row: StateRow | None, target: compiled.Profile) -> compiled.Profile:
        """Return the profile that a known node follows; `row` is its standing state, `target` what selects it.

        The last content of a deleted state counts. If that profile is unknown, or no profile selects the node, the node
        is admitted at once, unless its profile is being deleted.
        """
        # As long as no agent has answered, a plan has no effect.
        if row is None or row.observed == 0:
            return target
        if target == compiled.BUILT_IN and row.profile.name not in self.ending:
            return target
        if row.profile == plan.reference(target) or self.admissions.is_admitted(name, target):
            return target
        return self._recall(row.profile) or target

    def _recall(self, reference: state.ProfileRef) -> compiled.Profile | None:
        """Return a profile in some generation; None if that is unknown."""
        for known in (self.profiles.get(reference.name), compiled.BUILT_IN):
            if known is not None and plan.reference(known) == reference:
                return known
        return self._history.get(reference)

    def facts(self, name: str) -> nodes.NodeFacts:
        """Return the view of a known node, from which all decisions are made.

        The facts of its agent count as long as the Node exists, even if the state is deleted: the machine is the same.
        """
        row = self.inventory.known(name).standing
        return nodes.facts(self.inventory.nodes[name], row.facts if row is not None else None)

    def view(self, name: str) -> NodeView | None:
        """Return all that is known of a node; None if the Node was deleted."""
        node = self.inventory.nodes.get(name)
        if node is None:
            return None
        known, target = self.inventory.known(name), self.selection(name).profile
        row = known.standing
        profile = self._in_force(name, row, target)
        facts = nodes.facts(node, row.facts if row is not None else None)
        return NodeView(
            node=node,
            pods=self.inventory.pods_on(name),
            state=known.state,
            report=known.report,
            standing=row,
            has_agent=self.inventory.has_agent(name),
            facts=facts,
            target=target,
            profile=profile,
            namespaces=self.namespaces or {},
            lacks_namespaces=self.namespaces is None
            and not self.restoring
            and any(one.needs_namespaces() for one in ((target,) if profile is target else (profile, target))),
            restoring=self.restoring,
            leaving=(row is not None and row.profile.name in self.ending) or self.admissions.has_left(name),
            refused=row is not None and self.refuses(row),
        )

    def refuses(self, row: StateRow) -> bool:
        """Return whether the profile in a known node's standing state has settings that are unsafe for the node."""
        named = self._recall(row.profile)
        if named is None or not named.node.kernel:
            return False
        facts = nodes.facts(self.inventory.nodes[row.name], row.facts)
        return bool(settings.plan_kernel(named.node.kernel, facts).refused)

    def waits_to_show(self, name: str) -> bool:
        """Return whether the profile asks for a taint or a resource that the node lacks."""
        node = self.inventory.nodes.get(name)
        if node is None:
            return False
        profile = self.in_force(name)
        if not profile.node.enforce or not labels.gives_swap(profile.swap, self.facts(name)):
            return False
        taint = profile.node.taint_effect is not None and node.place(names.SWAP_TAINT) is None
        return taint or (profile.node.extended_resource and node.swap_resource is None)

    def taints_pressure(self, name: str) -> bool:
        """Return whether the profile asks for a taint while the node is under memory pressure."""
        pressure = self.in_force(name).pressure if name in self.inventory.nodes else None
        return pressure is not None and pressure.taint is not None

    def is_urgent(self, row: pods.PodRow) -> bool:
        """Return whether a new pod precedes others because it must not swap."""
        if row.terminal or limits.forbids_swap(row.policy):
            return not row.terminal
        if row.node not in self.inventory.nodes:
            return False
        profile = self.in_force(row.node)
        try:
            place = overrides.find(profile, row, self.namespaces or {})
        except overrides.UnknownNamespaceError:
            return False
        return place is not None and profile.overrides[place].swap.policy is names.Policy.DISABLED

    # Namespaces

    def needs_namespaces(self) -> bool:
        """Return whether overrides of a profile, in a generation that is in use, select by labels of Namespaces."""
        asking = {named for named, profile in self._history.items() if profile.needs_namespaces()}
        followed = (
            row.profile in asking for name in self.inventory.nodes if (row := self.inventory.naming(name)) is not None
        )
        return any(profile.needs_namespaces() for profile in self.profiles.values()) or (bool(asking) and any(followed))

    def asks_for_namespaces(self, name: str) -> bool:
        """Return whether a known node's plan depends on labels of Namespaces."""
        return any(profile.needs_namespaces() for profile in self._planned_by(name))

    def affected_by_labels(
        self, namespace: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None
    ) -> list[str]:
        """Return the nodes with pods of a namespace whose plans differ by its `old` and `new` labels."""
        concerned = {
            plan.reference(profile)
            for profile in (*self.profiles.values(), *self._history.values())
            if profile.needs_namespaces() and profile.overrides_in(old) != profile.overrides_in(new)
        }
        if not concerned:
            return []
        return [
            name
            for name in self.inventory.hosting(namespace)
            if any(plan.reference(profile) in concerned for profile in self._planned_by(name))
        ]

    def _planned_by(self, name: str) -> tuple[compiled.Profile, compiled.Profile]:
        """Return the profiles that a known node's plan needs: the present one and the next one."""
        return self.in_force(name), self.selection(name).profile


def desired_state(view: NodeView) -> NodePlan:
    """Return the desired state of a node, with the epoch 0, and the pods for which it has no room."""
    if view.restoring:
        return NodePlan(plan.restore_node(view.profile))
    made = plan.plan_all(view.profile, view.facts, view.pods, view.namespaces)
    row = view.standing
    if (view.profile != compiled.BUILT_IN or view.leaving) and row is not None and row.observed:
        problems = list(before(row, made.spec.profile_ref, refused=view.refused))
        if problems:
            made = made._replace(spec=msgspec.structs.replace(made.spec, degraded_before=problems))
    if view.profile == view.target:
        return made
    coming = plan.plan_node(view.target, view.facts, view.pods, view.namespaces)
    return made._replace(spec=msgspec.structs.replace(made.spec, preview=plan.preview(made.spec, coming)))


def degraded(row: StateRow, *, refused: bool) -> tuple[str, ...]:
    """Return the problems of a node, in the form in which they are compared with later ones.

    `refused`: the profile that its state names has settings that are unsafe for it.
    """
    reported = row.degraded.partition(":")[0][: state.MAX_REASON]
    return tuple(filter(None, (reported, NodeProblem.SETTINGS_REFUSED if refused else "")))


def has_answered(row: StateRow, desired: state.ProfileRef) -> bool:
    """Return whether a node's agent has reported the cost of this profile for its pods, or cannot report it."""
    # An agent of an older version takes the state, and does not answer what it does not know.
    mute = row.cost is None and row.observed >= row.generation
    return row.preview == desired and (mute or (row.cost is not None and row.cost.profile_ref == desired))


def before(row: StateRow, desired: state.ProfileRef, *, refused: bool) -> tuple[str, ...]:
    """Return the problems of a node before it follows this generation of a profile, or before it did."""
    if row.profile == desired:
        return row.before
    silent = row.acted != row.profile or not has_answered(row, desired)
    return (*degraded(row, refused=refused), *([rollout.NO_ANSWER] if silent else []))
