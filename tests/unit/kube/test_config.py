from __future__ import annotations

import json
import os
import pathlib
import ssl
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from swapwarden.kube import config, errors

from testbed.controlplane import pki
from tests.unit.kube.kubeconfigs import b64, kubeconfig

Json = dict[str, Any]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> pki.Authority:
    return pki.Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def pair(authority: pki.Authority) -> pki.KeyPair:
    return authority.issue("me", "me", organization="testers")


# --- kubeconfig ---


def test_a_kubeconfig_with_a_token(tmp_path: pathlib.Path) -> None:
    cluster = {"server": "https://10.0.0.1:6443/", "tls-server-name": "kubernetes"}
    loaded = config.load(str(kubeconfig(tmp_path, cluster, {"token": "secret"})))
    assert loaded == config.Config(
        server="https://10.0.0.1:6443/", tls_server_name="kubernetes", static_token="secret", namespace="default"
    )
    assert loaded.token() == "secret"


def test_another_context(tmp_path: pathlib.Path) -> None:
    loaded = config.load(str(kubeconfig(tmp_path, user={"token": "secret"})), "y")
    assert loaded.namespace == "shop"
    assert loaded.token() is None


def test_a_kubeconfig_in_json(tmp_path: pathlib.Path) -> None:
    path = kubeconfig(tmp_path)
    path.write_text(json.dumps(yaml.safe_load(path.read_text())))
    assert config.load(str(path)).server == "https://10.0.0.1:6443"


@pytest.mark.parametrize("how", ["data", "absolute", "relative"])
def test_certificates(tmp_path: pathlib.Path, authority: pki.Authority, pair: pki.KeyPair, how: str) -> None:
    def given(key: str, file: pathlib.Path) -> Json:
        if how == "data":
            return {f"{key}-data": b64(file)}
        return {key: str(file) if how == "absolute" else os.path.relpath(file, tmp_path)}

    cluster = given("certificate-authority", authority.certificate)
    user = given("client-certificate", pair.certificate) | given("client-key", pair.key)
    loaded = config.load(str(kubeconfig(tmp_path, cluster, user)))
    assert loaded.ca_data == authority.certificate.read_text()
    assert (loaded.cert_data, loaded.key_data) == (pair.certificate.read_bytes(), pair.key.read_bytes())
    context = loaded.ssl_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1


def test_a_certificate_in_a_file_with_its_key_as_data(tmp_path: pathlib.Path, pair: pki.KeyPair) -> None:
    user = {"client-certificate": str(pair.certificate), "client-key-data": b64(pair.key)}
    context = config.load(str(kubeconfig(tmp_path, user=user))).ssl_context()
    assert context is not None


def test_data_takes_precedence_over_a_file(tmp_path: pathlib.Path, authority: pki.Authority) -> None:
    cluster = {"certificate-authority": "/absent", "certificate-authority-data": b64(authority.certificate)}
    loaded = config.load(str(kubeconfig(tmp_path, cluster)))
    assert loaded.ca_data == authority.certificate.read_text()


def test_without_an_authority_the_systems_own_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda _, purpose: asked.append(purpose))
    config.Config(server="https://example.org").ssl_context()
    assert asked == [ssl.Purpose.SERVER_AUTH]


def test_authorities_of_old_clusters_are_taken(authority: pki.Authority) -> None:
    context = config.Config(server="https://a", ca_data=authority.certificate.read_text()).ssl_context()
    assert context is not None
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_token_file_takes_precedence_over_a_token(tmp_path: pathlib.Path) -> None:
    (tmp_path / "t").write_text("from-the-file\n")
    loaded = config.load(str(kubeconfig(tmp_path, user={"token": "inline", "tokenFile": "t"})))
    assert loaded.token() == "from-the-file"


@pytest.mark.parametrize(
    ("cluster", "user", "message"),
    [
        ({"insecure-skip-tls-verify": True}, {}, "insecure-skip-tls-verify.*certificate-authority"),
        ({"proxy-url": "http://p"}, {}, "proxy-url"),
        ({"server": ""}, {}, "'' .* URL"),
        ({"server": "10.0.0.1:6443"}, {}, "URL"),
        ({"server": "ftp://10.0.0.1"}, {}, "URL"),
        ({"server": "https://10.0.0.1:99999"}, {}, "URL"),
        ({"server": "https://[::1"}, {}, "URL"),
        ({"server": "http://10.0.0.1"}, {}, "http://10.0.0.1: .*https"),
        ({"server": "http://127.0.0.1.example.org"}, {}, "loopback"),
        ({"server": None}, {}, r"'c' in clusters: Expected `str`, got `null` - at `\$.server`"),
        ({"certificate-authority-data": "%"}, {}, r"'c' in clusters: Invalid base64.*certificate-authority-data"),
        ({"certificate-authority-data": "aGVsbG8="}, {}, "PEM"),
        ({"certificate-authority": "absent.crt"}, {}, r"cannot read .*/absent\.crt: No such file or directory"),
        ({}, {"exec": {"command": "aws"}}, r"credentials by 'exec' are not supported.*kubectl create token"),
        ({}, {"auth-provider": {"name": "oidc"}}, "credentials by 'auth-provider' are not supported"),
        ({}, {"username": "admin", "password": "hunter2"}, "credentials by 'username' are not supported"),
        ({}, {"token": "t", "as": "system:admin"}, "credentials by 'as' are not supported"),
        ({}, {"token": 5}, r"'u' in users: Expected `str \| null`, got `int` - at `\$.token`"),
        ({}, {"token": "two\r\nHeader: 1"}, "the token for https://10.0.0.1:6443"),
        ({}, {"client-certificate-data": "aGVsbG8="}, "client certificate"),
        ({}, {"client-key-data": "aGVsbG8="}, "client certificate"),
        ({}, {"client-key": "absent.key"}, r"cannot read .*/absent\.key"),
    ],
)
def test_unsafe_and_unsupported_settings_are_refused(
    tmp_path: pathlib.Path, cluster: Json, user: Json, message: str
) -> None:
    path = kubeconfig(tmp_path, cluster, user)
    with pytest.raises(errors.ConfigError, match=message) as caught:
        config.load(str(path))
    assert "hunter2" not in str(caught.value)
    assert "two" not in str(caught.value)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"current-context": ""}, "current-context.*--context"),
        ({"current-context": None}, "current-context"),
        ({"current-context": "z"}, "has no entry 'z' in contexts"),
        ({"contexts": None}, "has no entry 'x' in contexts"),
        ({"contexts": 5}, "has no entry 'x' in contexts"),
        ({"contexts": [{"name": "x", "context": {}}]}, "'x' in contexts: Object missing required field `cluster`"),
        ({"contexts": [{"name": "x", "context": 5}]}, "'x' in contexts: Expected `object`, got `int`"),
        ({"clusters": None}, "has no entry 'c' in clusters"),
        ({"users": None}, "has no entry 'u' in users"),
    ],
)
def test_half_a_kubeconfig_is_refused(tmp_path: pathlib.Path, others: Json, message: str) -> None:
    path = kubeconfig(tmp_path, **others)
    with pytest.raises(errors.ConfigError, match=message):
        config.load(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"- 1", "not a kubeconfig"),
        (b"", "not a kubeconfig"),
        (None, r"cannot read .*/kubeconfig: No such file"),
    ],
)
def test_other_files_are_refused(tmp_path: pathlib.Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.ConfigError, match=message):
        config.load(str(path))


def test_credentials_in_the_address_are_refused() -> None:
    with pytest.raises(errors.ConfigError, match="token") as caught:
        config.Config(server="https://admin:hunter2@10.0.0.1")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("server", ["http://localhost:8001", "http://127.0.0.1:1", "http://[::1]:1"])
def test_plain_http_on_loopback(server: str) -> None:
    assert config.Config(server=server).ssl_context() is None


def encrypted(key: pathlib.Path) -> bytes:
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"passphrase"),
    )


@pytest.mark.parametrize("what", ["authority", "certificate", "encrypted", "other key"])
def test_certificates_that_cannot_be_used(authority: pki.Authority, pair: pki.KeyPair, what: str) -> None:
    """Above all none that asks the terminal for a passphrase."""
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    made = {
        "authority": lambda: config.Config(server="https://a", ca_data=broken),
        "certificate": lambda: config.Config(server="https://a", cert_data=broken.encode(), key_data=b"key"),
        "encrypted": lambda: config.Config(
            server="https://a", cert_data=pair.certificate.read_bytes(), key_data=encrypted(pair.key)
        ),
        "other key": lambda: config.Config(
            server="https://a",
            cert_data=pair.certificate.read_bytes(),
            key_data=authority.issue("other", "other").key.read_bytes(),
        ),
    }[what]()
    with pytest.raises(errors.ConfigError, match="certificates for https://a"):
        made.ssl_context()


def test_a_key_does_not_touch_the_disk(pair: pki.KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    made = config.Config(server="https://a", cert_data=pair.certificate.read_bytes(), key_data=pair.key.read_bytes())
    before = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    assert made.ssl_context() is not None
    assert len(list(pathlib.Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("lacking", ["memfd_create", "/proc"])
def test_a_key_does_not_stay_on_disk_where_files_cannot_be_in_memory(
    tmp_path: pathlib.Path, pair: pki.KeyPair, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "/proc":
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        monkeypatch.delattr(os, lacking)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = config.Config(server="https://a", cert_data=pair.certificate.read_bytes(), key_data=pair.key.read_bytes())
    assert made.ssl_context() is not None
    assert list(tmp_path.iterdir()) == []


def test_secrets_are_in_no_repr(tmp_path: pathlib.Path) -> None:
    (tmp_path / "token").write_text("hunter2")
    made = config.Config(
        server="https://a",
        cert_data=b"hunter2",
        key_data=b"hunter2",
        ca_data="hunter2",
        static_token="hunter2",
        token_file=config.TokenFile(tmp_path / "token"),
    )
    assert made.token() == "hunter2"
    assert "hunter2" not in repr(made)
    assert str(tmp_path / "token") in repr(made)


# --- in a pod ---


@pytest.fixture
def service_account(tmp_path: pathlib.Path, authority: pki.Authority, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("of-the-pod")
    (folder / "namespace").write_text("swapwarden-system\n")
    (folder / "ca.crt").write_bytes(authority.certificate.read_bytes())
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", folder)
    return folder


@pytest.mark.parametrize(
    ("host", "port", "server"),
    [
        ("10.96.0.1", "443", "https://10.96.0.1:443"),
        ("10.96.0.1", None, "https://10.96.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
        ("kubernetes.default.svc", "443", "https://kubernetes.default.svc:443"),
    ],
)
def test_in_a_pod(
    service_account: pathlib.Path, monkeypatch: pytest.MonkeyPatch, host: str, port: str | None, server: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    if port:
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    else:
        monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    loaded = config.load()
    assert loaded.server == server
    assert loaded.namespace == "swapwarden-system"
    assert loaded.token() == "of-the-pod"
    assert loaded.ca_data == (service_account / "ca.crt").read_text()


def test_the_namespace_of_a_pod_may_be_unknown(service_account: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    (service_account / "namespace").unlink()
    assert config.in_cluster(service_account).namespace == "default"


def test_a_pod_without_an_authority_trusts_nobody(
    service_account: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    (service_account / "ca.crt").write_text("")
    with pytest.raises(errors.ConfigError, match="PEM"):
        config.load()
    (service_account / "ca.crt").unlink()
    with pytest.raises(errors.ConfigError, match=r"cannot read .*ca\.crt"):
        config.load()


def test_not_in_a_pod() -> None:
    with pytest.raises(errors.ConfigError, match="KUBERNETES_SERVICE_HOST"):
        config.in_cluster()


# --- which one ---


def test_arguments_take_precedence(
    service_account: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service_account.exists()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    path = str(kubeconfig(tmp_path))
    monkeypatch.setenv("KUBECONFIG", path)
    assert config.load().server == "https://10.96.0.1:443"
    assert config.load(path).server == "https://10.0.0.1:6443"


def test_a_pod_without_a_token_may_have_a_kubeconfig(
    service_account: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    (service_account / "token").unlink()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    assert config.load().server == "https://10.0.0.1:6443"


def test_the_one_at_home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(errors.ConfigError, match=r"no cluster configuration.*\.kube/config does not exist"):
        config.load()
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path).rename(tmp_path / ".kube" / "config")
    assert config.load().server == "https://10.0.0.1:6443"


def test_of_several_kubeconfigs_the_first_that_has_an_entry_gives_the_whole_of_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (second / "token").write_text("of-the-second")
    one = kubeconfig(first, {"server": "https://10.0.0.9"}, None, users=[], **{"current-context": ""})
    other = kubeconfig(second, {"tls-server-name": "other"}, {"tokenFile": "token"})
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(("/absent", str(one), "", str(other))))
    loaded = config.load()
    assert (loaded.server, loaded.tls_server_name, loaded.token()) == ("https://10.0.0.9", None, "of-the-second")
    assert config.load(context="y").namespace == "shop"
    with pytest.raises(errors.ConfigError, match=r"none of .*/first/.*, .*/second/.* has an entry 'z' in contexts"):
        config.load(context="z")
    monkeypatch.setenv("KUBECONFIG", "/a:/b")
    with pytest.raises(errors.ConfigError, match="KUBECONFIG"):
        config.load()


# --- the token file ---


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def test_a_token_is_read_again_after_a_second(file: pathlib.Path, clock: Clock) -> None:
    token = config.TokenFile(file, clock)
    assert token.token() == "first"
    file.write_text("second")
    assert token.token() == "first"
    clock.now = 1.0
    assert token.token() == "second"


def test_a_token_of_the_same_age_and_length_is_another_one(file: pathlib.Path, clock: Clock) -> None:
    """Mounted secrets are replaced as a whole: the file is another one."""
    token = config.TokenFile(file, clock)
    assert token.token() == "first"
    found = file.stat()
    other = file.with_name("other")
    other.write_text("wrong\n")
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(file)
    clock.now = 1.0
    assert token.token() == "wrong"


def test_a_refused_token_is_forgotten_at_once(file: pathlib.Path, clock: Clock) -> None:
    token = config.TokenFile(file, clock)
    assert token.token() == "first"
    file.write_text("second")
    token.forget()
    assert token.token() == "second"


@pytest.mark.parametrize("content", [None, "", "\n", "two words", "non-ascii \u00e9", "a\x00b"])
def test_the_last_good_token_stays(file: pathlib.Path, clock: Clock, content: str | None) -> None:
    token = config.TokenFile(file, clock)
    assert token.token() == "first"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    clock.now = 1.0
    assert token.token() == "first"
    file.write_text("third")
    clock.now = 2.0
    assert token.token() == "third"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "token file .*: No such file"), ("", "holds no token"), ("two words", "holds no token")],
)
def test_no_token_at_all(file: pathlib.Path, clock: Clock, content: str | None, message: str) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    token = config.TokenFile(file, clock)
    for _ in range(2):
        with pytest.raises(errors.ConfigError, match=message):
            token.token()
    file.write_text("good")
    assert token.token() == "good"


def test_a_part_of_the_operator_chooses_nothing_that_only_a_person_may(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert config.load(str(kubeconfig(tmp_path, user={"token": "t"}))).proxy == ""
