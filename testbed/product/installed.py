"""`swapwarden` as in its image, where only its own dependencies are installed.

kopf imports the official client if it finds one, as in the environment of tests: almost a second at each start.
"""

import runpy
import sys

if __name__ == "__main__":
    # Python does not import modules with this entry.
    sys.modules["kubernetes"] = None  # type: ignore[assignment]  # the import system's own way (importlib, "sys.modules")
    runpy.run_module("swapwarden", run_name="__main__", alter_sys=True)
