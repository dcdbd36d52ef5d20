"""Agents as the API server sees them: each follows its node's state, and reports it as applied.

    python bench/agents.py --kubeconfig FILE --nodes COUNT --own COUNT

So many of the nodes have a watch of their own, as in a cluster; one watch of all states serves the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from swapwarden.agent.desired import spec
from swapwarden.agent.report import collector, status, status_writer
from swapwarden.api import formats, names, state
from swapwarden.kube import backoff, client, config, errors, informer

from bench import load
from testbed.base import term

FACTS: Final = state.Facts(
    cgroup_version=2,
    swap_controller=True,
    swap_bytes=8 << 30,
    memory_bytes=64 << 30,
    kernel_release="6.1.0-31-amd64",
    devices=[state.SwapDevice(name="/dev/nvme0n1p3", type="partition", size_bytes=8 << 30, priority=-2)],
)
CONNECTS_AT_ONCE: Final = 32


class _Seen(msgspec.Struct, frozen=True):
    """A state: the fields that agents report on."""

    generation: int
    profile: state.ProfileRef


def _seen(wire: state.NodeSwapState) -> _Seen:
    if wire.spec is None:
        raise ValueError(f"the state of {wire.metadata.name} has no spec")
    return _Seen(wire.metadata.generation, wire.spec.profile_ref)


class Agents:
    """All agents in one process."""

    def __init__(self, api: client.Client, nodes: int, own: int) -> None:
        self._api = api
        self._own = {load.node_name(number) for number in range(min(nodes, own))}
        self._shared = own < nodes
        self._reported: dict[str, dict[str, Any]] = {}
        self._profiles: dict[str, state.ProfileRef] = {}
        """Nodes whose plan was reported as applied."""
        self._seen: dict[str, _Seen] = {}
        """States to report."""
        self._due: dict[str, float] = {}
        self._group = asyncio.TaskGroup()

    async def run(self) -> None:
        """Never returns."""
        async with self._group as group:
            waiting = asyncio.Semaphore(CONNECTS_AT_ONCE)
            for name in self._own:
                await waiting.acquire()
                own = self._informer(self._changed, {"fieldSelector": f"metadata.name={name}"})
                group.create_task(own.run())
                group.create_task(_release(own, waiting))
            if self._shared:
                rest = self._informer(self._changed_elsewhere, {})
                group.create_task(rest.run())
                await rest.synced.wait()
            for _ in range(CONNECTS_AT_ONCE):
                await waiting.acquire()
            term.say(f"{len(self._own)} agents have a watch of their own")

    def _informer(
        self, on_change: Callable[[str, _Seen | None, _Seen | None], None], params: dict[str, str]
    ) -> informer.Informer[state.NodeSwapState, _Seen]:
        return informer.Informer(
            self._api,
            names.STATES_PATH,
            wire=state.NodeSwapState,
            project=_seen,
            name="agents",
            on_change=on_change,
            params=params,
        )

    def _changed_elsewhere(self, name: str, old: _Seen | None, new: _Seen | None) -> None:
        if name not in self._own:
            self._changed(name, old, new)

    def _changed(self, name: str, _: _Seen | None, new: _Seen | None) -> None:
        if new is None or new.generation == 1:
            self._reported.pop(name, None)
            self._profiles.pop(name, None)
        if new is None:
            return
        is_waiting = name in self._seen
        self._seen[name] = new
        if not is_waiting:
            self._group.create_task(self._report(name))

    async def _report(self, name: str) -> None:
        """Wait as long as agents do."""
        wait = self._due.get(name, 0.0) - time.monotonic()
        if self._profiles.get(name) == self._seen[name].profile:
            wait = status_writer.GENERATION_SECONDS
        await asyncio.sleep(max(0.0, wait))
        self._due[name] = time.monotonic() + status_writer.PATCH_SECONDS
        seen = self._seen.pop(name)
        self._profiles[name] = seen.profile
        wanted = _status(seen)
        patch = formats.merge_patch(self._reported.get(name, {}), wanted)
        pause = backoff.Backoff(*status_writer.BACKOFF_SECONDS)
        while True:
            try:
                body = msgspec.json.encode({"status": patch})
                await self._api.merge_patch(f"{names.STATES_PATH}/{name}/status", body)
            except errors.KubeError as error:
                if isinstance(error, errors.ApiError) and error.status == 404:
                    return
                await asyncio.sleep(pause.next())
            else:
                self._reported[name] = wanted
                return


async def _release(own: informer.Informer[state.NodeSwapState, _Seen], waiting: asyncio.Semaphore) -> None:
    await own.synced.wait()
    waiting.release()


def _status(seen: _Seen) -> dict[str, Any]:
    profile = seen.profile.name, seen.profile.generation
    desired = spec.NodeSpec(
        "", seen.generation, names.Mode.ENFORCE, names.BeforePlan.NO_SWAP, None, {}, profile=profile
    )
    snapshot = collector.Snapshot(desired, seen.generation, collector.Tree("kubepods.slice"), violations=())
    verdicts = status.verdicts(snapshot, FACTS)
    found: dict[str, Any] = msgspec.to_builtins(status.build(snapshot, FACTS, verdicts, (), load.BEGUN))
    return found


async def serve(kubeconfig: str, nodes: int, own: int) -> None:
    cfg = config.load(kubeconfig)
    async with client.Client(cfg, user_agent="bench-agents", max_connections=load.REQUESTS_AT_ONCE) as api:
        await Agents(api, nodes, own).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--own", type=int, required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.kubeconfig, options.nodes, options.own))


if __name__ == "__main__":
    main()
