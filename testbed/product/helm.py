"""The Helm chart, rendered."""

import functools
import sys
from pathlib import Path

from testbed.base import paths, process
from testbed.controlplane import assets, programs

RELEASE = "swapwarden"
NAMESPACE = "swapwarden-system"


def run(*arguments: str) -> str:
    """Return helm's output; process.ProcessError with its complaint if it fails."""
    return process.run([str(programs.helm()), *arguments], timeout=60).stdout


def render(*arguments: str, folder: Path | None = None) -> str:
    """Return the objects of the chart, or of the one in FOLDER, each below a comment that names its template.

    Errors are those of run().
    """
    kube = f"--kube-version={assets.KUBE_VERSION}"
    return run("template", RELEASE, str(folder or chart()), f"--namespace={NAMESPACE}", kube, *arguments)


@functools.cache
def chart() -> Path:
    """Return the chart's folder with its files that are not committed; make them, and paths.MANIFESTS from it."""
    # In another process: the testbed imports nothing of the product. It may have to build helm.
    process.run([sys.executable, "-m", "hack.generate.uncommitted", "manifests"], cwd=paths.ROOT, timeout=1800)
    return paths.CHART
