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
FOLDER: Final = "/run/swapwarden-nri"

MAX_PACKET: Final = 64 * 1024
"""Bytes of a packet; a peer that sends more is dropped."""
MAX_PLUGINS: Final = 4
"""Connections that the agent accepts: during a rolling update two plugins run on a node."""
SANDBOX_SECONDS: Final = 0.5
"""How long a plugin lets the start of a pod wait for the agent."""

PLUGIN: Final = "swapwarden"
"""The plugin's name in the runtime, which required plugins name."""
INDEX: Final = "90"
"""Its place among plugins: late, so that requests already have the values of others."""

SWAP_MAX: Final = "memory.swap.max"
"""The key among a container's unified resources, as the kernel file's name."""
ORIGINAL_ANNOTATION: Final = "swapwarden.dev/original-swap-max"
"""On a container in the runtime: what the kubelet asked for; empty if it asked for nothing."""
REQUIRED_ANNOTATION: Final = "required-plugins.noderesource.dev"
"""On a pod: plugins without which the runtime's default validator refuses its containers (containerd/nri:
plugins/default-validator)."""


class FromPlugin(enum.StrEnum):
    """Kinds of messages that the plugin sends."""

    HELLO = "hello"
    RUNTIME = "runtime"
    CONTAINERS = "containers"
    SANDBOX = "sandbox"
    CREATED = "created"
    RESIZED = "resized"
    UPDATED = "updated"
    REMOVED = "removed"
    COUNTS = "counts"


class FromAgent(enum.StrEnum):
    """Kinds of messages that the agent sends."""

    MODE = "mode"
    RESET = "reset"
    READY = "ready"
    PODS = "pods"
    GONE = "gone"
    SANDBOX = "sandbox"
    UPDATE = "update"


class Away(enum.StrEnum):
    """Why a plugin has no runtime, in `error` of its message; other texts are the system's or the runtime's own."""

    NO_SOCKET = "NoSocket"
    """The folder has no socket: the runtime does not run, or NRI is off."""
    REFUSED = "Refused"
    """Nobody listens there."""
    LOST = "Lost"
    """It ended the connection."""
