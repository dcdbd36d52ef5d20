"""The certificates that the webhook's replicas serve, as far as their metrics tell: no Secret is read for that."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.cli.kubectl.cluster import agents, session

EXPIRY: Final = "swapwarden_webhook_certificate_expiry_timestamp_seconds"
_LABELS: Final = {**names.AGENT_LABELS, "app.kubernetes.io/component": "webhook"}
_SELECTOR: Final = ",".join(f"{key}={value}" for key, value in _LABELS.items())


class Served(msgspec.Struct, frozen=True):
    """What one replica serves."""

    namespace: str
    pod: str
    expires: float
    """Seconds since 1970."""


async def read(asked: session.Session, namespace: str) -> list[Served]:
    """What the Ready replicas in a namespace serve; that it is not known of one is noted."""
    try:
        path = asked.namespaced("api/v1", "pods", namespace)
        found = await asked.collect(path, agents.WireAgent, selector=_SELECTOR)
    except session.ForbiddenError:
        return []  # the caller says that it may not see pods
    replicas = [replica for replica in map(agents.project, found) if replica.ready]
    served = await asyncio.gather(*(_of(asked, replica) for replica in replicas))
    return [one for one in served if one is not None]


async def _of(asked: session.Session, replica: agents.AgentPod) -> Served | None:
    try:
        for sample in await agents.metrics(asked, replica, {EXPIRY}):
            return Served(replica.namespace, replica.name, sample.value)
    except session.ForbiddenError as error:
        # One note for all of them.
        asked.note(f"when the webhook's certificates expire is not known (get on pods/proxy): {error.message}")
    except session.CommandError as error:
        asked.note(
            f"when the certificate of pod {replica.namespace}/{replica.name} expires is not known: {error.message}"
        )
    return None
