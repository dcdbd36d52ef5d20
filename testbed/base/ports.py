"""TCP ports of this machine."""

import contextlib
import random
import socket

from testbed.base.process import ProcessError

# Below the range that the kernel takes client ports from: while the API server is down, no client may sit on its port.
_PORTS = range(20000, 32000)


def free() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ProcessError(f"no free TCP port between {_PORTS.start} and {_PORTS.stop}")
