"""deploy/manifests, made from the chart, and the chart's hooks in the form that tests use.

Run as `python -m hack.generate.plain_manifests write` (`make manifests`) or `check`.
"""

import re
import sys
from pathlib import Path

from hack.generate import files
from testbed.base import paths
from testbed.product import helm

HOOKS = paths.ROOT / "tests" / "integration" / "chart" / "hooks.yaml"
# kubectl applies the files of a folder in the order of their names.
_FIRST = {"namespace.yaml": "00-namespace.yaml", "crds.yaml": "01-crds.yaml"}
_PLAIN = ("namespace.create=true", "crds.keep=false")
_HOOK = re.compile(r"^ +helm\.sh/hook: ", re.MULTILINE)
_HELM_ONLY = re.compile(r"\s*(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)")
_HEAD = "# Made from deploy/helm/swapwarden by `make manifests`; do not edit.\n"


def manifests() -> dict[str, str]:
    """Return the plain manifests: contents by file name, one file per template."""
    found: dict[str, list[str]] = {}
    rendered = helm.render("--no-hooks", *(f"--set={value}" for value in _PLAIN))
    for document in re.split(r"^---\n", rendered, flags=re.MULTILINE):
        head, _, body = document.partition("\n")
        if not head.startswith("# Source: "):
            continue
        path = Path(head.partition("/templates/")[2])
        lines = [line.rstrip() for line in body.splitlines()]
        kept = [line for line in lines if line and not _HELM_ONLY.fullmatch(line)]
        name = _FIRST.get(path.name) or f"{path.parent}-{path.name}"
        found.setdefault(name, []).append("\n".join(kept) + "\n")
    return {name: _HEAD + "---\n".join(documents) for name, documents in found.items()}


def hooks() -> str:
    """Return the chart's hooks, of an upgrade and of a removal."""
    rendered = re.split(r"^---\n", helm.render("--is-upgrade"), flags=re.MULTILINE)
    return _HEAD + "---\n".join(each for each in rendered if _HOOK.search(each))


def generated() -> files.Made:
    """Return the plain manifests, None for obsolete ones, and the hooks."""
    made = {paths.MANIFESTS / name: text for name, text in manifests().items()}
    return {**dict.fromkeys(paths.MANIFESTS.iterdir()), **made, HOOKS: hooks()}


if __name__ == "__main__":
    sys.exit(files.main(generated, "make manifests, and look at the difference"))
