"""The Helm chart, rendered."""

from testbed.base import paths, process
from testbed.controlplane import assets, programs

RELEASE = "swapwarden"
NAMESPACE = "swapwarden-system"


def run(*arguments: str) -> str:
    """Return helm's output; process.ProcessError with its complaint if it fails."""
    return process.run([str(programs.helm()), *arguments], timeout=60).stdout


def render(*arguments: str) -> str:
    """Return the chart's objects as YAML, each below a comment that names its template. Errors are those of run()."""
    kube = f"--kube-version={assets.KUBE_VERSION}"
    return run("template", RELEASE, str(paths.CHART), f"--namespace={NAMESPACE}", kube, *arguments)
