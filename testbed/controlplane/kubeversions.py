"""Older versions of the API server, for tests of the promises in README: each built from its Go modules.

k8s.io/kubernetes requires its staging modules as folders of its repository, which its module does not hold. Here they
are modules of the same version (1.N.P is 0.N.P), whose checksums are in kube/staging.sum; the go.sum of
k8s.io/kubernetes vouches for all others. `python -m testbed.controlplane.kubeversions 1.N.P ...` adds versions to that
file.
"""

import re
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
    """Return the versions that can be built this way, oldest first, without the newest, which kube/go.mod has."""
    found = re.findall(rf"^{KUBERNETES} v(\S+) ", CHECKSUMS.read_text(encoding="ascii"), re.MULTILINE)
    return sorted(found, key=numbers)


def numbers(version: str) -> tuple[int, ...]:
    """Return a sort key for a version such as 1.30.14."""
    return tuple(int(each) for each in version.split("."))


def build(package: str, target: Path, *, version: str, stamps: list[str]) -> None:
    """Build PACKAGE of Kubernetes VERSION into the file TARGET; host.SetupError on failure."""
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
    """Return the go.mod of Kubernetes VERSION with modules in place of folders.

    If a module has no checksum in that version, use the nearest that has one; leave out a module without any: no
    program that is built here needs it.
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
    """Return the checksums of Kubernetes VERSION and its staging modules, as lines of a go.sum; report missing ones.

    The Go module proxy delivers them now: the author of the commit vouches for them.
    """
    kubernetes = _download(KUBERNETES, f"v{version}")
    host.need("Error" not in kubernetes, f"no module of Kubernetes {version}: {kubernetes.get('Error')}", "another one")
    lines = [f"{KUBERNETES} v{version} {kubernetes['Sum']}"]
    for name in _REQUIRED.findall(Path(kubernetes["Dir"], "go.mod").read_text(encoding="utf-8")):
        found = _download(name, f"v0.{version.partition('.')[2]}")
        if "Error" in found:
            term.say(f"  not available: {name} {version}")
            continue
        lines += [f"{name} {found['Version']} {found['Sum']}", f"{name} {found['Version']}/go.mod {found['GoModSum']}"]
    return lines


def _download(name: str, version: str) -> dict[str, str]:
    return golang.download(name, version, GOFLAGS="-mod=mod", GONOSUMDB="k8s.io/*")


def main() -> int:
    """Add the versions in the command line."""
    lines = set(CHECKSUMS.read_text(encoding="ascii").splitlines())
    for version in sys.argv[1:]:
        lines.update(add(version))
    CHECKSUMS.write_text("\n".join(sorted(lines)) + "\n", encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
