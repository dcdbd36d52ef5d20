from __future__ import annotations

import pytest
from swapwarden.api import names
from swapwarden.policy import vocabulary


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
    found = vocabulary.rule_of(key)
    assert found is not None
    assert found.key == rule


@pytest.mark.parametrize(
    "key", ["", "swap-policy", "swapwarden.dev/", "swapwarden.dev/swap-Policy", "swap-limit.swapwarden.dev", "a/b"]
)
def test_keys_of_others(key: str) -> None:
    assert vocabulary.rule_of(key) is None


def test_values() -> None:
    accepted = {rule.key: rule.accepted for rule in vocabulary.RULES}
    assert accepted == {
        names.POLICY_ANNOTATION: ("Avoid", "Disabled", "NoPreference", "Preferred", "Required"),
        names.POLICY_SOURCE_ANNOTATION: ("namespace",),
        names.LIMIT_ANNOTATION: (),
        names.CONTAINER_LIMIT_PREFIX: (),
    }
    policy, _, limit, _ = vocabulary.RULES
    assert [vocabulary.accepts(policy, value) for value in ("Avoid", "avoid", "1Gi")] == [True, False, False]
    assert [vocabulary.accepts(limit, value) for value in ("1Gi", "99E", "Avoid", "")] == [True, True, False, False]


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
    assert vocabulary.resembling(text, list(names.Policy)) == meant


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("swapwarden.dev/swap_policy", "swapwarden.dev/swap-policy"),
        ("swapwarden.dev/swapPolicy", "swapwarden.dev/swap-policy"),
        ("swapwarden.dev/swap-limits", "swapwarden.dev/swap-limit"),
        ("swap-limits.swapwarden.dev/app", "swap-limit.swapwarden.dev/app"),
        ("swaplimit.swapwarden.dev/app", "swap-limit.swapwarden.dev/app"),
        ("swapwarden.dev/owner", None),
        ("node.swapwarden.dev/", None),
    ],
)
def test_a_key_that_somebody_may_have_meant(key: str, meant: str | None) -> None:
    assert vocabulary.resembling_key(key) == meant


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
    assert vocabulary.resembling_quantity(text) == meant
