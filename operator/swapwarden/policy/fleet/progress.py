"""The progress of all nodes with their profiles."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

import msgspec

from swapwarden.api import names, state
from swapwarden.api.conditions import ConditionType
from swapwarden.policy import plan
from swapwarden.policy.fleet import rollout
from swapwarden.policy.fleet.view import NodeView, Planner, before, degraded, has_answered
from swapwarden.policy.node import observations, settings
from swapwarden.policy.observed.states import StateRow
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import requirements
from swapwarden.policy.verdict import node


class Governed(msgspec.Struct, frozen=True):
    """A node that a profile governs, and its progress."""

    node: str
    applied: bool
    """Whether its agent reports that the cgroups hold a plan by this generation of the profile."""
    degraded: str
    """The problem that its agent reports; empty if there is none."""
    pending: str = ""
    """Why it has not applied the plan; empty if it has."""
    incompatible: str = ""
    """Why its agent can do nothing there; empty if it can."""
    has_agent: bool = True
    unmet: str = ""
    """The unmet requirements of its profile; empty if there are none, or swap is off."""
    refused: str = ""
    """Settings of its profile that are unsafe for it, with the reason; empty if there are none."""


Overdue = AbstractSet[tuple[str, bool]]
"""Nodes whose agents have not answered for long: after their admission (True), or before."""


def selections(planner: Planner) -> Iterator[tuple[str, compiled.Selection]]:
    """Yield each node that a profile governs, the built-in one left out."""
    for name in planner.inventory.nodes:
        selection = planner.selection(name)
        if selection.profile.name != names.BUILT_IN_PROFILE:
            yield name, selection


def rollout_of(
    planner: Planner, profile: compiled.Profile, governed_names: Iterable[str], overdue: Overdue = frozenset()
) -> rollout.RolloutProgress:
    """Return the progress of a profile's rollout over the nodes that it governs."""
    desired = plan.reference(profile)
    members = [_member(planner, name, desired, overdue) for name in governed_names]
    return rollout.progress(members, profile.max_unavailable, hold=profile.hold, paused=profile.paused)


def leaving(planner: Planner, profile: compiled.Profile) -> list[str]:
    """Return the nodes that leave a deleted profile, or left it lately, and that no other profile selects."""
    left = planner.admissions.left(profile.uid)
    return [
        name
        for name in planner.inventory.nodes
        if planner.selection(name).profile == compiled.BUILT_IN
        and (row := planner.inventory.known(name).standing) is not None
        and (row.profile.name == profile.name or name in left or _has_just_left(row, profile))
    ]


def _has_just_left(row: StateRow, profile: compiled.Profile) -> bool:
    """Return whether its agent still acts on this profile, which its state no longer names."""
    return row.acted is not None and row.acted.name == profile.name and row.acted != row.profile


def end_of(
    planner: Planner, profile: compiled.Profile, departing: Iterable[str], overdue: Overdue = frozenset()
) -> rollout.RolloutProgress:
    """Return the progress of a profile's end over the nodes that leave it.

    They return to the kubelet's values, whose cost no agent needs to report.
    """
    desired = plan.reference(compiled.BUILT_IN)
    members = [msgspec.structs.replace(_member(planner, name, desired, overdue), asked=True) for name in departing]
    return rollout.progress(members, profile.max_unavailable)


def _member(planner: Planner, name: str, desired: state.ProfileRef, overdue: Overdue) -> rollout.RolloutNode:
    # Not by a view, which looks through the pods of the node: this is about all nodes of a profile.
    row = planner.inventory.known(name).standing
    if row is None or row.observed == 0:
        return rollout.RolloutNode(name, updated=True, silent=True)
    named, turned, refused = row.profile == desired, planner.is_admitted(name), planner.refuses(row)
    cost = row.cost if row.cost is not None and row.cost.profile_ref == desired else None
    return rollout.RolloutNode(
        name,
        updated=named or turned,
        answered=row.acted == row.profile and (named or not turned),
        degraded=degraded(row, refused=refused),
        before=before(row, desired, refused=refused),
        overdue=(name, named or turned) in overdue,
        asked=has_answered(row, desired),
        pods=cost.pods if cost else 0,
        bytes=cost.bytes if cost else 0,
    )


def generations(planner: Planner) -> dict[str, collections.Counter[int]]:
    """Return how many states name which generation of each profile, by the profile's name."""
    named: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for name in planner.inventory.nodes:
        row = planner.inventory.naming(name)
        if row is not None:
            named[row.profile.name][row.profile.generation] += 1
    return named


def governed(view: NodeView) -> Governed:
    """Return how far a node is with its profile."""
    desired = plan.reference(view.target)
    case = node.NodeCase(
        view.report,
        desired=desired,
        in_turn=plan.reference(view.profile) == desired,
        problems=_problems(view),
    )
    verdict = node.judge(case)
    pending = verdict.text(*node.PENDING)
    return Governed(
        view.node.name,
        applied=not pending,
        degraded=verdict.text(ConditionType.DEGRADED),
        pending=pending,
        incompatible=verdict.text("Incompatible"),
        has_agent=view.has_agent,
        unmet=verdict.text("RequirementUnmet"),
        refused=verdict.text("SettingsRefused") if view.report else "",
    )


def _problems(view: NodeView) -> dict[observations.NodeProblem, str]:
    """Return the problems of a node by the profile that selects it, and by the settings of the one in force."""
    unmet = requirements.unmet(view.target.swap.require, view.facts) if view.facts.swap_bytes else None
    return {
        observations.NodeProblem.REQUIREMENT_UNMET: observations.listed(unmet or {}),
        observations.NodeProblem.SETTINGS_REFUSED: observations.listed(
            settings.plan_kernel(view.profile.node.kernel, view.facts).refused
        ),
    }
