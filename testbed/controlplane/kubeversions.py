"""Older versions of the API server, for the tests of what README promises: each built from its Go modules.

k8s.io/kubernetes asks for its staging modules as folders of its repository, which its module does not hold. Here they
are modules of the same version (1.N.P is 0.N.P), whose checksums are in kube/staging.sum; the go.sum of
k8s.io/kubernetes vouches for all else. `python -m testbed.controlplane.kubeversions 1.N.P ...` adds versions to that
file.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from testbed.base import host, term
from testbed.controlplane import golang

CHECKSUMS = Path(__file__).with_name("kube") / "staging.sum"
KUBERNETES = "k8s.io/kubernetes"
_REQUIRED = re.compile(r"^\t(k8s\.io/[a-z0-9-]+) v0\.0\.0(?: // indirect)?\n", re.MULTILINE)
_REPLACED = re.compile(r"^\tk8s\.io/[a-z0-9-]+ => \./staging/.*\n", re.MULTILINE)
_SUM = re.compile(r"^(\S+) v(\S+?)(?:/go\.mod)? h1:", re.MULTILINE)


def known() -> list[str]:
    """The versions that can be built so, oldest first; the newest is not among them, as kube/go.mod has it."""
    found = re.findall(rf"^{KUBERNETES} v(\S+) ", CHECKSUMS.read_text(encoding="ascii"), re.MULTILINE)
    return sorted(found, key=numbers)


def numbers(version: str) -> tuple[int, ...]:
    """1.30.14 as what it is ordered by."""
    return tuple(int(each) for each in version.split("."))


def build(package: str, target: Path, *, version: str, stamps: list[str]) -> None:
    """Build PACKAGE of Kubernetes VERSION into the file TARGET; host.SetupError where that can't be done."""
    checksums = CHECKSUMS.read_text(encoding="ascii")
    checksum = re.search(rf"^{KUBERNETES} v{re.escape(version)} (h1:\S+)$", checksums, re.MULTILINE)
    if checksum is None:
        raise host.SetupError(
            f"Kubernetes {version} is none of those whose checksums are known: {', '.join(known())}",
            f"name one of these, or add it with: python -m testbed.controlplane.kubeversions {version}",
        )
    source = golang.module(KUBERNETES, f"v{version}", checksum[1])
    with tempfile.TemporaryDirectory(prefix="swapwarden-kubernetes-") as folder:
        mod_file = Path(folder) / "kubernetes.mod"
        mod_file.write_text(staged((source / "go.mod").read_text(encoding="utf-8"), version, checksums), "utf-8")
        own = (source / "go.sum").read_text(encoding="ascii")
        mod_file.with_suffix(".sum").write_text(own + checksums, encoding="ascii")
        golang.build(package, target, source=source, stamps=stamps, mod_file=mod_file)


def staged(go_mod: str, version: str, checksums: str) -> str:
    """The go.mod of Kubernetes VERSION with modules in place of folders.

    Of a module whose checksum is not there in that version, the nearest that is; one that is not there at all is left
    out: no program that is built here needs it.
    """
    have: dict[str, set[str]] = {}
    for name, number in _SUM.findall(checksums):
        have.setdefault(name, set()).add(number)
    wanted = numbers(version)[1:]

    def distance(number: str) -> tuple[int, ...]:
        minor, patch = numbers(number)[1:]
        return abs(minor - wanted[0]), abs(patch - wanted[1]), minor

    chosen = {name: min(have[name], key=distance) for name in _REQUIRED.findall(go_mod) if name in have}
    requires = "".join(f"\t{name} v{number}\n" for name, number in chosen.items())
    replaces = "".join(f"\t{name} => {name} v{number}\n" for name, number in chosen.items())
    rest = _REPLACED.sub("", _REQUIRED.sub("", go_mod))
    return f"{rest}\nrequire (\n{requires})\n\nreplace (\n{replaces})\n"


def add(version: str) -> list[str]:
    """The checksums of Kubernetes VERSION and its staging modules, as lines of a go.sum; says what is not to be had.

    They are what the Go module proxy delivers now: whoever adds them vouches for them by the commit.
    """
    kubernetes = _download(KUBERNETES, f"v{version}")
    host.need("Error" not in kubernetes, f"no module of Kubernetes {version}: {kubernetes.get('Error')}", "another one")
    lines = [f"{KUBERNETES} v{version} {kubernetes['Sum']}"]
    for name in _REQUIRED.findall(Path(kubernetes["Dir"], "go.mod").read_text(encoding="utf-8")):
        found = _download(name, f"v0.{version.partition('.')[2]}")
        if "Error" in found:
            term.say(f"  not to be had: {name} {version}")
            continue
        lines += [f"{name} {found['Version']} {found['Sum']}", f"{name} {found['Version']}/go.mod {found['GoModSum']}"]
    return lines


def _download(name: str, version: str) -> dict[str, str]:
    environment = os.environ | {"GOWORK": "off", "GOFLAGS": "-mod=mod", "GONOSUMDB": "k8s.io/*"}
    command = [str(golang.ensure()), "mod", "download", "-json", f"{name}@{version}"]
    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, str] = json.loads(said.stdout) if said.stdout else {"Error": said.stderr.strip()}
    return found


def main() -> int:
    """Add the versions that the command line names."""
    lines = set(CHECKSUMS.read_text(encoding="ascii").splitlines())
    for version in sys.argv[1:]:
        lines.update(add(version))
    CHECKSUMS.write_text("\n".join(sorted(lines)) + "\n", encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
