"""Bodies that no API server would send: each is answered, or refused with a reason, in a moment."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from swapwarden.webhook import review, server

from tests.unit.webhook import reviews

BODIES = 12_000
LONGEST = 2.0
"""Seconds for one body: far more than any takes, and less than a loop without an end would."""

WRONG: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**40,
    "",
    "\x00",
    "\ud7ff",
    [],
    [[]],
    {},
    {"": {}},
    "Disabled",
    [None],
)
BYTES = (
    b"\x00",
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b'"',
    b"\\",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"1e999",
)
DEEP = 200_000


def seeds() -> list[Any]:
    """Reviews from which the others are made."""
    full = reviews.pod(
        {
            "swapwarden.dev/swap-policy": "Required",
            "swapwarden.dev/swap-limit": "1Gi",
            "swap-limit.swapwarden.dev/app": "512Mi",
            "swapwarden.dev/swap-polcy": "x",
        },
        init=["setup"],
    )
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
    full["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "controller": False}]
    full["spec"] |= {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}},
    }
    bare = {"metadata": {"generateName": "web-"}, "spec": {}}
    return [json.loads(reviews.raw(pod)) for pod in (full, reviews.pod({"swapwarden.dev/swap-policy": "x"}), bare)]


def replaced(source: random.Random, document: Any) -> bytes:
    """The review with some of its values replaced, removed, or put somewhere else."""
    changed = copy.deepcopy(document)
    for _ in range(source.randint(1, 4)):
        holders = [found for found in nested(changed) if found]
        holder = source.choice(holders)
        key = source.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        action = source.randrange(4)
        if action == 0:
            del holder[key]
        elif action == 1:
            holder[key] = copy.deepcopy(source.choice(holders))
        elif action == 2 and isinstance(holder, dict):
            holder[source.choice(["swapwarden.dev/swap-policy", "annotations", "containers", "", "\U0001f600"])] = 1
        else:
            holder[key] = copy.deepcopy(source.choice(WRONG))
    return json.dumps(changed).encode()


def nested(value: Any) -> Iterator[Any]:
    """All mappings and lists in a value, itself first."""
    if isinstance(value, (dict, list)):
        yield value
        for child in value.values() if isinstance(value, dict) else value:
            yield from nested(child)


def garbled(source: random.Random, document: Any) -> bytes:
    """The encoded review with some of its bytes changed, missing, or there twice."""
    body = bytearray(json.dumps(document).encode())
    for _ in range(source.randint(1, 5)):
        at, length = source.randrange(len(body)), source.randint(0, 40)
        action = source.randrange(5)
        if action == 0:
            body[at] = source.randrange(256)
        elif action == 1:
            body[at : at + length] = source.choice(BYTES)
        elif action == 2:
            body[at:at] = body[at : at + length]
        elif action == 3:
            body[at:at] = source.choice(BYTES)
        else:
            del body[at : max(at + length, len(body) - 1) if source.random() < 0.2 else at + length]
        body = body or bytearray(b"{")
    return bytes(body)


def answer(body: bytes, path: str) -> review.Response | None:
    """The webhook's answer; None if it reports why it has none."""
    begun = time.process_time()
    reason = None
    try:
        response = server.ROUTES[path][1](review.decode(body))
        encoded = json.loads(review.encode(response))
    except review.ReviewError as error:
        reason = str(error)
    assert time.process_time() - begun < LONGEST, body[:1000]
    if reason is not None:
        assert 0 < len(reason) < 1000
        return None
    assert encoded["response"]["uid"] == response.uid
    if response.patch is not None:
        assert json.loads(response.patch)
    return response


def test_bodies_that_are_nearly_reviews() -> None:
    source = random.Random(5)  # noqa: S311 cases to test with, the same in each run
    documents, paths = seeds(), list(server.ROUTES)
    outcomes = {"refused unread": 0, "allowed": 0, "refused": 0, "patched": 0}
    for number in range(BODIES):
        change = replaced if number % 2 else garbled
        body = change(source, source.choice(documents))
        response = answer(body, source.choice(paths))
        if response is None:
            outcomes["refused unread"] += 1
        elif not response.allowed:
            outcomes["refused"] += 1
        else:
            outcomes["patched" if response.patch else "allowed"] += 1
    # Mutations that are all of one kind would test one thing only.
    assert all(count > BODIES / 100 for count in outcomes.values()), outcomes


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("key", ["annotations", "request", "spec", "x"])
def test_bodies_that_go_too_deep(opening: bytes, closing: bytes, key: str) -> None:
    deep = opening * DEEP + b"1" + closing * DEEP
    for document in seeds():
        holder = {"annotations": document["request"]["object"]["metadata"], "request": document}.get(
            key, document["request"]["object"]
        )
        holder[key] = "DEEP"
        answer(json.dumps(document).encode().replace(b'"DEEP"', deep), "/pods")
    term = reviews.pod({"swapwarden.dev/swap-policy": "Preferred"})
    term["spec"]["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": ["DEEP"]}}
    answer(reviews.raw(term).replace(b'"DEEP"', deep), "/pods")


@pytest.mark.parametrize(
    "key", ["swap-limit.swapwarden.dev/c{}", "swapwarden.dev/swap-polic{}", "swap-limit{}.swapwarden.dev/a"]
)
def test_as_many_mistakes_as_a_pod_can_hold(key: str) -> None:
    # 256 KiB of annotations, and containers until the object is as large as etcd takes.
    annotations = {key.format(number): "1 GB" for number in range(6000)}
    containers = [f"c{number}x" for number in range(20_000)]
    response = answer(reviews.raw(reviews.pod(annotations, containers=containers)), "/pods")
    assert response is not None
    assert len(review.encode(response)) < 100_000
