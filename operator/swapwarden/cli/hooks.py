"""Functions of the commands that the chart's hooks run."""

from __future__ import annotations

import argparse

from swapwarden.kube import client, errors


def seconds(text: str) -> float:
    """Parse the seconds of a flag; argparse.ArgumentTypeError."""
    value = float(text)
    if not 1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 3600 seconds")
    return value


def add_connection(parser: argparse.ArgumentParser, *, patience: float, patience_help: str) -> None:
    """Add --kubeconfig, and --timeout with its default in seconds."""
    parser.add_argument("--kubeconfig", default=None, help="default: in-cluster, $KUBECONFIG, ~/.kube/config")
    parser.add_argument("--timeout", type=seconds, default=patience, metavar="SECONDS", help=patience_help)


async def delete(api: client.Client, path: str) -> None:
    """Delete an object, unless it does not exist."""
    try:
        await api.delete(path)
    except errors.ApiError as error:
        if error.status != 404:
            raise
