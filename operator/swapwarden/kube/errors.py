"""Errors of requests to the API server, under one base class, so that one clause can catch them all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from swapwarden.api import decoding

MAX_MESSAGE_CHARACTERS: Final = 16 * 1024
MAX_RETRY_AFTER_SECONDS: Final = 60.0
"""The longest wait that a server can ask for: after a longer one, nothing would show why all requests stopped."""


class KubeError(Exception):
    """A request failed, or could not be made."""

    status: int = 0
    """HTTP status code of the API server's answer; 0 if it gave none."""
    retry_after: float = 0.0
    """Seconds that the server asks to wait, at most MAX_RETRY_AFTER_SECONDS; 0 if it asks for none."""


class ConfigError(KubeError):
    """The configuration cannot be used; the message names the fault and the remedy."""


class Unreachable(KubeError):  # noqa: N818 the name states the problem
    """The API server could not be reached, or did not answer in time."""


class TooLarge(Unreachable):
    """The answer exceeds the size limit."""


class ApiError(KubeError):
    """The API server answered with an error."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float = 0.0,
        causes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(f"{message} ({status} {reason})" if reason else f"{message} ({status})")
        self.status = status
        self.reason = reason
        """Machine-readable reason of the Status object, such as NotFound or Expired; empty if there is none."""
        self.message = message
        self.retry_after = retry_after
        self.causes = causes
        """Machine-readable reasons of its causes (details.causes)."""


class _StatusCause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    causes: list[_StatusCause] | None = None


class _Detailed(msgspec.Struct):
    details: _Details | None = None


class _ApiStatus(msgspec.Struct):
    """metav1.Status, with the fields that are used here."""

    code: int = 500
    reason: str = ""
    message: str = ""


_STATUSES: Final = decoding.Decoder(_ApiStatus)
_DETAILS: Final = decoding.Decoder(_Detailed)
MAX_CAUSES: Final = 32


def status_of(body: bytes | msgspec.Raw) -> _ApiStatus:
    """Decode a metav1.Status; msgspec.DecodeError if BODY is none."""
    return _STATUSES.decode(body)


def api_error(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
    """Make an error from an answer's status code and body, which is a metav1.Status or plain text."""
    answer = _ApiStatus()
    with contextlib.suppress(msgspec.DecodeError):
        answer = status_of(body)
    message = answer.message or body[:512].decode("utf-8", "replace").strip() or "no message"
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = f"{message[:MAX_MESSAGE_CHARACTERS]}... ({len(message)} characters)"
    wait = _retry_after((headers or {}).get("retry-after"))
    return ApiError(status, answer.reason[:MAX_MESSAGE_CHARACTERS], message, wait, _causes(body))


def _causes(body: bytes) -> frozenset[str]:
    with contextlib.suppress(msgspec.DecodeError):
        details = _DETAILS.decode(body).details
        return frozenset(one.reason for one in ((details and details.causes) or ())[:MAX_CAUSES] if one.reason)
    return frozenset()


def seconds_of(date: str) -> float:
    """Return the seconds since 1970 of an HTTP date (RFC 9110, section 5.6.7); ValueError if it is none."""
    import email.utils  # noqa: PLC0415 0.7 MB, for what API servers do not send, but servers before them may

    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except OverflowError as error:  # of an offset from UTC
        raise ValueError(f"{date[:64]!r} is out of range") from error


def _retry_after(value: str | None) -> float:
    """Return the seconds of a Retry-After header (RFC 9110, section 10.2.3), which holds seconds or a date."""
    if value is None:
        return 0.0
    with contextlib.suppress(ValueError):
        seconds = float(value) if value.strip().isdecimal() else seconds_of(value) - time.time()
        return min(max(0.0, seconds), MAX_RETRY_AFTER_SECONDS)
    return 0.0
