from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from swapwarden.api import names
from swapwarden.policy.admission import pod_annotations


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("swapwarden.dev/swap-policy", "swapwarden.dev/swap-policy"),
        ("swapwarden.dev/swap-limit", "swapwarden.dev/swap-limit"),
        ("swapwarden.dev/policy-source", "swapwarden.dev/policy-source"),
        ("swap-limit.swapwarden.dev/app", "swap-limit.swapwarden.dev/"),
        ("swap-limit.swapwarden.dev/", "swap-limit.swapwarden.dev/"),
    ],
)
def test_our_keys(key: str, rule: str) -> None:
    found = pod_annotations.rule_of(key)
    assert found is not None
    assert found.key == rule


@pytest.mark.parametrize(
    "key", ["", "swap-policy", "swapwarden.dev/", "swapwarden.dev/swap-Policy", "swap-limit.swapwarden.dev", "a/b"]
)
def test_keys_of_others(key: str) -> None:
    assert pod_annotations.rule_of(key) is None


def test_values() -> None:
    allowed_values = {rule.key: rule.allowed_values for rule in pod_annotations.RULES}
    assert allowed_values == {
        names.POLICY_ANNOTATION: ("Avoid", "Disabled", "NoPreference", "Preferred", "Required"),
        names.POLICY_SOURCE_ANNOTATION: ("namespace",),
        names.LIMIT_ANNOTATION: (),
        names.CONTAINER_LIMIT_PREFIX: (),
        names.MEMORY_RESERVATION_ANNOTATION: ("None", "Soft"),
        names.MEMORY_LOW_ANNOTATION: (),
        names.MEMORY_THROTTLING_ANNOTATION: (),
        names.MEMORY_HIGH_ANNOTATION: (),
        names.CONTAINER_HIGH_PREFIX: (),
        names.RECLAIM_ANNOTATION: ("Continuous", "Off", "Startup"),
    }
    policy, _, limit, _ = pod_annotations.RULES[:4]
    assert [pod_annotations.accepts(policy, value) for value in ("Avoid", "avoid", "1Gi")] == [True, False, False]
    assert [pod_annotations.accepts(limit, value) for value in ("1Gi", "99E", "Avoid", "")] == [
        True,
        True,
        False,
        False,
    ]


def test_values_of_throttling() -> None:
    (rule,) = (rule for rule in pod_annotations.RULES if rule.is_throttling)
    assert rule.key == names.MEMORY_THROTTLING_ANNOTATION
    assert not rule.is_amount
    assert [pod_annotations.accepts(rule, value) for value in ("Disabled", "90%", "90", "1Gi")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90", "90%"),
        ("90 %", "90%"),
        (" 9%", "9%"),
        ("0.9", "90%"),
        (".75", "75%"),
        ("disabled", "Disabled"),
        ("0", None),
        ("100%", None),
        ("0.0", None),
        ("much", None),
        ("9" * 1000, None),
    ],
)
def test_a_share_that_somebody_may_have_meant(text: str, meant: str | None) -> None:
    assert pod_annotations.closest_throttling(text) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("disabled", "Disabled"),
        ("Disable", "Disabled"),
        (" DISABLED ", "Disabled"),
        ("no-preference", "NoPreference"),
        ("prefered", "Preferred"),
        ("Sometimes", None),
        ("", None),
        ("disabled" * 1000, None),
    ],
)
def test_a_value_that_somebody_may_have_meant(text: str, meant: str | None) -> None:
    assert pod_annotations.closest(text, list(names.Policy)) == meant


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("swapwarden.dev/swap_policy", "swapwarden.dev/swap-policy"),
        ("swapwarden.dev/swapPolicy", "swapwarden.dev/swap-policy"),
        ("swapwarden.dev/swap-limits", "swapwarden.dev/swap-limit"),
        ("swap-limits.swapwarden.dev/app", "swap-limit.swapwarden.dev/app"),
        ("swaplimit.swapwarden.dev/app", "swap-limit.swapwarden.dev/app"),
        ("swapwarden.dev/memory-hihg", "swapwarden.dev/memory-high"),
        ("memoryhigh.swapwarden.dev/app", "memory-high.swapwarden.dev/app"),
        ("swapwarden.dev/owner", None),
        ("node.swapwarden.dev/", None),
    ],
)
def test_a_key_that_somebody_may_have_meant(key: str, meant: str | None) -> None:
    assert pod_annotations.Suggester().closest_key(key) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1GB", "1G"),
        ("1 Gi", "1Gi"),
        ("512mi", "512Mi"),
        ("512MiB", "512Mi"),
        ("2 gb", "2G"),
        ("1.5g", "1.5G"),
        ("1Gi", None),
        ("lots", None),
        ("-1", None),
        ("1.2.3G", None),
        ("9" * 100 + "GB", None),
        ("", None),
    ],
)
def test_a_quantity_that_somebody_may_have_meant(text: str, meant: str | None) -> None:
    assert pod_annotations.closest_quantity(text) == meant


# --- what a suggestion may cost ---


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pairs of characters of each comparison."""
    pairs: list[int] = []
    real = difflib.get_close_matches

    def counting(word: str, possibilities: Iterable[str], **options: Any) -> list[str]:
        known = list(possibilities)
        pairs.append(len(word) * sum(map(len, known)))
        return real(word, known, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    return pairs


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    asked=strategies.lists(
        strategies.tuples(
            strategies.text("ab", min_size=1, max_size=80),
            strategies.lists(strategies.text("ab", max_size=62), max_size=70),
        ),
        max_size=30,
    )
)
@hypothesis.example(asked=[("ab" * 31, [f"{'ba' * 30}{number:02}" for number in range(63)])] * 21)
@hypothesis.example(asked=[("ab" * 31, ["ba" * 31])] * 21)
def test_suggestions_for_one_object_cost_little_whatever_it_holds(
    compared: list[int], asked: list[tuple[str, list[str]]]
) -> None:
    compared.clear()
    suggester = pod_annotations.Suggester()
    for text, known in asked:
        suggester.closest(text, known)
    assert sum(compared) <= 20_000


def test_no_more_is_suggested_once_it_has_cost_too_much(compared: list[int]) -> None:
    suggester = pod_annotations.Suggester()
    assert suggester.closest("ap", ["app"]) == "app"
    assert suggester.closest("ab" * 31, ["ba" * 31] * 63) is None
    assert suggester.closest("ap", ["app"]) is None
    assert len(compared) == 1


@hypothesis.given(strategies.text())
@hypothesis.example("\x7f")
@hypothesis.example("\x9b2J")
@hypothesis.example("\u202e")
@hypothesis.example("\ud800")
def test_a_shown_text_is_printable_and_short(text: str) -> None:
    for shown in (pod_annotations.shown(text, 10), pod_annotations.quoted(text, 10)):
        assert shown.isprintable()
        assert len(shown) <= 6 * 2 * 13 + 2
    assert json.loads(pod_annotations.quoted(text, 10)) == (text if len(text) <= 10 else f"{text[:10]}...")
    if text.isprintable() and len(text) <= 10:
        assert pod_annotations.shown(text, 10) == text
