"""The Helm chart, rendered."""

from testbed.base import paths, process
from testbed.controlplane import assets, programs

RELEASE = "swapwarden"
NAMESPACE = "swapwarden-system"


def run(*arguments: str) -> str:
    """What helm prints; process.ProcessError with its complaint when it fails."""
    return process.run([str(programs.helm()), *arguments], timeout=60).stdout


def render(*arguments: str) -> str:
    """The chart's objects as YAML, each below a comment that names its template; process.ProcessError as in run()."""
    kube = f"--kube-version={assets.KUBE_VERSION}"
    return run("template", RELEASE, str(paths.CHART), f"--namespace={NAMESPACE}", kube, *arguments)
