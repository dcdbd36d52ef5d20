"""python -m hack.generate write | check: all files that are made from the code, except deploy/manifests."""

import sys

from hack.generate import chart, crd, files, metrics_page, pressure_run, reference
from monitoring import generate as monitoring


def generated() -> files.Made:
    """Contents by path."""
    return {
        **crd.generated(),
        **chart.generated(),
        **monitoring.generated(),
        **reference.generated(),
        **metrics_page.generated(),
        **pressure_run.generated(),
    }


if __name__ == "__main__":
    sys.exit(files.main(generated, "make generate"))
