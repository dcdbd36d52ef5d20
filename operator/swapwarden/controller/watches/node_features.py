"""Finds out whether Node Feature Discovery publishes node labels, and follows its NodeFeatures.

nfd-master gives a node the labels of all NodeFeatures that name it, and records on the Node which ones are its own
(node-feature-discovery: pkg/nfd-master). There is one object per node, in the namespace of the release.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from swapwarden.api import decoding, names, state
from swapwarden.kube import backoff, errors, informer, transport
from swapwarden.policy.observed import nodes
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

IN_USE = metrics.gauge(
    "swapwarden_controller_node_features", "1 while Node Feature Discovery is asked to set labels, by NodeFeatures."
)
FAILURES = metrics.counter(
    "swapwarden_controller_node_feature_failures_total",
    "Failed reads of the CustomResourceDefinition of NodeFeatures, which are retried.",
)

INTERVAL_SECONDS: Final = 10.0
"""Seconds between two checks for the CustomResourceDefinition."""
BACKOFF_SECONDS: Final = (0.5, 30.0)
TIMEOUT: Final = 10.0


API_VERSION: Final = "nfd.k8s-sigs.io/v1alpha1"
API: Final = f"/apis/{API_VERSION}"
KIND: Final = "NodeFeature"
PLURAL: Final = "nodefeatures"
NODE_NAME_LABEL: Final = "nfd.node.kubernetes.io/node-name"
OURS: Final = {"app.kubernetes.io/managed-by": "swapwarden-controller"}
SELECTOR: Final = {"labelSelector": ",".join(f"{key}={value}" for key, value in OURS.items())}
NO_FEATURES: Final[dict[str, Any]] = {"attributes": {}, "flags": {}, "instances": {}}
"""All kinds of features, all empty: early versions of Node Feature Discovery require them."""
LONGEST_NODE: Final = 63
"""Nodes with longer names cannot be named by a label."""


class _FeatureSpec(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}


class WireFeature(msgspec.Struct, frozen=True):
    """A NodeFeature as the API server sends it."""

    metadata: state.ObjectMeta
    spec: _FeatureSpec = _FeatureSpec()


class FeatureRow(msgspec.Struct, frozen=True):
    """A NodeFeature in the form in which it is kept."""

    name: str
    uid: str
    version: int
    owner: str
    """UID of the Node that owns it; empty if none does."""
    labels: dict[str, str]


def collection(namespace: str) -> str:
    """Return the path of the NodeFeatures of a namespace."""
    return f"{API}/namespaces/{namespace}/{PLURAL}"


def object_name(node: str) -> str:
    """Return the name of the node's NodeFeature."""
    return f"swapwarden-{node}"


def project(wire: WireFeature) -> FeatureRow:
    """Reduce a NodeFeature to its row."""
    meta = wire.metadata
    return FeatureRow(
        name=meta.name,
        uid=meta.uid,
        version=int(meta.resource_version),
        owner=next((owner.uid for owner in meta.owner_references if owner.kind == "Node"), ""),
        labels=wire.spec.labels,
    )


def decode(body: bytes) -> FeatureRow:
    """Make a row from the answer to a request. ValueError (msgspec.DecodeError is one) if it is no NodeFeature."""
    return project(decoding.decode(body, WireFeature))


def made(node: nodes.NodeRow, owners: list[dict[str, str]], labels: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a new NodeFeature that asks for these labels."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": object_name(node.name),
            "labels": {**OURS, NODE_NAME_LABEL: node.name},
            "ownerReferences": owners,
        },
        "spec": {"features": NO_FEATURES, "labels": {key: value for key, value in labels.items() if value is not None}},
    }


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True):
    resources: list[_Resource] = []


class Features:
    """The known NodeFeatures, and whether labels go there."""

    def __init__(
        self,
        api: transport.Reader,
        namespace: str,
        publisher: names.Publisher,
        *,
        changed: Callable[[str | None], None],
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        """`changed` gets the node whose NodeFeature has changed; None if it may be all of them."""
        self._api = api
        self.path: Final = collection(namespace)
        self._publisher = publisher
        self._changed = changed
        self._interval = interval
        self._rows: dict[str, FeatureRow] = {}
        self._missed = False
        self.in_use: bool | None = False if publisher is names.Publisher.DIRECT else None
        """Whether labels go to NodeFeatures; None while that is unknown or impossible."""

    def serves(self, node: str) -> bool | None:
        """Return whether the node's labels go to a NodeFeature; None while no label can be published."""
        return False if len(node) > LONGEST_NODE else self.in_use

    def of(self, node: str) -> FeatureRow | None:
        """Return the newest known NodeFeature of a node."""
        return self._rows.get(object_name(node))

    async def run(self) -> None:
        """Run until cancelled. If the controller sets all labels, it only waits."""
        while self._publisher is not names.Publisher.DIRECT:
            if await self._installed():
                await self._follow()
            else:
                self._settle(in_use=None if self._publisher is names.Publisher.NODE_FEATURE else False)
                await asyncio.sleep(self._interval)

    async def _follow(self) -> None:
        """Follow NodeFeatures as long as the API server knows the kind."""
        self._rows.clear()
        following = informer.Informer(
            self._api,
            self.path,
            wire=WireFeature,
            project=project,
            name=PLURAL,
            on_change=self._feature_changed,
            params=SELECTOR,
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(following.run())
            there = True
            while there:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval):
                        await following.synced.wait()
                        self._settle(in_use=True)
                        await asyncio.sleep(self._interval)
                there = await self._installed()
            task.cancel()

    def _feature_changed(self, _: str, old: FeatureRow | None, new: FeatureRow | None) -> None:
        row = new or old
        if row is None:
            return
        if new is None:
            self.lost(row)
        else:
            self.wrote(new)
        self._changed(row.name.removeprefix(object_name("")))

    def lost(self, row: FeatureRow) -> None:
        """Forget a NodeFeature that was deleted."""
        known = self._rows.get(row.name)
        if known is not None and known.uid == row.uid:
            del self._rows[row.name]

    def wrote(self, row: FeatureRow) -> None:
        """Take in a NodeFeature that was written, here or elsewhere, unless a newer version is known."""
        known = self._rows.get(row.name)
        if known is None or known.uid != row.uid or known.version < row.version:
            self._rows[row.name] = row

    def _settle(self, *, in_use: bool | None) -> None:
        if in_use is None and not self._missed:
            log.error(
                "no labels are published: the CustomResourceDefinition of NodeFeatures is not there; install Node"
                " Feature Discovery, or let --label-publisher be Auto"
            )
        self._missed = in_use is None
        if in_use == self.in_use:
            return
        if in_use is not None:
            log.info("node labels go to NodeFeatures" if in_use else "node labels go to the nodes themselves")
        self.in_use = in_use
        IN_USE.set(in_use or 0)
        self._changed(None)

    async def _installed(self) -> bool:
        """Return whether the API server knows NodeFeatures, by discovery."""
        waits = backoff.Backoff(*BACKOFF_SECONDS)
        while True:
            try:
                served = decoding.decode(await self._api.get(API, timeout=TIMEOUT), _Resources)
                return any(each.name == PLURAL for each in served.resources)
            except (errors.KubeError, msgspec.DecodeError) as error:
                if isinstance(error, errors.ApiError) and error.status == 404:
                    return False
                FAILURES.inc()
                wait = waits.after(error)
                log.warning("cannot see whether there are NodeFeatures; trying again in %.1f s: %s", wait, error)
                await asyncio.sleep(wait)
