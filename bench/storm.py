"""How soon `Disabled` pods are back at 0 on a node without idle CPU, by the CPU share of the agent's pod.

A node VM with one CPU, as many CPU-bound Burstable pods as keep it busy, and `Disabled` Burstable pods with memory that
could be swapped. For a minute systemd reloads its units each second, and so removes all limits, while each pod is asked
to give memory back (bench/storm_guest.py). A recorder that runs before all other processes records each write to
memory.swap.max, and every 20 ms the swap in use.

    python -m bench.storm [--seconds N] [VARIANT...]

A VARIANT is the agent's CPU request, with options after commas: `10m`, `100m,guaranteed` (its limits are its requests),
`10m,realtime` (it runs before ordinary processes), `10m,strict` (guarantee Strict). The VM's CPU may be emulated:
compare rows only with each other.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.build import image
from testbed.base import host, paths, process, term
from testbed.controlplane import servers
from testbed.product import helm
from testbed.standin import hog
from testbed.vm import nodevm
from testbed.vm.cluster import Cluster
from testbed.vm.guestlink import VMError
from testbed.vm.nodevm import Sample

VARIANTS: Final = (
    "10m",
    "100m",
    "200m",
    "300m",
    "100m,guaranteed",
    "10m,realtime",
    "100m,realtime",
    "10m,strict",
)
SECONDS: Final = 60.0
SAMPLE_SECONDS: Final = 0.02
PODS: Final = 12
BUSY: Final = 4
BUSY_REQUEST: Final = "50m"
MIB: Final = 1 << 20
HELD_MIB: Final = 24
"""Memory of a `Disabled` pod, touched once."""
SPACE: Final = "storm"
AGENT: Final = "swapwarden-agent"
GUEST: Final = Path(__file__).with_name("storm_guest.py")
REPORT: Final = Path("build/storm.json")
TIMEOUT: Final = 900.0

Json = Any


class UsageError(Exception):
    """The text is no variant."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """The resources of the agent's pod."""

    name: str
    request: str
    guaranteed: bool = False
    realtime: bool = False
    strict: bool = False

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Parse one; UsageError for an invalid text."""
        request, *options = text.split(",")
        known = {"guaranteed", "realtime", "strict"}
        if unknown := set(options) - known:
            raise UsageError(
                f"{', '.join(sorted(unknown)) or 'nothing'} in {text!r} is not guaranteed, realtime or strict"
            )
        if not request.removesuffix("m").isdecimal():
            raise UsageError(f"{text!r} does not begin with a CPU request such as 10m")
        return cls(
            text,
            request,
            guaranteed="guaranteed" in options,
            realtime="realtime" in options,
            strict="strict" in options,
        )

    @property
    def values(self) -> Json:
        """Return the values for the chart."""
        resources: Json = {"requests": {"cpu": self.request, "memory": "32Mi"}, "limits": {"memory": "128Mi"}}
        if self.guaranteed:
            given = {"cpu": self.request, "memory": "128Mi"}
            resources = {"requests": given, "limits": given}
        agent = {"resources": resources, "realtime": self.realtime, "dropIns": {"mount": self.strict}}
        # One of each: more would only wait.
        return {"agent": agent, "controller": {"replicas": 1}, "webhook": {"replicas": 1}}


# --- what came of it ---


@dataclasses.dataclass(frozen=True)
class Exposures:
    """The history of one pod, in seconds and bytes."""

    repairs: list[float]
    """From each foreign write, which removed its limit, to the repair."""
    above: list[float]
    """How long its limit was above 0 at a time; while a pod drains, that is the agent's own doing."""
    swapped: int
    """The most swap that it used, beyond its earlier use."""


def exposures(samples: Iterable[Sample], end: float) -> Exposures:
    """Return the history of one pod until `end`."""
    repairs: list[float] = []
    above: list[float] = []
    unlimited = raised = None
    first = most = None
    for sample in samples:
        if sample.at > end or sample.event == "gone":
            break
        first = sample.current_bytes if first is None else first
        most = max(most or 0, sample.current_bytes)
        if sample.max_bytes is None:
            unlimited = sample.at if unlimited is None else unlimited
        elif unlimited is not None:
            repairs.append(sample.at - unlimited)
            unlimited = None
        if sample.max_bytes != 0:
            raised = sample.at if raised is None else raised
        elif raised is not None:
            above.append(sample.at - raised)
            raised = None
    if unlimited is not None:
        repairs.append(end - unlimited)
    if raised is not None:
        above.append(end - raised)
    return Exposures(repairs, above, (most or 0) - (first or 0))


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed; NaN without any."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)] if values else math.nan


@dataclasses.dataclass(frozen=True)
class Share:
    """CPU time of the agent's pod, in seconds."""

    used: float
    waited: float
    """How long it could run while others ran (cpu.pressure); NaN if the kernel does not report it."""

    def since(self, before: Share) -> Share:
        """Return the increase since then."""
        return Share(self.used - before.used, self.waited - before.waited)


@dataclasses.dataclass(frozen=True)
class Row:
    """The results of one variant."""

    variant: str
    swapped_pods: int
    most_bytes: int
    above_seconds: float
    longest_seconds: float
    repairs: int
    p50: float
    p99: float
    most: float
    reloads: int
    busy: float
    agent: Share


def row(variant: str, found: Sequence[Exposures], said: Json, agent: Share) -> Row:
    """Summarize all pods of one variant."""
    repairs = [each for pod in found for each in pod.repairs]
    above = [each for pod in found for each in pod.above]
    return Row(
        variant=variant,
        swapped_pods=sum(pod.swapped > 0 for pod in found),
        most_bytes=max((pod.swapped for pod in found), default=0),
        above_seconds=sum(above),
        longest_seconds=max(above, default=0.0),
        repairs=len(repairs),
        p50=statistics.median(repairs) if repairs else math.nan,
        p99=quantile(repairs, 0.99),
        most=max(repairs, default=math.nan),
        reloads=said["reloads"],
        busy=said["busy"],
        agent=agent,
    )


def table(rows: Iterable[Row]) -> str:
    """Return a table for people."""
    head = (
        f"{'agent':<20} {'swapped':>7} {'most kB':>8} {'above 0 s':>9} {'longest s':>9} {'repairs':>7}"
        f" {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'reloads':>7} {'busy':>5} {'CPU s':>6}"
        f" {'waited':>6}"
    )
    lines = [
        f"{each.variant:<20} {each.swapped_pods:>7} {each.most_bytes / 1000:>8.0f} {each.above_seconds:>9.2f}"
        f" {each.longest_seconds:>9.2f} {each.repairs:>7} {each.p50 * 1000:>8.1f} {each.p99 * 1000:>8.1f}"
        f" {each.most * 1000:>8.1f} {each.reloads:>7} {each.busy:>5.0%} {each.agent.used:>6.2f}"
        f" {each.agent.waited:>6.2f}"
        for each in rows
    ]
    return "\n".join([head, *lines])


# --- the cluster ---


def container(command: str, *arguments: str, requests: Json, limits: Json) -> Json:
    """Return a pod that runs a Python program from the agent's image."""
    return {
        "name": "main",
        "image": image.REFERENCE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", command, *arguments],
        "resources": {"requests": requests, "limits": limits},
    }


def pod(name: str, kind: str, main: Json, annotations: dict[str, str]) -> Json:
    """Return a pod on the only node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": SPACE, "labels": {"kind": kind}, "annotations": annotations},
        "spec": {"terminationGracePeriodSeconds": 1, "nodeName": nodevm.NAME, "containers": [main]},
    }


def disabled(number: int) -> Json:
    """Return a pod that swaps nothing, however much it could."""
    memory = container(
        inspect.getsource(hog),
        str(HELD_MIB),
        "--rounds=1",
        requests={"cpu": "10m", "memory": "40Mi"},
        limits={"memory": "64Mi"},
    )
    return pod(f"quiet-{number}", "quiet", memory, {"swapwarden.dev/swap-policy": "Disabled"})


def busy(number: int) -> Json:
    """Return a pod that uses all CPU that it can get."""
    spinning = container(
        "while True: pass", requests={"cpu": BUSY_REQUEST, "memory": "16Mi"}, limits={"memory": "64Mi"}
    )
    return pod(f"busy-{number}", "busy", spinning, {})


class Storm:
    """One cluster, and the measurements in it."""

    def __init__(self, cluster: Cluster, seconds: float, pods: int, busy_pods: int) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._pods = pods
        self._busy = busy_pods
        self._installed = False
        self._guest = cluster.node.shared / GUEST.name
        shutil.copy2(GUEST, self._guest)

    def prepare(self) -> None:
        """Install Swapwarden, and make a namespace."""
        self._apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})

    def measure(self, variant: Variant) -> Row:
        """Measure one row."""
        with term.step(f"{variant.name}: giving the agent its share"):
            self._install(variant)
        with self._profile(variant), self._running("quiet", [disabled(number) for number in range(self._pods)]):
            quiet = self._cgroups("quiet")
            self._cluster.wait_for(lambda: self._limits(quiet) == {"0"}, "all pods that must not swap hold 0")
            with self._running("busy", [busy(number) for number in range(self._busy)]):
                return self._storm(variant, quiet)

    def _storm(self, variant: Variant, quiet: Sequence[Path]) -> Row:
        (agent,) = self._of_pods(helm.NAMESPACE, "app.kubernetes.io/component=agent")
        node = self._cluster.node
        with term.step(f"{variant.name}: {self._seconds:.0f} s of storm"), node.record(every=SAMPLE_SECONDS) as seen:
            before = self._share(agent)
            argv = ["python3", "-S", str(self._guest), str(self._seconds), *map(str, quiet)]
            said = json.loads(node.run(argv, timeout=self._seconds + TIMEOUT).stdout)
            share = self._share(agent).since(before)
            end = float(node.run(["date", "+%s.%N"], timeout=TIMEOUT).stdout)
            samples = seen.samples()
        by_path: dict[str, list[Sample]] = {str(path.relative_to(nodevm.KUBEPODS)): [] for path in quiet}
        for sample in samples:
            if sample.path in by_path:
                by_path[sample.path].append(sample)
        return row(variant.name, [exposures(found, end) for found in by_path.values()], said, share)

    def _install(self, variant: Variant) -> None:
        settings = f"--set=image.repository={image.REFERENCE.partition(':')[0]}"
        options = ["--install", f"--namespace={helm.NAMESPACE}", "--create-namespace", "--wait"]
        values = self._cluster.folder / "values.json"
        values.write_text(json.dumps(variant.values), encoding="ascii")
        argv = ["upgrade", helm.RELEASE, str(paths.CHART), settings, *options, f"--values={values}"]
        # With another version, which does not exist, hooks would do something.
        argv += ["--no-hooks"] if self._installed else []
        self._cluster.helm(*argv, f"--timeout={TIMEOUT:.0f}s", timeout=2 * TIMEOUT)
        self._installed = True
        status = [
            "rollout",
            "status",
            f"daemonset/{AGENT}",
            f"--namespace={helm.NAMESPACE}",
            f"--timeout={TIMEOUT:.0f}s",
        ]
        self._cluster.kubectl(*status, timeout=2 * TIMEOUT)
        self._cluster.wait_for(
            lambda: len(self._of_pods(helm.NAMESPACE, "app.kubernetes.io/component=agent")) == 1, "one agent is left"
        )

    @contextlib.contextmanager
    def _profile(self, variant: Variant) -> Iterator[None]:
        """Wait until its guarantee is in force on the node."""
        if not variant.strict:
            yield
            return
        spec = {"nodeSelector": {}, "guarantee": "Strict"}
        kind = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile"}
        self._apply({**kind, "metadata": {"name": "storm"}, "spec": spec})
        path = f"/apis/swapwarden.dev/v1alpha1/nodeswapstates/{nodevm.NAME}"

        def installed() -> bool:
            _, state = self._cluster.control_plane.request("GET", path)
            found = state.get("status", {}).get("conditions", [])
            return any(each["type"] == "StrictInEffect" for each in found)

        try:
            self._cluster.wait_for(installed, "the agent has the profile, and its files exist")
            yield
        finally:
            self._cluster.kubectl("delete", "nodeswapprofile", "storm")

    @contextlib.contextmanager
    def _running(self, kind: str, pods: Sequence[Json]) -> Iterator[None]:
        with term.step(f"  starting {len(pods)} {kind} pods"):
            self._apply(*pods)
            ready = ["wait", "--for=condition=Ready", "pods", f"--selector=kind={kind}", f"--namespace={SPACE}"]
            self._cluster.kubectl(*ready, f"--timeout={TIMEOUT:.0f}s", timeout=2 * TIMEOUT)
        try:
            yield
        finally:
            # Until the kubelet has reported their removal: the next row must not include them.
            delete = ["delete", "pods", f"--selector=kind={kind}", f"--namespace={SPACE}", "--wait"]
            self._cluster.kubectl(*delete, timeout=TIMEOUT)

    def _apply(self, *objects: Json) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self._cluster.kubectl("apply", "-f", "-", text=json.dumps(listed))

    def _of_pods(self, namespace: str, selector: str) -> list[Json]:
        found = self._cluster.control_plane.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")
        items: list[Json] = found["items"]
        return items

    def _cgroup(self, pod: Json) -> Path:
        name = f"*pod{pod['metadata']['uid'].replace('-', '_')}.slice"
        argv = ["find", str(nodevm.KUBEPODS), "-type", "d", "-name", name]
        return Path(self._cluster.node.run(argv, timeout=TIMEOUT).stdout.strip())

    def _cgroups(self, kind: str) -> list[Path]:
        return [self._cgroup(each) for each in self._of_pods(SPACE, f"kind={kind}")]

    def _limits(self, cgroups: Sequence[Path]) -> set[str]:
        argv = ["cat", *(str(path / "memory.swap.max") for path in cgroups)]
        return set(self._cluster.node.run(argv, timeout=TIMEOUT).stdout.split())

    def _share(self, pod: Json) -> Share:
        folder, read = self._cgroup(pod), self._cluster.node.read
        used = next(line.split()[1] for line in read(folder / "cpu.stat").splitlines() if line.startswith("usage_usec"))
        try:
            waited = int(read(folder / "cpu.pressure").split("total=")[1].split()[0]) / 1e6
        except (VMError, IndexError):
            waited = math.nan
        return Share(int(used) / 1e6, waited)


def main() -> int:
    """Measure all requested variants."""
    parser = argparse.ArgumentParser(description=inspect.getdoc(sys.modules[__name__]))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"default: {' '.join(VARIANTS)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of storm for each variant (default: 60)")
    parser.add_argument("--pods", type=int, default=PODS, help="that must not swap (default: 12)")
    parser.add_argument("--busy", type=int, default=BUSY, help=f"pods that spin, each with {BUSY_REQUEST} (default: 4)")
    options = parser.parse_args()
    process.exit_on_sigterm()
    rows: list[Row] = []
    begun = time.monotonic()
    try:
        variants = [Variant.parse(text) for text in options.variants or VARIANTS]
        with Cluster([image.ensure()], cpus=1) as cluster:
            storm = Storm(cluster, options.seconds, options.pods, options.busy)
            storm.prepare()
            accelerator = cluster.node.accelerator
            for variant in variants:
                rows.append(storm.measure(variant))
                # Whatever happens to the next one.
                REPORT.parent.mkdir(exist_ok=True)
                said = {"accelerator": accelerator, "rows": [dataclasses.asdict(each) for each in rows]}
                REPORT.write_text(json.dumps(said, indent=2) + "\n", encoding="ascii")
                term.say(table(rows[-1:]))
    except (UsageError, host.SetupError, process.ProcessError, servers.ControlPlaneError, VMError) as error:
        term.say(f"can't go on: {error}")
        return 1
    print(f"node VM ({accelerator}), one CPU, {options.pods} Disabled pods, {options.busy} busy pods of {BUSY_REQUEST}")
    print(table(rows))
    term.say(f"{time.monotonic() - begun:.0f} s; the rows are in {REPORT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
