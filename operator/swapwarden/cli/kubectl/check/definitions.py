"""The CustomResourceDefinitions of this version, as the package brings them along."""

from __future__ import annotations

import pathlib
from typing import Any

import yaml

import swapwarden


def own() -> list[dict[str, Any]]:
    """Read them from the installed package, or from a work tree around it."""
    package = pathlib.Path(swapwarden.__file__).parent
    folder = package / "crds"
    if not folder.is_dir():
        folder = package.parents[1] / "crds"
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))]
