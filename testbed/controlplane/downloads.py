"""Programs that are downloaded, each with a checksum beside it. Those that can't be had are built instead."""

import functools
import hashlib
import http.client
import platform
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from testbed.base import host, term

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CONNECT_TIMEOUT = 5.0
_READ_TIMEOUT = 30.0
_MAX_DOWNLOAD = 256 << 20


def architecture() -> str:
    """Return Go's name of this machine's architecture; host.SetupError if no programs exist for it."""
    machine = platform.machine()
    host.need(
        machine in _ARCHITECTURES,
        f"there are no programs for {machine}",
        f"use a machine with one of: {', '.join(_ARCHITECTURES)}",
    )
    return _ARCHITECTURES[machine]


def write(path: Path, content: bytes) -> None:
    """Write a program."""
    path.write_bytes(content)
    path.chmod(0o755)


@functools.cache
def _connects(name: str) -> bool:
    """Return whether a server answers quickly, directly or through the configured proxy."""
    if urllib.request.getproxies().get("https"):
        return True
    try:
        socket.create_connection((name, 443), timeout=_CONNECT_TIMEOUT).close()
    except OSError:
        term.say(f"no downloads from {name}: it can't be reached; continuing without it")
        return False
    return True


def get(url: str, checksum_suffix: str) -> bytes | None:
    """Return the content of URL if it has the checksum beside it; None if it is unavailable for any reason."""
    if not _connects(urllib.parse.urlsplit(url).netloc):
        return None
    try:
        with term.step(f"downloading {url}"):
            checksum = _read(url + checksum_suffix).split()[0].decode("ascii")
            content = _read(url)
    except (OSError, http.client.HTTPException, ValueError, IndexError) as error:
        term.say(f"  no luck; continuing without it: {error}")
        return None
    if hashlib.sha256(content).hexdigest() != checksum:
        term.say("  no luck; continuing without it: the checksum does not match")
        return None
    return content


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_READ_TIMEOUT) as answer:  # noqa: S310 - the URLs of its callers, all https
        content = bytes(answer.read(_MAX_DOWNLOAD + 1))
    if len(content) > _MAX_DOWNLOAD:
        raise ValueError(f"{url} is larger than {_MAX_DOWNLOAD} bytes")
    return content
