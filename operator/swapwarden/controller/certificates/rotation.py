"""When the webhook's certificate is renewed, and in which order. Knows no clock, no API server and no cryptography.

Each new pair of certificate and key has a new authority, whose key is thrown away at once. It takes three steps, so
that an API server never meets a certificate from an authority that is unknown to it:

1. issued: the pair is kept aside, and its authority is added to those to be trusted;
2. published: the registration of the webhook trusts it, beside those before it;
3. promoted: the webhook serves the pair. The authorities before it stay trusted until they expire: a replica that has
   not seen the new pair yet serves the old one.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Final

LIFETIME: Final = datetime.timedelta(days=90)
RENEWED_AFTER: Final = 2 / 3
"""Share of its life after which a certificate gets a successor: 30 days are left for what may go wrong."""
OVERLAP: Final = datetime.timedelta(minutes=5)
"""How long the registration must have trusted a new authority before its certificate is served. An API server sees a
change within seconds; there may be several of them."""


@dataclasses.dataclass(frozen=True)
class Validity:
    """When a certificate becomes valid, and when it expires."""

    not_before: datetime.datetime
    not_after: datetime.datetime

    def covers(self, now: datetime.datetime) -> bool:
        """Return whether the certificate is valid at a time."""
        return self.not_before <= now < self.not_after

    @property
    def renewal(self) -> datetime.datetime:
        """Return when the certificate needs a successor."""
        return self.not_before + (self.not_after - self.not_before) * RENEWED_AFTER


class RotationStep(enum.Enum):
    """The next step."""

    ISSUE = "issue"
    PUBLISH = "publish"
    PROMOTE = "promote"
    NOTHING = "nothing"


@dataclasses.dataclass(frozen=True)
class CertificateStatus:
    """The present pairs and authorities."""

    current: Validity | None
    """The pair that is served; None if none is usable: absent, expired, for another name, untrusted."""
    coming: Validity | None
    """The pair that was issued to follow it, or None."""
    published: datetime.timedelta | None
    """How long the registration has trusted all that it should; None if it does not."""


def decide(view: CertificateStatus, now: datetime.datetime, overlap: datetime.timedelta = OVERLAP) -> RotationStep:
    """Return the next step. After a step, decide again: another one may follow at once."""
    if view.coming is None and (view.current is None or now >= view.current.renewal):
        return RotationStep.ISSUE
    if view.published is None:
        return RotationStep.PUBLISH
    # Without a working pair, haste costs nothing.
    if view.coming is not None and (view.current is None or view.published >= overlap):
        return RotationStep.PROMOTE
    return RotationStep.NOTHING
