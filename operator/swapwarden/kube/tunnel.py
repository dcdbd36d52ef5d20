"""Connect through an HTTP proxy (CONNECT, RFC 9110 section 9.3.6), for users behind one: no pod needs it."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Final

_MOST_HEAD: Final = 64 * 1024
_STATUS_WORDS: Final = 2


class ProxyError(OSError):
    """The proxy refused; the text names it without credentials and quotes its answer."""


async def connect(proxy: str, host: str, port: int) -> socket.socket:
    """Open a connection to a server through PROXY, a URL. OSError or ProxyError on failure."""
    url = urllib.parse.urlsplit(proxy)
    try:
        raw = await _dial(url.hostname or "", url.port or 80)
    except OSError as error:
        raise ProxyError(f"proxy {shown(proxy)}: {error}") from error
    try:
        await _ask(raw, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except BaseException:
        raw.close()
        raise
    return raw


async def _ask(raw: socket.socket, proxy: str, target: str) -> None:
    """Make the proxy pass on all following bytes. ProxyError if it refuses."""
    url, loop = urllib.parse.urlsplit(proxy), asyncio.get_running_loop()
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if url.username is not None:
        pair = f"{urllib.parse.unquote(url.username)}:{urllib.parse.unquote(url.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}")
    await loop.sock_sendall(raw, "\r\n".join([*lines, "", ""]).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        # Read no more than the head: the bytes after it are the server's.
        byte = await loop.sock_recv(raw, 1)
        head += byte
        if not byte or len(head) > _MOST_HEAD:
            raise ProxyError(f"proxy {shown(proxy)} gives no answer to CONNECT {target}")
    first = head.split(b"\r\n", 1)[0].decode("latin-1")
    words = first.split(" ", _STATUS_WORDS)
    if not words[0].startswith("HTTP/1.") or len(words) < _STATUS_WORDS or not words[1].startswith("2"):
        raise ProxyError(f"proxy {shown(proxy)} refuses CONNECT {target}: {first[:200]}")


async def _dial(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    failed: OSError = OSError(f"{host} has no address")
    for family, kind, number, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        raw = socket.socket(family, kind, number)
        raw.settimeout(0)
        try:
            await loop.sock_connect(raw, address)
        except OSError as error:
            raw.close()
            failed = error
        except BaseException:
            raw.close()
            raise
        else:
            return raw
    raise failed


def shown(proxy: str) -> str:
    """Return a proxy's URL without its credentials."""
    url = urllib.parse.urlsplit(proxy)
    return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()


def from_environment(server: str, environment: Mapping[str, str]) -> str:
    """Return the proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY give for a server's URL; "" for none.

    As in kubectl (golang.org/x/net/http/httpproxy), lower case names count if upper case ones are not set, and loopback
    never uses a proxy.
    """

    def value(name: str) -> str:
        return environment.get(name) or environment.get(name.lower()) or ""

    url = urllib.parse.urlsplit(server)
    proxy = value("HTTPS_PROXY" if url.scheme == "https" else "HTTP_PROXY")
    host = (url.hostname or "").rstrip(".")
    if not proxy or _is_loopback(host) or _is_exempt(host, url.port or 443, value("NO_PROXY")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_exempt(host: str, port: int, listed: str) -> bool:
    address = _address(host)
    for each in filter(None, (one.strip().lower() for one in listed.split(","))):
        if each == "*":
            return True
        if "/" in each:
            try:
                network = ipaddress.ip_network(each, strict=False)
            except ValueError:
                continue
            if address is not None and address in network:
                return True
            continue
        name, only = _split_port(each)
        if only not in {"", str(port)}:
            continue
        if address is not None or _address(name) is not None:
            if address is not None and _address(name) == address:
                return True
            continue
        name = name.removeprefix("*")
        if host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}"):
            return True
    return False


def _split_port(text: str) -> tuple[str, str]:
    """Return name and port, empty if absent: a.example:6443, [::1]:6443, ::1."""
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        return name, port.removeprefix(":")
    if text.count(":") == 1:
        name, _, port = text.partition(":")
        return name, port
    return text, ""
