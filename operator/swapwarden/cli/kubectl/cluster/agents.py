"""The agents of a cluster: their nodes and, through the API server's proxy to pods, their metrics.

An agent's answer is untrusted input.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.cli.kubectl.cluster import session
from swapwarden.policy.observed.pods import WirePod

NAMESPACE: Final = "swapwarden-system"
"""The usual namespace of a release; users who may not list pods of all namespaces may list those there."""
PORT: Final = 8082
PORT_NAME: Final = "metrics"
SCRAPE_SECONDS: Final = 5.0
SELECTOR: Final = ",".join(f"{key}={value}" for key, value in names.AGENT_LABELS.items())
MAX_BYTES: Final = 8 * 1024 * 1024
"""An agent with as many pods and containers as a state can name says less."""
MAX_LINE: Final = 2048
_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]{0,127})(?:\{([^}]*)\})? ([^ ]{1,32})")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]{0,63})="((?:[^"\\]|\\.)*)",?')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class AgentPod(msgspec.Struct, frozen=True):
    """An agent's pod."""

    node: str
    namespace: str
    name: str
    port: int
    ready: bool


class MetricSample(msgspec.Struct, frozen=True):
    """One line: a metric with its labels and its value, which may be infinite."""

    name: str
    labels: dict[str, str]
    value: float


Found = Mapping[str, AgentPod]
"""Agents by node."""
Scraped = Mapping[str, list[MetricSample]]
"""Metrics of agents by node."""


def namespace_of(namespaces: Sequence[str]) -> str | None:
    """Return the agents' namespace among those of pods that look like agents: the usual one, else that of most.

    Anybody who may create pods can give them the labels of agents; what those say must not be taken for the truth.
    """
    return max(set(namespaces), key=lambda name: (name == NAMESPACE, namespaces.count(name), name), default=None)


def select_agents(pods: Iterable[WirePod]) -> dict[str, AgentPod]:
    """Return the agent of each node, a Ready one first."""
    bound = [pod for pod in pods if pod.spec.node_name]
    chosen = namespace_of([pod.metadata.namespace for pod in bound])
    by_node: dict[str, AgentPod] = {}
    for pod in bound:
        node, meta = pod.spec.node_name, pod.metadata
        if meta.namespace != chosen:
            continue
        ports = [port for container in pod.spec.containers or () for port in container.ports if port.name == PORT_NAME]
        port = ports[0].container_port if ports else PORT
        agent = AgentPod(node, meta.namespace, meta.name, port, pod.status.is_ready and not meta.deletion_timestamp)
        if node not in by_node or (agent.ready and not by_node[node].ready):
            by_node[node] = agent
    return by_node


async def find(asked: session.Session) -> tuple[Found | None, str]:
    """Return the agents by node, or None and the reason if the user may not see them."""
    try:
        return select_agents(await asked.collect("/api/v1/pods", WirePod, selector=SELECTOR)), ""
    except session.ForbiddenError:
        pass
    try:
        pods = await asked.collect(asked.namespaced("api/v1", "pods", NAMESPACE), WirePod, selector=SELECTOR)
    except session.ForbiddenError as error:
        return None, f"the agents cannot be seen: {error.message}"
    # Where there are none, they may be in another namespace.
    by_node = select_agents(pods)
    return (by_node, "") if by_node else (None, f"no agents are in {NAMESPACE}, and other namespaces may not be seen")


async def scrape(asked: session.Session, agents: Iterable[AgentPod], desired: Collection[str]) -> tuple[Scraped, str]:
    """Return the metrics of the Ready agents that answer in time, by node, and why others do not."""
    ready = [agent for agent in agents if agent.ready]
    scraped: dict[str, list[MetricSample]] = {}
    failed: list[str] = []

    async def one(agent: AgentPod) -> None:
        name = f"http:{session.quote(agent.name)}:{agent.port}"
        path = f"/api/v1/namespaces/{session.quote(agent.namespace)}/pods/{name}/proxy/metrics"
        try:
            scraped[agent.node] = parse(await asked.body(path, seconds=SCRAPE_SECONDS), desired)
        except session.ForbiddenError:
            raise
        except session.CommandError as error:
            failed.append(f"{agent.node} ({error.message})")

    try:
        # The first alone: without the right to one there is none to any.
        for agent in ready[:1]:
            await one(agent)
        await asyncio.gather(*(one(agent) for agent in ready[1:]))
    except session.ForbiddenError as error:
        return scraped, f"the agents' metrics may not be read (get on pods/proxy): {error.message}"
    return (
        scraped,
        f"the agents of {len(failed)} of {len(ready)} nodes gave no metrics: {min(failed)}" if failed else "",
    )


async def read(
    asked: session.Session, on: Collection[str], desired: Collection[str]
) -> tuple[Found | None, Scraped, str]:
    """Return the agents, the metrics of those on some nodes, and why some are missing; None as find()."""
    by_node, unseen = await find(asked)
    scraped, unread = await scrape(asked, (agent for name, agent in (by_node or {}).items() if name in on), desired)
    return by_node, scraped, unseen or unread


def parse(body: bytes, desired: Collection[str]) -> list[MetricSample]:
    """Return the samples of the `desired` metrics in the text format. Skip invalid lines, NaN and negative values.

    Label values with a closing brace are not understood, and of the metrics that are read here none can have one.
    """
    if len(body) > MAX_BYTES:
        return []
    samples = []
    for line in body.decode("utf-8", "replace").split("\n"):
        match = None if len(line) > MAX_LINE else _LINE.match(line)
        if match is not None and match[1] in desired and (value := _number(match[3])) >= 0:
            labels = {key: _unescaped(text) for key, text in _LABEL.findall(match[2] or "")}
            samples.append(MetricSample(match[1], labels, value))
    return samples


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPES.get(match[0], match[0]), text) if "\\" in text else text
