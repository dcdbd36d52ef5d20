"""How `kubectl swap` gets to the API server: through proxies, without verification, as somebody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.conftest import Cluster, Plugin
from tests.integration.cli.connectproxy import ConnectProxy

NAME = "api.behind.invalid"
"""Only the proxy knows its address."""
NO_PROXIES = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"), "")
Changed = Callable[..., Plugin]


@pytest.fixture
def changed(cluster: Cluster, tmp_path: Path) -> Changed:
    """The administrator, with other settings of the cluster and the user in the kubeconfig; None takes one away."""

    def make(of_cluster: dict[str, Any] | None = None, of_user: dict[str, Any] | None = None) -> Plugin:
        content = json.loads(cluster.admin.kubeconfig.read_text())
        for entry, settings in (
            (content["clusters"][0]["cluster"], of_cluster or {}),
            (content["users"][0]["user"], of_user or {}),
        ):
            entry.update(settings)
            for key in [key for key, value in entry.items() if value is None]:
                del entry[key]
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(content))
        return Plugin(path)

    return make


def behind(**settings: Any) -> dict[str, Any]:
    return {"server": f"https://{NAME}:6443", "tls-server-name": "localhost", **settings}


def test_proxies(cluster: Cluster, changed: Changed) -> None:
    cluster.node("one")
    name = cluster.name("one")
    words = ("nodes", name, "-o", "name")
    port = cluster.control_plane.port
    with ConnectProxy(NAME, port) as proxy, ConnectProxy(NAME, port, "me:p@ss word") as closed:
        for plugin, environment in (
            (changed(behind(**{"proxy-url": f"http://{proxy.address}"})), NO_PROXIES),
            # The kubeconfig has precedence over the environment.
            (
                changed(behind(**{"proxy-url": f"http://{proxy.address}"})),
                {**NO_PROXIES, "HTTPS_PROXY": "http://127.0.0.1:9"},
            ),
            (changed(behind()), {**NO_PROXIES, "HTTPS_PROXY": f"http://{proxy.address}"}),
            (changed(behind()), {**NO_PROXIES, "https_proxy": proxy.address, "NO_PROXY": "example.com"}),
            (changed(behind(**{"proxy-url": f"http://me:p%40ss%20word@{closed.address}"})), NO_PROXIES),
        ):
            before = len(proxy.asked) + len(closed.asked)
            done = plugin(*words, **environment)
            assert (done.returncode, done.stdout, done.stderr) == (0, f"node/{name}\n", "")
            assert len(proxy.asked) + len(closed.asked) > before
        assert {*proxy.asked, *closed.asked} == {f"{NAME}:6443"}

        known = len(proxy.asked)
        done = changed(behind())(
            *words, **{**NO_PROXIES, "HTTPS_PROXY": f"http://{proxy.address}", "NO_PROXY": ".invalid"}
        )
        assert done.returncode == 1
        assert f"cannot connect to {NAME}:6443" in done.stderr
        assert len(proxy.asked) == known

        done = changed(behind(**{"proxy-url": f"http://me:wrong@{closed.address}"}))(*words, **NO_PROXIES)
        assert done.returncode == 1
        assert f"proxy http://{closed.address} refuses CONNECT {NAME}:6443: HTTP/1.0 407" in done.stderr
        assert "wrong" not in done.stderr

    done = changed(behind(**{"proxy-url": f"http://{proxy.address}"}))(*words, **NO_PROXIES)
    assert done.returncode == 1
    assert f"proxy http://{proxy.address}: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_not_verified(cluster: Cluster, changed: Changed) -> None:
    cluster.node("one")
    words = ("nodes", cluster.name("one"), "-o", "name")
    nobody_vouches = {"certificate-authority": None, "certificate-authority-data": None}
    refused = changed(nobody_vouches)(*words)
    assert refused.returncode == 1
    assert "certificate" in refused.stderr.lower()
    for done in (
        changed({**nobody_vouches, "insecure-skip-tls-verify": True})(*words),
        changed(nobody_vouches)(*words, "--insecure-skip-tls-verify"),
    ):
        assert (done.returncode, done.stdout) == (0, f"node/{cluster.name('one')}\n")
        (line,) = done.stderr.splitlines()
        assert line.startswith("warning: https://")
        assert "not verified" in line


def test_as_somebody_else(cluster: Cluster, changed: Changed) -> None:
    cluster.node("one")
    words = ("nodes", cluster.name("one"), "-o", "name")
    shown = (0, f"node/{cluster.name('one')}\n")
    refused = cluster.admin(*words, "--as", "jörg@example.com")
    assert refused.returncode == 1
    assert 'User "jörg@example.com" cannot get resource "nodes"' in refused.stderr
    allowed = cluster.admin(*words, "--as=jane", "--as-group=other", "--as-group", "system:masters")
    assert (allowed.returncode, allowed.stdout) == shown
    # Also before the command, as kubectl users write it.
    allowed = cluster.admin("--as", "jane", "--as-group", "system:masters", *words)
    assert (allowed.returncode, allowed.stdout) == shown
    alone = cluster.admin(*words, "--as-group", "system:masters")
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "--as" in alone.stderr
    written = changed(of_user={"as": "jane", "as-groups": ["system:masters"]})
    allowed = written(*words)
    assert (allowed.returncode, allowed.stdout) == shown
    refused = written(*words, "--as", "joe")
    assert refused.returncode == 1
    assert 'User "joe"' in refused.stderr


def test_a_server_and_a_token_by_flags(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node("one")
    known = cluster.user([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}], everywhere=True)
    token = json.loads(known.kubeconfig.read_text())["users"][0]["user"]["token"]
    server = f"https://127.0.0.1:{cluster.control_plane.port}"
    flags = ("--server", server, "--token", token, "--insecure-skip-tls-verify")
    done = Plugin(tmp_path / "absent")("nodes", cluster.name("one"), "-o", "name", *flags)
    assert (done.returncode, done.stdout) == (0, f"node/{cluster.name('one')}\n")
    # In place of what the kubeconfig has.
    done = known("nodes", cluster.name("one"), "--token", "wrong")
    assert done.returncode == 1
    assert "401" in done.stderr
