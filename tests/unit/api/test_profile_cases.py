"""The models on the cases that the API server is tried on in tests/integration/test_crds.py."""

from collections.abc import Iterator
from typing import Any

import pytest
from swapwarden.cli import documents, objects

from hack.generate import crd
from tests.contract import profiles


def problems(spec: dict[str, Any]) -> list[str]:
    """Return what `swapwarden plan` reports of a profile: field and reason."""
    log = documents.Log()
    objects.collect([documents.Found(documents.Place("f"), profiles.document(spec))], log)
    assert not log.notes
    return [f"{problem.place.path}: {problem.text}" for problem in log.problems]


@pytest.mark.parametrize(("spec", "field", "reason"), profiles.REFUSED)
def test_a_profile_is_refused_at_the_same_field_for_the_same_reason(
    spec: dict[str, Any], field: str, reason: str | tuple[str, str]
) -> None:
    (_, own) = reason if isinstance(reason, tuple) else ("", reason)
    found = problems(spec)
    assert [problem for problem in found if problem.startswith(field) and own in problem], found


@pytest.mark.parametrize("spec", profiles.ACCEPTED)
def test_a_good_profile_is_accepted(spec: dict[str, Any]) -> None:
    assert problems(spec) == []


def messages(schema: dict[str, Any]) -> Iterator[str]:
    """The messages of all rules in a schema."""
    yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", []))
    children = list(schema.get("properties", {}).values())
    children += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    for child in children:
        yield from messages(child)


def test_every_rule_of_the_crd_refuses_a_case() -> None:
    (version,) = crd.profile_crd()["spec"]["versions"]
    rules = set(messages(version["schema"]["openAPIV3Schema"]))
    reasons = [reason if isinstance(reason, str) else reason[0] for _, _, reason in profiles.REFUSED]
    assert rules
    assert {rule for rule in rules if not any(reason in rule for reason in reasons)} == set()
