"""What testbed.realrun kept of a real run, for the pictures of the documentation: realrun.json, and how it is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib import parse

import msgspec
from swapwarden.cli.kubectl import explain, explanation, session
from swapwarden.kube import client, config

FILE = Path(__file__).with_name("realrun.json")


class Series(msgspec.Struct, frozen=True):
    """The values of one series, one for each step of the recording; None where it had none, NaN or infinity."""

    labels: dict[str, str]
    values: list[float | None]


class Answer(msgspec.Struct, frozen=True):
    """What Prometheus said to a query."""

    query: str
    """As the dashboard had it, with its variables."""
    series: list[Series]


class Event(msgspec.Struct, frozen=True):
    """What was done, and how many seconds after the recording's start."""

    at: float
    text: str


class Explained(msgspec.Struct, frozen=True):
    """What the API server answered to `kubectl swap explain`."""

    namespace: str
    pod: str
    at: float
    """Seconds since 1970."""
    answers: dict[str, Any]
    """By request: objects, or text."""


class Recording(msgspec.Struct, frozen=True):
    """A run."""

    facts: dict[str, str]
    """What it ran on."""
    start: float
    """Seconds since 1970."""
    step: int
    """Seconds from one value to the next."""
    steps: int
    events: list[Event]
    panels: dict[str, list[Answer]]
    """What each panel's queries gave, by its title. Of tables: one value, of the end."""
    explained: Explained


def load(path: Path = FILE) -> Recording:
    """The recording that is checked in."""
    return msgspec.json.decode(path.read_bytes(), type=Recording)


def save(recording: Recording, path: Path = FILE) -> None:
    """Write it, a line for each series."""
    text = msgspec.json.encode(recording).decode().replace('{"labels"', '\n{"labels"')
    path.write_text(text + "\n", encoding="utf-8")


def trimmed(value: Any) -> Any:
    """An object without what is long and what no reader of it here needs."""
    if isinstance(value, list):
        return [trimmed(each) for each in value]
    if not isinstance(value, dict):
        return value
    left_out = {"managedFields", "images", "caBundle", "kubectl.kubernetes.io/last-applied-configuration"}
    return {key: trimmed(each) for key, each in value.items() if key not in left_out}


class _Answering(client.Client):
    """A client whose requests are answered by a function."""

    def __init__(self, answer: Callable[[str], bytes]) -> None:
        super().__init__(config.Config("http://127.0.0.1"), user_agent="")
        self._answer = answer

    async def get(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        accept: str = client.JSON,  # noqa: ARG002 as the client has it
        timeout: float = client.REQUEST_SECONDS,  # noqa: ASYNC109, ARG002 as the client has it
    ) -> bytes:
        return self._answer(f"{path}?{parse.urlencode(params)}" if params else path)


def seen(answer: Callable[[str], bytes], namespace: str, pod: str) -> explanation.Seen:
    """What `kubectl swap explain` reads of a cluster that ANSWERs requests, or raises client.ApiError."""
    asked = session.Session(_Answering(answer), namespace, session.Target())
    return asyncio.run(explain.read(asked, pod))


def replayed(explained: Explained) -> explanation.Seen:
    """The same, from what was recorded."""

    def answer(request: str) -> bytes:
        if request not in explained.answers:
            raise client.ApiError(404, "NotFound", f"{request} was not recorded")
        found = explained.answers[request]
        return found.encode() if isinstance(found, str) else json.dumps(found).encode()

    return seen(answer, explained.namespace, explained.pod)
