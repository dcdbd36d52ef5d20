from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import yaml
from swapwarden import __main__ as program

MI = 2**20
GI = 2**30


def node(name: str = "n", **status: Any) -> dict[str, Any]:
    known = {"nodeInfo": {"swap": {"capacity": 4 * GI}}, "capacity": {"memory": "8Gi"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {**known, **status}}


def pod(name: str, request: str | None, limit: str | None = None, on: str | None = "n", **spec: Any) -> dict[str, Any]:
    amounts = {"requests": {"memory": request}, "limits": {"memory": limit}}
    spec = {"nodeName": on, "containers": [{"name": "app", "resources": amounts}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


CLUSTER = (
    node(),
    pod("burstable", "1Gi", "2Gi"),
    {**pod("ended", "1Gi"), "status": {"phase": "Succeeded"}},
    {**pod("guaranteed", "256Mi", "256Mi"), "status": {"qosClass": "Guaranteed"}},
)
TIERED = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "featureGates": {"MemoryQoS": True},
    "memoryThrottlingFactor": 0.9,
    "memoryReservationPolicy": "TieredReservation",
    "failSwapOn": False,
    "memorySwap": {"swapBehavior": "LimitedSwap"},
}
HIGH = str(int(1.9 * GI) // 4096 * 4096)


class Shell:
    """Runs `swapwarden plan` on objects and on a configuration."""

    def __init__(self, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.input, self.config, self.capsys = folder / "in.yaml", folder / "kubelet.yaml", capsys

    def run(
        self, *options: str, config: Any = None, objects: tuple[dict[str, Any], ...] = CLUSTER
    ) -> tuple[int, str, str]:
        self.input.write_text(yaml.safe_dump_all(objects))
        if config is not None:
            self.config.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
            options = (*options, f"--kubelet-config={self.config}")
        status = program.main(["plan", f"--filename={self.input}", *options])
        out, err = self.capsys.readouterr()
        return status, out, err

    def items(self, version: str, **given: Any) -> list[dict[str, Any]]:
        status, out, err = self.run(f"--as-kubelet={version}", "-o", "json", **given)
        assert status == 0
        assert all("OOM-kill" in line or "no effect" in line for line in err.splitlines())
        found = json.loads(out)
        assert (found["apiVersion"], found["kind"]) == ("v1", "List")
        items: list[dict[str, Any]] = found["items"]
        return items


@pytest.fixture
def shell(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def test_json_has_an_item_for_a_node(shell: Shell) -> None:
    expected = {
        "node": "n",
        "kubepods": {"memory.min": str(GI + 256 * MI), "memory.low": str(GI)},
        "burstable": {"memory.low": str(GI)},
        "pods": {
            "shop/burstable": {
                "memory.low": str(GI),
                "containers": {"app": {"memory.low": str(GI), "memory.high": HIGH, "memory.swap.max": str(GI // 2)}},
            },
            "shop/guaranteed": {
                "memory.min": str(256 * MI),
                "containers": {"app": {"memory.min": str(256 * MI), "memory.swap.max": "0"}},
            },
        },
    }
    assert shell.items("1.37", config=TIERED) == [expected]
    (old,) = shell.items("1.36", config=TIERED)
    assert old == {**expected, "kubepods": {"memory.min": str(GI + 256 * MI)}}


def test_versions_with_a_patch_count_as_their_minor_version(shell: Shell) -> None:
    assert shell.items("v1.37.2", config=TIERED) == shell.items("1.37", config=TIERED)


def test_known_faults_are_notes(shell: Shell) -> None:
    _, _, err = shell.run("--as-kubelet=1.36", config=TIERED)
    assert [line.split(":")[:2] for line in err.splitlines()] == [["note", " node n"]] * 3


def test_yaml_has_the_same(shell: Shell) -> None:
    _, out, _ = shell.run("--as-kubelet=1.37", "-o", "yaml", config=TIERED)
    assert yaml.safe_load(out)["items"] == shell.items("1.37", config=TIERED)


def test_table(shell: Shell) -> None:
    _, out, _ = shell.run("--as-kubelet=1.36", config=TIERED)
    assert [line.split() for line in out.splitlines()] == [
        ["NODE", "CGROUP", "QOS", "MEMORY.MIN", "MEMORY.LOW", "MEMORY.HIGH", "MEMORY.SWAP.MAX"],
        ["n", "(kubepods)", "-", str(GI + 256 * MI), "-", "-", "-"],
        ["n", "(burstable)", "-", "-", str(GI), "-", "-"],
        ["n", "shop/burstable", "Burstable", "-", str(GI), "-", "-"],
        ["app", "-", str(GI), HIGH, str(GI // 2)],
        ["n", "shop/guaranteed", "Guaranteed", str(256 * MI), "-", "-", "-"],
        ["app", str(256 * MI), "-", "-", "0"],
    ]


def test_values_are_floored_as_the_kernel_keeps_them(shell: Shell) -> None:
    (item,) = shell.items("1.37", config=TIERED, objects=(node(), pod("a", "1000M", "2000M")))
    files = item["pods"]["shop/a"]["containers"]["app"]
    assert files["memory.low"] == item["kubepods"]["memory.low"] == str(1000 * 1000**2 // 4096 * 4096)
    assert all(int(value) % 4096 == 0 for value in files.values())


def test_allocatable_of_the_node_counts_where_a_container_has_no_limit(shell: Shell) -> None:
    given = (node(allocatable={"memory": "7Gi"}), pod("a", "1Gi"))
    (item,) = shell.items("1.37", config=TIERED, objects=given)
    bound = 7 * GI + 100 * MI
    expected = str(int(GI + (bound - GI) * 0.9) // 4096 * 4096)
    assert item["pods"]["shop/a"]["containers"]["app"]["memory.high"] == expected


def test_pods_without_a_node_are_shown_on_each(shell: Shell) -> None:
    given = (node("a"), node("b"), pod("new", "1Gi", on=None))
    items = shell.items("1.37", config=TIERED, objects=given)
    assert [(one["node"], list(one["pods"]), one["burstable"]) for one in items] == [
        ("a", ["shop/new"], {"memory.low": str(GI)}),
        ("b", ["shop/new"], {"memory.low": str(GI)}),
    ]


def test_defaults_of_the_version_and_a_note_on_swap(shell: Shell) -> None:
    status, out, err = shell.run("--as-kubelet=1.36", "-o", "json")
    (item,) = json.loads(out)["items"]
    assert (status, item["kubepods"], item["burstable"]) == (0, {}, {})
    assert item["pods"]["shop/burstable"] == {"containers": {"app": {"memory.swap.max": "0"}}}
    assert "node n" in err
    assert "failSwapOn" in err


@pytest.mark.parametrize(
    ("options", "config", "named"),
    [
        (["--as-kubelet=1.35"], None, ["1.35", "1.36", "1.37"]),
        (["--as-kubelet="], None, ["--as-kubelet", "1.36"]),
        (["--as-kubelet=1.37\n1.37"], None, ["--as-kubelet"]),
        (["--as-kubelet=1.37", "--kubelet-config=missing.yaml"], None, ["missing.yaml"]),
        ([], TIERED, ["--kubelet-config", "--as-kubelet"]),
        (["--as-kubelet=1.37"], {**TIERED, "memoryThrottlingFactor": 2}, ["kubelet.yaml", "memoryThrottlingFactor"]),
        (["--as-kubelet=1.37"], {**TIERED, "kind": "Node"}, ["kubelet.yaml", "kind", "KubeletConfiguration"]),
        (["--as-kubelet=1.37"], {**TIERED, "featureGates": 3}, ["kubelet.yaml", "featureGates"]),
        (["--as-kubelet=1.37"], "[1, 2]", ["kubelet.yaml", "a list"]),
        (["--as-kubelet=1.37"], "a: 1\n---\nb: 2\n", ["kubelet.yaml", "a mapping, a mapping"]),
        (["--as-kubelet=1.37"], "", ["kubelet.yaml", "nothing"]),
        (["--as-kubelet=1.37"], "{", ["kubelet.yaml", "YAML"]),
        (["--as-kubelet=1.37", "--node=other"], TIERED, ["--node other", "n"]),
    ],
)
def test_errors_name_the_thing_and_the_remedy(shell: Shell, options: list[str], config: Any, named: list[str]) -> None:
    status, out, err = shell.run(*options, config=config)
    assert (status, out) == (2, "")
    assert [part for part in named if part not in err] == []
    assert err.startswith("error: ")


def test_without_a_node_nothing_is_known(shell: Shell) -> None:
    status, _, err = shell.run("--as-kubelet=1.37", objects=(pod("a", "1Gi"),))
    assert status == 2
    assert "Node" in err


def test_allocatable_that_is_no_quantity(shell: Shell) -> None:
    status, _, err = shell.run("--as-kubelet=1.37", objects=(node(allocatable={"memory": "much"}),))
    assert status == 2
    assert "status.allocatable.memory" in err
