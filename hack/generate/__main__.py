"""python -m hack.generate write | check: all that is made from the code, but deploy/manifests."""

import sys

from hack.generate import chart, crd, files, metrics_page, reference
from monitoring import generate as monitoring


def generated() -> files.Made:
    """Contents by path."""
    return {
        **crd.generated(),
        **chart.generated(),
        **monitoring.generated(),
        **reference.generated(),
        **metrics_page.generated(),
    }


if __name__ == "__main__":
    sys.exit(files.main(generated, "make generate"))
