"""The peer of `swapwarden controller` in bench/scale.py: kopf alone watches, and the same plans are written.

    python bench/kopf_controller.py --kubeconfig FILE

It uses kopf's own means: indices, which are complete before any handler runs, and a handler for each event. The rows,
the plan, the queue and the patch are those of the controller, so that only the intake of objects differs.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
import kopf
import msgspec
from swapwarden.api import names, profile
from swapwarden.controller import workqueue
from swapwarden.controller.writers import states as state_writer
from swapwarden.kube import client, config, errors
from swapwarden.policy import plan
from swapwarden.policy.fleet import cluster
from swapwarden.policy.observed import nodes, pods, states
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.profile import compiled

EPOCH = 1
WORKERS = 8
Index = Mapping[str, Any]


class Controller:
    """Handlers and workers; all in kopf's loop."""

    def __init__(self, api: client.Client) -> None:
        self._api = api
        self._queue = workqueue.WorkQueue("kopf")
        self._indices: dict[str, Index] = {}
        self._written: dict[str, states.StateRow] = {}

    def register(self, registry: kopf.OperatorRegistry) -> None:
        @kopf.index("pods", registry=registry, id="pods")
        async def by_node(body: kopf.Body, **_: Any) -> dict[str, pods.PodRow]:
            row = pods.project(msgspec.convert(_plain(body), WirePod))
            return {row.node: row}

        @kopf.index("nodes", registry=registry, id="nodes")
        async def by_name(body: kopf.Body, **_: Any) -> dict[str, nodes.NodeRow]:
            row = nodes.project(msgspec.convert(_plain(body), nodes.WireNode))
            return {row.name: row}

        kind = (names.GROUP, names.VERSION, names.STATE_PLURAL)

        @kopf.index(*kind, registry=registry, id="states")
        async def state_by_name(body: kopf.Body, **_: Any) -> dict[str, states.StateRow]:
            row = states.decode(msgspec.json.encode(_plain(body)))
            return {row.name: row}

        @kopf.index(names.GROUP, names.VERSION, names.PROFILE_PLURAL, registry=registry, id="profiles")
        async def profile_by_name(body: kopf.Body, **_: Any) -> dict[str, compiled.Profile]:
            found = {key: value for key, value in _plain(body).items() if key != "status"}
            return {"all": compiled.compile_profile(profile.NodeSwapProfile.model_validate(found))}

        @kopf.on.event("pods", registry=registry)
        async def pod_changed(body: kopf.Body, **indices: Any) -> None:
            self._changed(body["spec"].get("nodeName", ""), indices)

        @kopf.on.event("nodes", registry=registry)
        @kopf.on.event(*kind, registry=registry)
        async def changed(name: str | None, **indices: Any) -> None:
            self._changed(name or "", indices)

    def _changed(self, name: str, indices: dict[str, Index]) -> None:
        self._indices = indices
        if name:
            self._queue.add(name, cluster.COALESCE_SECONDS)

    async def work(self) -> None:
        while True:
            name = await self._queue.get()
            try:
                await self._reconcile(name)
            except errors.KubeError:
                self._queue.add(name, 1.0)
            finally:
                self._queue.done(name)

    async def _reconcile(self, name: str) -> None:
        [node] = self._indices["nodes"].get(name, [None])
        if node is None:
            return
        [row] = self._indices["states"].get(name, [None])
        written = self._written.get(name)
        if row is None or (written is not None and written.version > row.version):
            row = written
        selection = compiled.select(self._indices["profiles"].get("all", ()), node.labels)
        facts = nodes.facts(node, row.facts if row else None)
        spec = plan.plan_node(selection.profile, facts, self._indices["pods"].get(name, ()))
        if row is None:
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid}
            body = {
                "apiVersion": names.API_VERSION,
                "kind": names.STATE_KIND,
                "metadata": {"name": name, "ownerReferences": [owner]},
                "spec": msgspec.structs.replace(spec, epoch=EPOCH),
            }
            answer = await self._api.post(names.STATES_PATH, msgspec.json.encode(body))
        else:
            patch = state_writer.state_patch(row, node, spec, EPOCH)
            if patch is None:
                return
            answer = await self._api.merge_patch(f"{names.STATES_PATH}/{name}", msgspec.json.encode(patch))
        self._written[name] = states.decode(answer)


def _plain(body: Any) -> dict[str, Any]:
    """Return the object without kopf's wrapping."""
    return {key: value for key, value in body.items()}  # noqa: C416 a mapping that is no dict


async def operate(kubeconfig: str) -> None:
    cfg = config.load(kubeconfig)
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    context: ssl.SSLContext | None = cfg.ssl_context()
    connector = aiohttp.TCPConnector(limit=0, ssl=True if context is None else context)
    async with (
        client.Client(cfg, user_agent="bench-kopf") as api,
        aiohttp.ClientSession(connector=connector) as session,
    ):

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            return kopf.AiohttpSession(server=cfg.server, aiohttp_session=session)

        controller = Controller(api)
        controller.register(registry)
        workers = [asyncio.create_task(controller.work()) for _ in range(WORKERS)]
        await kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True)
        for worker in workers:
            worker.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    asyncio.run(operate(parser.parse_args().kubeconfig))


if __name__ == "__main__":
    main()
