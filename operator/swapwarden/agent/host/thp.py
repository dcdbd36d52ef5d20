"""Memory in small pages: the agent is on every node, and a huge page holds 2 MiB of it for what fits in a few KiB.

Many kernels give huge pages to whoever has room for one (/sys/kernel/mm/transparent_hugepage/enabled: always).
"""

from __future__ import annotations

import ctypes
from typing import Final

PR_SET_THP_DISABLE: Final = 41
"""include/uapi/linux/prctl.h"""


def disable() -> None:
    """From now on, for all of this process. What a kernel without huge pages answers is of no interest."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
