"""The chart's release in the suite's cluster: how it is installed, and what it says of itself."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from testbed.product import helm
from tests.e2e.provider import Provider, ProviderError

NAMESPACE = helm.NAMESPACE
NAME = helm.RELEASE
LABEL_REMOVAL_SECONDS = 20
"""How long swap must be off before a node loses its labels, here. The chart's default is ten minutes."""

_PORTS = {"agent": 8082, "controller": 8083, "webhook": 8081}
_STATES = "/apis/swapwarden.dev/v1alpha1/nodeswapstates"
_TIMEOUT = 900.0
_SERIES = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")


def series(text: str, name: str) -> dict[str, float]:
    """The values of a metric in Prometheus's text form, by their labels as they stand there."""
    found = (_SERIES.fullmatch(line) for line in text.splitlines() if line.startswith(name))
    return {each[2] or "": float(each[3]) for each in found if each and each[1] == name}


@dataclasses.dataclass(frozen=True)
class Exposed:
    """How often an agent found a pod above its value, for how long in all, and what it took of swap meanwhile."""

    count: int = 0
    seconds: float = 0.0
    bytes: int = 0

    def __add__(self, other: Exposed) -> Exposed:
        return Exposed(self.count + other.count, self.seconds + other.seconds, self.bytes + other.bytes)


def exposures(text: str) -> dict[str, Exposed]:
    """Return each pod's exposures by UID from an agent's metrics."""
    lasted = series(text, "swapwarden_agent_pod_exposed_seconds_total")
    taken = series(text, "swapwarden_agent_pod_exposed_swap_bytes_total")
    return {
        labels.removeprefix('pod_uid="').removesuffix('"'): Exposed(
            int(count), lasted.get(labels, 0.0), int(taken.get(labels, 0))
        )
        for labels, count in series(text, "swapwarden_agent_pod_exposures_total").items()
    }


def image_values(reference: str) -> dict[str, str]:
    """The chart's values for an image: by digest, else by tag, else with the chart's own tag."""
    repository, _, digest = reference.partition("@")
    if digest:
        return {"image.repository": repository, "image.digest": digest}
    head, _, tag = repository.rpartition(":")
    if not head or "/" in tag:  # no colon, or that of a registry's port
        return {"image.repository": repository}
    return {"image.repository": head, "image.tag": tag}


class Release:
    """Swapwarden as `helm install` makes it: defaults, but for the image, the labels' delay and one right.

    Its agents log each exposure by itself, which they do at level debug.
    """

    def __init__(self, cluster: Provider) -> None:
        self._cluster = cluster
        self._made = False

    # --- life cycle ---

    def install(self, chart: Path | None = None, **values: str) -> None:
        """Install it, of this version unless CHART is of another; it is all Ready when this returns.

        ProviderError where somebody else has installed it.
        """
        if self._is_there():
            raise ProviderError(f"there is a release {NAME} in {NAMESPACE}, which is left alone; uninstall it first")
        self._made = True  # a failed installation also leaves a release
        self._helm("install", chart or helm.chart(), "--create-namespace", **values)

    def remove(self) -> None:
        """Uninstall the rest of the release that this object installed."""
        if self._made and self._is_there():
            self.uninstall()

    def _is_there(self) -> bool:
        listed = self._cluster.helm("list", "--all", "--short", f"--namespace={NAMESPACE}", f"--filter=^{NAME}$")
        return bool(listed.stdout.strip())

    def upgrade(self, **values: str) -> None:
        """Upgrade it in the same way. Values that are not given have their default again."""
        self._helm("upgrade", helm.chart(), **values)

    def rollback(self) -> None:
        """Go back to the revision before."""
        self._cluster.helm("rollback", NAME, f"--namespace={NAMESPACE}", "--wait", f"--timeout={_TIMEOUT:.0f}s")

    def uninstall(self) -> str:
        """Uninstall it; what helm printed."""
        options = [f"--namespace={NAMESPACE}", "--wait", f"--timeout={_TIMEOUT:.0f}s"]
        said = self._cluster.helm("uninstall", NAME, *options, timeout=2 * _TIMEOUT)
        return said.stdout + said.stderr

    def _helm(self, action: str, chart: Path, *options: str, **values: str) -> None:
        given = {
            **image_values(self._cluster.image),
            "controller.labelRemovalDelay": str(LABEL_REMOVAL_SECONDS),
            "extendedResource": "true",
            "podConditions": "true",
            "agent.extraArgs[0]": "--log-level=debug",
            **values,
        }
        settings = [f"--set={key}={value}" for key, value in given.items()]
        where = [f"--namespace={NAMESPACE}", "--wait", f"--timeout={_TIMEOUT:.0f}s"]
        self._cluster.helm(action, NAME, str(chart), *where, *options, *settings, timeout=2 * _TIMEOUT)

    # --- what it says ---

    def replicas(self, component: str) -> int:
        """How many pods COMPONENT has when all of it is up: agents and plugins are on every node with Linux."""
        if component not in {"agent", "nri"}:
            return 2
        nodes = self._cluster.get("/api/v1/nodes")["items"]
        return sum(node["metadata"]["labels"].get("kubernetes.io/os") == "linux" for node in nodes)

    def is_served(self, component: str) -> bool:
        """Whether all pods of a part are endpoints of its Service."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
        slices = self._cluster.get(f"{path}?labelSelector=kubernetes.io/service-name={NAME}-{component}")["items"]
        ready = [each for one in slices for each in one.get("endpoints") or () if each["conditions"].get("ready")]
        return len(ready) >= self.replicas(component)

    def pods(self, component: str) -> list[Any]:
        """The pods of `agent`, `controller`, `nri` or `webhook` that are not about to end."""
        selector = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component={component}"
        found = self._cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}")["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def agent(self) -> Any:
        """The pod of the one agent on the suite's node."""
        (found,) = [pod for pod in self.pods("agent") if pod["spec"]["nodeName"] == self._cluster.node_name]
        return found

    def metrics(self, pod: str, component: str) -> str:
        """Return the /metrics of a pod of COMPONENT; ProviderError."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{_PORTS[component]}/proxy/metrics"
        return self._cluster.text(path)

    def total(self, component: str, name: str) -> float:
        """The sum of a metric over all pods of COMPONENT and all labels."""
        texts = [self.metrics(pod["metadata"]["name"], component) for pod in self.pods(component)]
        return sum(sum(series(text, name).values()) for text in texts)

    def exposed(self, uid: str) -> Exposed:
        """Return the pod's times above its value from the current agent's metrics."""
        return exposures(self.metrics(self.agent()["metadata"]["name"], "agent")).get(uid, Exposed())

    def state(self) -> Any:
        """The NodeSwapState of the suite's node."""
        return self._cluster.get(f"{_STATES}/{self._cluster.node_name}")

    def condition(self, kind: str) -> str:
        """A condition of that state, as STATUS/REASON; empty where there is none, or the agent has not followed yet."""
        state = self.state()
        status = state.get("status", {})
        if status.get("observedGeneration") != state["metadata"]["generation"]:
            return ""
        found = [each for each in status.get("conditions", []) if each["type"] == kind]
        return f"{found[0]['status']}/{found[0]['reason']}" if found else ""

    def violations(self, uid: str) -> list[Any]:
        """Return the violations of a pod in the agent's status."""
        return [each for each in self.state().get("status", {}).get("violations", []) if each["pod"] == uid]

    def exposures_of(self, uid: str) -> list[Any]:
        """Return the exposures of a pod that the agent reports."""
        return [each for each in self.state().get("status", {}).get("exposures", []) if each["pod"] == uid]

    def planned(self, uid: str) -> str | None:
        """Return the limit in the state for a pod: "max" if it has none, None if the state does not name the pod."""
        entry = self.state()["spec"].get("pods", {}).get(uid)
        return None if entry is None else str(entry.get("swapMax", entry.get("swapAtMost", "max")))

    def logs(self, lines: int) -> str:
        """The end of what each pod in the release's namespace wrote, and of what those wrote that they replaced."""
        parts = []
        for pod in self._cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]:
            name = pod["metadata"]["name"]
            for option in ("--previous=false", "--previous"):
                with contextlib.suppress(Exception):
                    arguments = ["logs", name, f"--namespace={NAMESPACE}", f"--tail={lines}", option]
                    parts.append(f"--- {name} {option}\n{self._cluster.kubectl(*arguments).stdout}")
        return "\n".join(parts)

    @contextlib.contextmanager
    def profile(self, name: str, **spec: Any) -> Iterator[Callable[..., None]]:
        """A NodeSwapProfile for all nodes, in force within; the function changes its `swap`."""

        def apply(**swap: Any) -> None:
            body = {
                "apiVersion": "swapwarden.dev/v1alpha1",
                "kind": "NodeSwapProfile",
                "metadata": {"name": name},
                "spec": {"nodeSelector": {}, **spec, "swap": swap},
            }
            made = json.loads(self._cluster.kubectl("apply", "-o=json", "-f", "-", text=json.dumps(body)).stdout)
            self._await_profile(name, made["metadata"]["generation"])

        try:
            yield apply
        finally:
            self._cluster.kubectl("delete", "nodeswapprofile", name, "--ignore-not-found", "--timeout=120s")
        self._await_profile("(built-in)", 0)

    def _await_profile(self, name: str, generation: int) -> None:
        deadline = time.monotonic() + 120.0
        while True:
            found: Mapping[str, Any] = self.state()["spec"]["profileRef"]
            if found["name"] == name and found.get("generation", 0) == generation:
                return
            if time.monotonic() > deadline:
                raise ProviderError(f"the node is not governed by {name}, generation {generation}, but by {found}")
            time.sleep(0.3)
