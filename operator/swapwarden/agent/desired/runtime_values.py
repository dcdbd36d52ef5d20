"""Decides what the container runtime must hold for a container, and when it is asked to. Pure.

The runtime passes the number to systemd, which from then on writes it back by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroup_files, cgroupfs, link_messages
from swapwarden.agent.ledger import runtime_records
from swapwarden.api import names

_NONE: Final = spec.FileSetting(0)


def of_container(pod: spec.PodEntry | None, name: str) -> spec.FileSetting | None:
    """Return what the runtime must hold for a container of a pod; None: what the kubelet asks for.

    Where the pod's own limit is 0, so is each container's: the runtime cannot hold the pod's.
    """
    if pod is None:
        return None
    file = cgroup_files.SWAP_MAX.name
    own = pod.settings.get(file)
    if own is not None and own.value == 0:
        return _NONE
    settings = pod.named.get(name, pod.each)
    return None if settings is None else settings.get(file)


def decision(pod: spec.PodEntry) -> dict[str, Any]:
    """Return the decision about a pod, as the plugin takes it."""
    default = of_container(pod, "")
    named = {name: of_container(pod, name) for name in pod.named}
    return {
        "decided": True,
        "default": _shown(default),
        "containers": {name: _shown(each) for name, each in named.items() if each is not None and each != default},
    }


def _shown(setting: spec.FileSetting | None) -> dict[str, Any] | None:
    return None if setting is None else {"value": cgroupfs.render(setting.value), "atMost": setting.at_most}


def changes(
    old: Mapping[str, spec.PodEntry], new: Mapping[str, spec.PodEntry]
) -> tuple[Iterator[tuple[str, dict[str, Any]]], Iterable[str]]:
    """Return the decisions that differ from those of an older state, by UID, and the pods that are gone."""

    def changed() -> Iterator[tuple[str, dict[str, Any]]]:
        for uid, pod in new.items():
            before = old.get(uid)
            if before is None or before != pod:
                made = decision(pod)
                if before is None or made != decision(before):
                    yield uid, made

    return changed(), [uid for uid in old if uid not in new]


def is_held(container: runtime_records.RuntimeRecord, hold: spec.FileSetting) -> bool:
    """Return whether the runtime holds what it must."""
    return container.value == hold.value or (hold.at_most and container.value < hold.value)


def desired(container: runtime_records.RuntimeRecord, state: spec.NodeSpec) -> spec.FileSetting | None:
    """Return what the runtime must hold for a container; None: what the kubelet asks for."""
    return of_container(state.pods.get(container.uid), container.name) if state.mode is names.Mode.ENFORCE else None


def next_update(container: runtime_records.RuntimeRecord, state: spec.NodeSpec | None) -> int | None:
    """Return the value that the runtime must be asked for, in bytes; None to leave it alone.

    In Audit and Restore, and where the state has no value for a container, it is the kubelet's value. A
    container of a pod that the state does not name keeps what it has: its pod is new, or ends.
    """
    if container.is_sandbox or not container.is_reported or state is None:
        return None
    if state.mode is names.Mode.ENFORCE and container.uid not in state.pods:
        return None
    hold = desired(container, state)
    if hold is not None:
        return None if is_held(container, hold) else hold.value
    earlier = parse(container.original)
    return None if container.original is None or container.value == earlier else earlier


def lower_original(container: runtime_records.RuntimeRecord | None, page: int) -> int | None:
    """Return the kubelet's value of a container that the runtime holds at a larger one of Swapwarden's; else None.

    It is floored to the page, as its file has it. To give it back is a cut, for which swap in use must drain first.
    """
    if container is None or container.is_sandbox or container.original is None:
        return None
    earlier = parse(container.original) // page * page
    return earlier if earlier < container.value else None


def parse(text: str | None) -> int:
    """Return a value of the runtime's in bytes; NO_LIMIT for none, and for other text than a number."""
    try:
        return cgroupfs.parse(text, 1) if text else cgroupfs.NO_LIMIT
    except ValueError:
        return cgroupfs.NO_LIMIT


def is_corrected(before: runtime_records.RuntimeRecord | None, now: runtime_records.RuntimeRecord) -> bool:
    """Return whether the runtime has replaced the kubelet's value by the one that it was asked for."""
    return before is not None and before.value == parse(before.original) != before.asked == now.value


def asked(container: runtime_records.RuntimeRecord, value: int) -> runtime_records.RuntimeRecord:
    """Return the record for when the runtime is about to be asked for a value."""
    earlier = container.original
    if earlier is None:
        earlier = "" if container.value >= cgroupfs.NO_LIMIT else str(container.value)
    return msgspec.structs.replace(container, asked=value, original=earlier)


def answered(container: runtime_records.RuntimeRecord, now: float, *, done: bool) -> runtime_records.RuntimeRecord:
    """Return the record for when the runtime has answered."""
    if done and container.asked is not None:
        return _ours(msgspec.structs.replace(container, value=container.asked, asked=None, since=now))
    return _ours(msgspec.structs.replace(container, asked=None))


def created(
    known: runtime_records.RuntimeRecord | None, made: link_messages.ContainerCreated
) -> runtime_records.RuntimeRecord:
    """Return the record of a container that was made. Two plugins may report the same one."""
    value = parse(made.original if made.value is None else made.value)
    earlier = None if made.value is None else made.original or ""
    if known is not None and known.is_reported and known.value == value and earlier is None:
        return known
    return _ours(runtime_records.RuntimeRecord(made.id, made.uid, made.name, value, earlier))


def listed(
    known: runtime_records.RuntimeRecord | None, entry: link_messages.ReportedContainer, now: float
) -> runtime_records.RuntimeRecord:
    """Return the record of a container that the runtime has; `known` is from the ledger.

    A value that is neither the known nor the asked one is the kubelet's, after a resize while no plugin was there.
    """
    value = parse(entry.value)
    if known is None or not known.is_reported:
        made = runtime_records.RuntimeRecord(entry.id, entry.uid, entry.name, value, entry.original, now)
        return _ours(made)
    if value == known.value:
        return _ours(msgspec.structs.replace(known, asked=None))
    if value == known.asked:
        return answered(known, now, done=True)
    return resized(known, entry.value, now)


def resized(known: runtime_records.RuntimeRecord, value: str | None, now: float) -> runtime_records.RuntimeRecord:
    """Return the record of a container whose value may be another one now."""
    if parse(value) == known.value:
        return known
    return msgspec.structs.replace(known, value=parse(value), original=None, since=now, asked=None)


def _ours(container: runtime_records.RuntimeRecord) -> runtime_records.RuntimeRecord:
    """Forget an earlier value that is in force."""
    if container.asked is None and container.original is not None and container.value == parse(container.original):
        return msgspec.structs.replace(container, original=None)
    return container
