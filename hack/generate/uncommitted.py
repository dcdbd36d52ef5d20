"""python -m hack.generate.uncommitted chart | manifests: make the files that are not committed.

`chart` makes the files of the Helm chart that are missing in a clone. `manifests` also makes what users apply without
Helm: build/manifests, from the chart with its defaults, and build/prometheus/rules.yaml.
"""

import re
import sys
from pathlib import Path

from hack.generate import chart, files
from monitoring import generate as monitoring
from testbed.base import host, paths, process, term
from testbed.product import helm

# kubectl applies the files of a folder in the order of their names.
_FIRST = {"namespace.yaml": "00-namespace.yaml", "crds.yaml": "01-crds.yaml"}
_PLAIN = ("namespace.create=true", "crds.keep=false")
_HELM_ONLY = re.compile(r"\s*(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)")
_HEAD = "# Made from deploy/helm/swapwarden by `make manifests`; do not edit.\n"


def of_chart() -> files.Made:
    """Return the chart's files. The chart checks for the last one, so it fails to render without any of them."""
    return files.alone(paths.CHART / "files", {**chart.uncommitted(), **monitoring.of_chart()})


def manifests() -> dict[str, str]:
    """Return the plain manifests: contents by file name, one file per template."""
    found: dict[str, list[str]] = {}
    rendered = helm.render("--no-hooks", *(f"--set={value}" for value in _PLAIN), folder=paths.CHART)
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


def main() -> int:
    """Run the command line; exit status 1 with one clear message if helm cannot be had or refuses the chart."""
    if sys.argv[1:] not in (["chart"], ["manifests"]):
        print("python -m hack.generate.uncommitted chart | manifests", file=sys.stderr)
        return 2
    files.write(of_chart())
    if sys.argv[1] == "manifests":
        try:
            made = {paths.MANIFESTS / name: text for name, text in manifests().items()}
        except (host.SetupError, process.ProcessError) as error:
            term.say(f"can't go on: {error}")
            return 1
        files.write({**files.alone(paths.MANIFESTS, made), monitoring.RULES: monitoring.rules()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
