"""Credentials that do not stand in a kubeconfig: from programs, and from issuers of tokens."""

from __future__ import annotations

import base64
import http.server
import json
import pathlib
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from swapwarden.cli.kubectl.cluster import connection, credentials
from swapwarden.kube import config, errors

from testbed.controlplane import pki

V1 = "client.authentication.k8s.io/v1"


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)


def program(folder: pathlib.Path, code: str) -> str:
    """A program, by its path relative to the folder."""
    path = folder / "bin" / "login"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(0o700)
    return "bin/login"


def kubeconfig(folder: pathlib.Path, settings: dict[str, Any], **cluster: Any) -> pathlib.Path:
    path = folder / "kubeconfig"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **cluster}}],
        "users": [{"name": "u", "user": {"exec": {"apiVersion": V1, "interactiveMode": "Never", **settings}}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return path


def load(path: pathlib.Path) -> config.Config:
    return connection.load(str(path), ask=credentials.ask)


def prints(status: dict[str, str], version: str = V1) -> str:
    return f"print({json.dumps(json.dumps({'apiVersion': version, 'kind': 'ExecCredential', 'status': status}))})"


def test_a_token(tmp_path: pathlib.Path) -> None:
    path = kubeconfig(tmp_path, {"command": program(tmp_path, prints({"token": "secret"}))})
    loaded = load(path)
    assert loaded.token() == "secret"
    assert "secret" not in repr(loaded)


def test_a_certificate(tmp_path: pathlib.Path) -> None:
    given = {"clientCertificateData": "cert", "clientKeyData": "key"}
    loaded = load(kubeconfig(tmp_path, {"command": program(tmp_path, prints(given))}))
    assert (loaded.cert_data, loaded.key_data, loaded.token()) == (b"cert", b"key", None)


def test_arguments_and_environment_of_the_program(tmp_path: pathlib.Path) -> None:
    code = f"""
import json, os, pathlib, sys
pathlib.Path({str(tmp_path / "told")!r}).write_text(
    json.dumps([sys.argv[1:], os.environ["REGION"], os.environ["KUBERNETES_EXEC_INFO"], sys.stdin.read()])
)
{prints({"token": "t"})}"""
    settings = {"args": ["get", "-v"], "env": [{"name": "REGION", "value": "eu"}], "provideClusterInfo": True}
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----")
    load(
        kubeconfig(
            tmp_path,
            {**settings, "command": program(tmp_path, code)},
            extensions=extensions,
            **{"certificate-authority": "ca.crt"},
        )
    )
    arguments, region, info, typed = json.loads((tmp_path / "told").read_text())
    assert (arguments, region, typed) == (["get", "-v"], "eu", "")
    assert json.loads(info) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://10.0.0.1:6443",
                "certificate-authority-data": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t",
                "config": {"audience": "a"},
            },
        },
    }


@pytest.mark.parametrize(
    ("code", "settings", "message"),
    [
        ("raise SystemExit(3)", {}, "login ended with status 3: no credentials"),
        ("print('secret')", {}, "login printed no ExecCredential$"),
        (prints({"token": "secret"}, "client.authentication.k8s.io/v1beta1"), {}, f"no ExecCredential of {V1}"),
        (prints({}), {}, "token.*certificate"),
        (prints({"token": "two words"}), {}, "characters.*token"),
        (prints({"clientCertificateData": "secret"}), {}, "certificate.*key"),
        ("print('secret' * 200_000)", {}, "printed more than 1 MiB"),
        ("", {"apiVersion": "client.authentication.k8s.io/v1alpha1"}, r"is not one of .*/v1, .*/v1beta1"),
        ("", {"interactiveMode": "Always"}, "needs a terminal"),
        ("", {"interactiveMode": "Maybe"}, r"exec: Invalid enum value 'Maybe'"),
        ("", {"command": None}, r"exec: Expected `str`, got `null` - at `\$.command`"),
        ("", {"command": "./absent", "installHint": "Get it at x."}, "absent: No such file or directory; Get it at x"),
        ("", {"command": "absent-login"}, "cannot run absent-login: No such file"),
    ],
)
def test_errors_do_not_quote_the_output(
    tmp_path: pathlib.Path, code: str, settings: dict[str, Any], message: str
) -> None:
    path = kubeconfig(tmp_path, {"command": program(tmp_path, code), **settings})
    with pytest.raises(errors.ConfigError, match=message) as caught:
        load(path)
    assert "secret" not in str(caught.value)


def test_a_program_that_hangs(tmp_path: pathlib.Path) -> None:
    path = kubeconfig(tmp_path, {"command": program(tmp_path, "import time; time.sleep(1000)")})
    with pytest.raises(errors.ConfigError, match=r"within 0\.1 s"):
        connection.load(str(path), ask=lambda plugin: credentials.ask(plugin, interactive=False, seconds=0.1))


def test_agents_and_controllers_run_no_programs(tmp_path: pathlib.Path) -> None:
    path = kubeconfig(tmp_path, {"command": program(tmp_path, prints({"token": "t"}))})
    with pytest.raises(errors.ConfigError, match="'exec'"):
        config.load(str(path))


# --- auth-provider oidc ---


def id_token(expires: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "me", "exp": expires}).encode()).decode().rstrip("=")
    return f"e30.{claims}.signature"


FRESH, STALE = id_token(time.time() + 3600), id_token(time.time() - 5)


def oidc(folder: pathlib.Path, name: str = "oidc", **settings: str) -> pathlib.Path:
    path = kubeconfig(folder, {})
    content = json.loads(path.read_text())
    content["users"][0]["user"] = {"auth-provider": {"name": name, "config": settings}}
    path.write_text(json.dumps(content))
    return path


def test_an_id_token_that_is_good_is_taken_as_it_is(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An import of it would fail.
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert load(oidc(tmp_path, **{"id-token": FRESH})).token() == FRESH


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gcp", {}, "auth-provider 'gcp' is not supported, nor is it by kubectl since 1.26"),
        ("oidc", {}, "Object missing required field `id-token`"),
        # Whom tokens are renewed by must be verified.
        (
            "oidc",
            {"id-token": STALE},
            "expired.*kubectl.*idp-",
        ),
        ("oidc", {"id-token": "nonsense"}, "expired"),
        ("oidc", {"id-token": "e30.%%%.x"}, "expired"),
    ],
)
def test_errors_without_a_token(tmp_path: pathlib.Path, name: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        load(oidc(tmp_path, name, **settings))


class Issuer:
    """An issuer of ID tokens on loopback, over TLS."""

    def __init__(self, folder: pathlib.Path) -> None:
        authority = pki.Authority(folder)
        self.ca = authority.certificate
        pair = authority.issue("issuer", "issuer", ["127.0.0.1", "localhost"])
        self.token = FRESH
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer({"token_endpoint": f"{issuer.url}/token"})

            def do_POST(self) -> None:
                asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
                assert "refresh_token=first" in asked
                self.answer(
                    {"id_token": issuer.token, "refresh_token": "second", "access_token": "a", "token_type": "Bearer"}
                )

            def answer(self, content: dict[str, str]) -> None:
                body = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def issuer(tmp_path: pathlib.Path) -> Iterator[Issuer]:
    folder = tmp_path / "pki"
    folder.mkdir()
    running = Issuer(folder)
    yield running
    running.stop()


def expired(folder: pathlib.Path, issuer: Issuer) -> pathlib.Path:
    settings = {"id-token": STALE, "refresh-token": "first", "client-id": "kubectl", "client-secret": "s"}
    return oidc(folder, **settings, **{"idp-issuer-url": issuer.url, "idp-certificate-authority": str(issuer.ca)})


RENEW = """
import json, pathlib, sys, warnings
from swapwarden.cli.kubectl.cluster import connection, credentials
from swapwarden.kube import errors
try:
    print(connection.load(sys.argv[1], ask=credentials.ask).token())
except errors.ConfigError as error:
    print(error)
"""


def renew(path: pathlib.Path) -> str:
    """In a process of its own: the official client stays in memory."""
    done = subprocess.run(  # noqa: S603 our own words
        [sys.executable, "-c", RENEW, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.strip()


def test_one_that_has_expired_is_renewed_and_kept(tmp_path: pathlib.Path, issuer: Issuer) -> None:
    path = expired(tmp_path, issuer)
    assert renew(path) == FRESH
    kept = yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"]
    assert (kept["id-token"], kept["refresh-token"]) == (FRESH, "second")


def test_one_that_the_issuer_does_not_renew(tmp_path: pathlib.Path, issuer: Issuer) -> None:
    issuer.token = STALE
    assert "log in again" in renew(expired(tmp_path, issuer))


def test_an_issuer_that_is_not_who_it_should_be(tmp_path: pathlib.Path, issuer: Issuer) -> None:
    (tmp_path / "other").mkdir()
    issuer.ca = pki.Authority(tmp_path / "other").certificate
    assert "cannot be renewed" in renew(expired(tmp_path, issuer))


def test_nothing_is_renewed_for_completion(tmp_path: pathlib.Path, issuer: Issuer) -> None:
    path = expired(tmp_path, issuer)
    with pytest.raises(errors.ConfigError, match="expired"):
        connection.load(str(path), ask=lambda plugin: credentials.ask(plugin, interactive=False))
