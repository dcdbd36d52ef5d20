"""Names and bounds of the link between the agent and `swapwarden nri`, which answers the container runtime.

The link is a Unix socket of sequenced packets in a folder that both have. Each packet is one JSON object; its `kind` is
one of the message kinds. This module imports nothing of the package, so that every process can have it for free.
"""

from __future__ import annotations

import enum
from typing import Final

SOCKET: Final = "agent.sock"
"""The agent's socket in the folder."""
MODE_FILE: Final = "mode"
"""The mode in force, in the folder: for a plugin that starts while no agent runs. Absent: Enforce."""
GONE_SECONDS: Final = 5.0
"""An agent that ends in Restore, so long after the last plugin, takes the file away: both are uninstalled."""
FOLDER: Final = "/run/swapwarden-nri"

MAX_PACKET: Final = 64 * 1024
"""Bytes of a packet; a peer that sends more is dropped."""
MAX_PLUGINS: Final = 4
"""Connections that the agent accepts: during a rolling update two plugins run on a node."""
MAX_UPDATED: Final = 1024
"""Containers of one update, or of one pod."""
SANDBOX_SECONDS: Final = 0.5
"""How long a plugin lets the start of a pod wait for the agent."""

PLUGIN: Final = "swapwarden"
"""The plugin's name in the runtime, which required plugins name."""
INDEX: Final = "90"
"""The plugin's place among others: late, so that requests already have the values of earlier plugins."""

SWAP_MAX: Final = "memory.swap.max"
"""The key among a container's unified resources, as the kernel file's name."""
ORIGINAL_ANNOTATION: Final = "swapwarden.dev/original-swap-max"
"""On a container in the runtime: what the kubelet asked for; empty if it asked for nothing."""
REQUIRED_ANNOTATION: Final = "required-plugins.noderesource.dev"
"""On a pod: plugins without which the runtime's default validator refuses its containers (containerd/nri:
plugins/default-validator)."""


class FromPlugin(enum.StrEnum):
    """Kinds of messages that the plugin sends, with their fields.

    `value` is the container's memory.swap.max in the runtime, as text; null if the runtime has none for it.
    """

    HELLO = "hello"
    """version; reported: the counts that an agent has had, this one or an earlier one."""
    RUNTIME = "runtime"
    """connected, name, version, nri, requestTimeoutMs, error: at each change."""
    CONTAINERS = "containers"
    """items: uid, id, name, value, original (of ORIGINAL_ANNOTATION, null without it); more: whether others follow. A
    sandbox is an item without a name."""
    SANDBOX = "sandbox"
    """seq, uid, id, cgroup: a pod starts, and waits up to SANDBOX_SECONDS for an answer with its seq."""
    CREATED = "created"
    """uid, id, name, value, original (the kubelet's value; null if it had none)"""
    RESIZED = "resized"
    """id, value"""
    UPDATED = "updated"
    """seq, failed: messages by container ID; empty messages if they are too long."""
    REMOVED = "removed"
    """id, of a container or a sandbox"""
    COUNTS = "counts"
    """Numbers by name, since the start of the plugin: after hello, and when they change."""


class FromAgent(enum.StrEnum):
    """Kinds of messages that the agent sends, with their fields."""

    MODE = "mode"
    """mode: one of names.Mode, or empty without a state."""
    RESET = "reset"
    """All decisions follow; earlier ones hold until ready."""
    READY = "ready"
    PODS = "pods"
    """pods: by UID default, containers by name, decided. A decision has a value and atMost: whether it only replaces
    larger ones."""
    GONE = "gone"
    """uids"""
    SANDBOX = "sandbox"
    """seq"""
    UPDATE = "update"
    """seq, values by container ID, at most MAX_UPDATED"""


class Away(enum.StrEnum):
    """Why a plugin has no runtime, in `error` of its message; other texts are the system's or the runtime's own."""

    NO_SOCKET = "NoSocket"
    """The folder has no socket: the runtime does not run, or NRI is off."""
    REFUSED = "Refused"
    """Nobody listens there."""
    LOST = "Lost"
    """It ended the connection."""
