"""Show the main job: a pod sets Disabled, and a real kernel refuses to swap it while its neighbour swaps.

A real API server, the product's three processes, a real kernel in a VM; only the node's kubelet and systemd are
imitated. The demo asserts all that it shows: each number in the kernel equals the output of `swapwarden plan` for the
same objects.
"""

import contextlib
import errno
import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.base import paths, process, term
from testbed.controlplane.servers import ControlPlane
from testbed.product.controller import Controller
from testbed.product.webhook import Webhook
from testbed.standin import nodetree, start
from testbed.vm.kernelvm import CGROUPS, GuestProcess, KernelVM

NODE = "demo-node"
SPACE = "demo"
ROOT = CGROUPS / "demo"
POLICY = "swapwarden.dev/swap-policy"
HOG = {"testbed/hog": "40", "testbed/hog-pace": "200"}
MEMORY = {"requests": {"memory": "32Mi"}, "limits": {"memory": "96Mi"}}
FULL = {"requests": {"memory": "32Mi", "cpu": "100m"}, "limits": {"memory": "32Mi", "cpu": "100m"}}
PODS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "burstable": (HOG, MEMORY),
    "burstable-disabled": (HOG | {POLICY: "Disabled"}, MEMORY),
    "guaranteed": ({}, FULL),
    "besteffort": ({}, {}),
}
HOGS = ("burstable", "burstable-disabled")
RECLAIM = "24M"
_until = functools.partial(process.until, timeout=120.0, poll=0.1)
_PRESSURE_SECONDS = 3.0
_STATES = "/apis/swapwarden.dev/v1alpha1/nodeswapstates"
_PROFILES = "/apis/swapwarden.dev/v1alpha1/nodeswapprofiles"
_AGENT = ("swapwarden-system", "swapwarden-agent")
_SWAP_LABELS = ("feature.node.kubernetes.io/memory-swap", "node.swapwarden.dev/swap")

Json = Any


class DemoError(Exception):
    """The demo failed to show something."""


def _check(holds: object, what: str) -> None:
    if not holds:
        raise DemoError(what)


def run() -> None:
    """Run the demo; DemoError names the failure."""
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        control_plane, vm = stack.enter_context(ControlPlane()), stack.enter_context(KernelVM())
        with term.step("installing CRDs, webhook and rights; starting webhook and controller"):
            control_plane.apply_crds(paths.CRDS)
            stack.enter_context(Webhook(control_plane)).install()
            stack.enter_context(Controller(control_plane)).leads()
            control_plane.create_namespace(SPACE)
        with term.step("starting the node and its agent in the VM"):
            stack.enter_context(
                start.in_vm(control_plane, vm, NODE, ROOT, ["--swap-behavior", "LimitedSwap", "--label", "pool=demo"])
            )
            stack.enter_context(_agent(control_plane, vm))
        demo = _Demo(control_plane, vm)
        demo.refuse_bad_policy()
        demo.create_pods()
        demo.step("no profile: the kubelet's limits stay, except for Disabled pods", swaps=True)
        demo.apply_profile({"behavior": "LimitedSwap", "reserved": "25%"})
        demo.step("a profile with LimitedSwap, 25 % of the swap reserved for the system", swaps=True)
        demo.apply_profile({"behavior": "NoSwap"})
        demo.step("a profile with NoSwap", swaps=False)
    print(f"All of it held: every number equals the output of `swapwarden plan` ({time.monotonic() - begun:.0f} s).")


@contextlib.contextmanager
def _agent(control_plane: ControlPlane, vm: KernelVM) -> Iterator[GuestProcess]:
    """`swapwarden agent` in the VM, with a token that is bound to a pod on its node."""
    namespace, account = _AGENT
    containers = [{"name": "agent", "image": "none", "resources": {"requests": {"memory": "32Mi"}}}]
    spec = {"nodeName": NODE, "serviceAccountName": account, "containers": containers}
    control_plane.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "agent"}, "spec": spec})
    token = control_plane.token(namespace, account, pod="agent")
    kubeconfig = vm.shared / "agent.kubeconfig"
    shutil.copy(control_plane.kubeconfig_for(token, "agent", server=control_plane.guest_url), kubeconfig)
    argv = [sys.executable, "-m", "swapwarden", "agent", f"--node-name={NODE}", f"--cgroup-anchor={ROOT.name}"]
    argv += [f"--kubeconfig={kubeconfig}", "--metrics-address=127.0.0.1:0"]
    argv += ["--run-dir=/run/swapwarden", "--state-dir=/var/tmp/swapwarden"]  # The guest's own folders.
    running = vm.spawn(argv, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")}, log="agent")
    try:
        _until(lambda: "found the tree of pods" in running.output(), "the agent is up", running=[running])
        yield running
    finally:
        running.stop()
        kubeconfig.unlink()


class _Demo:
    def __init__(self, control_plane: ControlPlane, vm: KernelVM) -> None:
        self._cluster = control_plane
        self._vm = vm
        self._tree = nodetree.Tree(ROOT, "systemd")

    def refuse_bad_policy(self) -> None:
        """Check that a pod with an unknown policy is refused, with a message that names the known ones."""
        status, answer = self._create("bad", {POLICY: "Never"}, {})
        _check(status in {403, 422}, f"HTTP {status} in place of a refusal for a pod with {POLICY}: Never")
        _check("Disabled" in answer["message"], f"the refusal does not help: {answer['message']}")
        print(f"\nA pod with a bad policy is refused:\n  {answer['message']}")

    def create_pods(self) -> None:
        """Create the pods, and wait until they run and the hogs have filled their memory once."""
        with term.step("creating pods; two of them run a memory hog"):
            for name, (annotations, resources) in PODS.items():
                status, answer = self._create(name, annotations, resources)
                _check(status == 201, f"pod {name} was refused: {answer}")
            _until(lambda: all(pod["status"].get("phase") == "Running" for pod in self._pods()), "all pods run")
            _until(lambda: all(self._number(name, "memory.current") > 36 << 20 for name in HOGS), "the hogs are full")
            labels = self._cluster.get(f"/api/v1/nodes/{NODE}")["metadata"]["labels"]
            _check(all(labels.get(key) == "true" for key in _SWAP_LABELS), f"the node lacks its swap labels: {labels}")

    def apply_profile(self, swap: dict[str, str]) -> None:
        """Apply a profile for the node with kubectl, as an administrator does."""
        self._cluster.apply(
            json.dumps(
                {
                    "apiVersion": "swapwarden.dev/v1alpha1",
                    "kind": "NodeSwapProfile",
                    "metadata": {"name": "demo"},
                    "spec": {"nodeSelector": {"matchLabels": {"pool": "demo"}}, "swap": swap},
                }
            )
        )

    def step(self, title: str, *, swaps: bool) -> None:
        """Wait until the plan is in the kernel, squeeze the hogs, show the table, and check each number of it."""
        with term.step(title):
            _until(self._is_in_force, "the plan is in force")
            before = self._number("burstable", "memory.swap.current")
            peaks = self._squeeze()
            plan, kernel = self._plan(), self._kernel()
        print(f"\n{title}")
        print(_table(self._rows(plan, kernel, peaks)))
        _check(plan == self._wanted(), f"the state differs from swapwarden plan:\n{self._wanted()}\n{plan}")
        for place, (_, wanted) in plan.items():
            _check(wanted in {"", kernel[place]}, f"{place}: the kernel holds {kernel[place]}, the plan says {wanted}")
        _check(peaks["burstable-disabled"] == 0, f"the Disabled pod swapped {peaks['burstable-disabled']} bytes")
        if swaps:
            _check(peaks["burstable"] > 0, "its neighbour did not swap")
        else:
            _check(peaks["burstable"] <= before, f"more was swapped out: {before} bytes, then {peaks['burstable']}")
            if left := self._number("burstable", "memory.swap.current"):
                print(f"  {left} bytes of burstable still count as swap: no limit brings back untouched pages.")

    def _create(self, name: str, annotations: dict[str, str], resources: dict[str, Any]) -> tuple[int, Json]:
        container = {"name": "app", "image": "none", "resources": resources}
        body = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": NODE, "containers": [container]},
        }
        return self._cluster.request("POST", f"/api/v1/namespaces/{SPACE}/pods", body)

    def _pods(self) -> list[Json]:
        return list(self._cluster.get("/api/v1/pods")["items"])

    def _pod(self, name: str) -> Json:
        return self._cluster.get(f"/api/v1/namespaces/{SPACE}/pods/{name}")

    def _folder(self, pod: Json) -> Path:
        return self._tree.pod(pod["metadata"]["uid"], pod["status"]["qosClass"].lower())

    def _number(self, name: str, file: str) -> int:
        try:
            return int(self._vm.read(self._folder(self._pod(name)) / file))
        except FileNotFoundError:
            return 0

    def _is_in_force(self) -> bool:
        """Return whether the state equals the plan, and the agent has applied it.

        A pod is Draining for as long as it has more pages out than its limit, which the kernel holds already, would let
        out. Read the state last: an earlier read might belong to a plan before this one.
        """
        plan, kernel = self._plan(), self._kernel()
        if plan != self._wanted() or any(wanted not in {"", kernel[place]} for place, (_, wanted) in plan.items()):
            return False
        state = self._cluster.get(f"{_STATES}/{NODE}")
        status = state.get("status", {})
        applied = [(one["status"], one["reason"]) for one in status.get("conditions", []) if one["type"] == "Applied"]
        observed = status.get("observedGeneration") == state["metadata"]["generation"]
        return observed and applied in ([("True", "AsSpecified")], [("False", "Draining")])

    def _squeeze(self) -> dict[str, int]:
        """Ask the kernel again and again to take memory from both hogs alike; return the most swap of each pod."""
        folders = {
            pod["metadata"]["name"]: self._folder(pod) for pod in self._pods() if pod["metadata"]["name"] in PODS
        }
        peaks = dict.fromkeys(folders, 0)
        deadline = time.monotonic() + _PRESSURE_SECONDS
        while time.monotonic() < deadline:
            for name in HOGS:
                try:
                    self._vm.write(folders[name] / "memory.reclaim", RECLAIM)
                except OSError as error:
                    if error.errno != errno.EAGAIN:  # There was no room for all of it.
                        raise
            for name, folder in folders.items():
                peaks[name] = max(peaks[name], int(self._vm.read(folder / "memory.swap.current")))
        return peaks

    def _plan(self) -> dict[str, tuple[str, str]]:
        """Return the output of `swapwarden plan` for the cluster's objects, for the same places as _wanted()."""
        paths = [f"/api/v1/nodes/{NODE}", f"{_STATES}/{NODE}"]
        # Items of a list have no kind of their own.
        items = [self._cluster.get(path) for path in paths]
        items += [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in self._pods()]
        items += self._cluster.get(_PROFILES)["items"]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        argv = [sys.executable, "-m", "swapwarden", "plan", "-f", "-", "-o", "json"]
        [planned] = json.loads(process.run(argv, timeout=60, text=text).stdout)["items"]
        places, written = _places(planned["spec"]), self._wanted()
        for uid, name, identifier in self._running():
            if identifier in written:
                places[identifier] = "", planned["spec"]["pods"][uid]["containers"][name].get("swapMax", "")
        return places

    def _wanted(self) -> dict[str, tuple[str, str]]:
        """Return the places in the NodeSwapState, and ids of the containers that get a value of their own."""
        spec = self._cluster.get(f"{_STATES}/{NODE}")["spec"]
        places = _places(spec)
        for uid, name, identifier in self._running():
            pod = spec.get("pods", {}).get(uid, {})
            if own := pod.get("containers", {}).get(name, pod.get("containerDefault")):
                places[identifier] = "", own.get("swapMax", "")
        return places

    def _running(self) -> Iterator[tuple[str, str, str]]:
        """Yield the pod's UID, the name and the id of each running container."""
        for pod in self._pods():
            for one in pod["status"].get("containerStatuses", []):
                if "running" in one["state"]:
                    yield pod["metadata"]["uid"], one["name"], one["containerID"].partition("://")[2]

    def _kernel(self) -> dict[str, str]:
        """Return the kernel's values, by place."""
        found = {"kubepods": self._vm.read(self._tree.kubepods / "memory.swap.max").strip()}
        for pod in self._pods():
            folder = self._folder(pod)
            found[pod["metadata"]["uid"]] = self._vm.read(folder / "memory.swap.max").strip()
            for one in pod["status"].get("containerStatuses", []):
                identifier = one["containerID"].partition("://")[2]
                path = self._tree.container(folder, identifier) / "memory.swap.max"
                found[identifier] = self._vm.read(path).strip()
        return found

    def _rows(
        self, plan: dict[str, tuple[str, str]], kernel: dict[str, str], peaks: dict[str, int]
    ) -> Iterator[tuple[str, ...]]:
        yield "POD", "QOS", "POLICY", "REASON", "WANTED", "KERNEL", "PEAK SWAP"
        if "kubepods" in plan:
            yield "(all pods)", "", "", "", plan["kubepods"][1], kernel["kubepods"], ""
        for pod in self._pods():
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            if name not in PODS:
                continue
            policy = pod["metadata"].get("annotations", {}).get(POLICY, "-")
            reason, wanted = plan[uid]
            yield name, pod["status"]["qosClass"], policy, reason, wanted, kernel[uid], str(peaks[name])
            for one in pod["status"]["containerStatuses"]:
                identifier = one["containerID"].partition("://")[2]
                if identifier in plan:
                    yield f"  container {one['name']}", "", "", "", plan[identifier][1], kernel[identifier], ""


def _places(spec: Json) -> dict[str, tuple[str, str]]:
    """Reason and value by place: `kubepods`, and UIDs of pods. The value is empty where nothing is written."""
    default = spec.get("defaultReason", "")
    places = {uid: (pod.get("reason", default), pod.get("swapMax", "")) for uid, pod in spec.get("pods", {}).items()}
    if "kubepods" in spec:
        places["kubepods"] = ("", spec["kubepods"]["swapMax"])
    return places


def _table(rows: Iterator[tuple[str, ...]]) -> str:
    lines = list(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
