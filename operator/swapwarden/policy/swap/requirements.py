"""A profile's requirements on a node before its pods get swap: find those that the node does not meet.

Unknown facts count as missing, so that new swap stays unused until an agent has examined it; a node without swap
therefore lacks all requirements on swap devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.policy.observed import nodes

NAMED: Final = 3
"""How many devices a text names; it counts the others."""
_MAX_NAME: Final = 64


class Require(msgspec.Struct, frozen=True):
    """Conditions on a node before its pods get swap."""

    encrypted: bool = False
    tmpfs_noswap: bool = False
    backing: tuple[str, ...] = ()
    """Kinds of devices of which each must be one; empty: any."""
    dedicated_device: bool = False


def require(requirements: Collection[str] | None, allowed_backing: Collection[str] | None) -> Require | None:
    """Compile these fields of a profile; None if it requires nothing."""
    if requirements is None and allowed_backing is None:
        return None
    asked = requirements or ()
    return Require(
        encrypted="Encrypted" in asked,
        tmpfs_noswap="TmpfsNoSwap" in asked,
        backing=tuple(allowed_backing or ()),
        dedicated_device="DedicatedDevice" in asked,
    )


def first_unmet(required: Require | None, facts: nodes.NodeFacts) -> names.Requirement | None:
    """Return the first unmet requirement, in the order of names.Requirement; None if the node meets all."""
    return next(_unmet(required, facts), None) if required is not None else None


def unmet(required: Require | None, facts: nodes.NodeFacts) -> dict[str, str] | None:
    """Return all unmet requirements, with the observed facts and the remedy; None if nothing is required."""
    if required is None:
        return None
    return {each.value: _TEXTS[each](required, facts) for each in _unmet(required, facts)}


def _unmet(required: Require, facts: nodes.NodeFacts) -> Iterator[names.Requirement]:
    devices = facts.devices if facts.swap_bytes else ()
    if required.encrypted and not (devices and all(each.encrypted for each in devices)):
        yield names.Requirement.ENCRYPTED
    if required.tmpfs_noswap and not facts.tmpfs_noswap:
        yield names.Requirement.TMPFS_NOSWAP
    if required.backing and not (devices and all(each.backing in required.backing for each in devices)):
        yield names.Requirement.BACKING
    if required.dedicated_device and not (devices and all(each.dedicated for each in devices)):
        yield names.Requirement.DEDICATED_DEVICE


def _encrypted(_: Require, facts: nodes.NodeFacts) -> str:
    bad = [_name(each) for each in facts.devices if not each.encrypted]
    return _no_devices(facts) or (
        f"{_list(bad)}: not known to be encrypted; set the swap up over dm-crypt (a random key in crypttab will do),"
        " or use zram"
    )


def _tmpfs_noswap(_: Require, facts: nodes.NodeFacts) -> str:
    kernel = f"kernel {facts.kernel_release}" if facts.kernel_release else "a kernel that is not known"
    return (
        f"on {kernel} tmpfs volumes, Secrets among them, are not known to be mounted with noswap; use Linux 6.4 or"
        " newer, with a kubelet that is not in a user namespace"
    )


def _backing(required: Require, facts: nodes.NodeFacts) -> str:
    bad = [f"{_name(each)} is {each.backing}" for each in facts.devices if each.backing not in required.backing]
    return _no_devices(facts) or (
        f"{_list(bad)}; move the swap to {' or '.join(required.backing)}, or add its kind to allowedBacking"
    )


def _dedicated_device(_: Require, facts: nodes.NodeFacts) -> str:
    shared = [_name(each) for each in facts.devices if each.dedicated is False]
    unknown = [_name(each) for each in facts.devices if each.dedicated is None]
    problems = (
        f"{_list(shared)}: on a disk with the node's file systems" if shared else "",
        f"{_list(unknown)}: not known which disks are under it" if unknown else "",
    )
    return _no_devices(facts) or f"{'; '.join(filter(None, problems))}; give swap a disk of its own, or use zram"


_TEXTS: Final[dict[names.Requirement, Callable[[Require, nodes.NodeFacts], str]]] = {
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


def _list(listed: Iterable[str]) -> str:
    texts = list(listed)
    rest = len(texts) - NAMED
    return ", ".join(texts[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
