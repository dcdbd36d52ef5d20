"""Decides the condition StrictInEffect from evidence: who beside the agent was observed to hold pods. Pure.

That a file is installed, or a plugin connected, is no evidence for a pod. A means counts while it also holds pods that
start: systemd until it was observed to write no limit, the container runtime while its plugin is connected.
"""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.host import systemd_dropins
from swapwarden.agent.inventory import board
from swapwarden.agent.report import collector, holds
from swapwarden.api import runtime_link
from swapwarden.api.conditions import ConditionType

_NAMED: Final = 8
"""Pods that a message names."""
_CONNECTING: Final = "the plugin of the container runtime is connecting"


def verdict(
    view: systemd_zero.ZeroEvidence,
    seen: holds.HeldPods,
    *,
    files: board.DropInStatus,
    runtime: board.RuntimeStatus | None,
) -> collector.ConditionVerdict | None:
    """Return the condition StrictInEffect; None if guarantee Strict neither is nor was in use.

    `files` are those that the installation has on the node. `runtime`: None if the runtime should hold no limit.
    """
    if not view.wanted:
        return _unasked(view)
    if view.root is None:
        return collector.ConditionVerdict("Unknown", "NoPodTree", "looking for the cgroups of pods")
    systemd = _of_systemd(view, systemd_zero.prefix(view.root), files)
    if runtime is not None and runtime.connected:
        return _in_effect(view, seen, files, runs=True, systemd=systemd)
    if view.proved:
        return _in_effect(view, seen, files, runs=False, systemd=systemd, nri=_nri(runtime))
    return _not_in_effect(seen, files, runtime, systemd)


def _in_effect(
    view: systemd_zero.ZeroEvidence,
    seen: holds.HeldPods,
    files: board.DropInStatus,
    *,
    runs: bool,
    systemd: collector.ConditionVerdict,
    nri: str = "",
) -> collector.ConditionVerdict:
    """Return the verdict where at least one of the two holds pods that start. `runs`: the runtime does."""
    by_runtime = seen.both + seen.runtime if runs else 0
    by_systemd = seen.both + seen.systemd if view.proved else 0
    held = seen.both + (seen.runtime if runs else 0) + (seen.systemd if view.proved else 0)
    total = seen.both + seen.runtime + seen.systemd + len(seen.alone)
    counts = " and ".join(
        [f"the container runtime holds {by_runtime}"] * runs
        + [f"systemd, by its drop-in files, holds {by_systemd}"] * view.proved
    )
    message = f"of {total} pods with a limit {counts}"
    if seen.starting:
        message += (
            f"; {len(seen.starting)} more began, or got a container, less than {holds.SETTLING_SECONDS:.0f} s ago"
        )
    broken = f"; {systemd.message}" if files.visible and not view.proved and systemd.status == "False" else ""
    if held < total:
        before = f" (the runtime held {seen.runtime} of them when its plugin was last connected)"
        missing = f"; for {total - held} neither was observed{before if seen.runtime and not runs else ''}"
        missing += _remedies(view, files, broken, nri)
        return collector.ConditionVerdict("Unknown", "NotAllPods", message + missing + _names(seen.alone))
    if by_runtime and by_systemd:
        return collector.ConditionVerdict("True", "HeldByBoth", message)
    if by_runtime:
        return collector.ConditionVerdict("True", "HeldByRuntime", message + broken)
    if view.proved:
        return collector.ConditionVerdict("True", "HeldBySystemd", message)
    return collector.ConditionVerdict("Unknown", "AwaitingEvidence", f"no pod with a limit runs{broken}")


def _remedies(view: systemd_zero.ZeroEvidence, files: board.DropInStatus, broken: str, nri: str) -> str:
    """Return what would have more pods held."""
    if view.proved:
        older = "; pods older than the drop-in files are held from systemd's next reload on (systemctl daemon-reload)"
        return f"{older}; Guaranteed pods need NRI: {nri}" if nri else older
    if broken or files.visible:
        return broken
    return "; systemd's drop-in files hold Burstable and BestEffort pods at 0 (agent.dropIns.mount in the chart)"


def _not_in_effect(
    seen: holds.HeldPods,
    files: board.DropInStatus,
    runtime: board.RuntimeStatus | None,
    systemd: collector.ConditionVerdict,
) -> collector.ConditionVerdict:
    """Return the verdict where nobody beside the agent was observed to hold pods that start."""
    if runtime is not None and not runtime.reason:
        return collector.ConditionVerdict("Unknown", "AwaitingEvidence", _CONNECTING)
    message = f"{systemd.message}; {_nri(runtime)}"
    if known := seen.both + seen.runtime:
        message += f"; running pods that it held when its plugin was last connected: {known}"
    message += _names(seen.alone)
    if runtime is not None and runtime.reason != runtime_link.Away.NO_SOCKET and not files.visible:
        return collector.ConditionVerdict("False", ConditionType.NRI_UNAVAILABLE, message)
    return msgspec.structs.replace(systemd, message=message)


def _nri(runtime: board.RuntimeStatus | None) -> str:
    """Return how the container runtime could hold limits."""
    if runtime is None:
        return "set nri.mode to auto in the chart, so that the container runtime holds containers"
    if not runtime.reason:
        return _CONNECTING
    return f"the container runtime holds no new container, see the condition NriUnavailable ({runtime.reason})"


def _of_systemd(
    view: systemd_zero.ZeroEvidence, begin: str | None, files: board.DropInStatus
) -> collector.ConditionVerdict:
    """Return why systemd was not observed to hold pods, and the remedy. `begin` is the prefix of slices."""
    if begin is None:
        return collector.ConditionVerdict(
            "False",
            "CgroupfsDriver",
            "the kubelet's cgroup driver is cgroupfs: nothing overwrites the agent's values, even while no agent runs;"
            " but a pod that starts meanwhile has no limit until one runs",
        )
    first, second = (
        f"{systemd_dropins.UNITS}/{name}/{systemd_dropins.FILE}" for name in systemd_dropins.folders(begin)
    )
    if files.visible and begin not in files.held:
        return collector.ConditionVerdict(
            "False",
            "NotInstalled",
            f"{first} or {second} is missing: set agent.dropIns.prefix to {begin}, or see the log of the agent's init"
            f" container {systemd_dropins.INSTALLER}",
        )
    if files.visible:
        remedy = f"{first} and {second} are installed"
        if not view.refuted:
            return collector.ConditionVerdict("Unknown", "AwaitingEvidence", f"{remedy}; no pod has started at 0 yet")
        remedy += ": find what overrides them with `systemctl cat` of a pod's slice"
    else:
        remedy = (
            f"install {first} and {second} as `swapwarden agent --print-drop-ins={begin}` prints them,"
            " or set agent.dropIns.mount in the chart"
        )
    if view.refuted:
        return collector.ConditionVerdict("False", "NotInForce", f"systemd writes no limit to pods' slices; {remedy}")
    return collector.ConditionVerdict("Unknown", "NoEvidence", f"no pod had 0 before the agent wrote to it; {remedy}")


def _unasked(view: systemd_zero.ZeroEvidence) -> collector.ConditionVerdict | None:
    if view.installed:
        return collector.ConditionVerdict(
            "True",
            "NotAskedFor",
            "the node has the drop-in files (agent.dropIns.mount), though its profile does not ask for Strict: systemd"
            " makes Burstable and BestEffort pods at 0, and the agent raises those that may have swap",
        )
    if not view.held:
        return None
    return collector.ConditionVerdict(
        "False",
        "ReloadNeeded",
        f"systemd takes {len(view.held)} pods' slices back to 0 until it reads its units again: run `systemctl"
        f" daemon-reload` on the node (first remove {systemd_dropins.FILE} if you installed it yourself)"
        f": {_listed(view.held)}",
    )


def _names(alone: tuple[str, ...]) -> str:
    return f"; the agent alone holds {_listed(alone)}" if alone else ""


def _listed(uids: tuple[str, ...]) -> str:
    more = f" and {len(uids) - _NAMED} more" if len(uids) > _NAMED else ""
    return ", ".join(uids[:_NAMED]) + more
