from __future__ import annotations

from pathlib import Path

import pytest

from testbed.base import host
from testbed.vm import uml


def test_the_sources_come_from_where_this_machine_has_debian_from() -> None:
    said = (
        "Debian bookworm-security https://mirror.test/debian-security bookworm-security main\n"
        "Debian bookworm-updates https://mirror.test/debian bookworm-updates main\n"
        "Other bookworm https://other.test/debian bookworm main\n"
        "Debian bookworm https://mirror.test/debian bookworm contrib\n"
        "Debian bookworm https://mirror.test/debian bookworm main\n"
    )
    with pytest.raises(host.SetupError, match="no package sources of Debian"):
        uml.repository(said.rpartition("Debian bookworm ")[0])
    assert uml.repository(said) == "https://mirror.test/debian"


def test_a_machine_has_its_disks_in_order_and_dies_with_what_started_it() -> None:
    argv = uml.machine(
        Path("/cache/linux"),
        Path("/var/node"),
        memory_mib=3072,
        disks=["/var/node/changes.img,/cache/node.img", "/var/node/swap.img"],
        device="tap1",
        words=["quiet", "testbed.shared=/var/node/shared"],
    )
    assert argv[: argv.index("/cache/linux")] == ["unshare", "--pid", "--fork", "--kill-child", "--"]
    assert {"seccomp=on", "mem=3072M", "uml_dir=/var/node"} <= set(argv)
    assert "ubd0=/var/node/changes.img,/cache/node.img" in argv
    assert "ubd1=/var/node/swap.img" in argv
    assert "vec0:transport=raw,ifname=tap1,depth=64,gro=1" in argv
    assert argv[-2:] == ["quiet", "testbed.shared=/var/node/shared"]
