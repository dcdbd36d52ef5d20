"""Parsers of values on command lines. An error has the value and the accepted ones: argparse alone has neither."""

from __future__ import annotations

import argparse
import contextlib
import enum
from collections.abc import Callable
from typing import TypeVar

N = TypeVar("N", int, float)
E = TypeVar("E", bound=enum.StrEnum)


def number(kind: Callable[[str], N], least: float, most: float, what: str) -> Callable[[str], N]:
    """Return a parser of `what`, such as "a number of seconds", between two bounds; it raises ArgumentTypeError."""

    def parse(text: str) -> N:
        with contextlib.suppress(ValueError):
            if least <= (value := kind(text)) <= most:
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} between {least} and {most}")

    return parse


def add_seconds(parser: argparse.ArgumentParser, flag: str, default: float, text: str, *, least: float = 1) -> None:
    """Add a flag for a number of seconds, from `least` to a day; the help has the text and the default."""
    parser.add_argument(
        flag,
        type=number(float, least, 86400, "a number of seconds"),
        default=default,
        metavar="SECONDS",
        help=f"{text} (default: %(default)s)",
    )


def one_of(kind: type[E]) -> Callable[[str], E]:
    """Return a parser of the values of an enum; it raises ArgumentTypeError."""

    def parse(text: str) -> E:
        with contextlib.suppress(ValueError):
            return kind(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(kind)}")

    return parse
