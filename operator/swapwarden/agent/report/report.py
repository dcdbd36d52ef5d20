"""Reports how the agent's parts stand: as a status and as metrics."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from swapwarden.agent.host import cgroupfs, systemd_dropins
from swapwarden.agent.inventory import board
from swapwarden.agent.ledger import runtime_records
from swapwarden.agent.node import diagnostics, node_watch
from swapwarden.agent.pressure import sampler
from swapwarden.agent.reconcile import reconciler
from swapwarden.agent.report import collector, holds, status
from swapwarden.api import formats, names, state

PASSING_SECONDS: Final = 120.0
"""Seconds between checks whether events of the last minutes that a status reports are over."""


class Report:
    """Builds the status and the metrics of all parts. Not thread-safe: only the event loop may use it."""

    def __init__(
        self,
        reconciled: reconciler.NodeReconciler,
        node: node_watch.NodeWatch,
        reports: board.Board,
        cgroups: cgroupfs.Cgroups,
        runtime: runtime_records.RuntimeRecords,
        *,
        pressure: sampler.Sampler,
    ) -> None:
        self._pressure = pressure
        self._reconciled = reconciled
        self._node = node
        self._board = reports
        self._fs = cgroups
        self._runtime = runtime
        self.passes_at = math.inf
        """Monotonic seconds from which on something that the status reports may be over: no event follows."""

    def snapshot(self) -> collector.Snapshot:
        """Return how things stand on the node."""
        return self._snapshot(self._tally() if self._reconciled.evidence.desired else None)

    def _snapshot(self, held: holds.HeldPods | None) -> collector.Snapshot:
        """Return a snapshot with who was observed to hold pods; only guarantee Strict needs that."""
        progress, sysctls = self._reconciled.progress, self._board.sysctls
        pods, slices = self._board.drop_ins[board.PODS], self._board.drop_ins[board.SLICES]
        settings = progress.settings
        if sysctls.concerned:
            settings = (*(settings or ()), *sysctls.problems)
        if self._board.reclaim.concerned:
            settings = (*(settings or ()), *self._board.reclaim.problems)
        units = {} if progress.spec is None else progress.spec.units
        # Without a setting, as after their removal, nothing asks for them.
        missing = sorted(each for each in slices.missing if each in units and units[each].limit == 0)
        if missing:
            message = (
                f"systemd's drop-in files are missing for {', '.join(missing)}: the log of the agent's"
                f" init container {systemd_dropins.INSTALLER} says why"
            )
            problem = board.SettingProblem("systemUnits", names.Problem.WRITE_FAILED, message)
            settings = (*(settings or ()), problem)
        to_restore = progress.to_restore + sysctls.to_restore
        return collector.collect(
            self._reconciled.inventory,
            msgspec.structs.replace(progress, settings=settings, to_restore=to_restore),
            cgroups=self._fs,
            now=time.monotonic(),
            guarantee=holds.strict_verdict(
                self._reconciled.evidence, held or holds.HeldPods(), files=pods, runtime=progress.runtime
            ),
            refused=self._board.refused,
        )

    def _tally(self) -> holds.HeldPods | None:
        reconciled = self._reconciled
        return holds.tally(
            reconciled.inventory, reconciled.progress, reconciled.evidence, self._runtime, time.monotonic()
        )

    def build(self, previous: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the status as it should be; `previous` are the conditions of the one before."""
        progress, evidence, held = self._reconciled.progress, self._reconciled.evidence, self._tally()
        snapshot = self._snapshot(held)
        slow = progress.runtime is not None and progress.runtime.connected and bool(progress.runtime.reason)
        self.passes_at = time.monotonic() + PASSING_SECONDS if snapshot.passing or slow else math.inf
        if evidence.desired and held is not None and held.starting:
            self.passes_at = time.monotonic() + holds.SETTLING_SECONDS
        facts = self._node.reported()
        now = formats.rfc3339(time.time())
        built = status.build(snapshot, facts, self._verdicts(snapshot), previous, now)
        pods = self._board.reclaimed
        listed = list(pods[: state.MAX_RECLAIMED])
        built = msgspec.structs.replace(
            built,
            holds=holds.observed(held, progress, evidence),
            pressure=self._pressure.report,
            reclaimed=listed,
            reclaimed_omitted=len(pods) - len(listed),
        )
        as_json: dict[str, Any] = msgspec.to_builtins(built)
        return as_json

    def acknowledge(self, written: Mapping[str, Any]) -> None:
        """Take note that the API server has this status."""
        if collector.acknowledge(self._reconciled.inventory.pods.values(), written.get("exposures", [])):
            self._board.touch()

    def expire(self) -> None:
        """Begin a new revision if something that the status reports of the last minutes may be over."""
        if time.monotonic() >= self.passes_at:
            self._board.touch()

    async def publish(self) -> None:
        """Set the metrics, also while there is no object with a status. Repairs come in between."""
        collector.publish(self._reconciled.inventory, self._reconciled.progress)
        await asyncio.sleep(0)
        strict, held = self._reconciled.evidence.desired, self._tally()
        holds.publish(held, self._reconciled.progress, self._runtime, strict=strict)
        status.publish(self._verdicts(self._snapshot(held)))

    def _verdicts(self, snapshot: collector.Snapshot) -> Mapping[str, collector.ConditionVerdict]:
        facts = self._node.facts
        runtime = self._reconciled.progress.runtime
        recent, short = snapshot.recent, snapshot.memory.shortfall
        look, storm = self._node.look, recent.storm
        diagnosed = diagnostics.conditions(facts, look, recent.lost, runtime, storm=storm, short=short)
        return status.verdicts(snapshot, facts, diagnosed)
