from collections.abc import Iterator
from typing import Any

import pytest

from hack.generate import crd, files


def schema_of(definition: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}.<key>")


def test_checked_in_files_are_what_the_models_say() -> None:
    assert files.outdated(crd.generated()) == []


@pytest.mark.parametrize("definition", [crd.profile_crd(), crd.state_crd()], ids=["profile", "state"])
def test_schemas_are_structural_and_described(definition: dict[str, Any]) -> None:
    for path, schema in walk(schema_of(definition)):
        assert not {"$ref", "anyOf", "title", "$defs"} & set(schema), path
        assert schema.get("type") or schema.get("x-kubernetes-int-or-string"), path
        if path.startswith((".spec", ".status")) and not path.endswith(("[]", "<key>")):
            assert schema.get("description"), path


@pytest.mark.parametrize("definition", [crd.profile_crd(), crd.state_crd()], ids=["profile", "state"])
def test_everything_has_a_bound(definition: dict[str, Any]) -> None:
    for path, schema in walk(schema_of(definition)):
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path


def test_the_state_refuses_a_smaller_epoch() -> None:
    (rule,) = schema_of(crd.state_crd())["properties"]["spec"]["x-kubernetes-validations"]
    assert "self.epoch >= oldSelf.epoch" in rule["rule"]


def test_states_carry_no_defaults() -> None:
    assert not [path for path, schema in walk(schema_of(crd.state_crd())) if "default" in schema]
