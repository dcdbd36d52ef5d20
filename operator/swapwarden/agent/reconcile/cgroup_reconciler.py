"""Reconciles the cgroups of pods and those above: takes in new ones, decides their values, forgets removed ones."""

from __future__ import annotations

import functools
from typing import Final

from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.drift import attribution, systemd_zero
from swapwarden.agent.host import cgroup_files, cgroupfs
from swapwarden.agent.inventory import board, inventory, records
from swapwarden.agent.ledger import ledger, runtime_records
from swapwarden.agent.reconcile import container_reconciler, file_reconciler, queue, schedule, work
from swapwarden.api import names
from swapwarden.api.violations import ViolationReason
from swapwarden.telemetry import metrics

_SWAP: Final = frozenset({cgroup_files.SWAP_MAX.name})
ENFORCED_SECONDS = metrics.histogram(
    "swapwarden_agent_pod_enforced_seconds",
    "Time from the agent's first look at a new pod's cgroup until it held its value from the node's state; the state"
    " may arrive after the cgroup.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class CgroupReconciler:
    """A pod's turn reconciles its own file; its containers are marked, and have turns of their own.

    An error is the key's own: queue.Failures records it, and no other key stops.
    """

    def __init__(
        self,
        shared: work.Work,
        known: inventory.Inventory,
        book: ledger.Ledger,
        files: file_reconciler.FileReconciler,
        containers: container_reconciler.ContainerReconciler,
        *,
        why: attribution.Attribution,
        evidence: systemd_zero.Evidence,
    ) -> None:
        self._work = shared
        self._inventory = known
        self._ledger = book
        self._limits = book.limits
        self._runtime = book.runtime
        self._files = files
        self._containers = containers
        self._attribution = why
        self._evidence = evidence
        self.first = not book.initialised
        """Whether pods that are found now were there before any agent."""
        self.absent = True
        """Whether pods that are found now ran without an agent until now."""

    def ran(self) -> None:
        """Note that pods that are found from now on appeared while this agent ran."""
        self.first = self.absent = False

    # A state

    def follow(self, new: spec.NodeSpec | None) -> None:
        """Put a state in force, before anything is written for it."""
        self._work.in_force.spec, self._work.in_force.mode = new, resolve.mode_of(new)
        self._work.in_force.guards_others = resolve.guards_others(new)
        self._evidence.follow(new, self._inventory.root_path, self._inventory.pods.values())

    def apply(self, new: spec.NodeSpec) -> None:
        """Put a state in force, and mark all that differs from the last one."""
        mark = queue.Mark(self._work.clock())
        old = self._work.in_force.spec
        self._work.failures.guard(functools.partial(self.follow, new))
        everything = old is None or _for_all(old) != _for_all(new)
        above = everything or old is None or (old.kubepods, old.above) != (new.kubepods, new.above)
        if above and self._inventory.root is not None:
            self.mark_above(mark)
        for pod in self._inventory.pods.values():
            changed = everything or old is None or old.pods.get(pod.uid) != new.pods.get(pod.uid)
            # A draining file can be lowered as far as the limit above binds it.
            if changed or (above and any(file.status.draining for file in pod.files())):
                self._work.waiting.mark(pod, queue.Priority.ARRIVAL, mark)
                self._mark_containers(pod, mark)
        if everything or old is None or old.units != new.units:
            self._work.waiting.mark(queue.Task.UNITS, queue.Priority.ARRIVAL, mark)

    def mark_above(self, mark: queue.Mark) -> None:
        """Decide the values of the cgroups above pods, and have them written: ancestors first."""
        self.retarget_above()
        for file in list(inventory.above_pods(self._inventory)):
            # Protection is raised before any pod has its turn: below an ancestor without it, it has no effect.
            if not file.usage and self._files.failures.may_break(file):
                self._files.reconcile(file, mark.noticed)
            else:
                self._work.waiting.mark(file, queue.Priority.ARRIVAL, mark)

    def retarget_above(self) -> None:
        """Decide the values of the cgroups above pods."""
        root, state, mode = self._inventory.root, self._work.in_force.spec, self._work.in_force.mode
        if root is None:
            return
        root.desired = records.Desired(
            resolve.of_root(state, mode=mode), resolve.of_root(state, mode=names.Mode.ENFORCE)
        )
        for level in self._inventory.levels.values():
            if level.path == root.path:
                self._retarget_level(level, spec.KUBEPODS)
            elif level.path.rpartition("/")[0] == root.path and records.is_burstable(level.path.rpartition("/")[2]):
                self._retarget_level(level, spec.BURSTABLE)

    def _retarget_level(self, level: records.Level, name: str) -> None:
        in_force = self._work.in_force
        state = in_force.spec
        settings = {} if state is None else state.above.get(name, {})
        self._adopt(level, settings, recorded=True)
        for file in level.own:
            enforced = resolve.of_memory(state, settings, file.spec, mode=names.Mode.ENFORCE)
            file.desired = records.desired(file, enforced, mode=in_force.mode, owns=in_force.kubelet_owns)
            self._release(level, file)

    # Files of memory

    def _adopt(
        self, cgroup: records.Pod | records.Level, settings: spec.FileSettings, *, recorded: bool = False
    ) -> None:
        """Have records of the files of memory with a setting; with `recorded` also of those that the ledger has."""
        owns = self._work.in_force.kubelet_owns
        for each in cgroup_files.OF_MEMORY:
            is_set = each.name in settings and not resolve.is_kubelets(owns, each, container=False)
            if is_set or (recorded and self._limits.has_name(each.name, cgroup.path)):
                file = self._inventory.file_records.add(cgroup, each)
                if file is not None and not recorded:
                    file.created_at = records.NEVER if file.pod is None else file.pod.file.created_at
                if file is not None and file.pod is None:
                    self._files.recall(file)

    def _release(self, cgroup: records.Pod | records.Level, file: records.ControlFile) -> None:
        """Forget a file of memory that no setting names (any more), once it holds nothing of the agent."""
        desired = file.desired.value, file.desired.if_enforced
        held = self._limits.holds_ours(file.key) or file in self._files.pending.writes or file.status.reason is not None
        held = held or file in self._files.guard.guarded
        if not (file.usage or held or any(isinstance(value, int) for value in desired)):
            self._inventory.file_records.remove(cgroup, file)
            self._files.drop(file)

    # Keys

    def reconcile(self, key: queue.Key, mark: queue.Mark, *, compare: bool = False) -> None:
        """Make one cgroup or name match the state; with `compare` also compare its children with the disk."""
        step = functools.partial(self._step, key, mark, compare=compare)
        self._work.failures.attempt(key, step, whole=compare or not isinstance(key, records.Pod))

    def _step(self, key: queue.Key, mark: queue.Mark, *, compare: bool) -> None:
        match key:
            case queue.Child():
                self._observe(key, mark)
            case records.Level() if self._inventory.levels.get(key.path) is key:
                self.enter(key, mark)
            case records.Pod() if self._inventory.pods.get(key.path) is key:
                (self._compare if compare else self.reconcile_pod)(key, mark)
            case records.Container() if key in key.pod.containers.values():
                self._containers.reconcile(key, mark)
            case _:
                raise cgroupfs.GoneError(str(key))

    def enter(self, level: records.Level, mark: queue.Mark, *, listed: bool = True) -> None:
        """Mark the unknown children of a level. CgroupError if it cannot be read."""
        try:
            children = self._inventory.enter(level)
        except cgroupfs.DeniedError as error:  # it is nobody's but the node's
            raise cgroupfs.CgroupError(str(error)) from None
        for name in children:
            path = cgroupfs.join(level.path, name)
            known = path in self._inventory.pods or path in self._inventory.levels
            if not known and (records.pod_uid(name) or records.is_level(name)):
                self._work.waiting.mark(queue.Child(level, name, listed), queue.Priority.ARRIVAL, mark)

    def _observe(self, child: queue.Child, mark: queue.Mark) -> None:
        """Compare a name with the disk."""
        origin = resolve.Origin.PREEXISTING if self.first and child.listed else resolve.Origin.APPEARED
        try:
            self._inventory.observe(child.owner, child.name, origin, mark.noticed)
        finally:
            self.take_changes(mark, listed=child.listed)

    def _compare(self, pod: records.Pod, mark: queue.Mark) -> None:
        """Compare a pod and its children with the disk."""
        error: cgroupfs.CgroupError | None = None
        try:
            same = self._inventory.refresh(pod, mark.noticed)
        except cgroupfs.CgroupError as unknown:  # its children are unknown; its own limit holds all the same
            same, error = True, unknown
        finally:
            self.take_changes(mark)
        if same:
            self.reconcile_pod(pod, mark)
        if error is not None:
            raise error

    def take_changes(self, mark: queue.Mark, *, listed: bool = False) -> None:
        """Take in new cgroups, and forget removed ones."""
        for change in self._inventory.changes():
            what, came = change.what, change.came
            match what:
                case records.ControlFile():
                    self._files.drop(what)
                    continue
                case records.Level() if came:
                    self._work.failures.attempt(what, functools.partial(self.enter, what, mark, listed=listed))
                    self.mark_above(mark)
                case records.Container() if came and self._containers.put_off(what):
                    self._work.watching.release(what)
                case records.Container() if came:
                    self._work.waiting.mark(what, queue.Priority.ARRIVAL, queue.Mark(mark.noticed))
                case records.Pod() if came:
                    # The inventory has it now, so an error is the pod's.
                    late = self.absent and listed
                    self._work.failures.attempt(what, functools.partial(self._take_in, what, mark, late=late))
                    if change.denied:
                        self._work.failures.failed(what, ViolationReason.ACCESS_DENIED, change.denied)
                case _:
                    if isinstance(what, records.Container):
                        end(what, self._runtime, self._work.clock())
                    self._work.failures.clear(what)
                    for why in schedule.Why:
                        self._work.due.cancel(what, why)
            self._work.reports.touch()

    # Pods

    def _take_in(self, pod: records.Pod, mark: queue.Mark, *, late: bool) -> None:
        """Reconcile a pod for the first time; `late` if it ran without an agent until now.

        | the pod | origin | its exposure counts from | cause |
        |---|---|---|---|
        | is `late` | as below | when the last agent was last alive; now if unknown | AgentDown |
        | is in the ledger, or nothing is enforced | PREEXISTING | now | none |
        | else | APPEARED | when the agent last knew all pods | AgentLate |

        A pod with a container already ran before the agent observed it, at an unknown time: events have no time, and
        that of a cgroup's directory is when its inode came to memory (set_default_inode_attr in the kernel's
        fs/kernfs/inode.c), which under memory pressure can be long after it was made. So its exposure is counted from
        when the agent last knew all pods: it is at most that long.
        """
        state = self._work.in_force
        self._adopt(pod, {}, recorded=True)
        entries = [entry for file in pod.own if (entry := self._limits.get(file.key)) is not None]
        # A record of nothing but systemd's 0 is evidence for Strict: no agent has taken in the pod.
        known = any(entry.found is None or entry.wrote for entry in entries)
        if known or state.mode is not names.Mode.ENFORCE:
            pod.origin = resolve.Origin.PREEXISTING
        # If the ledger lost lines, a 0 may be the agent's own. A kubelet that gave a pod 0 also gave its containers 0.
        for file in pod.own:
            file.last_stated = self._files.recall(file, incomplete=late and not self._ledger.complete)
        preexisting = pod.origin is resolve.Origin.PREEXISTING
        pod.enforced = preexisting or late
        ran, since = None, mark.noticed
        if late:
            ran = names.Cause.AGENT_DOWN
            since = mark.noticed if state.away is None else state.away
        else:
            # systemd writes its value again until the first container starts, after some 0.2 seconds on hardware: by
            # its age, that is the pod's start and not another writer (`attribution.cause_of`).
            for file in pod.own:
                file.created_at = mark.noticed
            if not preexisting:
                ran, since = names.Cause.AGENT_LATE, mark.since
        self.reconcile_pod(pod, queue.Mark(mark.noticed), since=since, ran=ran)
        for file in pod.own:
            self._attribution.observe(file)  # its limit first
            # With a record, the next agent does not take it for one that appeared while none ran.
            if preexisting and self._limits.get(file.key) is None:
                self._limits.mark_known(file.key)
        if resolve.awaits_entry(state.spec, pod.uid, origin=pod.origin, last=pod.file.last_stated):
            self._work.due_in(pod, schedule.Why.AWAITS, resolve.AWAIT_SECONDS)

    def _mark_containers(self, pod: records.Pod, mark: queue.Mark) -> None:
        for container in pod.containers.values():
            if self._containers.is_concerned(container):
                self._work.waiting.mark(container, queue.Priority.ARRIVAL, mark)

    def reconcile_pod(
        self, pod: records.Pod, mark: queue.Mark, *, since: float | None = None, ran: names.Cause | None = None
    ) -> None:
        """Decide the values of a pod's own files, and write them; its containers follow.

        | the state in force | desired value in Enforce (`resolve.of_pod`) |
        |---|---|
        | has an entry with a setting of this file | that number, or a ceiling |
        | has an entry without one | what another writer last wrote |
        | has no entry any more | the last number: a pod leaves the state before its cgroup is removed |
        | never had one | 0; a pod that ran before anything was enforced is left alone |

        `since` is when the pod may have begun to run without a limit, and `ran` why. Without these, a pod that a state
        names for the first time ran without a limit until now, and any other since its files were last right.
        """
        # Before the pod's own files: a raise of these waits for containers that are marked, and may be lowered.
        self._mark_containers(pod, mark)
        in_force = self._work.in_force
        state, mode = in_force.spec, in_force.mode
        entry = None if state is None else state.pods.get(pod.uid)
        if entry is not None and len(entry.settings) > len(entry.settings.keys() & _SWAP):
            self._adopt(pod, entry.settings)
        # From 1.37 on, a kubelet may set memory.high of pods. Guarding that takes a record of the file.
        if in_force.guards_others is not names.KubeletGuard.OFF and self._files.guard.finds(pod.path):
            self._inventory.file_records.add(pod, cgroup_files.MEMORY_HIGH)
        enforces, first = mode is names.Mode.ENFORCE, entry is not None and not pod.stated
        pod.enforced = pod.enforced or not enforces
        for file in pod.own:
            setting = None if entry is None else entry.settings.get(file.spec.name)
            if not enforces:
                file.last_stated = None
            elif entry is not None:
                file.last_stated = None if setting is None else setting.value
            at_most = file.desired.at_most and file.last_stated is not None
            if entry is not None:
                at_most = setting is not None and setting.at_most
            self.find_evidence(file)  # before the write: after it, a 0 would not show who wrote it
            enforced = resolve.of_pod(
                state, entry, mode=names.Mode.ENFORCE, origin=pod.origin, last=file.last_stated, file=file.spec
            )
            file.desired = records.desired(
                file, enforced, mode=in_force.mode, owns=in_force.kubelet_owns, at_most=at_most
            )
        if entry is not None:
            # Once a state named it, a pod without an entry is one that ends: its files are left as they are.
            pod.stated = True
            pod.origin = resolve.Origin.PREEXISTING
        for file in pod.own:
            why, begun = (ran, since) if file.last_applied is None else (None, since)
            if begun is None and first and file.last_applied is None:
                why, begun = names.Cause.STATE_LATE, pod.since
            if begun is None:
                begun = self._work.horizon.last_right(file, mark.since)
            self._files.reconcile(file, mark.noticed, since=begun, ran=why)
            self._release(pod, file)
        if not pod.enforced:
            self.time_enforcement(pod)

    def find_evidence(self, file: records.ControlFile) -> None:
        """See who gave a pod's file what it holds, unless the agent did. One just made may not be there yet."""
        if file.pod is None or file is not file.pod.file or file.times.write_seq:
            return
        seeks = self._evidence.desired or self._work.reports.drop_ins[board.PODS].held
        if seeks or self._limits.get(file.key) is not None:
            self._evidence.came(self._inventory.root_path, file.pod)

    def time_enforcement(self, pod: records.Pod) -> None:
        """Observe the time of a new pod once, when its file holds the value of a state."""
        status, desired = pod.file.status, pod.file.desired
        if not pod.stated or status.confirmed != desired.value:
            return
        held = not isinstance(desired.value, int) or status.observed == desired.value
        if held or (desired.at_most and not resolve.differs(desired.value, status.observed, at_most=True)):
            pod.enforced = True
            ENFORCED_SECONDS.observe(self._work.clock() - pod.since)


def _for_all(state: spec.NodeSpec) -> tuple[object, ...]:
    """Return what decides about the files of all cgroups."""
    return state.mode, state.before_plan, state.guard


def end(container: records.Container, runtime: runtime_records.RuntimeRecords, now: float) -> None:
    """Forget how a container that is gone stood in the runtime. Its file cannot show any more what it held."""
    seen = runtime.get(container.id)
    runtime.forget(container.id)
    if seen is None or not seen.is_sandbox:
        container.pod.ended_at = now
