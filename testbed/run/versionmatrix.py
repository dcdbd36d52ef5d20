"""The integration tests on each minor version of Kubernetes that README promises; `make test-matrix`.

Each version's API server is built once. The result of a version is kept in the cache, for the tested commit: a run that
was stopped continues with the missing ones. `table` prints the table of docs/compatibility.md.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.base import cache, process, term
from testbed.controlplane import assets, kubeversions
from testbed.run import tiers, unsteady

_TIER = "integration"


@dataclasses.dataclass(frozen=True)
class VersionOutcome:
    """Results of the tests on one version."""

    version: str
    commit: str
    date: str
    passed: int
    failed: int
    skipped: int
    unsteady: int
    minutes: float
    status: int

    @property
    def is_good(self) -> bool:
        """Return whether all tests passed."""
        return self.status == 0 and self.failed == 0 and self.passed > 0


def versions() -> list[str]:
    """Return all versions, oldest first."""
    return [*kubeversions.known(), assets.KUBE_VERSION]


def run(version: str, tested: str) -> VersionOutcome:
    """Run the tests on one version, in processes of their own."""
    term.say(f"Kubernetes {version} ...")
    assets.apiserver(version)
    os.environ[assets.VERSION_VARIABLE] = version
    try:
        share = tiers.run_tier(_TIER)
    finally:
        del os.environ[assets.VERSION_VARIABLE]
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    counts = (share.passed, share.failed, share.skipped, share.unsteady)
    return VersionOutcome(version, tested, today, *counts, round(share.seconds / 60, 1), share.status)


def table(outcomes: Sequence[VersionOutcome]) -> list[str]:
    """Markdown."""
    rows = [
        "| version | passed | failed | skipped | unsteady | minutes | date | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        numbers = (each.passed, each.failed, each.skipped, each.unsteady, each.minutes)
        rows.append("| " + " | ".join([each.version, *map(str, numbers), each.date, each.commit]) + " |")
    return rows


def kept(tested: str) -> Path:
    """Return the folder with the results of each version."""
    folder = cache.root() / "matrix" / tested
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> int:
    """Run the command line; exit status 1 unless all passed."""
    parser = argparse.ArgumentParser(prog="python -m testbed.run.versionmatrix", description=__doc__)
    parser.add_argument("version", nargs="*", help=f"of {', '.join(versions())}; default: all")
    chosen = parser.parse_args().version or versions()
    if unknown := [each for each in chosen if each not in versions()]:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(versions())}")
    process.exit_on_sigterm()
    tested = unsteady.commit()
    folder = kept(tested)
    tiers.REPORTS.mkdir(parents=True, exist_ok=True)
    for version in chosen:
        file = folder / f"{version}.json"
        if not file.exists() or tested.endswith("-changed"):
            outcome = run(version, tested)
            file.write_text(json.dumps(dataclasses.asdict(outcome)), encoding="utf-8")
    outcomes = [
        VersionOutcome(**json.loads((folder / f"{version}.json").read_text(encoding="utf-8"))) for version in chosen
    ]
    term.say("\n".join([f"on {platform.machine()} with {os.cpu_count()} CPUs:", *table(outcomes)]))
    return 0 if all(each.is_good for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
