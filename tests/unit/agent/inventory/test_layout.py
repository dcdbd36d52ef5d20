from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.inventory import layout, records

Dirs = dict[str, Any]
HEX = "0123456789abcdef"
hash_ = st.text(HEX, min_size=32, max_size=32)
uid_ = st.one_of(st.uuids().map(str), hash_)
id_ = st.text(HEX, min_size=64, max_size=64)
qos_ = st.sampled_from(["guaranteed", "burstable", "besteffort"])
pods_ = st.dictionaries(uid_, st.tuples(qos_, st.sets(id_, max_size=3)), max_size=6)
RUNTIMES = ("cri-containerd-", "crio-", "docker-")


def listing(dirs: Dirs) -> layout.Listing:
    def list_dirs(path: str) -> list[str]:
        here = dirs
        for name in filter(None, path.split("/")):
            here = here.get(name, {})
        return list(here)

    return list_dirs


def put(dirs: Dirs, *path: str) -> Dirs:
    for name in path:
        dirs = dirs.setdefault(name, {})
    return dirs


cgroup_root_ = st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), max_size=3)
"""The kubelet's cgroupRoot, by its parts."""


def build(
    pods: dict[str, tuple[str, set[str]]],
    style: str,
    runtime: str,
    *,
    above: Sequence[str] = (),
    system: bool = False,
    inside: Callable[[], Dirs] = dict,
) -> Dirs:
    """One node's tree, with the pods below a cgroupRoot of the parts `above`; "nested" is systemd as kind has it.

    `style` is the cgroup driver. With `system` there is the level of KEP-5894, which holds every other pod. `inside`
    makes the cgroups inside each container.
    """
    dirs: Dirs = {"system.slice": {"containerd.service": {}}, "init.scope": {}}
    parts = ["kubelet"] if style == "nested" else list(above)
    if style == "cgroupfs":
        root = put(dirs, *parts, "kubepods")
        name = ""
    else:
        # One slice in the other, each with the names of those above it, in which a dash is an underscore.
        whole = [part.replace("-", "_") for part in (*parts, "kubepods")]
        name = "-".join(whole)
        root = put(dirs, *(f"{'-'.join(whole[: count + 1])}.slice" for count in range(len(whole))))
    for number, (uid, (qos, ids)) in enumerate(pods.items()):
        levels = (["system"] if system and number % 2 else []) + ([] if qos == "guaranteed" else [qos])
        if style == "cgroupfs":
            pod = put(root, *levels, f"pod{uid}")
        else:
            slices = [f"{'-'.join([name, *levels[: count + 1]])}.slice" for count in range(len(levels))]
            pod = put(root, *slices, f"{'-'.join([name, *levels])}-pod{uid.replace('-', '_')}.slice")
        for cid in ids:
            put(pod, cid if style == "cgroupfs" else f"{runtime}{cid}.scope").update(inside())
            if runtime == "crio-":
                put(pod, f"crio-conmon-{cid}" if style == "cgroupfs" else f"crio-conmon-{cid}.scope")
    return dirs


@given(
    pods_,
    pods_,
    st.sampled_from(["systemd", "cgroupfs", "nested"]),
    st.sampled_from(RUNTIMES),
    cgroup_root_,
    st.booleans(),
    st.booleans(),
)
def test_a_tree_in_any_style_is_found_whole(
    pods: dict[str, tuple[str, set[str]]],
    inner: dict[str, tuple[str, set[str]]],
    style: str,
    runtime: str,
    above: list[str],
    system: bool,
    crun: bool,
) -> None:
    """And nothing of the clusters that run in its containers, which are nested in the style of the node's own."""

    def inside() -> Dirs:
        nested = build(inner, style, runtime)
        return {records.INNER: nested} if crun else nested

    dirs = build(pods, style, runtime, above=above, system=system, inside=inside)
    list_dirs = listing(dirs)
    root = layout.find(list_dirs)
    listed = {
        pod.uid: {cid for name in list_dirs(pod.path) if (cid := records.container_id(name))}
        for pod in layout.pods(list_dirs, root)
    }
    assert listed == {uid: ids for uid, (_, ids) in pods.items()}
    for uid in pods:
        assert layout.find(list_dirs, own_uid=uid) == root


UID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
INNER_UID = "ffffffff-4e5f-6071-8293-a4b5c6d7e8f9"
CID = "ab" * 32


def nested() -> Dirs:
    """A cluster in a pod of another: as kind in a CI pod."""
    dirs = build({UID: ("burstable", {CID})}, "systemd", "cri-containerd-")
    outer = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
    scope = put(dirs, *outer.split("/"), f"cri-containerd-{CID}.scope")
    scope.update(build({INNER_UID: ("guaranteed", set())}, "nested", "cri-containerd-"))
    return dirs


def test_a_cluster_inside_a_pod_is_not_entered() -> None:
    list_dirs = listing(nested())
    root = layout.find(list_dirs)
    assert root == "kubepods.slice"
    assert [pod.uid for pod in layout.pods(list_dirs, root)] == [UID]
    assert layout.find(list_dirs, own_uid=UID) == root


def test_an_agent_of_a_cluster_inside_a_pod_finds_its_own() -> None:
    list_dirs = listing(nested())
    root = layout.find(list_dirs, own_uid=INNER_UID)
    assert root.endswith(f"cri-containerd-{CID}.scope/kubelet.slice/kubelet-kubepods.slice")
    assert [pod.uid for pod in layout.pods(list_dirs, root)] == [INNER_UID]


def test_several_trees_need_an_anchor() -> None:
    dirs = build({}, "systemd", "crio-")
    put(dirs, "kind", "kubelet.slice", "kubelet-kubepods.slice")
    with pytest.raises(layout.TreeError, match="--cgroup-anchor") as error:
        layout.find(listing(dirs))
    assert error.value.reason == "AmbiguousTree"
    assert layout.find(listing(dirs), anchor="kind") == "kind/kubelet.slice/kubelet-kubepods.slice"


@pytest.mark.parametrize(("own", "reason"), [("", "NoPodTree"), (UID, "OwnPodNotFound")])
def test_no_tree_says_what_to_do(own: str, reason: str) -> None:
    with pytest.raises(layout.TreeError) as error:
        layout.find(listing({"system.slice": {}}), own_uid=own)
    assert error.value.reason == reason


def test_the_system_level_holds_pods_too() -> None:
    dirs: Dirs = {}
    put(dirs, "kubepods.slice", "kubepods-system.slice", "kubepods-system-burstable.slice",
        f"kubepods-system-burstable-pod{UID.replace('-', '_')}.slice")  # fmt: skip
    put(dirs, "kubepods.slice", "kubepods-system.slice", f"kubepods-system-pod{INNER_UID.replace('-', '_')}.slice")
    assert {pod.uid for pod in layout.pods(listing(dirs), "kubepods.slice")} == {UID, INNER_UID}


@pytest.mark.parametrize(
    "name",
    [
        "podinfo",
        "pod",
        "pod..",
        "kubepods-burstable.slice",
        "machine-podabcdefab.slice",
        f"pod{UID}.slice",
        "pod-aaaaaaaa",
    ],
)
def test_names_that_are_no_pods(name: str) -> None:
    assert records.pod_uid(name) is None


@pytest.mark.parametrize(
    "name", ["container", f"crio-conmon-{CID}.scope", CID[:-1], f"{CID}0", "init.scope", f"../{CID}", f"{CID}.slice"]
)
def test_names_that_are_no_containers(name: str) -> None:
    assert records.container_id(name) is None


@pytest.mark.parametrize("name", [CID, f"crio-{CID}", f"crio-{CID}.scope", f"cri-containerd-{CID}.scope"])
def test_names_of_containers(name: str) -> None:
    assert records.container_id(name) == CID


@pytest.mark.parametrize("name", ["kubepods-extra", "mykubepods", "kubepods.service", "xkubepods.slice"])
def test_names_that_are_no_roots(name: str) -> None:
    assert not records.is_root(name)
