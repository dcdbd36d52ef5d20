"""A certificate authority for one control plane's life."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=2)
# A VM's clock may run behind the host's.
_BACKDATED = datetime.timedelta(hours=1)


class KeyPair(NamedTuple):
    """A certificate and its private key, both PEM files."""

    certificate: Path
    key: Path


def write_key(key: ec.EllipticCurvePrivateKey, path: Path) -> Path:
    """Write a private key, readable by its owner only; in the old format, the one kube-apiserver takes for tokens."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return path


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _LIFETIME)
    )


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """Issue certificates; its own is in `certificate`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = new_key()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "swapwarden-testbed")])
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        made = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, file_name: str, common_name: str, sans: Sequence[str] = (), organization: str | None = None
    ) -> KeyPair:
        """A certificate for servers (the names and addresses in SANS) and clients (COMMON_NAME is the user)."""
        key = new_key()
        names = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization:
            names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer_identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        builder = (
            _builder(x509.Name(names), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer_identifier, critical=False)
        )
        if sans:
            alternatives = x509.SubjectAlternativeName([_alternative_name(name) for name in sans])
            builder = builder.add_extension(alternatives, critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        pair = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        pair.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        write_key(key, pair.key)
        return pair
