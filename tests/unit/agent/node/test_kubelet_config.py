from __future__ import annotations

import json
import pathlib

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from swapwarden.agent.node import kubelet_config

GIB = 1 << 30

KUBEADM = """\
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
evictionPressureTransitionPeriod: 0s
failSwapOn: false
imageMaximumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
memorySwap:
  swapBehavior: LimitedSwap
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
"""
EKS = json.dumps(
    {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "cgroupDriver": "systemd",
        "cgroupRoot": "/",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%"},
        "featureGates": {"RotateKubeletServerCertificate": True},
        "kubeReserved": {"cpu": "70m", "memory": "574Mi"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "maxPods": 29,
    }
)
OPENSHIFT = """\
kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
cgroupDriver: systemd
cgroupRoot: /
clusterDNS:
  - 172.30.0.10
containerRuntimeEndpoint: "unix:///var/run/crio/crio.sock"  # CRI-O
enforceNodeAllocatable:
  - pods
  - 'system-reserved'
featureGates:
    MemoryQoS: true   # on trial
    "RotateKubeletServerCertificate": true
evictionHard: {
  nodefs.available: 0%,
  'memory.available': 5%
}
failSwapOn: true
"""


def written(folder: pathlib.Path, text: str, name: str = "config.yaml") -> pathlib.Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def read(folder: pathlib.Path, text: str) -> kubelet_config.Configuration:
    return kubelet_config.read(kubelet_config.Files(written(folder, text)))


def test_as_kubeadm_writes_it(tmp_path: pathlib.Path) -> None:
    config = read(tmp_path, KUBEADM)
    assert (config.fail_swap_on, config.swap_behavior, config.cgroup_driver) == (False, "LimitedSwap", "systemd")
    assert (config.eviction_memory, config.threshold(4 * GIB)) == ("100Mi", 100 << 20)
    assert (config.enforce_node_allocatable, config.memory_qos, config.runtime_endpoint) == (("pods",), None, "")


def test_as_json(tmp_path: pathlib.Path) -> None:
    config = read(tmp_path, EKS)
    assert (config.fail_swap_on, config.swap_behavior, config.cgroup_root) == (True, "NoSwap", "/")
    assert (config.eviction_memory, config.runtime_endpoint) == (
        "100Mi",
        "unix:///run/containerd/containerd.sock",
    )


def test_with_comments_quotes_and_flow_style(tmp_path: pathlib.Path) -> None:
    config = read(tmp_path, OPENSHIFT)
    assert (config.fail_swap_on, config.runtime_endpoint) == (True, "unix:///var/run/crio/crio.sock")
    assert (config.enforce_node_allocatable, config.memory_qos) == (("pods", "system-reserved"), True)
    assert config.threshold(4 * GIB) == 4 * GIB * 5 // 100


@pytest.mark.parametrize(
    ("text", "threshold"),
    [
        ("", 100 << 20),
        ("evictionHard: {}", 100 << 20),
        ("evictionHard: null", 100 << 20),
        ("evictionHard: {imagefs.available: 15%}", 0),
        ("mergeDefaultEvictionSettings: true\nevictionHard: {imagefs.available: 15%}", 100 << 20),
        ("evictionHard: {memory.available: 1.5Gi}", 3 * GIB // 2),
        ("evictionHard: {memory.available: 200M}", 200_000_000),
        ("evictionHard: {memory.available: 1500m}", 2),
        ("evictionHard: {memory.available: much}", None),
        ("evictionHard:\n  memory.available: 0%", 0),
    ],
)
def test_threshold(tmp_path: pathlib.Path, text: str, threshold: int | None) -> None:
    assert read(tmp_path, f"kind: KubeletConfiguration\n{text}\n").threshold(4 * GIB) == threshold


def test_drop_ins_come_after_the_file_and_merge_mappings(tmp_path: pathlib.Path) -> None:
    file = written(tmp_path, OPENSHIFT)
    head = "kind: KubeletConfiguration\n"
    written(tmp_path, f"{head}failSwapOn: true\nfeatureGates: {{NodeSwap: true}}\n", "d/10-swap.conf")
    written(tmp_path, f"{head}failSwapOn: false\nenforceNodeAllocatable: [none]\n", "d/20-swap.conf")
    written(tmp_path, "not read", "d/30-swap.conf.bak")
    config = kubelet_config.read(kubelet_config.Files(file, tmp_path / "d"))
    assert (config.fail_swap_on, config.memory_qos, config.enforce_node_allocatable) == (False, True, ("none",))
    assert config.source == f"{file} and 2 more"
    assert kubelet_config.read(kubelet_config.Files(None, tmp_path / "d")).source == str(tmp_path / "d")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no kind"),
        ("apiVersion: v1\nkind: Config\nclusters: []\n", "no kind"),
        ("{", "no JSON"),
        ('{"kind": "KubeletConfiguration"}}', "no JSON"),
        ("kind: KubeletConfiguration\nevictionHard: 5%\n", "'5%' is not understood"),
        ("\x7fELF\x02\x01", "no kind"),
    ],
)
def test_an_invalid_configuration_is_reported(tmp_path: pathlib.Path, text: str, says: str) -> None:
    with pytest.raises(kubelet_config.ConfigurationError, match=says):
        read(tmp_path, text)


def test_an_unreadable_configuration_is_reported(tmp_path: pathlib.Path) -> None:
    with pytest.raises(kubelet_config.ConfigurationError, match="cannot be read"):
        kubelet_config.read(kubelet_config.Files(tmp_path / "gone"))
    with pytest.raises(kubelet_config.ConfigurationError, match="cannot be read"):
        kubelet_config.read(kubelet_config.Files(tmp_path))
    with pytest.raises(kubelet_config.ConfigurationError, match=r"no files"):
        kubelet_config.read(kubelet_config.Files(None, tmp_path))
    for number in range(65):
        written(tmp_path, KUBEADM, f"d/{number}.conf")
    with pytest.raises(kubelet_config.ConfigurationError, match="65 files"):
        kubelet_config.read(kubelet_config.Files(None, tmp_path / "d"))


WORDS = st.text("abcdefghijklmnopqrstuvwxyz-/.%#' 0123456789", min_size=1, max_size=12).filter(
    lambda text: text.strip() == text
)
MAPPINGS = st.dictionaries(st.sampled_from(["memory.available", "nodefs.available", "MemoryQoS"]), WORDS, max_size=3)
KNOWN = st.fixed_dictionaries(
    {"kind": st.just("KubeletConfiguration")},
    optional={
        "cgroupRoot": WORDS,
        "failSwapOn": st.booleans(),
        "memorySwap": st.fixed_dictionaries({"swapBehavior": WORDS}),
        "evictionHard": MAPPINGS,
        "featureGates": st.dictionaries(st.sampled_from(["MemoryQoS", "NodeSwap"]), st.booleans()),
        "enforceNodeAllocatable": st.lists(WORDS, max_size=3),
        "authentication": st.fixed_dictionaries({"x509": st.fixed_dictionaries({"failSwapOn": WORDS})}),
        "clusterDNS": st.lists(WORDS, max_size=2),
    },
)


def plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return str(value).lower() if isinstance(value, bool) else value


@example(document={"kind": "KubeletConfiguration", "cgroupRoot": "' #"}, sort=False)
@given(document=KNOWN, sort=st.booleans())
def test_it_reads_what_yaml_and_json_writers_write(document: dict[str, object], *, sort: bool) -> None:
    ours = {key: plain(value) for key, value in document.items() if key not in {"authentication", "clusterDNS"}}
    assert kubelet_config.parse(json.dumps(document)) == ours
    assert kubelet_config.parse(yaml.safe_dump(document, sort_keys=sort, width=10**6)) == ours


@given(st.binary(max_size=400), st.sampled_from([b"", b"kind: KubeletConfiguration\n", b'{"kind":']))
def test_garbage_is_refused_or_understood(data: bytes, head: bytes) -> None:
    text = (head + data).decode("utf-8", "replace").strip()
    try:
        values = kubelet_config.parse(text)
    except ValueError:
        return
    assert values["kind"] == "KubeletConfiguration"


@pytest.mark.parametrize(
    ("lines", "owns"),
    [
        ("", set()),
        ("memoryReservationPolicy: TieredReservation\n", {"protection"}),
        ("memoryThrottlingFactor: 0.9\n", {"throttling"}),
        ("memoryThrottlingFactor: null\nmemoryReservationPolicy: None\n", set()),
        ("memoryThrottlingFactor: 0.9\nfeatureGates:\n  MemoryQoS: false\n", set()),
        ("featureGates: {MemoryQoS: true}\nmemoryReservationPolicy: TieredReservation\n", {"protection"}),
        ('{"kind": "KubeletConfiguration", "memoryThrottlingFactor": 0.8}', {"throttling"}),
    ],
)
def test_files_of_memory_that_the_kubelet_sets(tmp_path: pathlib.Path, lines: str, owns: set[str]) -> None:
    file = tmp_path / "config"
    file.write_text(lines if lines.startswith("{") else f"kind: KubeletConfiguration\n{lines}")
    assert {owned.value for owned in kubelet_config.read(kubelet_config.Files(file)).owns} == owns
