"""Certificates for the webhook: makes a pair with an authority of its own, and judges existing ones.

The package cryptography does the encoding and signing; by hand is only what this webhook asks of a pair.
"""

from __future__ import annotations

import dataclasses
import datetime
import secrets
from collections.abc import Iterable
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from swapwarden.controller.certificates import rotation

SKEW: Final = datetime.timedelta(hours=1)
"""How far a certificate's validity begins in the past: clocks differ."""
KEPT: Final = datetime.timedelta(days=1)
"""How long an expired authority stays in a bundle. There it does no harm; removing one because a clock was wrong for a
moment does."""
ORGANIZATION: Final = "swapwarden"
MAX_AUTHORITIES: Final = 16
"""Authorities in one bundle. Rotation needs fewer; more of them show a fault."""


@dataclasses.dataclass(frozen=True)
class KeyPair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)


def issue(host: str, now: datetime.datetime, lifetime: datetime.timedelta) -> tuple[KeyPair, bytes]:
    """Make a pair for a server named `host`, and the certificate (PEM) of the authority that signed it.

    The authority's key is not kept: it signs this one certificate.
    """
    not_before, not_after = now - SKEW, now + lifetime
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # A name of its own each time, so that an authority can be found by its name.
    name = _name(f"{ORGANIZATION} {secrets.token_hex(8)}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _builder(name, name, authority_key.public_key(), not_before, not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name(host[:64]), name, key.public_key(), not_before, not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(_pem(certificate), private), _pem(authority)


def _name(common: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    not_before: datetime.datetime,
    not_after: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def signers(authorities: bytes, pairs: Iterable[KeyPair | None]) -> bytes:
    """Return the authorities of a bundle (PEM) that signed one of the pairs."""
    certificates = [each for pair in pairs if pair is not None for each in _certificates(pair.certificate)[:1]]
    return b"".join(
        _pem(authority)
        for authority in _certificates(authorities)
        if any(_signed(certificate, authority) for certificate in certificates)
    )


def bundle(sources: Iterable[bytes], now: datetime.datetime) -> bytes:
    """Join bundles of authorities (PEM), each once, without those that expired more than KEPT before `now`.

    If there are more than MAX_AUTHORITIES, the newest remain. The order depends on the authorities only.
    """
    distinct = {certificate for source in sources for certificate in _certificates(source)}
    valid = [each for each in distinct if now - KEPT < each.not_valid_after_utc]
    valid.sort(key=lambda each: (each.not_valid_before_utc, each.fingerprint(hashes.SHA256())), reverse=True)
    return b"".join(_pem(each) for each in valid[:MAX_AUTHORITIES])


def judge(pair: KeyPair | None, authorities: bytes, host: str, now: datetime.datetime) -> rotation.Validity | None:
    """Return when the validity of a pair begins and ends; None if it cannot be served at `now`.

    It must be a certificate for `host` with its key, valid, and signed by an authority that is also valid.
    """
    if pair is None or not (chain := _certificates(pair.certificate)):
        return None
    certificate = chain[0]
    try:
        key = serialization.load_pem_private_key(pair.key, None)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = names.get_values_for_type(x509.DNSName)
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return None
    validity = rotation.Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    if key.public_key() != certificate.public_key() or host not in hosts or not validity.covers(now):
        return None
    trusted = [each for each in _certificates(authorities) if now < each.not_valid_after_utc]
    return validity if any(_signed(certificate, authority) for authority in trusted) else None


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
