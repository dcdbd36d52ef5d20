"""A real Prometheus beside a testbed's cluster: it scrapes as the documentation says, and has our alerts."""

import http.client
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from testbed import helm, monitoring
from testbed.base import process
from testbed.controlplane import programs
from testbed.controlplane.servers import LOOPBACK, ControlPlane

INTERVAL = 5
"""Seconds from one scrape to the next, and from one look at the alerts to the next. Ours, not what is advised."""
_PORT = 9090
_TIMEOUT = 30.0
Json = Any


class _Names(http.server.BaseHTTPRequestHandler):
    """Tells kube_pod_info, of all that kube-state-metrics does: whose names the dashboard shows."""

    control_plane: ControlPlane

    def do_GET(self) -> None:
        pods = self.control_plane.get("/api/v1/pods")["items"]
        text = "# TYPE kube_pod_info gauge\n" + "".join(map(_pod_info, pods))
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _pod_info(pod: Json) -> str:
    metadata = pod["metadata"]
    labels = {key: metadata[key] for key in ("namespace", "name", "uid")} | {"node": pod["spec"].get("nodeName", "")}
    labels["pod"] = labels.pop("name")
    return "kube_pod_info{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "} 1\n"


def discovered(pods: list[Json]) -> list[Json]:
    """Targets with the labels that Prometheus' own discovery of pods gives them, as far as ours are chosen by them.

    Debian builds Prometheus without that discovery (its kubernetes_sd_configs).
    """
    found = []
    for pod in pods:
        metadata, spec = pod["metadata"], pod["spec"]
        prefix = "__meta_kubernetes_"
        about = {f"{prefix}namespace": metadata["namespace"], f"{prefix}pod_name": metadata["name"]}
        about[f"{prefix}pod_node_name"] = spec["nodeName"]
        for key, value in metadata["labels"].items():
            about[f"{prefix}pod_label_{re.sub('[^a-zA-Z0-9_]', '_', key)}"] = value
        for container in spec["containers"]:
            for port in container.get("ports", []):
                address = f"{pod['status']['podIP']}:{port['containerPort']}"
                labels = about | {f"{prefix}pod_container_port_name": port["name"]}
                found.append({"targets": [address], "labels": labels})
    return found


def configuration(targets: Path, names: str) -> Json:
    """What Prometheus is told: the documented configuration, our alerts, and who tells the names of pods."""
    made = yaml.safe_load(monitoring.SCRAPING)
    (ours,) = made["scrape_configs"]
    del ours["kubernetes_sd_configs"]
    ours["file_sd_configs"] = [{"files": [str(targets)]}]
    made["scrape_configs"].append(
        # The labels that are told are pods', not those of who tells.
        {"job_name": "names", "honor_labels": True, "static_configs": [{"targets": [names]}]}
    )
    every = f"{INTERVAL}s"
    return made | {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(monitoring.RULES)],
    }


class Prometheus:
    """Scrapes from entering to leaving, in the network of the control plane, from where pods are reached."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self._control_plane = control_plane
        self._folder = folder
        with control_plane.network():
            self._names = http.server.ThreadingHTTPServer((LOOPBACK, 0), _handler(control_plane))

    def __enter__(self) -> Self:
        threading.Thread(target=self._names.serve_forever, daemon=True).start()
        file, targets = self._folder / "prometheus.json", self._folder / "targets.json"  # JSON is YAML, too
        ours = self._control_plane.get(f"/api/v1/namespaces/{helm.NAMESPACE}/pods")["items"]
        targets.write_text(json.dumps(discovered(ours)), encoding="utf-8")
        names = f"{LOOPBACK}:{self._names.server_address[1]}"
        file.write_text(json.dumps(configuration(targets, names)), encoding="utf-8")
        argv = [str(programs.prometheus()), f"--config.file={file}", f"--storage.tsdb.path={self._folder / 'tsdb'}"]
        argv += [f"--web.listen-address={LOOPBACK}:{_PORT}"]
        log = self._folder / "prometheus.log"
        self._running = process.Process("prometheus", self._control_plane.command(argv), log=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.stop()
        self._names.shutdown()
        self._names.server_close()

    def version(self) -> str:
        """As it tells it itself."""
        return str(self._ask("status/buildinfo", {})["version"])

    def targets_up(self) -> int:
        """How many targets answer; 0 while it does not answer itself. ProcessError where it has ended."""
        self._running.check_alive()
        try:
            return len(self._ask("query", {"query": "up == 1"})["result"])
        except OSError:
            return 0

    def query(self, expression: str, at: float) -> Json:
        """What an expression is at a time: series with `metric` and `value`."""
        return self._ask("query", {"query": expression, "time": str(at)})["result"]

    def query_range(self, expression: str, start: float, end: float, step: int) -> Json:
        """What an expression was from START to END, every STEP seconds: series with `metric` and `values`."""
        asked = {"query": expression, "start": str(start), "end": str(end), "step": str(step)}
        return self._ask("query_range", asked)["result"]

    def _ask(self, what: str, parameters: Mapping[str, str]) -> Json:
        connection = http.client.HTTPConnection(LOOPBACK, _PORT, timeout=_TIMEOUT)
        try:
            with self._control_plane.network():
                connection.request("GET", f"/api/v1/{what}?{urllib.parse.urlencode(parameters)}")
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise ConnectionRefusedError("Prometheus is not ready yet")
        said = json.loads(content)
        if said["status"] != "success":
            raise process.ProcessError(f"Prometheus: {what} {dict(parameters)}: {said.get('error')}")
        return said["data"]


def _handler(control_plane: ControlPlane) -> type[_Names]:
    return type("_Names", (_Names,), {"control_plane": control_plane})
