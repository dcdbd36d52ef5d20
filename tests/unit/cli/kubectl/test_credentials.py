"""Credentials from programs that a kubeconfig names."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest
from swapwarden.cli.kubectl import credentials
from swapwarden.kube import config

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
    return config.load_for_person(str(path), ask=credentials.ask)


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


def test_what_the_program_is_told(tmp_path: pathlib.Path) -> None:
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
        (prints({}), {}, "gave neither a token nor a certificate"),
        (prints({"token": "two words"}), {}, "holds characters that no token has"),
        (prints({"clientCertificateData": "secret"}), {}, "a client certificate and its key go together"),
        ("print('secret' * 200_000)", {}, "printed more than 1 MiB"),
        ("", {"apiVersion": "client.authentication.k8s.io/v1alpha1"}, r"is not one of .*/v1, .*/v1beta1"),
        ("", {"interactiveMode": "Always"}, "needs a terminal"),
        ("", {"interactiveMode": "Maybe"}, r"exec: Invalid enum value 'Maybe'"),
        ("", {"command": None}, r"exec: Expected `str`, got `null` - at `\$.command`"),
        ("", {"command": "./absent", "installHint": "Get it at x."}, "absent: No such file or directory; Get it at x"),
        ("", {"command": "absent-login"}, "cannot run absent-login: No such file"),
    ],
)
def test_what_goes_wrong_is_said_without_secrets(
    tmp_path: pathlib.Path, code: str, settings: dict[str, Any], message: str
) -> None:
    path = kubeconfig(tmp_path, {"command": program(tmp_path, code), **settings})
    with pytest.raises(config.ConfigError, match=message) as caught:
        load(path)
    assert "secret" not in str(caught.value)


def test_a_program_that_hangs(tmp_path: pathlib.Path) -> None:
    path = kubeconfig(tmp_path, {"command": program(tmp_path, "import time; time.sleep(1000)")})
    with pytest.raises(config.ConfigError, match=r"gave no credentials within 0\.1 s"):
        config.load_for_person(str(path), ask=lambda plugin: credentials.ask(plugin, interactive=False, seconds=0.1))


def test_agents_and_controllers_run_no_programs(tmp_path: pathlib.Path) -> None:
    path = kubeconfig(tmp_path, {"command": program(tmp_path, prints({"token": "t"}))})
    with pytest.raises(config.ConfigError, match="credentials by 'exec' are not supported here"):
        config.load(str(path))
