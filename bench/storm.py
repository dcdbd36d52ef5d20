"""Measure the swap that `Disabled` pods use on a node without idle CPU, by who holds their limits.

A node VM with one CPU, as many CPU-bound Burstable pods as keep it busy, `Disabled` pods of all QoS classes with memory
that could be swapped, and pods under LimitedSwap that use their swap. For two minutes systemd reloads its units each
second, and so removes all limits of pods, while each pod is asked ten times a second to give memory back
(bench/storm_guest.py). In the middle third the agent is killed whenever it runs. A recorder that runs before all other
processes records each write to memory.swap.max, and every 20 ms the swap in use.

    python -m bench.storm [--seconds N] [VARIANT...]

A VARIANT is the agent's CPU request, with options after commas: `100m,nri` (with the plugin in the runtime),
`10m,realtime` (it runs before ordinary processes), `10m,strict`
(guarantee Strict), `100m,unharmed` (the agent is not killed). A row is about the limit in effect: the
least over a container and its pod. The VM's CPU may be emulated: compare rows only with each other.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench import storm_report
from deploy.build import image
from testbed.base import host, process, term
from testbed.controlplane import servers
from testbed.product import helm
from testbed.standin import hog
from testbed.vm import nodevm
from testbed.vm.cluster import Cluster
from testbed.vm.guestlink import VMError

Json = Any

VARIANTS: Final = (
    "100m",
    "100m,nri",
    "10m,nri",
    "100m,nri,unharmed",
    "100m,strict",
    "100m,nri,strict",
    "100m,realtime",
)
SECONDS: Final = 120.0
SAMPLE_SECONDS: Final = 0.02
PODS: Final = 24
LIMITED: Final = 4
BUSY: Final = 4
BUSY_REQUEST: Final = "50m"
MIB: Final = 1 << 20
LIMITED_MIB: Final = 64
SWAP_MIB: Final = 1024
"""Of the node. With half of that, pods under LimitedSwap need all of their share, and are killed without a storm."""
QOS: Final[tuple[tuple[Json, Json], ...]] = (
    ({"cpu": "10m", "memory": "40Mi"}, {"memory": "64Mi"}),
    ({"cpu": "10m", "memory": "64Mi"}, {"cpu": "10m", "memory": "64Mi"}),
    ({}, {}),
)
"""Requests and limits of Burstable, Guaranteed and BestEffort pods."""
HELD_MIB: Final = 24
"""Memory of a `Disabled` pod, touched once."""
SPACE: Final = "storm"
AGENT: Final = "swapwarden-agent"
GUEST: Final = Path(__file__).with_name("storm_guest.py")
REPORT: Final = Path("build/storm.json")
TIMEOUT: Final = 900.0


class UsageError(Exception):
    """The text is no variant."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """The resources of the agent's pod."""

    name: str
    request: str
    realtime: bool = False
    strict: bool = False
    nri: bool = False
    unharmed: bool = False

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Parse one; UsageError for an invalid text."""
        request, *options = text.split(",")
        known = {each.name for each in dataclasses.fields(cls)} - {"name", "request"}
        if unknown := set(options) - known:
            raise UsageError(
                f"{', '.join(sorted(unknown)) or 'nothing'} in {text!r} is none of {', '.join(sorted(known))}"
            )
        if not request.removesuffix("m").isdecimal():
            raise UsageError(f"{text!r} does not begin with a CPU request such as 10m")
        return cls(text, request, **dict.fromkeys(options, True))

    @property
    def values(self) -> Json:
        """Return the values for the chart."""
        resources: Json = {"requests": {"cpu": self.request, "memory": "32Mi"}, "limits": {"memory": "128Mi"}}
        agent = {"resources": resources, "realtime": self.realtime, "dropIns": {"mount": self.strict}}
        # One of each: more would only wait.
        one = {"replicas": 1}
        return {"agent": agent, "controller": one, "webhook": one, "nri": {"mode": "auto" if self.nri else "off"}}


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
    """Return a pod that swaps nothing, however much it could, of one of the QoS classes in turn."""
    requests, limits = QOS[number % len(QOS)]
    memory = container(inspect.getsource(hog), str(HELD_MIB), "--rounds=1", requests=requests, limits=limits)
    return pod(f"quiet-{number}", "quiet", memory, {"swapwarden.dev/swap-policy": "Disabled"})


def limited(number: int) -> Json:
    """Return a pod that needs its swap, and touches all its memory again and again."""
    memory = container(
        inspect.getsource(hog),
        str(LIMITED_MIB),
        "--pace=1",
        requests={"cpu": "10m", "memory": f"{LIMITED_MIB - 8}Mi"},
        limits={"memory": f"{LIMITED_MIB}Mi"},
    )
    return pod(f"limited-{number}", "limited", memory, {})


def busy(number: int) -> Json:
    """Return a pod that uses all CPU that it can get."""
    spinning = container(
        "while True: pass", requests={"cpu": BUSY_REQUEST, "memory": "16Mi"}, limits={"memory": "64Mi"}
    )
    return pod(f"busy-{number}", "busy", spinning, {})


class Storm:
    """One cluster, and the measurements in it."""

    def __init__(self, cluster: Cluster, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._seconds: float = options.seconds
        self._counts = {"quiet": options.pods, "limited": options.limited, "busy": options.busy}
        self._installed = False
        self._guest = cluster.node.shared / GUEST.name
        shutil.copy2(GUEST, self._guest)

    def prepare(self) -> None:
        """Install Swapwarden, and make a namespace."""
        self._apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})

    def measure(self, variant: Variant) -> storm_report.Row:
        """Measure one row."""
        with term.step(f"{variant.name}: giving the agent its share"):
            self._install(variant)
        makers = {"quiet": disabled, "limited": limited, "busy": busy}
        with self._profile(variant), contextlib.ExitStack() as running:
            for kind, make in makers.items():
                # While the busy ones run, all else takes long.
                if kind == "busy":
                    self._await_limits(variant)
                running.enter_context(self._running(kind, [make(number) for number in range(self._counts[kind])]))
            return self._storm(variant)

    def _await_limits(self, variant: Variant) -> None:
        """Wait until all pods that must not swap hold 0, with the plugin their containers also."""
        pods = self._of_pods(SPACE, "kind=quiet")
        cgroups = [self._scope(each) for each in pods] * variant.nri + [self._cgroup(each) for each in pods]
        self._cluster.wait_for(lambda: self._limits(cgroups) == {"0"}, "all Disabled pods hold 0")

    def _storm(self, variant: Variant) -> storm_report.Row:
        (agent,) = self._of_pods(helm.NAMESPACE, "app.kubernetes.io/component=agent")
        node = self._cluster.node
        pods = {kind: self._of_pods(SPACE, f"kind={kind}") for kind in ("quiet", "limited")}
        pressed = [self._cgroup(each) for found in pods.values() for each in found]
        killed = [] if variant.unharmed else ["--kill"]
        numbers = {kind: [self._number(each) for each in found] for kind, found in pods.items()}
        before_kills = self._oom_kills(pods["limited"])
        with term.step(f"{variant.name}: {self._seconds:.0f} s of storm"), node.record(every=SAMPLE_SECONDS) as seen:
            before = self._share(agent)
            argv = ["python3", "-S", str(self._guest), *killed, str(self._seconds), *map(str, pressed)]
            said = json.loads(node.run(argv, timeout=self._seconds + TIMEOUT).stdout)
            share = self._share(agent).since(before)
            end = float(node.run(["date", "+%s.%N"], timeout=TIMEOUT).stdout)
            samples = seen.samples()
        said["oomKills"] = self._oom_kills(pods["limited"]) - before_kills
        found: dict[str, list[storm_report.Exposures]] = {}
        for kind, each_of in pods.items():
            found[kind] = []
            for each, number in zip(each_of, numbers[kind], strict=True):
                of_pod = f"pod{each['metadata']['uid'].replace('-', '_')}.slice"
                own = [sample for sample in samples if of_pod in sample.path]
                found[kind].append(storm_report.exposures(own, end, {self._scope(each).name: number}))
        return storm_report.row(variant.name, found["quiet"], found["limited"], said, share)

    def _scope(self, pod: Json) -> Path:
        """Return the cgroup of a pod's container."""
        container_id = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
        return self._cgroup(pod) / f"cri-containerd-{container_id}.scope"

    def _number(self, pod: Json) -> int:
        """Return the limit in effect of a pod's container, in bytes."""
        limits = self._limits([self._cgroup(pod), self._scope(pod)]) - {"max"}
        return min(map(int, limits), default=1 << 62)

    def _oom_kills(self, pods: Sequence[Json]) -> int:
        events = (self._cluster.node.read(self._cgroup(each) / "memory.events") for each in pods)
        return sum(
            int(line.split()[1]) for text in events for line in text.splitlines() if line.startswith("oom_kill ")
        )

    def _install(self, variant: Variant) -> None:
        settings = f"--set=image.repository={image.REFERENCE.partition(':')[0]}"
        options = ["--install", f"--namespace={helm.NAMESPACE}", "--create-namespace", "--wait"]
        values = self._cluster.folder / "values.json"
        values.write_text(json.dumps(variant.values), encoding="ascii")
        argv = ["upgrade", helm.RELEASE, str(helm.chart()), settings, *options, f"--values={values}"]
        # With another version, which does not exist, hooks would do something.
        argv += ["--no-hooks"] if self._installed else []
        self._cluster.helm(*argv, f"--timeout={TIMEOUT:.0f}s", timeout=2 * TIMEOUT)
        self._installed = True
        named = [f"daemonset/{AGENT}", f"--namespace={helm.NAMESPACE}", f"--timeout={TIMEOUT:.0f}s"]
        self._cluster.kubectl("rollout", "status", *named, timeout=2 * TIMEOUT)
        self._cluster.wait_for(
            lambda: len(self._of_pods(helm.NAMESPACE, "app.kubernetes.io/component=agent")) == 1, "one agent is left"
        )

    @contextlib.contextmanager
    def _profile(self, variant: Variant) -> Iterator[None]:
        """Wait until it is in force on the node."""
        guarantee = "Strict" if variant.strict else "Standard"
        spec = {"nodeSelector": {}, "guarantee": guarantee, "swap": {"behavior": "LimitedSwap"}}
        kind = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile"}
        self._apply({**kind, "metadata": {"name": "storm"}, "spec": spec})
        path = f"/apis/swapwarden.dev/v1alpha1/nodeswapstates/{nodevm.NAME}"

        def in_force() -> bool:
            _, state = self._cluster.control_plane.request("GET", path)
            status = state.get("status", {})
            known = {each["type"] for each in status.get("conditions", [])}
            current = status.get("observedGeneration") == state["metadata"]["generation"]
            governed = state["spec"]["profileRef"]["name"] == "storm"
            held = status.get("holds", {}).get("runtime", False) or not variant.nri
            return current and governed and held and ("StrictInEffect" in known or not variant.strict)

        try:
            self._cluster.wait_for(in_force, "the profile is in force, and its means are in use")
            yield
        finally:
            self._cluster.kubectl("delete", "nodeswapprofile", "storm", "--timeout=300s", timeout=TIMEOUT)

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

    def _limits(self, cgroups: Sequence[Path]) -> set[str]:
        argv = ["cat", *(str(path / "memory.swap.max") for path in cgroups)]
        return set(self._cluster.node.run(argv, timeout=TIMEOUT).stdout.split())

    def _share(self, pod: Json) -> storm_report.Share:
        folder, read = self._cgroup(pod), self._cluster.node.read
        used = next(line.split()[1] for line in read(folder / "cpu.stat").splitlines() if line.startswith("usage_usec"))
        try:
            waited = int(read(folder / "cpu.pressure").split("total=")[1].split()[0]) / 1e6
        except (VMError, IndexError):
            waited = math.nan
        return storm_report.Share(int(used) / 1e6, waited)


def main() -> int:
    """Measure all requested variants."""
    parser = argparse.ArgumentParser(description=inspect.getdoc(sys.modules[__name__]))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"default: {' '.join(VARIANTS)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of storm for each variant (default: 120)")
    parser.add_argument("--pods", type=int, default=PODS, help=f"that must not swap (default: {PODS})")
    parser.add_argument("--limited", type=int, default=LIMITED, help=f"pods that use their swap (default: {LIMITED})")
    parser.add_argument("--busy", type=int, default=BUSY, help=f"pods that spin, each with {BUSY_REQUEST} (default: 4)")
    options = parser.parse_args()
    process.exit_on_sigterm()
    rows: list[storm_report.Row] = []
    begun = time.monotonic()
    try:
        variants = [Variant.parse(text) for text in options.variants or VARIANTS]
        with Cluster([image.ensure()], swap_mib=SWAP_MIB, cpus=1) as cluster:
            storm = Storm(cluster, options)
            storm.prepare()
            accelerator = cluster.node.accelerator
            for variant in variants:
                rows.append(storm.measure(variant))
                # Whatever happens to the next one.
                REPORT.parent.mkdir(exist_ok=True)
                said = {"accelerator": accelerator, "rows": [dataclasses.asdict(each) for each in rows]}
                REPORT.write_text(json.dumps(said, indent=2) + "\n", encoding="ascii")
                term.say(storm_report.table(rows[-1:]))
    except (UsageError, host.SetupError, process.ProcessError, servers.ControlPlaneError, VMError) as error:
        term.say(f"can't go on: {error}")
        return 1
    print(
        f"node VM ({accelerator}), one CPU, {options.seconds:.0f} s, {options.pods} Disabled pods,"
        f" {options.limited} under LimitedSwap, {options.busy} busy pods of {BUSY_REQUEST}"
    )
    print(storm_report.table(rows))
    term.say(f"{time.monotonic() - begun:.0f} s; the rows are in {REPORT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
