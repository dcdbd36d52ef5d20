"""Certificates: what is made is what a client accepts, and nothing else is taken for it."""

from __future__ import annotations

import dataclasses
import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from swapwarden.controller import pairs
from swapwarden.webhook import certificates

from testbed.controlplane import pki

HOST = "swapwarden-webhook.swapwarden-system.svc"
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def made() -> tuple[pairs.Pair, bytes]:
    return pairs.issue(HOST, NOW, 90 * DAY)


def handshake(pair: pairs.Pair, authorities: bytes, folder: Path, host: str = HOST) -> None:
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


def test_a_client_accepts_what_is_made(made: tuple[pairs.Pair, bytes], tmp_path: Path) -> None:
    handshake(*made, tmp_path)


def test_a_client_refuses_it_for_another_host_or_by_another_authority(
    made: tuple[pairs.Pair, bytes], tmp_path: Path
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(*made, tmp_path, "other.swapwarden-system.svc")
    _, other = pairs.issue(HOST, NOW, DAY)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made[0], other, tmp_path)


def test_a_client_that_trusts_both_accepts_each(tmp_path: Path) -> None:
    first, second = pairs.issue(HOST, NOW, DAY), pairs.issue(HOST, NOW, DAY)
    both = pairs.bundle([first[1], second[1]], NOW)
    for pair, _ in (first, second):
        handshake(pair, both, tmp_path)


def test_what_is_made_is_judged_good_for_as_long_as_it_lasts(made: tuple[pairs.Pair, bytes]) -> None:
    pair, authority = made
    validity = pairs.judge(pair, authority, HOST, NOW)
    assert validity
    assert (validity.not_before, validity.not_after) == (NOW - pairs.SKEW, NOW + 90 * DAY)
    assert certificates.not_after(pair.certificate.decode()) == validity.not_after
    assert pairs.judge(pair, authority, HOST, NOW + 90 * DAY) is None
    assert pairs.judge(pair, authority, HOST, NOW - DAY) is None


def test_what_cannot_be_served_is_judged_bad(made: tuple[pairs.Pair, bytes], tmp_path: Path) -> None:
    pair, authority = made
    other, other_authority = pairs.issue(HOST, NOW, 90 * DAY)
    assert pairs.judge(None, authority, HOST, NOW) is None
    assert pairs.judge(pair, b"", HOST, NOW) is None
    assert pairs.judge(pair, other_authority, HOST, NOW) is None
    assert pairs.judge(pair, authority, "other.svc", NOW) is None
    for broken in (
        dataclasses.replace(pair, key=other.key),
        dataclasses.replace(pair, key=b"not a key"),
        dataclasses.replace(pair, certificate=b"not a certificate"),
        dataclasses.replace(pair, certificate=authority),
    ):
        assert pairs.judge(broken, authority, HOST, NOW) is None
    foreign = pki.Authority(tmp_path)
    issued = foreign.issue("webhook", HOST, [HOST])
    found = pairs.Pair(issued.certificate.read_bytes(), issued.key.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    assert pairs.judge(found, foreign.certificate.read_bytes(), HOST, now), "cert-manager's are taken over"


def test_the_key_stays_out_of_logs(made: tuple[pairs.Pair, bytes]) -> None:
    assert "PRIVATE" in made[0].key.decode()
    assert "PRIVATE" not in repr(made[0])


def test_each_authority_signs_once_and_has_a_name_of_its_own() -> None:
    first, second = (x509.load_pem_x509_certificate(pairs.issue(HOST, NOW, DAY)[1]) for _ in range(2))
    assert first.subject != second.subject
    constraints = first.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)


def test_a_bundle_has_each_valid_authority_once_whatever_the_order() -> None:
    made = [pairs.issue(HOST, NOW - number * DAY, 10 * DAY)[1] for number in range(3)]
    whole = pairs.bundle(made, NOW)
    assert whole == pairs.bundle([*reversed(made), whole, b"", b"no certificate"], NOW)
    assert whole.count(b"BEGIN CERTIFICATE") == 3
    assert pairs.bundle([whole], NOW + 9 * DAY) == pairs.bundle(made[:2], NOW), "one that expired lately does no harm"
    assert pairs.bundle([whole], NOW + 10 * DAY) == pairs.bundle([made[0]], NOW)
    assert pairs.bundle([whole], NOW + 11 * DAY) == b""


def test_of_a_bundle_those_that_signed_a_pair_are_told_from_others() -> None:
    (first, its), (second, too), (_, other) = (pairs.issue(HOST, NOW, DAY) for _ in range(3))
    assert pairs.signers(its + other + too, [first, None]) == its
    assert pairs.signers(its + other + too, [first, second]) == its + too
    assert pairs.signers(b"nonsense", [first, pairs.Pair(b"nonsense", b"")]) == b""
    # A certificate that comes with the one that is served signs nothing.
    chain = pairs.Pair(first.certificate + second.certificate, first.key)
    assert pairs.signers(its + other + too, [chain]) == its


def test_a_bundle_does_not_grow_for_ever() -> None:
    made = [pairs.issue(HOST, NOW - number * DAY, 90 * DAY)[1] for number in range(pairs.MAX_AUTHORITIES + 2)]
    assert pairs.bundle(made, NOW) == pairs.bundle(made[: pairs.MAX_AUTHORITIES], NOW)
