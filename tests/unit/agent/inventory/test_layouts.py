"""Trees as kubelets and runtimes make them: every pod and container of the node is found, and nothing else is touched.

The layouts are those of pkg/kubelet/cm (cgroup_manager_linux.go, pod_container_manager_linux.go), runc, crun,
containerd and CRI-O. CRI-O and crun are known here by their layouts only.
"""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroupfs
from swapwarden.api import names

from tests.unit.agent.agent_node import MIB, Node, apply, compare, snapshot, swap, until
from tests.unit.agent.cgroup_tree import swap_max

BURSTABLE = "2f1c0a77-93d4-4c5e-8b0e-5d1f6f0a9e01"
GUARANTEED = "7b9e6c52-1d3f-4a86-9c41-0e2d8a7f3b02"
BESTEFFORT = "c04d8f16-6a2b-4e97-b3d5-9f1e7c8a2d03"
STATIC = "d5a3f0c97e4b21868f60ab9c3e17d204"
"""A static pod is named by the hash of its manifest (annotation kubernetes.io/config.hash), which has no dashes."""
SANDBOX, APP, SIDECAR = "5a" * 32, "a1" * 32, "b2" * 32


def slug(uid: str) -> str:
    return uid.replace("-", "_")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Cgroups of a node, a line each: of pods by UID, of containers by id, and others that are nobody's business."""

    root: str
    pods: dict[str, str]
    containers: dict[str, tuple[str, ...]]
    """All cgroups of a container that limits are written to."""
    others: tuple[str, ...] = ()


def systemd(root: str, *, scope: str, inner: bool = False) -> Layout:
    """As the systemd drivers of kubelet and runtime make them; `root` is `kubepods.slice`, with its ancestors."""
    name = root.rpartition("/")[2].removesuffix(".slice")
    burstable = f"{root}/{name}-burstable.slice/{name}-burstable-pod{slug(BURSTABLE)}.slice"
    static = f"{root}/{name}-burstable.slice/{name}-burstable-pod{slug(STATIC)}.slice"
    guaranteed = f"{root}/{name}-pod{slug(GUARANTEED)}.slice"
    besteffort = f"{root}/{name}-besteffort.slice/{name}-besteffort-pod{slug(BESTEFFORT)}.slice"
    app = f"{burstable}/{scope}-{APP}.scope"
    sidecar = f"{guaranteed}/{scope}-{SIDECAR}.scope"
    return Layout(
        root,
        {BURSTABLE: burstable, STATIC: static, GUARANTEED: guaranteed, BESTEFFORT: besteffort},
        {
            APP: (app, f"{app}/container") if inner else (app,),
            SIDECAR: (sidecar, f"{sidecar}/container") if inner else (sidecar,),
        },
        (f"{burstable}/{scope}-{SANDBOX}.scope", "system.slice/kubelet.service", "user.slice", "init.scope"),
    )


def cgroupfs_driver(root: str, *, prefix: str = "") -> Layout:
    """As the cgroupfs drivers make them; `root` is `kubepods`, with its ancestors."""
    burstable, guaranteed = f"{root}/burstable/pod{BURSTABLE}", f"{root}/pod{GUARANTEED}"
    return Layout(
        root,
        {
            BURSTABLE: burstable,
            STATIC: f"{root}/burstable/pod{STATIC}",
            GUARANTEED: guaranteed,
            BESTEFFORT: f"{root}/besteffort/pod{BESTEFFORT}",
        },
        {APP: (f"{burstable}/{prefix}{APP}",), SIDECAR: (f"{guaranteed}/{prefix}{SIDECAR}",)},
        (f"{burstable}/{prefix}{SANDBOX}", "system", "podruntime/kubelet", "podruntime/runtime"),
    )


def with_others(layout: Layout, *others: str) -> Layout:
    return dataclasses.replace(layout, others=(*layout.others, *others))


def crio(layout: Layout) -> Layout:
    """CRI-O's monitors are in the pod (conmon_cgroup = "pod"), under names that end in the container's id as well."""
    pod = layout.pods[BURSTABLE]
    end = ".scope" if pod.endswith(".slice") else ""
    return with_others(layout, f"{pod}/crio-conmon-{APP}{end}", f"{pod}/crio-conmon-{SANDBOX}{end}")


def with_cluster_inside(layout: Layout) -> Layout:
    """A kind cluster in a CI job's container, with pods of the very same UIDs and names."""
    inside = systemd("kubelet.slice/kubelet-kubepods.slice", scope="cri-containerd")
    place = layout.containers[APP][-1]
    return with_others(
        layout,
        f"{place}/{inside.root}",
        *(
            f"{place}/{path}"
            for path in (*inside.pods.values(), *(each for ones in inside.containers.values() for each in ones))
        ),
    )


def with_system_level(layout: Layout) -> Layout:
    """KEP-5894: pods of the system one level further down."""
    static = (
        f"{layout.root}/kubepods-system.slice/kubepods-system-burstable.slice"
        f"/kubepods-system-burstable-pod{slug(STATIC)}.slice"
    )
    return dataclasses.replace(layout, pods={**layout.pods, STATIC: static})


LAYOUTS = {
    "containerd, systemd": systemd("kubepods.slice", scope="cri-containerd"),
    "containerd, cgroupfs": cgroupfs_driver("kubepods"),
    "containerd and crun, systemd": systemd("kubepods.slice", scope="cri-containerd", inner=True),
    "CRI-O and runc, systemd": crio(systemd("kubepods.slice", scope="crio")),
    "CRI-O and crun, systemd": crio(systemd("kubepods.slice", scope="crio", inner=True)),
    "CRI-O, cgroupfs": crio(cgroupfs_driver("kubepods", prefix="crio-")),
    "cri-dockerd, systemd": systemd("kubepods.slice", scope="docker"),
    "kind": systemd("kubelet.slice/kubelet-kubepods.slice", scope="cri-containerd"),
    "kind, cgroupfs": cgroupfs_driver("kubelet/kubepods"),
    "kind's node seen from its host": systemd(
        f"system.slice/docker-{SANDBOX}.scope/kubelet.slice/kubelet-kubepods.slice", scope="cri-containerd"
    ),
    "cgroupRoot, systemd": systemd("edge.slice/edge-my_pods.slice/edge-my_pods-kubepods.slice", scope="cri-containerd"),
    "cgroupRoot, cgroupfs": cgroupfs_driver("edge/my-pods/kubepods"),
    "a cluster inside a pod": with_cluster_inside(systemd("kubepods.slice", scope="cri-containerd")),
    "a cluster inside a pod, cgroupfs": with_cluster_inside(cgroupfs_driver("kubepods")),
    "a level for the system's pods": with_system_level(systemd("kubepods.slice", scope="cri-containerd")),
}


def build(node: Node, layout: Layout) -> None:
    """Make all cgroups, also those above them, unless they exist."""
    places = [layout.root, *layout.pods.values(), *layout.others]
    places += [path for paths in layout.containers.values() for path in paths]
    made: set[pathlib.Path] = set()
    for place in places:
        for path in reversed([node.tree.root / place, *(node.tree.root / place).parents]):
            if path.is_relative_to(node.tree.root) and path != node.tree.root and path not in made:
                made.add(path)
                if not path.exists():
                    node.tree.group(path)


def written(node: Node) -> dict[str, str]:
    """Return the files that differ from when they were made."""
    files = node.tree.root.rglob(cgroupfs.SWAP_MAX)
    return {
        str(file.parent.relative_to(node.tree.root)): swap_max(file.parent)
        for file in files
        if swap_max(file.parent) != "max"
    }


@pytest.mark.parametrize("late", [False, True], ids=["before the agent", "after the agent"])
@pytest.mark.parametrize("name", LAYOUTS)
async def test_a_layout_is_found_whole_and_nothing_else_is_touched(plain: Node, name: str, late: bool) -> None:
    layout = LAYOUTS[name]
    plain.tree.remove(plain.tree.kubepods)
    limits = {uid: (number + 1) * MIB for number, uid in enumerate(layout.pods)}
    inner = {cid[:13]: swap((number + 1) * 16 * MIB) for number, cid in enumerate(layout.containers)}
    entries = {uid: spec.PodEntry(swap(limit), inner) for uid, limit in limits.items()}
    state = spec.NodeSpec("u", 1, names.Mode.ENFORCE, names.BeforePlan.NO_SWAP, 64 * MIB, entries)
    if late:
        agent = plain.start(state)
        build(plain, layout)
        compare(agent)
    else:
        build(plain, layout)
        agent = plain.start(state)
    expected = {layout.root: str(64 * MIB)}
    expected |= {path: str(limits[uid]) for uid, path in layout.pods.items()}
    expected |= {
        path: str(inner[cid[:13]]["memory.swap.max"].value)
        for cid, paths in layout.containers.items()
        for path in paths
    }
    await until(lambda: written(plain) == expected)
    assert agent.root == layout.root
    # Pods that ran before the agent were above their values until now; nothing else is wrong.
    assert {violation.reason for violation in snapshot(agent).violations} == set()


async def test_the_rest_of_a_deleted_pod_gets_0_and_is_not_reported(plain: Node) -> None:
    """The kubelet may leave a pod's cgroup behind; with no container in it, there is nothing that could swap."""
    apply(plain.start(), spec.NodeSpec("u", 1, names.Mode.ENFORCE, names.BeforePlan.NO_SWAP, None, {}))
    left, runs = await plain.run(1), await plain.run(2, "app")
    assert plain.agent is not None
    await until(lambda: [swap_max(pod) for pod in (left, runs)] == ["0", "0"])
    plain.later = 60.0
    silent = [violation.pod for violation in snapshot(plain.agent).violations]
    assert silent == [plain.known(runs).uid]
