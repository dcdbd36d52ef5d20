"""TCP ports of this machine."""

import contextlib
import random
import socket

from testbed.base.process import ProcessError

# Below the kernel's range of client ports: while the API server is down, no client may take its port.
_PORTS = range(20000, 32000)


def free() -> int:
    """Return a TCP port of 127.0.0.1 without a listener."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ProcessError(f"no free TCP port between {_PORTS.start} and {_PORTS.stop}")
