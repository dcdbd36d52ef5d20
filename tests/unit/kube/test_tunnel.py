from __future__ import annotations

import pytest
from swapwarden.kube import tunnel

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("server", "environment", "expected"),
    [
        ("https://api.example:6443", {}, ""),
        ("https://api.example:6443", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api.example:6443", {"https_proxy": PROXY}, PROXY),
        ("https://api.example:6443", {"HTTPS_PROXY": PROXY, "https_proxy": "http://other"}, PROXY),
        ("https://api.example:6443", {"HTTPS_PROXY": "proxy.example:3128"}, PROXY),
        ("https://api.example:6443", {"HTTP_PROXY": PROXY}, ""),
        ("https://localhost:6443", {"HTTPS_PROXY": PROXY}, ""),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": PROXY}, ""),
        ("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, ""),
        ("http://127.0.0.1:8080", {"HTTP_PROXY": PROXY}, ""),
    ],
)
def test_proxy_of_the_environment(server: str, environment: dict[str, str], expected: str) -> None:
    assert tunnel.from_environment(server, environment) == expected


# As in the tests of golang.org/x/net/http/httpproxy.
@pytest.mark.parametrize(
    ("listed", "server", "direct"),
    [
        ("*", "https://api.example", True),
        ("example", "https://api.example", True),
        ("example", "https://example", True),
        ("example", "https://badexample", False),
        (".example", "https://api.example", True),
        (".example", "https://example", False),
        ("*.example", "https://api.example", True),
        ("API.EXAMPLE", "https://api.example", True),
        ("other, api.example ,", "https://api.example", True),
        ("api.example:6443", "https://api.example:6443", True),
        ("api.example:6443", "https://api.example", False),
        ("api.example:443", "https://api.example", True),
        ("10.0.0.0/8", "https://10.1.2.3:6443", True),
        ("10.0.0.0/8", "https://11.1.2.3:6443", False),
        ("10.1.2.3", "https://10.1.2.3:6443", True),
        ("10.1.2.3:6443", "https://10.1.2.3:6443", True),
        ("10.1.2.3:443", "https://10.1.2.3:6443", False),
        ("2.3", "https://10.1.2.3:6443", False),
        ("fd00::/8", "https://[fd00::1]:6443", True),
        ("[fd00::1]:6443", "https://[fd00::1]:6443", True),
        ("fd00::1", "https://[fd00::1]:6443", True),
        ("not/a/network,//,:,[", "https://api.example", False),
        ("", "https://api.example", False),
    ],
)
def test_servers_that_use_the_proxy(listed: str, server: str, direct: bool) -> None:
    found = tunnel.from_environment(server, {"HTTPS_PROXY": PROXY, "NO_PROXY": listed})
    assert found == ("" if direct else PROXY)


def test_credentials_of_a_proxy_are_not_shown() -> None:
    assert tunnel.shown("http://me:secret@proxy.example:3128/") == "http://proxy.example:3128/"
