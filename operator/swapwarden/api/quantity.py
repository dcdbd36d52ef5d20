"""The grammar of quantities (512Mi, 1.5G, 1e9): one for annotations, profiles and the API server's policies.

That of k/k: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go, without a sign: no amount here can be
negative.
"""

from __future__ import annotations

from typing import Final

MAX_LENGTH: Final = 64
"""Characters: even a nanobyte count of the largest quantity is shorter."""

SYNTAX: Final = r"(\d+[.]?\d*|[.]\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d{1,3})?"
"""A whole quantity: its number, and its suffix or exponent. For RE2 (CEL), and for Python with re.ASCII.

Short, because the API server's estimate of a rule grows with the text of a regular expression."""
