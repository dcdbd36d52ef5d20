from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from swapwarden.agent.desired import spec
from swapwarden.api import decoding, state
from swapwarden.controller.watches import node_features, restore_request
from swapwarden.kube import errors, watch
from swapwarden.policy.observed import namespaces, nodes, states
from swapwarden.policy.observed.pods import WirePod

LEVELS = [990, 1_005, 9_985, 9_995, 100_000]
"""Where Python 3.11 gives up, where 3.13 does, what an API server stores at most, and more."""


def nested(levels: int) -> bytes:
    return b'{"f:a":' * levels + b"{}" + b"}" * levels


def pod(name: str = "a", *, fields: bytes = b"{}", inner: bytes = b"{}") -> bytes:
    return b"".join(
        (
            b'{"metadata":{"name":"%s","namespace":"n","resourceVersion":"7",' % name.encode(),
            b'"annotations":{"x":"\\"managedFields\\":[{"},"managedFields":[{"manager":"m","fieldsV1":%s}]},' % fields,
            b'"spec":{"containers":[],"nodeName":"here","x":%s}}' % inner,
        )
    )


def listed(*items: bytes) -> bytes:
    return b'{"kind":"PodList","metadata":{"resourceVersion":"9","continue":"c"},"items":[%s]}\n' % b",".join(items)


@pytest.mark.parametrize("levels", LEVELS)
def test_managed_fields_of_any_depth_hide_nothing(levels: int) -> None:
    body = pod(fields=nested(levels))
    found = decoding.decode(body, WirePod)
    assert (found.metadata.name, found.spec.node_name) == ("a", "here")
    assert found.metadata.annotations == {"x": '"managedFields":[{'}
    assert [each.metadata.name for each in _all(listed(pod("b"), body, pod("c")))] == ["b", "a", "c"]


def _all(page: bytes) -> list[WirePod]:
    return [decoding.decode(item, WirePod) for item in decoding.page(page).items or ()]


@pytest.mark.parametrize("levels", LEVELS[1:])
def test_an_object_that_is_too_deep_hides_no_neighbour(levels: int) -> None:
    items = decoding.page(listed(pod("b"), pod("bad", inner=nested(levels)), pod("c", fields=nested(levels)))).items
    assert items is not None
    assert [decoding.identity(item) for item in items] == [
        decoding.Identity(one, "n", "7") for one in ("b", "bad", "c")
    ]
    assert decoding.decode(items[2], WirePod).metadata.name == "c"
    if levels > 10_000:
        with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
            decoding.decode(items[1], WirePod)


def test_a_page_keeps_its_metadata() -> None:
    for bad in (pod(), pod(inner=nested(20_000))):
        assert decoding.page(listed(bad)).metadata == decoding.ListMetadata("9", "c")
    assert decoding.page(b'{"items":null,"metadata":{}}').items is None
    assert decoding.page(b'{"x":%s,"items": null }' % nested(20_000)).items == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'"items"',
        b'{"items":{}}',
        b'{"items":[',
        b'{"items":[{"a":',
        b'{"items":[{}],"metadata":{"resourceVersion":5}}',
        b'{"x":%s}' % nested(20_000),
        b'{"x":%s,"items":5}' % nested(20_000),
        b'{"x":%s,"items":[1 2]}' % nested(20_000),
        b'{"x":%s' % nested(20_000),
        nested(20_000)[:-1],
        b"[" * 20_000,
        b'{"a"' * 20_000,
    ],
    ids=range(16),
)
def test_other_json_is_no_list(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoding.page(body)


def test_only_the_key_managed_fields_is_cut() -> None:
    kept = b'{"a\\"managedFields":[1],"b":"managedFields","d":"\\\\\\"managedFields\\":[","managedFields":{"e":[]}}'
    assert decoding.without_managed_fields(kept) == kept
    whole = b'{"c":"\\\\","managedFields" : [1,"]",{"managedFields":[2]}],"d":[{"managedFields":[]}]}'
    assert decoding.without_managed_fields(whole) == b'{"c":"\\\\","managedFields" : [],"d":[{"managedFields":[]}]}'


def test_names_are_shortened_and_escaped() -> None:
    assert decoding.shown("ns/pod-1") == "ns/pod-1"
    assert decoding.shown("a\nb\u202e") == "a\\nb\\u202e"
    assert len(decoding.shown("x" * 10_000)) < 400


# Findings of a fuzzer within the API server's own limits

NUMBERS = st.sampled_from([b"0", b"-1", b"1e400", b"-0.0", b"9" * 5_000, b"1" + b"0" * 400, b"2147483648", b"1.5"])
TEXTS = st.one_of(
    st.text(max_size=8).map(lambda text: json.dumps(text).encode()),
    st.sampled_from(
        [b'"\\ud800"', b'"\\u0000"', b'"\xff"', b'"\\udc00\\ud800"', b'"\xed\xa0\x80"', b'"%s"' % (b"<" * 999)]
    ),
)
KEYS = st.sampled_from(
    [
        *(
            "metadata",
            "name",
            "namespace",
            "resourceVersion",
            "managedFields",
            "labels",
            "annotations",
            "spec",
            "status",
        ),
        *(
            "items",
            "continue",
            "type",
            "object",
            "code",
            "reason",
            "message",
            "data",
            "restore",
            "containers",
            "resources",
        ),
        *(
            "nodeName",
            "limits",
            "requests",
            "memory",
            "capacity",
            "nodeInfo",
            "swap",
            "conditions",
            "violations",
            "facts",
        ),
        *(
            "ownerReferences",
            "uid",
            "generation",
            "epoch",
            "profileRef",
            "pods",
            "taints",
            "preview",
            "containerStatuses",
        ),
    ]
).map(lambda text: b'"%s"' % text.encode())
DEEP = st.sampled_from([b"[" * 9_990 + b"]" * 9_990, nested(1_100), b"[" * 20_000, nested(300)])
LEAVES = st.one_of(st.sampled_from([b"null", b"true", b"{}", b"[]"]), NUMBERS, TEXTS, DEEP)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda found: b"[%s]" % b",".join(found)),
        st.lists(st.tuples(KEYS | TEXTS, inner), max_size=5).map(
            lambda found: b"{%s}" % b",".join(b"%s:%s" % pair for pair in found)
        ),
    ),
    max_leaves=12,
)
WHOLE = (
    b'{"metadata":{"name":"a","namespace":"n","resourceVersion":"7","generation":1,"labels":{},"annotations":HERE,'
    b'"ownerReferences":HERE,"managedFields":[HERE]},"spec":{"containers":[HERE],"pods":HERE,"nodeName":"a"},"status":HERE}'
)
BODIES = st.one_of(
    VALUES,
    st.lists(VALUES, min_size=6, max_size=6).map(lambda found: _filled(WHOLE, found)),
    st.lists(VALUES, max_size=3).map(lambda found: listed(*found)),
    st.tuples(st.sampled_from([b"ADDED", b"ERROR", b"BOOKMARK", b"\xff"]), VALUES).map(
        lambda found: b'{"type":"%s","object":%s}' % found
    ),
)


def _filled(text: bytes, values: list[bytes]) -> bytes:
    rest = iter(values)
    return re.sub(b"HERE", lambda _: next(rest), text)


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A body with some bytes changed, cut away or put in."""
    body = bytearray(draw(BODIES))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 3))] = draw(
            st.sampled_from([b"", b'"', b"\\", b"{", b"]", b"\x00", b"\xff", b","])
        )
    return bytes(body)


def _reads(*kinds: Any) -> list[Callable[[bytes], object]]:
    return [decoding.Decoder(kind).decode for kind in kinds]


DECODERS: list[Callable[[bytes], object]] = [
    *_reads(WirePod, nodes.WireNode, namespaces.WireNamespace, states.WireState, state.StateStatus, states.SpecView),
    *_reads(node_features.WireFeature, spec.ReceivedState, dict[str, Any], msgspec.Raw),
    *(decoding.page, decoding.identity, decoding.members, decoding.elements, decoding.without_managed_fields),
    restore_request.is_order,
]


@hypothesis.given(body=broken() | BODIES)
@hypothesis.settings(max_examples=120, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_any_input_raises_decode_errors_only(body: bytes) -> None:
    for decoder in DECODERS:
        with contextlib.suppress(msgspec.DecodeError):
            decoder(body)
    for make in (states.decode, node_features.decode):
        with contextlib.suppress(ValueError):
            make(body)
    assert errors.api_error(500, body).status == 500
    with contextlib.suppress(errors.ApiError, watch.Broken):
        watch.read_event(body, bytes)


@hypothesis.given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    ),
    compact=st.booleans(),
)
def test_the_scanner_splits_as_json_does(value: Any, compact: bool) -> None:
    body = json.dumps({"v": value, "w": [value, value]}, separators=(",", ":") if compact else (" , ", " : ")).encode()
    parts = decoding.members(body)
    assert {key: json.loads(text) for key, text in parts.items()} == {"v": value, "w": [value, value]}
    assert [json.loads(text) for text in decoding.elements(parts["w"])] == [value, value]


def test_the_scanner_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of steps, each of which continues where the last one ended."""
    steps = 0
    scanned = decoding.SCANNED

    class Counting:
        def match(self, body: bytes, at: int) -> Any:
            nonlocal steps
            steps += 1
            return scanned.match(body, at)

    monkeypatch.setattr(decoding, "SCANNED", Counting())
    for body in (b"[[],%s[]]" % (b'"\\"[",[],' * 1_000), nested(1_000), b"[%s]" % (b'"managedFields":[' * 1_000)):
        steps = 0
        with contextlib.suppress(msgspec.DecodeError):
            decoding.without_managed_fields(body)
            decoding.elements(body)
        assert steps < 5_000
