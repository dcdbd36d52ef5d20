"""Asks the kernel for a short slice of CPU time, so that a busy CPU is given to the agent soon, and not for long.

Of tasks that had no more than their share, the one whose next slice would end first runs first. So whoever asks for
short ones waits for less, with the same share and no privilege, and the kubelet takes no notice (Linux 6.12:
kernel/sched/fair.c, `update_deadline`; what holds for a cgroup is the shortest of the slices in it). Older kernels take
the request and make nothing of it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import struct
from typing import Final

log = logging.getLogger(__name__)

NANOSECONDS: Final = 100_000
"""The shortest that the kernel gives; a repair takes several."""
_NUMBERS: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "loongarch64": 274, "ppc64le": 355, "s390x": 345}
"""Of the system call sched_setattr(2), for which the C library has no function."""
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""struct sched_attr (include/uapi/linux/sched/types.h): size, policy, flags, nice, priority, runtime, deadline and
period."""
_SCHED_OTHER: Final = 0


def shorten() -> bool:
    """Ask for it, for this thread and those that it begins; whether the kernel took that."""
    number = _NUMBERS.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != _SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, _SCHED_OTHER, 0, nice, 0, NANOSECONDS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, attributes, 0) == 0:
        return True
    log.info("the kernel gives no short slices of CPU time (%s)", os.strerror(ctypes.get_errno()))
    return False
