"""Whatever happened, and in whichever order: all states come to say what a plan from scratch says, and then rest."""

from __future__ import annotations

import random
from typing import Any

import hypothesis
import msgspec
from hypothesis import stateful
from hypothesis import strategies as st
from swapwarden.api import names, state
from swapwarden.controller.writers import states as state_writer
from swapwarden.policy.fleet import cluster
from swapwarden.policy.observed import nodes, pods, resources, states
from swapwarden.policy.profile import compiled

from tests.unit.controller.known import Known, rollouts
from tests.unit.objects import container, named_profile, node, pod, state_row

NODES = st.sampled_from(["a", "b", "c"])
POOLS = st.sampled_from([{}, {"pool": "x"}, {"pool": "y"}])
MEMORY = st.sampled_from([0, 2**28, 2**29, 2**30])
TERM = 7
ROUNDS = 5
"""The controller's own writes come back to it, and what it sees then must not make it write again and again."""

FACTS = st.builds(
    state.Facts,
    cgroup_version=st.just(2),
    swap_controller=st.booleans(),
    swap_bytes=st.sampled_from([0, 2**29 + 5, 2**31]),
    memory_bytes=st.just(2**33),
)
POD = st.fixed_dictionaries(
    {
        "node": st.sampled_from(["", "a", "b", "c"]),
        "uid": st.sampled_from(["1", "2", "3", "4"]),
        "policy": st.sampled_from([None, "Disabled", "Whatever"]),
        "swap_limit": st.sampled_from([None, "64Mi", "1Gi"]),
        "qos": st.sampled_from(resources.Class),
        "terminal": st.booleans(),
        "created": st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
        "request": MEMORY,
        "sidecar": st.none() | MEMORY,
    }
)
PROFILE = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["p", "q", "r"]),
        "priority": st.integers(1, 2),
        "created": st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
        "behavior": st.sampled_from(names.Behavior),
        "reserved": st.sampled_from([None, "25%"]),
        "overcommit_percent": st.sampled_from([None, 100]),
        "selector": st.sampled_from([(), (compiled.LabelExpression("pool", "In", frozenset({"x"})),)]),
    }
)


class Histories(stateful.RuleBasedStateMachine):
    """An API server, watches that report its events late, and a controller that works on these reports."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self.known = Known()
        self.nodes: dict[str, nodes.NodeRow] = {}
        self.pods: dict[str, pods.PodRow] = {}
        self.profiles: dict[str, compiled.Profile] = {}
        self.states: dict[str, states.StateRow] = {}
        # Reports that the watch of states holds back, and its last one.
        self.untold: list[tuple[str, states.StateRow | None]] = []
        self.told: dict[str, states.StateRow] = {}

    def next(self) -> int:
        self.version += 1
        return self.version

    def store(self, row: states.StateRow) -> None:
        self.states[row.name] = row
        self.untold.append((row.name, row))

    # Events in the cluster

    @stateful.rule(name=NODES, labels=POOLS, swap=st.sampled_from([0, 2**30]), anew=st.booleans())
    def node_is(self, name: str, labels: dict[str, str], swap: int, *, anew: bool) -> None:
        old = self.nodes.get(name)
        uid = old.uid if old and not anew else f"{name}-{self.next()}"
        self.nodes[name] = node(name, uid=uid, labels=labels, swap_bytes=swap)
        self.known.node_changed(name, old, self.nodes[name])

    @stateful.rule(name=NODES)
    def node_goes(self, name: str) -> None:
        if old := self.nodes.pop(name, None):
            self.known.node_changed(name, old, None)

    @stateful.rule(name=st.sampled_from(["default/1", "default/2", "default/3", "other/1"]), fields=POD)
    def pod_is(self, name: str, fields: dict[str, Any]) -> None:
        fields = dict(fields)
        namespace, _, own = name.partition("/")
        request, sidecar = fields.pop("request"), fields.pop("sidecar")
        containers = [container(request=request)] + ([] if sidecar is None else [container("sidecar", request=sidecar)])
        made = pod(*containers, namespace=namespace, name=own, **fields)
        old, self.pods[name] = self.pods.get(name), made
        self.known.pod_changed(name, old, made)

    @stateful.rule(name=st.sampled_from(["default/1", "default/2", "default/3", "other/1"]))
    def pod_goes(self, name: str) -> None:
        if old := self.pods.pop(name, None):
            self.known.pod_changed(name, old, None)

    @stateful.rule(fields=PROFILE)
    def profile_is(self, fields: dict[str, Any]) -> None:
        self.profiles[fields["name"]] = named_profile(generation=self.next(), max_unavailable="100%", **fields)
        self.known.profiles_changed(self.profiles)

    @stateful.rule(name=st.sampled_from(["p", "q", "r"]))
    def profile_goes(self, name: str) -> None:
        self.profiles.pop(name, None)
        self.known.profiles_changed(self.profiles)

    @stateful.rule(name=NODES, facts=FACTS)
    def agent_reports(self, name: str, facts: state.Facts) -> None:
        if row := self.states.get(name):
            seen = {"observed": row.generation, "applied": facts.swap_controller, "facts": facts, "acted": row.profile}
            self.store(msgspec.structs.replace(row, version=self.next(), **seen))

    @stateful.rule(name=NODES)
    def state_goes(self, name: str) -> None:
        """Deleted by someone."""
        if self.states.pop(name, None):
            self.untold.append((name, None))

    @stateful.rule()
    def garbage_is_collected(self) -> None:
        for name, row in list(self.states.items()):
            if name not in self.nodes or self.nodes[name].uid != row.owner:
                self.state_goes(name)

    @stateful.rule(name=NODES)
    def state_is_altered(self, name: str) -> None:
        if row := self.states.get(name):
            spec = msgspec.json.encode(state.StateSpec(profile_ref=row.profile, before_plan=names.BeforePlan.UNMANAGED))
            self.store(msgspec.structs.replace(row, version=self.next(), generation=row.generation + 1, spec=spec))

    # Steps of the controller

    @stateful.rule(count=st.integers(1, 5))
    def watch_tells(self, count: int) -> None:
        """Some of it: the controller may write before it has heard of all."""
        for name, row in self.untold[:count]:
            old = self.told.pop(name, None)
            if row is not None:
                self.told[name] = row
            if old is not None or row is not None:
                self.known.state_changed(name, old, row)
        del self.untold[:count]

    @stateful.rule()
    def controller_works(self) -> None:
        dirty = dict.fromkeys(due.node for due in self.known.due)
        self.known.due.clear()
        for name in dirty:
            if name in self.known.nodes:
                self.reconcile(name)

    def reconcile(self, name: str) -> None:
        """As swapwarden.controller.nodes.reconciler does it."""
        row, spec, at = self.known.inventory.state_of(name), self.known.plan(name), self.known.nodes[name]
        stored = self.states.get(name)
        if row is not None and state_writer.state_patch(row, at, spec, TERM) is None:
            return
        if (row is None) != (stored is None) or (row and stored and row.uid != stored.uid):
            # Refused, because the object is missing or exists already: it looks and retries.
            if stored is None and row is not None:
                self.known.inventory.lose_state(name, row.uid)
            elif stored is not None and not self.known.wrote(stored):
                return
            self.known.due.append(cluster.Due(name))
            return
        written = state_row(
            name,
            version=self.next(),
            spec=spec,
            uid=stored.uid if stored else f"state-{self.version}",
            owner=stored.owner if stored else at.uid,
            generation=stored.generation + 1 if stored else 1,
            facts=stored.facts if stored else None,
            observed=stored.observed if stored else 0,
        )
        self.store(written)
        self.known.wrote(written)

    @stateful.rule()
    def turns_come(self) -> None:
        """As swapwarden.controller.profiles.rollouts does it if no agent answers for long."""
        overdue = {(name, False) for name in self.known.nodes}
        for name, progress in rollouts(self.known, overdue).items():
            self.known.admit(self.profiles[name], progress.next, overdue)

    @stateful.rule(order=st.randoms(use_true_random=False))
    def all_is_told_and_done(self, order: random.Random) -> None:
        self.garbage_is_collected()
        for _ in range(ROUNDS):
            self.watch_tells(len(self.untold))
            self.turns_come()
            self.controller_works()
            if not self.untold and not self.known.due:
                break
        assert not self.untold, "it continues to write"
        assert not self.known.due, "it continues to plan"
        scratch = self.from_scratch(order)
        assert self.known.nodes == self.nodes
        for name in self.nodes:
            assert states.spec(self.states[name]) == scratch.plan(name), name
            assert self.states[name].owner == self.nodes[name].uid
            assert self.known.planner.selection(name) == scratch.planner.selection(name)

    def from_scratch(self, order: random.Random) -> Known:
        """A controller that has just come up, and received everything in some order."""
        made = Known()
        news: list[tuple[Any, str, Any]] = [(made.node_changed, name, row) for name, row in self.nodes.items()]
        news += [(made.pod_changed, name, row) for name, row in self.pods.items()]
        news += [(made.state_changed, name, row) for name, row in self.states.items()]
        order.shuffle(news)
        for tell, name, row in news:
            tell(name, None, row)
        shuffled = list(self.profiles.items())
        order.shuffle(shuffled)
        made.profiles_changed(dict(shuffled))
        # Nobody else can know the reports of deleted states.
        made.inventory.last_reports.update(self.known.inventory.last_reports)
        return made

    def teardown(self) -> None:
        self.all_is_told_and_done(random.Random(0))  # noqa: S311 nothing is to be kept secret


TestHistories = Histories.TestCase
TestHistories.settings = hypothesis.settings(max_examples=100, stateful_step_count=40, deadline=None)
