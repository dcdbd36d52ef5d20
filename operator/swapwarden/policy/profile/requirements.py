"""A profile's requirements on a node before its pods get swap: find those that the node does not meet.

Unknown facts count as missing, so that new swap stays unused until an agent has examined it; a node without swap
therefore lacks all requirements on swap devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from swapwarden.api import names, state
from swapwarden.policy.observed import nodes
from swapwarden.policy.profile import compiled

NAMED: Final = 3
"""How many devices a text names; it counts the others."""
_MAX_NAME: Final = 64


def first_unmet(profile: compiled.Profile, facts: nodes.NodeFacts) -> names.Requirement | None:
    """Return the first unmet requirement, in the order of names.Requirement; None if the node meets all."""
    return next(_unmet(profile.require, facts), None) if profile.require is not None else None


def unmet(profile: compiled.Profile, facts: nodes.NodeFacts) -> dict[str, str] | None:
    """Return all unmet requirements, with the observed facts and the remedy; None if nothing is required."""
    if profile.require is None:
        return None
    return {
        each.value: _TOLD[each](profile.require, facts)[: state.MAX_FOUND] for each in _unmet(profile.require, facts)
    }


def _unmet(require: compiled.Require, facts: nodes.NodeFacts) -> Iterator[names.Requirement]:
    devices = facts.devices if facts.swap_bytes else ()
    if require.encrypted and not (devices and all(each.encrypted for each in devices)):
        yield names.Requirement.ENCRYPTED
    if require.tmpfs_noswap and not facts.tmpfs_noswap:
        yield names.Requirement.TMPFS_NOSWAP
    if require.backing and not (devices and all(each.backing in require.backing for each in devices)):
        yield names.Requirement.BACKING
    if require.dedicated_device and not (devices and all(each.dedicated for each in devices)):
        yield names.Requirement.DEDICATED_DEVICE


def _encrypted(_: compiled.Require, facts: nodes.NodeFacts) -> str:
    bad = [_name(each) for each in facts.devices if not each.encrypted]
    return _no_devices(facts) or (
        f"{_list(bad)}: not known to be encrypted; set the swap up over dm-crypt (a random key in crypttab will do),"
        " or use zram"
    )


def _tmpfs_noswap(_: compiled.Require, facts: nodes.NodeFacts) -> str:
    kernel = f"kernel {facts.kernel_release}" if facts.kernel_release else "a kernel that is not known"
    return (
        f"on {kernel} tmpfs volumes, Secrets among them, are not known to be mounted with noswap; use Linux 6.4 or"
        " newer, with a kubelet that is not in a user namespace"
    )


def _backing(require: compiled.Require, facts: nodes.NodeFacts) -> str:
    bad = [f"{_name(each)} is {each.backing}" for each in facts.devices if each.backing not in require.backing]
    return _no_devices(facts) or (
        f"{_list(bad)}; move the swap to {' or '.join(require.backing)}, or add its kind to allowedBacking"
    )


def _dedicated_device(_: compiled.Require, facts: nodes.NodeFacts) -> str:
    shared = [_name(each) for each in facts.devices if each.dedicated is False]
    unknown = [_name(each) for each in facts.devices if each.dedicated is None]
    found = (
        f"{_list(shared)}: on a disk with the node's file systems" if shared else "",
        f"{_list(unknown)}: not known which disks are under it" if unknown else "",
    )
    return _no_devices(facts) or f"{'; '.join(filter(None, found))}; give swap a disk of its own, or use zram"


_TOLD: Final[dict[names.Requirement, Callable[[compiled.Require, nodes.NodeFacts], str]]] = {
    names.Requirement.ENCRYPTED: _encrypted,
    names.Requirement.TMPFS_NOSWAP: _tmpfs_noswap,
    names.Requirement.BACKING: _backing,
    names.Requirement.DEDICATED_DEVICE: _dedicated_device,
}


def _no_devices(facts: nodes.NodeFacts) -> str:
    if not facts.swap_bytes:
        return "no swap is on; new swap is not used until the agent has examined it"
    return "" if facts.devices else "not known what the swap is on; see whether the node's agent runs"


def _name(device: state.SwapDevice) -> str:
    return device.name if len(device.name) <= _MAX_NAME else f"{device.name[:_MAX_NAME]}..."


def _list(found: Iterable[str]) -> str:
    texts = list(found)
    rest = len(texts) - NAMED
    return ", ".join(texts[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
