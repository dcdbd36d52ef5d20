"""Costs of the CRDs' rules for an API server, by its own estimate: of the oldest version and of the newest.

An API server refuses a CustomResourceDefinition whose CEL rules could cost more than its limits, and each version
estimates in its own way. Run as `python -m hack.celcost.costs check` (part of `make lint`).
"""

import dataclasses
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import yaml

from testbed.base import cache, host, paths, process, term
from testbed.controlplane import golang

SOURCES = Path(__file__).with_name("estimator")
MARGIN = 1.5
"""This multiple of the costs must fit into each limit, so that there is room for another field."""
_BUILDS = {"oldest": ("oldest.mod", "oldest"), "newest": ("go.mod", "")}
_TIMEOUT = 120.0


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one rule, or of all of one CRD (`path` is then "total")."""

    file: str
    path: str
    cost: int
    limit: int
    error: str = ""
    """Why the rule does not compile; empty if it does."""

    @property
    def fits(self) -> bool:
        """Return whether there is room to spare."""
        return not self.error and self.cost * MARGIN <= self.limit

    def __str__(self) -> str:
        """Return the rule and its share of the limit."""
        return f"{self.file}: {self.path}: {self.error or f'{self.cost / self.limit:.2f} of the limit'}"


def program(which: str) -> Path:
    """Return the estimator of the "oldest" or the "newest" version, built once; host.SetupError on failure."""
    mod_file, tags = _BUILDS[which]
    sources = sorted(path for path in SOURCES.iterdir() if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    name = f"celcost-{which}-{digest}"
    with cache.lock("celcost"):
        if not cache.find(name):
            with term.step(f"building the estimator of the {which} version"), cache.install(name) as folder:
                chosen = SOURCES / mod_file
                golang.build(".", folder / "celcost", source=SOURCES, stamps=[], tags=tags, mod_file=chosen)
    return cache.root() / name / "celcost"


def costs(which: str, crds: Path = paths.CRDS) -> list[Cost]:
    """Return the costs of every rule of the CRDs in a folder, and of all together, the most expensive first."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for path in sorted(crds.glob("*.yaml")):
            files.append(Path(folder) / path.name)
            files[-1].write_text(json.dumps(yaml.safe_load(path.read_text(encoding="utf-8"))), encoding="utf-8")
        said = process.run([str(program(which)), *map(str, files)], timeout=_TIMEOUT).stdout
    found = [Cost(**{**each, "file": Path(each["file"]).name}) for each in json.loads(said)]
    return sorted(found, key=lambda each: each.cost / each.limit, reverse=True)


def main() -> int:
    """`check`: exit status 1 and a line for each rule that does not fit; `show`: the most expensive ones."""
    if sys.argv[1:] not in (["check"], ["show"]):
        print("python -m hack.celcost.costs check | show", file=sys.stderr)
        return 2
    try:
        found = {which: costs(which) for which in _BUILDS}
    except (host.SetupError, process.ProcessError) as error:
        term.say(f"can't go on: {error}")
        return 1
    if sys.argv[1] == "show":
        for which, some in found.items():
            print(f"{which}:", *some[:8], sep="\n  ")
        return 0
    bad = [f"{each} ({which} version)" for which, some in found.items() for each in some if not each.fits]
    for line in bad:
        print(f"{line}: {MARGIN} times its cost must fit; make lists shorter, text shorter or the rule simpler")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
