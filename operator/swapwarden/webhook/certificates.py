"""The webhook's certificate: read from two files, and again whenever they change.

Rotation must never cost a connection. A new pair is therefore loaded into its own TLS context, and serves new
handshakes only after it has loaded completely. Loading into the context in use would drop its private key as soon as a
certificate does not match. A half-finished rotation looks exactly like that.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import pathlib
import ssl

from cryptography import x509

from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

EXPIRY = metrics.gauge(
    "swapwarden_webhook_certificate_expiry_timestamp_seconds",
    "When the certificate in use expires, in seconds since 1970.",
)
RELOADS = metrics.counter(
    "swapwarden_webhook_certificate_reloads_total",
    "Reads of a changed certificate: ok, or failed (the previous one stays in use; the read is repeated).",
    labels=("result",),
    known=[("ok",), ("failed",)],
)


class CertificateError(Exception):
    """The certificate cannot be used; the text names the files and the reason."""


_Stamp = tuple[tuple[int, int, int], ...]


class Certificates:
    """A certificate and its key, and the TLS context that offers them."""

    def __init__(self, certificate: pathlib.Path, key: pathlib.Path) -> None:
        """Read the files; CertificateError if they are no usable pair."""
        self._certificate, self._key = certificate, key
        self._stamp = self._stamp_now()
        self._current = self._load()
        self._complaint = ""
        self.context = self._load()
        self.context.sni_callback = self._choose
        """For the listening socket: offers each handshake the pair that is current at that moment."""

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _server_name: str | None, _context: ssl.SSLContext
    ) -> None:
        # OpenSSL calls this in every handshake, also of clients that name no server.
        connection.context = self._current

    def check(self) -> bool:
        """Take over a changed pair; return whether there was one. An unusable pair is reported and changes nothing."""
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp and not self._complaint:
                return False
            self._current = self._load()
        except CertificateError as error:
            RELOADS.inc("failed")
            # Log once per problem: the files are checked every few seconds for as long as it lasts.
            if str(error) != self._complaint:
                log.error("the new certificate cannot be used; the previous one stays in use: %s", error)  # noqa: TRY400 the text says all
            self._complaint = str(error)
            return False
        self._stamp, self._complaint = stamp, ""
        RELOADS.inc("ok")
        log.info("certificate reloaded", extra={"expires": self.expires.isoformat()})
        return True

    async def watch(self, interval: float) -> None:
        """Check every `interval` seconds, forever."""
        while True:
            await asyncio.sleep(interval)
            try:
                await asyncio.to_thread(self.check)
            except Exception:
                # Else the certificate in use would expire without a warning.
                RELOADS.inc("failed")
                log.exception("cannot check the certificate; retrying in %.1f s", interval)

    def _stamp_now(self) -> _Stamp:
        try:
            stats = [os.stat(path) for path in (self._certificate, self._key)]  # noqa: PTH116 both spellings do the same
        except OSError as error:
            raise CertificateError(f"{error.filename}: {error.strerror}") from error
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # A password given here keeps OpenSSL from asking the terminal for one.
            context.load_cert_chain(self._certificate, self._key, password="")
            self.expires = not_after(self._certificate.read_text(encoding="ascii"))
        except OSError as error:
            # ssl.SSLError is an OSError; it names the failed check, not the file.
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            raise CertificateError(
                f"{self._certificate} and {self._key} are not a certificate and its private key, both PEM: {reason}"
            ) from error
        except ValueError as error:
            raise CertificateError(f"{self._certificate}: {error}") from error
        EXPIRY.set(self.expires.timestamp())
        return context


def not_after(pem: str) -> datetime.datetime:
    """Return when the first certificate of a PEM text expires; ValueError if it has none.

    The ssl module returns that only for the verified certificate of a peer.
    """
    try:
        return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc
    except (ValueError, x509.InvalidVersion) as error:
        raise ValueError(f"the certificate cannot be read: {error}") from error
