"""Reading, checking and replacing the webhook's certificate."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import ssl
import warnings
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from swapwarden.webhook import certificates

from testbed.controlplane import pki
from tests.unit.kube.scripted import until


@pytest.fixture
def authority(tmp_path: Path) -> pki.Authority:
    return pki.Authority(tmp_path)


@pytest.fixture
def pair(authority: pki.Authority) -> pki.KeyPair:
    return authority.issue("serving", "first", ["127.0.0.1"])


def offered(context: ssl.SSLContext, authority: pki.Authority) -> str:
    """The common name of the certificate in a handshake, done in memory."""
    client_in, client_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    client = trusting.wrap_bio(client_in, client_out, server_hostname="127.0.0.1")
    server = context.wrap_bio(client_out, client_in, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = client.getpeercert()
    assert certificate
    return str(dict(part[0] for part in certificate["subject"])["commonName"])  # type: ignore[misc]  # typeshed knows no shape


def touch(*paths: Path) -> None:
    """Make sure that the change shows in the time stamp, however coarse the file system's clock."""
    for path in paths:
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))


def test_the_context_offers_the_certificate(authority: pki.Authority, pair: pki.KeyPair) -> None:
    assert offered(certificates.Certificates(pair.certificate, pair.key).context, authority) == "first"


def test_old_tls_is_turned_away(authority: pki.Authority, pair: pki.KeyPair) -> None:
    old = ssl.create_default_context(cafile=str(authority.certificate))
    # Security level 0: the client itself must not be what refuses.
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    hello, answer = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        old.wrap_bio(answer, hello, server_hostname="127.0.0.1").do_handshake()
    context = certificates.Certificates(pair.certificate, pair.key).context
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        context.wrap_bio(hello, answer, server_side=True).do_handshake()


def test_the_expiry_is_published(pair: pki.KeyPair) -> None:
    loaded = certificates.Certificates(pair.certificate, pair.key)
    wanted = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).not_valid_after_utc
    assert loaded.expires == wanted
    assert certificates.EXPIRY.value() == wanted.timestamp()


def test_nothing_is_read_while_nothing_changes(pair: pki.KeyPair) -> None:
    loaded = certificates.Certificates(pair.certificate, pair.key)
    before = certificates.RELOADS.value("ok"), certificates.RELOADS.value("failed")
    assert not loaded.check()
    assert (certificates.RELOADS.value("ok"), certificates.RELOADS.value("failed")) == before


def test_a_new_pair_takes_over(authority: pki.Authority, pair: pki.KeyPair) -> None:
    loaded = certificates.Certificates(pair.certificate, pair.key)
    reloads = certificates.RELOADS.value("ok")
    authority.issue("serving", "second", ["127.0.0.1"])
    touch(pair.certificate, pair.key)
    assert loaded.check()
    assert offered(loaded.context, authority) == "second"
    assert certificates.RELOADS.value("ok") == reloads + 1
    assert not loaded.check()


def test_a_mounted_secret_is_swapped_as_a_symbolic_link(tmp_path: Path, authority: pki.Authority) -> None:
    for name, common_name in (("..1", "first"), ("..2", "second")):
        made = authority.issue(common_name, common_name, ["127.0.0.1"])
        (tmp_path / name).mkdir()
        made.certificate.rename(tmp_path / name / "tls.crt")
        made.key.rename(tmp_path / name / "tls.key")
    link = tmp_path / "..data"
    link.symlink_to("..1")
    loaded = certificates.Certificates(link / "tls.crt", link / "tls.key")
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(link)
    assert loaded.check()
    assert offered(loaded.context, authority) == "second"


def test_half_a_rotation_keeps_the_old_pair_until_it_is_complete(
    authority: pki.Authority, pair: pki.KeyPair, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = certificates.Certificates(pair.certificate, pair.key)
    second = authority.issue("second", "second", ["127.0.0.1"])
    failures = certificates.RELOADS.value("failed")
    pair.certificate.write_bytes(second.certificate.read_bytes())
    touch(pair.certificate)
    assert not loaded.check()
    assert not loaded.check()
    assert offered(loaded.context, authority) == "first"
    assert certificates.RELOADS.value("failed") == failures + 2
    complaints = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(complaints) == 1, "the same complaint is logged once"
    assert str(pair.certificate) in complaints[0]
    assert "KEY_VALUES_MISMATCH" in complaints[0]
    pair.key.write_bytes(second.key.read_bytes())
    touch(pair.key)
    assert loaded.check()
    assert offered(loaded.context, authority) == "second"


def test_going_back_to_the_old_files_ends_the_complaint(authority: pki.Authority, pair: pki.KeyPair) -> None:
    loaded = certificates.Certificates(pair.certificate, pair.key)
    aside = pair.key.with_suffix(".aside")
    pair.key.rename(aside)
    assert not loaded.check()
    aside.rename(pair.key)
    assert loaded.check()
    assert offered(loaded.context, authority) == "first"
    assert not loaded.check()


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "PEM"), (b"nonsense", "PEM"), (b"\xff\xfe\x00", "PEM"), (None, "No such file")]
)
@pytest.mark.parametrize("which", ["certificate", "key"])
def test_files_that_cannot_be_used_are_named(pair: pki.KeyPair, which: str, content: bytes | None, says: str) -> None:
    path = pair.certificate if which == "certificate" else pair.key
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(certificates.CertificateError, match=says) as caught:
        certificates.Certificates(pair.certificate, pair.key)
    assert str(path) in str(caught.value)


def test_a_key_with_a_password_is_refused_rather_than_asked_for(pair: pki.KeyPair) -> None:
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(certificates.CertificateError, match=r"serving\.key"):
        certificates.Certificates(pair.certificate, pair.key)


@pytest.mark.parametrize("year", [2026, 2049, 2050, 9999])
def test_the_expiry_is_read_from_certificates_of_all_sorts(year: int) -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "long" * 15)])
    until = datetime.datetime(year, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(until)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM).decode("ascii")
    assert certificates.not_after(f"Bag Attributes: none\n{pem}trailing") == until


@pytest.mark.parametrize(
    "pem",
    [
        "",
        "-----BEGIN CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    ],
)
def test_invalid_certificates_raise_nothing_else(pem: str) -> None:
    with pytest.raises(ValueError, match=r"certificate|CERTIFICATE"):
        certificates.not_after(pem)


def test_a_certificate_of_an_unknown_version_raises_nothing_else(pair: pki.KeyPair) -> None:
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())
    version_3 = bytes.fromhex("a003020102")
    assert version_3 in der
    pem = ssl.DER_cert_to_PEM_cert(der.replace(version_3, version_3[:-1] + b"\x07", 1))
    with pytest.raises(ValueError, match="certificate"):
        certificates.not_after(pem)


async def test_an_unexpected_error_ends_no_watch(
    pair: pki.KeyPair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = certificates.Certificates(pair.certificate, pair.key)
    failed, looks = certificates.RELOADS.value("failed"), 0

    def check() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RuntimeError("can't start new thread")
        return False

    monkeypatch.setattr(loaded, "check", check)
    watching = asyncio.create_task(loaded.watch(0.0))
    await until(lambda: looks > 2 or watching.done())
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert certificates.RELOADS.value("failed") == failed + 1
    assert "can't start new thread" in caplog.text
