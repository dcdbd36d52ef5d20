"""Versions as programs print them."""

import pytest

from testbed.controlplane import golang


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("Kubernetes v1.36.3\n", (1, 36)),
        ("etcd Version: 3.4.23\nGit SHA: Not provided\nGo Version: go1.19.8\n", (3, 4)),
        ("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0\n", (1, 32)),
        ("go version go1.26.1 linux/amd64\n", (1, 26)),
        ("no version at all", None),
    ],
)
def test_parse_version(said: str, version: tuple[int, int] | None) -> None:
    assert golang.parse_version(said) == version
