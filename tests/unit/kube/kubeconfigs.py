"""Kubeconfig files for tests."""

from __future__ import annotations

import base64
import pathlib
from typing import Any

import yaml

Json = dict[str, Any]


def b64(path: pathlib.Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def kubeconfig(
    folder: pathlib.Path, cluster: Json | None = None, user: Json | None = None, **others: Any
) -> pathlib.Path:
    content = {
        "clusters": [
            {"name": "other", "cluster": {"server": 5}},
            {"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **(cluster or {})}},
        ],
        "users": [{"name": "other", "user": {"exec": {}}}, {"name": "u", "user": user or {}}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u"}},
            {"name": "y", "context": {"cluster": "c", "namespace": "shop"}},
        ],
        "current-context": "x",
        **others,
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path
