"""A stand-in for nfd-master, as far as labels go: it sets those that NodeFeatures ask for, and notes them on the Node.

What it takes and what it takes away are the rules of node-feature-discovery (pkg/nfd-master, pkg/apis/nfd/validate).
"""

from __future__ import annotations

import threading
from typing import Any, Self

from testbed.controlplane import ControlPlane

Json = dict[str, Any]

FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/nodefeatures"
OWNS = "nfd.node.kubernetes.io/feature-labels"
DOMAIN = "feature.node.kubernetes.io"


def qualified(key: str) -> str:
    return key if "/" in key else f"{DOMAIN}/{key}"


def is_taken(key: str) -> bool:
    """Whether nfd-master sets a label of this key, as it comes."""
    domain = key.partition("/")[0]
    own = any(domain == each or domain.endswith(f".{each}") for each in (DOMAIN, "profile.node.kubernetes.io"))
    return own or not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


class NfdMaster:
    """Labels nodes for as long as the context lasts."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._cp = control_plane
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            status, found = self._cp.request("GET", FEATURES)
            if status != 200:
                continue
            wanted: dict[str, dict[str, str]] = {}
            for each in sorted(found["items"], key=lambda each: str(each["metadata"]["name"])):
                node = each["metadata"].get("labels", {}).get("nfd.node.kubernetes.io/node-name", "")
                asked = each["spec"].get("labels", {})
                wanted.setdefault(node, {}).update({qualified(key): value for key, value in asked.items()})
            for node in self._cp.get("/api/v1/nodes")["items"]:
                self._label(node, wanted.get(node["metadata"]["name"], {}))

    def prune(self) -> None:
        """Take away what it has set, as `nfd-master -prune` does."""
        for node in self._cp.get("/api/v1/nodes")["items"]:
            self._label(node, {})

    def _label(self, node: Json, asked: dict[str, str]) -> None:
        wanted = {key: value for key, value in asked.items() if is_taken(key)}
        before = node["metadata"].get("annotations", {}).get(OWNS, "")
        had = {qualified(each) for each in before.split(",") if each}
        there = node["metadata"].get("labels", {})
        change: Json = {key: None for key in had - wanted.keys() if key in there}
        change |= {key: value for key, value in wanted.items() if there.get(key) != value}
        noted = ",".join(sorted(key.removeprefix(f"{DOMAIN}/") for key in wanted)) or None
        if change or (noted or "") != before:
            metadata = {"labels": change, "annotations": {OWNS: noted}}
            self._cp.request("PATCH", f"/api/v1/nodes/{node['metadata']['name']}", {"metadata": metadata})
