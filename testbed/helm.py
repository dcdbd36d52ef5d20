"""The Helm chart, rendered; and the plain manifests of deploy/manifests, which are made from it.

Run as `python -m testbed.helm write` (`make manifests`): makes deploy/manifests anew, and the hooks that tests know.
"""

import re
import sys
from pathlib import Path

from testbed.base import host, paths, process, term
from testbed.controlplane import assets, programs

RELEASE = "swapwarden"
NAMESPACE = "swapwarden-system"
# kubectl applies the files of a folder in the order of their names.
_FIRST = {"namespace.yaml": "00-namespace.yaml", "crds.yaml": "01-crds.yaml"}
_PLAIN = ("namespace.create=true", "crds.keep=false")
HOOKS = paths.ROOT / "tests" / "integration" / "chart" / "hooks.yaml"
_HOOK = re.compile(r"^ +helm\.sh/hook: ", re.MULTILINE)
_HELM_ONLY = re.compile(r"\s*(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)")
_HEAD = "# Made from deploy/helm/swapwarden by `make manifests`; do not edit.\n"


def run(*arguments: str) -> str:
    """What helm prints; process.ProcessError with its complaint when it fails."""
    return process.run([str(programs.helm()), *arguments], timeout=60).stdout


def render(*arguments: str) -> str:
    """The chart's objects as YAML, each below a comment that names its template; process.ProcessError as in run()."""
    kube = f"--kube-version={assets.KUBE_VERSION}"
    return run("template", RELEASE, str(paths.CHART), f"--namespace={NAMESPACE}", kube, *arguments)


def manifests() -> dict[str, str]:
    """The plain manifests: contents by file name, one file per template."""
    files: dict[str, list[str]] = {}
    rendered = render("--no-hooks", *(f"--set={value}" for value in _PLAIN))
    for document in re.split(r"^---\n", rendered, flags=re.MULTILINE):
        head, _, body = document.partition("\n")
        if not head.startswith("# Source: "):
            continue
        path = Path(head.partition("/templates/")[2])
        lines = [line.rstrip() for line in body.splitlines()]
        kept = [line for line in lines if line and not _HELM_ONLY.fullmatch(line)]
        name = _FIRST.get(path.name) or f"{path.parent}-{path.name}"
        files.setdefault(name, []).append("\n".join(kept) + "\n")
    return {name: _HEAD + "---\n".join(documents) for name, documents in files.items()}


def hooks() -> str:
    """What the chart makes for its hooks, of an upgrade and of a removal."""
    rendered = re.split(r"^---\n", render("--is-upgrade"), flags=re.MULTILINE)
    return _HEAD + "---\n".join(each for each in rendered if _HOOK.search(each))


def outdated() -> list[str]:
    """The files of deploy/manifests that are not as they would be made now."""
    wanted, present = manifests(), {path.name: path.read_text(encoding="utf-8") for path in paths.MANIFESTS.iterdir()}
    return sorted(name for name in wanted | present if wanted.get(name) != present.get(name))


def main() -> int:
    """`write` makes the manifests and the hooks; `check` says which are out of date, with exit status 1."""
    if sys.argv[1:] not in (["write"], ["check"]):
        print("python -m testbed.helm write | check", file=sys.stderr)
        return 2
    try:
        names = outdated()
        for name in names if sys.argv[1] == "write" else ():
            content = manifests().get(name)
            (paths.MANIFESTS / name).write_text(content, encoding="utf-8") if content else (
                paths.MANIFESTS / name
            ).unlink()
        if sys.argv[1] == "write":
            HOOKS.write_text(hooks(), encoding="utf-8")
    except (host.SetupError, process.ProcessError) as error:
        term.say(f"can't go on: {error}")
        return 1
    if sys.argv[1] == "check":
        for name in names:
            print(f"deploy/manifests/{name} is out of date: run make manifests and commit the result")
        return 1 if names else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
