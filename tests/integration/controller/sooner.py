"""`swapwarden` whose taint of memory pressure remains for a second after the pressure, and not for five minutes."""

from __future__ import annotations

import sys

from swapwarden import __main__ as program
from swapwarden.controller.nodes import reconciler

if __name__ == "__main__":
    reconciler.KEPT_SECONDS = 1.0  # type: ignore[misc]  # the five minutes are a constant of the product
    sys.exit(program.main(sys.argv[1:]))
