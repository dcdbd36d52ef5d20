"""The node's disk is rebuilt when its recipe changes, and only then."""

import os
from pathlib import Path

import pytest

from testbed.base import cache
from testbed.vm import nodeimage


def test_the_digest_depends_on_where_one_part_ends() -> None:
    assert nodeimage._digest([b"ab", b"c"]) != nodeimage._digest([b"a", b"bc"])


def test_every_file_of_the_node_is_part_of_the_recipe() -> None:
    text = b"".join(nodeimage._recipe())
    for name in ("etc/kubernetes/kubelet.yaml", "etc/containerd/config.toml", "usr/local/sbin/testbed-setup"):
        assert name.encode() in text


def test_only_the_last_few_disks_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWAPWARDEN_CACHE", str(tmp_path))
    for age, name in enumerate(("node-00000000000d", "node-00000000000c", "node-00000000000b", "node-00000000000a")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    for name in ("node-base-0123456789ab", "helm-3"):
        (tmp_path / name).mkdir()
    nodeimage._forget("node")
    assert cache.find("node-00000000000a") is None
    assert len(list(tmp_path.iterdir())) == 5
