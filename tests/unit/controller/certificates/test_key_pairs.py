"""Certificates: clients accept those that are made, and nothing else is taken for it."""

from __future__ import annotations

import dataclasses
import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from swapwarden.controller.certificates import key_pairs
from swapwarden.webhook import certificates

from testbed.controlplane import pki

HOST = "swapwarden-webhook.swapwarden-system.svc"
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def made() -> tuple[key_pairs.KeyPair, bytes]:
    return key_pairs.issue(HOST, NOW, 90 * DAY)


def handshake(pair: key_pairs.KeyPair, authorities: bytes, folder: Path, host: str = HOST) -> None:
    """A client that trusts AUTHORITIES meets a server with PAIR, both in memory."""
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client_side = ssl.create_default_context(cadata=authorities.decode())
    client_side.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(down, up, server_hostname=host)
    server = server_side.wrap_bio(up, down, server_side=True)
    waiting: list[ssl.SSLObject] = [client, server]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    assert not waiting


def test_a_client_accepts_the_made_certificate(made: tuple[key_pairs.KeyPair, bytes], tmp_path: Path) -> None:
    handshake(*made, tmp_path)


def test_a_client_refuses_it_for_another_host_or_by_another_authority(
    made: tuple[key_pairs.KeyPair, bytes], tmp_path: Path
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(*made, tmp_path, "other.swapwarden-system.svc")
    _, other = key_pairs.issue(HOST, NOW, DAY)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made[0], other, tmp_path)


def test_a_client_that_trusts_both_accepts_each(tmp_path: Path) -> None:
    first, second = key_pairs.issue(HOST, NOW, DAY), key_pairs.issue(HOST, NOW, DAY)
    both = key_pairs.bundle([first[1], second[1]], NOW)
    for pair, _ in (first, second):
        handshake(pair, both, tmp_path)


def test_a_made_pair_is_valid_until_it_expires(made: tuple[key_pairs.KeyPair, bytes]) -> None:
    pair, authority = made
    validity = key_pairs.judge(pair, authority, HOST, NOW)
    assert validity
    assert (validity.not_before, validity.not_after) == (NOW - key_pairs.SKEW, NOW + 90 * DAY)
    assert certificates.not_after(pair.certificate.decode()) == validity.not_after
    assert key_pairs.judge(pair, authority, HOST, NOW + 90 * DAY) is None
    assert key_pairs.judge(pair, authority, HOST, NOW - DAY) is None


def test_what_cannot_be_served_is_judged_bad(made: tuple[key_pairs.KeyPair, bytes], tmp_path: Path) -> None:
    pair, authority = made
    other, other_authority = key_pairs.issue(HOST, NOW, 90 * DAY)
    assert key_pairs.judge(None, authority, HOST, NOW) is None
    assert key_pairs.judge(pair, b"", HOST, NOW) is None
    assert key_pairs.judge(pair, other_authority, HOST, NOW) is None
    assert key_pairs.judge(pair, authority, "other.svc", NOW) is None
    for broken in (
        dataclasses.replace(pair, key=other.key),
        dataclasses.replace(pair, key=b"not a key"),
        dataclasses.replace(pair, certificate=b"not a certificate"),
        dataclasses.replace(pair, certificate=authority),
    ):
        assert key_pairs.judge(broken, authority, HOST, NOW) is None
    foreign = pki.Authority(tmp_path)
    issued = foreign.issue("webhook", HOST, [HOST])
    found = key_pairs.KeyPair(issued.certificate.read_bytes(), issued.key.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    assert key_pairs.judge(found, foreign.certificate.read_bytes(), HOST, now), "cert-manager's are taken over"


def test_the_key_stays_out_of_logs(made: tuple[key_pairs.KeyPair, bytes]) -> None:
    assert "PRIVATE" in made[0].key.decode()
    assert "PRIVATE" not in repr(made[0])


def test_each_authority_signs_once_and_has_a_name_of_its_own() -> None:
    first, second = (x509.load_pem_x509_certificate(key_pairs.issue(HOST, NOW, DAY)[1]) for _ in range(2))
    assert first.subject != second.subject
    constraints = first.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)


def test_a_bundle_has_each_valid_authority_once_whatever_the_order() -> None:
    made = [key_pairs.issue(HOST, NOW - number * DAY, 10 * DAY)[1] for number in range(3)]
    whole = key_pairs.bundle(made, NOW)
    assert whole == key_pairs.bundle([*reversed(made), whole, b"", b"no certificate"], NOW)
    assert whole.count(b"BEGIN CERTIFICATE") == 3
    assert key_pairs.bundle([whole], NOW + 9 * DAY) == key_pairs.bundle(made[:2], NOW), (
        "one that expired lately does no harm"
    )
    assert key_pairs.bundle([whole], NOW + 10 * DAY) == key_pairs.bundle([made[0]], NOW)
    assert key_pairs.bundle([whole], NOW + 11 * DAY) == b""


def test_authorities_that_signed_a_pair_are_found_in_a_bundle() -> None:
    (first, its), (second, too), (_, other) = (key_pairs.issue(HOST, NOW, DAY) for _ in range(3))
    assert key_pairs.signers(its + other + too, [first, None]) == its
    assert key_pairs.signers(its + other + too, [first, second]) == its + too
    assert key_pairs.signers(b"nonsense", [first, key_pairs.KeyPair(b"nonsense", b"")]) == b""
    # A certificate beside the served one signs nothing.
    chain = key_pairs.KeyPair(first.certificate + second.certificate, first.key)
    assert key_pairs.signers(its + other + too, [chain]) == its


def test_a_bundle_does_not_grow_for_ever() -> None:
    made = [key_pairs.issue(HOST, NOW - number * DAY, 90 * DAY)[1] for number in range(key_pairs.MAX_AUTHORITIES + 2)]
    assert key_pairs.bundle(made, NOW) == key_pairs.bundle(made[: key_pairs.MAX_AUTHORITIES], NOW)
