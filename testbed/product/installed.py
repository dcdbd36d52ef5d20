"""`swapwarden` as in its image, where only its own dependencies are installed.

kopf takes in the official client where it finds one, as here, where tests use it: almost a second at each start.
"""

import runpy
import sys

if __name__ == "__main__":
    # Python finds no module of which this is said.
    sys.modules["kubernetes"] = None  # type: ignore[assignment]  # the import system's own way (importlib, "sys.modules")
    runpy.run_module("swapwarden", run_name="__main__", alter_sys=True)
