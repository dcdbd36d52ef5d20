"""Keeps the agent's memory in small pages: it runs on every node, and a huge page takes 2 MiB for a few KiB.

Many kernels use huge pages wherever they fit (/sys/kernel/mm/transparent_hugepage/enabled: always).
"""

from __future__ import annotations

import ctypes
from typing import Final

PR_SET_THP_DISABLE: Final = 41
"""include/uapi/linux/prctl.h"""


def disable() -> None:
    """Disable huge pages for this process. Kernels without them refuse, which does not matter."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
