"""Choices of a user for the connection to the API server."""

from __future__ import annotations

import pathlib
import ssl
from typing import Any

import pytest
from swapwarden.cli.kubectl.cluster import connection
from swapwarden.kube import config, errors

from testbed.controlplane import pki
from tests.unit.kube.kubeconfigs import Json, b64, kubeconfig


@pytest.fixture
def service_account(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "ca.crt").write_text(pki.Authority(folder).certificate.read_text())
    (folder / "token").write_text("secret")
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", folder)
    return folder


def test_the_kubeconfig_of_a_person_has_precedence_over_the_service_account(
    service_account: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service_account.exists()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    assert connection.load().server == "https://10.0.0.1:6443"
    monkeypatch.setenv("KUBECONFIG", "/absent")
    assert connection.load().server == "https://10.96.0.1:443"
    with pytest.raises(errors.ConfigError, match="/absent does not exist"):
        connection.load(context="x")


PROXY = "http://me:secret@proxy.example:3128"


def test_what_only_a_person_may_choose(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    cluster = {"insecure-skip-tls-verify": True, "proxy-url": PROXY}
    user = {"token": "t", "as": "jane", "as-groups": ["a", "b"], "as-uid": "7", "as-user-extra": {"Why/x": ["so"]}}
    path = kubeconfig(tmp_path, cluster, user)
    found = connection.load(str(path))
    assert (found.insecure, found.proxy) == (True, PROXY)
    assert found.impersonation == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Extra-Why%2Fx", "so"),
    )
    assert "secret" not in repr(found)
    context = found.ssl_context()
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_NONE)
    # Parts of the operator may choose none of that, and no environment of theirs can.
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    with pytest.raises(errors.ConfigError, match="refused"):
        config.load(str(path))
    (tmp_path / "plain").mkdir()
    plain = kubeconfig(tmp_path / "plain", user={"token": "t"})
    assert config.load(str(plain)).proxy == ""
    assert connection.load(str(plain)).proxy == PROXY


def test_flags_stand_before_the_kubeconfig(tmp_path: pathlib.Path) -> None:
    path = kubeconfig(tmp_path, {"proxy-url": PROXY}, {"exec": {"command": "x"}, "as": "jane", "as-groups": ["a"]})
    wishes = connection.Wishes(
        server="https://10.9.9.9", token="mine", impersonate="joe", impersonate_groups=("b",), insecure=True
    )
    found = connection.load(str(path), wishes=wishes)
    assert (found.server, found.token(), found.proxy, found.insecure) == ("https://10.9.9.9", "mine", PROXY, True)
    assert found.impersonation == (("Impersonate-User", "joe"), ("Impersonate-Group", "b"))
    chosen = connection.load(str(path), wishes=connection.Wishes(cluster="c", user="u", token="mine"))
    assert chosen.server == "https://10.0.0.1:6443"
    with pytest.raises(errors.ConfigError, match="no entry 'nobody' in users"):
        connection.load(str(path), wishes=connection.Wishes(user="nobody"))


def test_a_server_and_a_token_are_enough(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    found = connection.load(wishes=connection.Wishes(server="https://10.9.9.9", token="mine"))
    assert (found.server, found.token(), found.namespace) == ("https://10.9.9.9", "mine", "default")
    with pytest.raises(errors.ConfigError):
        connection.load(wishes=connection.Wishes(server="https://10.9.9.9", cluster="c"))


@pytest.mark.parametrize(
    ("cluster", "wishes", "message"),
    [
        ({"proxy-url": "socks5://p:1"}, {}, "proxy-url 'socks5://p:1' is not the URL"),
        ({"proxy-url": "https://me:secret@p:1"}, {}, "proxy-url 'p:1' is not the URL"),
        ({"proxy-url": "http://"}, {}, "is not the URL"),
        ({}, {"impersonate_groups": ("a",)}, "give --as"),
        ({}, {"impersonate": "a\r\nX: b"}, "cannot be impersonated"),
        ({}, {"impersonate": "a", "impersonate_groups": ("",)}, "cannot be impersonated"),
    ],
)
def test_what_a_person_cannot_choose(
    tmp_path: pathlib.Path, cluster: Json, wishes: dict[str, Any], message: str
) -> None:
    path = kubeconfig(tmp_path, cluster, {"token": "t"})
    with pytest.raises(errors.ConfigError, match=message) as caught:
        connection.load(str(path), wishes=connection.Wishes(**wishes))
    assert "secret" not in str(caught.value)


def test_an_authority_and_no_verification_contradict_each_other(tmp_path: pathlib.Path) -> None:
    cluster = {"insecure-skip-tls-verify": True, "certificate-authority-data": b64(pki.Authority(tmp_path).certificate)}
    with pytest.raises(errors.ConfigError, match="contradict"):
        connection.load(str(kubeconfig(tmp_path, cluster)))


def test_the_error_without_a_kubeconfig_names_it_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(errors.ConfigError) as caught:
        connection.load()
    assert str(caught.value).startswith(f"{tmp_path}/.kube/config does not exist")
