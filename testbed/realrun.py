"""python -m testbed.realrun: a real run for the pictures of the documentation, kept in realrun.json.

A whole cluster with the chart's defaults, pods that swap and pods that may not, somebody who writes over their limits,
and a Prometheus that scrapes all of it: the dashboard's own queries are asked of it at the end. About twelve minutes.
"""

import dataclasses
import datetime
import inspect
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swapwarden.kube import client

from testbed import chart, dashboard, helm, image, recording
from testbed.base import host, process, term
from testbed.controlplane import servers
from testbed.prometheus import INTERVAL, Prometheus
from testbed.recording import Answer, Event, Explained, Recording, Series
from testbed.standin import hog
from testbed.vm import nodevm
from testbed.vm.cluster import Cluster
from testbed.vm.guestlink import VMError

SECONDS = 400
_SWAP_MIB = 1024
_RATE_WINDOW = f"{4 * INTERVAL}s"
"""What Grafana makes of $__rate_interval where a point is not longer than a scrape."""
_TARGETS = 6  # one agent, two controllers, two webhooks, and who tells the names of pods
_TIMEOUT = 900.0
_SPACE = "batch"
_NO_SWAP_SPACE = "ledgers"
_DISABLED = {"swapwarden.dev/swap-policy": "Disabled"}
_EXPLAINED = "report"
_MIB = 1 << 20

Json = Any


def _hungry(mib: int, pace: int, *options: str) -> Json:
    """What a container runs that wants MIB of memory and touches all of it again and again, PACE MiB a second."""
    command = ["python3", "-I", "-S", "-c", inspect.getsource(hog), str(mib), "--pace", str(pace), *options]
    return {"image": image.REFERENCE, "imagePullPolicy": "IfNotPresent", "command": command}


def _container(name: str, request: str, limit: str, does: Json) -> Json:
    return {"name": name, "resources": {"requests": {"memory": request}, "limits": {"memory": limit}}, **does}


def _workload(name: str, *containers: Json, namespace: str = _SPACE, annotations: dict[str, str] | None = None) -> Json:
    """A Deployment of one pod."""
    template = {
        "metadata": {"labels": {"app": name}, "annotations": annotations or {}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [*containers]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    }


def _namespace(name: str, labels: dict[str, str]) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _profile(name: str, priority: int, labels: dict[str, str], **swap: str) -> Json:
    return {
        "apiVersion": "swapwarden.dev/v1alpha1",
        "kind": "NodeSwapProfile",
        "metadata": {"name": name},
        "spec": {"priority": priority, "nodeSelector": {"matchLabels": labels}, "swap": swap},
    }


REPORT = _workload(
    _EXPLAINED,
    _container("app", "160Mi", "192Mi", _hungry(210, 8)),
    _container("proxy", "32Mi", "32Mi", _hungry(8, 1)),
)
DATABASE = _workload("database", _container("main", "64Mi", "96Mi", _hungry(48, 16)), annotations=_DISABLED)
LEDGER = _workload("ledger", _container("main", "32Mi", "64Mi", _hungry(24, 4)), namespace=_NO_SWAP_SPACE)
LEGACY = _workload("legacy", _container("main", "128Mi", "160Mi", _hungry(96, 64, "--rounds=1")), annotations=_DISABLED)
NIGHTLY = [_workload(f"nightly-{each}", _container("main", "96Mi", "128Mi", _hungry(135, 8))) for each in (1, 2)]
PROFILES = [
    _profile("all-nodes", 100, {}, behavior="Kubelet"),
    _profile("batch-nodes", 200, {"pool": "batch"}, behavior="LimitedSwap", systemReserved="25%"),
]
REFUSED = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "refused", "namespace": _SPACE, "annotations": {"swapwarden.dev/swap-policy": "Never"}},
    "spec": {"containers": [{"name": "main", "image": "none"}]},
}


@dataclasses.dataclass(frozen=True)
class _Step:
    """Something that is done while the recording runs; it is shown where it has a text."""

    at: float
    text: str
    do: Callable[[], object]


class _Run:
    """One cluster, and what is done in it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._explained: Explained | None = None

    def prepare(self) -> None:
        """A pod that has swap in use before anybody speaks for it; then Swapwarden, profiles, and the other pods."""
        self._cluster.kubectl("label", "node", nodevm.NAME, "pool=batch")
        spaces = [
            _namespace(_SPACE, {}),
            _namespace(_NO_SWAP_SPACE, {"swapwarden.dev/default-swap-policy": "Disabled"}),
        ]
        with term.step("starting a pod that swaps before Swapwarden is there"):
            self._apply(*spaces, LEGACY)
            folder = self._of_pod(self._available("legacy"))
            used = folder / "memory.swap.current"
            # What is asked for first comes from the cache of files.
            ask = f"while [ $(cat {used}) -lt {24 * _MIB} ]; do echo 8M > {folder}/memory.reclaim; sleep 0.2; done"
            self._cluster.node.run(["sh", "-c", ask], timeout=_TIMEOUT)
        with term.step("installing Swapwarden"):
            settings = f"--set=image.repository={image.REFERENCE.partition(':')[0]}"
            options = [f"--namespace={helm.NAMESPACE}", "--create-namespace", "--wait", f"--timeout={_TIMEOUT:.0f}s"]
            self._cluster.helm("install", helm.RELEASE, str(chart.FOLDER), settings, *options, timeout=2 * _TIMEOUT)
        with term.step("applying profiles; starting two pods that must not swap"):
            self._apply(*PROFILES, DATABASE, LEDGER)
            self._cluster.wait_for(self._is_governed, "the node follows its profile")
            self._available("database")
            self._available("ledger", _NO_SWAP_SPACE)

    def steps(self) -> list[_Step]:
        """What is done, in the order of time."""
        raised = "a foreign program raises the limit of a Disabled pod, again and again"
        return [
            _Step(20, "a pod starts that needs more than its memory limit", lambda: self._apply(REPORT)),
            _Step(50, raised, self._raise),
            _Step(110, "two more such pods start", lambda: self._apply(*NIGHTLY)),
            _Step(180, "systemctl daemon-reload: systemd writes over all limits", self._cluster.node.daemon_reload),
            _Step(205, "", self._explain),
            _Step(230, "the two pods are deleted", lambda: self._delete(*NIGHTLY)),
            _Step(270, "a pod is deleted that had swapped before Swapwarden came", lambda: self._delete(LEGACY)),
            _Step(310, "pods with a bad policy are refused", self._refused),
            _Step(340, "systemctl daemon-reload", self._cluster.node.daemon_reload),
        ]

    def record(self, prometheus: Prometheus) -> Recording:
        """Do it all, and ask for what the dashboard shows of it."""
        start = float(math.ceil(time.time() / INTERVAL) * INTERVAL)
        events = []
        for step in self.steps():
            time.sleep(max(0.0, start + step.at - time.time()))
            term.say(f"  {time.time() - start:.0f} s: {step.text or 'kubectl swap explain'}")
            if step.text:
                events.append(Event(round(time.time() - start, 1), step.text))
            step.do()
        time.sleep(max(0.0, start + SECONDS - time.time()))
        if self._explained is None:
            raise process.ProcessError("nothing was explained")
        return Recording(
            facts=self._facts(prometheus.version(), start),
            start=start,
            step=INTERVAL,
            steps=SECONDS // INTERVAL + 1,
            events=events,
            panels={panel.title: _asked(prometheus, panel, start) for row in dashboard.ROWS for panel in row.panels},
            explained=self._explained,
        )

    def _apply(self, *objects: Json) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self._cluster.kubectl("apply", "-f", "-", text=json.dumps(listed))

    def _delete(self, *workloads: Json) -> None:
        names = [each["metadata"]["name"] for each in workloads]
        self._cluster.kubectl("delete", "deployments", *names, f"--namespace={_SPACE}", "--wait=false")

    def _get(self, path: str) -> Json:
        return self._cluster.control_plane.get(path)

    def _available(self, name: str, namespace: str = _SPACE) -> Json:
        """The one pod of a Deployment, once it runs."""
        available = ["wait", "--for=condition=Available", f"deployment/{name}", f"--timeout={_TIMEOUT:.0f}s"]
        self._cluster.kubectl(*available, f"--namespace={namespace}", timeout=2 * _TIMEOUT)
        return self._pod(name, namespace)

    def _pod(self, name: str, namespace: str = _SPACE) -> Json:
        (found,) = self._get(f"/api/v1/namespaces/{namespace}/pods?labelSelector=app={name}")["items"]
        return found

    def _of_pod(self, pod: Json) -> Path:
        """A pod's cgroup."""
        name = f"*pod{pod['metadata']['uid'].replace('-', '_')}.slice"
        argv = ["find", str(nodevm.KUBEPODS), "-type", "d", "-name", name]
        return Path(self._cluster.node.run(argv, timeout=_TIMEOUT).stdout.strip())

    def _is_governed(self) -> bool:
        path = f"/apis/swapwarden.dev/v1alpha1/nodeswapstates/{nodevm.NAME}"
        status, state = self._cluster.control_plane.request("GET", path)
        return status == 200 and state["spec"]["profile"]["name"] == "batch-nodes"

    def _raise(self) -> None:
        file = self._of_pod(self._pod("database")) / "memory.swap.max"
        script = f"for i in $(seq 14); do echo {256 * _MIB} > {file}; sleep 2; done"
        self._cluster.node.spawn(["sh", "-c", script], log="foreign")

    def _refused(self) -> None:
        for _ in range(5):
            status, _ = self._cluster.control_plane.request("POST", f"/api/v1/namespaces/{_SPACE}/pods", REFUSED)
            if status < 400:
                raise process.ProcessError("a pod with a bad policy was not refused")

    def _explain(self) -> None:
        """Keep what `kubectl swap explain` is answered."""
        name = self._pod(_EXPLAINED)["metadata"]["name"]
        answers: dict[str, Any] = {}

        def answer(request: str) -> bytes:
            status, body = self._cluster.control_plane.request("GET", request)
            if status >= 400:
                raise client.ApiError(status, str(body.get("reason", "")), str(body.get("message", "")))
            if isinstance(body, str):  # metrics, of which only these are read
                wanted = ("swapwarden_pod_swap_", "swapwarden_container_swap_")
                body = "".join(line for line in body.splitlines(keepends=True) if line.startswith(wanted))
            answers[request] = recording.trimmed(body)
            return body.encode() if isinstance(body, str) else json.dumps(body).encode()

        recording.seen(answer, _SPACE, name)
        self._explained = Explained(_SPACE, name, round(time.time(), 1), answers)

    def _facts(self, prometheus: str, start: float) -> dict[str, str]:
        info = self._get(f"/api/v1/nodes/{nodevm.NAME}")["status"]
        said = {key: info["nodeInfo"][key] for key in ("kernelVersion", "osImage", "containerRuntimeVersion")}
        return {
            **said,
            "node": nodevm.NAME,
            "kubelet": info["nodeInfo"]["kubeletVersion"],
            "memory": info["capacity"]["memory"],
            "swap": f"{_SWAP_MIB}Mi",
            "machine": self._cluster.node.accelerator,
            "prometheus": prometheus,
            "day": datetime.datetime.fromtimestamp(start, datetime.UTC).strftime("%Y-%m-%d"),
        }


def _asked(prometheus: Prometheus, panel: dashboard.Panel, start: float) -> list[Answer]:
    found = []
    for query in panel.queries:
        expression = dashboard.plain(query.expression, node=nodevm.NAME, window=_RATE_WINDOW)
        end = start + SECONDS
        if panel.kind == "table":
            series = [Series(each["metric"], [_number(each["value"][1])]) for each in prometheus.query(expression, end)]
        else:
            answer = prometheus.query_range(expression, start, end, INTERVAL)
            series = [Series(each["metric"], _on_grid(each["values"], start)) for each in answer]
        found.append(Answer(query.expression, sorted(series, key=lambda each: sorted(each.labels.items()))))
    return found


def _on_grid(values: list[tuple[float, str]], start: float) -> list[float | None]:
    """Values in the places of their times."""
    known = {round((at - start) / INTERVAL): _number(text) for at, text in values}
    return [known.get(place) for place in range(SECONDS // INTERVAL + 1)]


def _number(text: str) -> float | None:
    """As much of a number as a picture can show; None for NaN and infinity."""
    value = float(text)
    return float(f"{value:.5g}") if math.isfinite(value) else None


def main() -> int:
    """Make the recording anew."""
    process.exit_on_sigterm()
    try:
        with Cluster([image.ensure()], swap_mib=_SWAP_MIB) as cluster:
            run = _Run(cluster)
            run.prepare()
            with Prometheus(cluster.control_plane, cluster.folder) as prometheus:
                cluster.wait_for(lambda: prometheus.targets_up() == _TARGETS, "all targets answer")
                time.sleep(2 * 4 * INTERVAL)  # what is counted a second needs a past
                recording.save(run.record(prometheus))
    except (host.SetupError, process.ProcessError, servers.ControlPlaneError, VMError) as error:
        term.say(f"can't go on: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
