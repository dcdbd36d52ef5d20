"""python -m hack.generate write | check: committed files that are made from the code.

Those that are not committed are made by hack/generate/uncommitted.py.
"""

import sys

from hack.generate import chart, crd, files, metrics_page, pressure_run, reference
from monitoring import generate as monitoring
from testbed.base import paths


def generated() -> files.Made:
    """Return all of them: contents by path."""
    return {
        **crd.generated(),
        **chart.generated(),
        **monitoring.generated(),
        **reference.generated(),
        **metrics_page.generated(),
        **pressure_run.generated(),
    }


def main() -> int:
    """Run the command line; exit status 1 and a line for each file for `check` if any is out of date."""
    if sys.argv[1:] == ["write"]:
        files.write(generated())
        return 0
    if sys.argv[1:] != ["check"]:
        print("python -m hack.generate write | check", file=sys.stderr)
        return 2
    found = files.outdated(generated())
    for path in found:
        print(f"{path.relative_to(paths.ROOT)} is out of date: run make generate and commit the result")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
