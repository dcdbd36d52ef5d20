"""Generated files of the chart are up to date."""

from __future__ import annotations

import json
from typing import Any

import pytest
import swapwarden
import yaml

from hack.generate import chart, files
from testbed.base import paths

Json = dict[str, Any]

VALUES = (paths.CHART / "values.yaml").read_text(encoding="utf-8")
SCHEMA: Json = json.loads((paths.CHART / "values.schema.json").read_text(encoding="utf-8"))


def test_generated_files_are_up_to_date() -> None:
    assert files.outdated(chart.generated()) == []


def test_entries_are_values_with_the_comments_above_them() -> None:
    text = """\
# Not about any key.

group:
  # First
  # of two.
  one: 1
  # A value, not a group.
  map: {a: b}
  # Another one: its keys have no comments.
  block:
    c: d
# A list.
list: [x]
"""
    assert list(chart.entries(text)) == [
        ("group.one", 1, "First of two."),
        ("group.map", {"a": "b"}, "A value, not a group."),
        ("group.block", {"c": "d"}, "Another one: its keys have no comments."),
        ("list", ["x"], "A list."),
    ]


def test_a_value_without_a_comment_is_an_error() -> None:
    with pytest.raises(chart.ChartError, match=r"line 4: a\.c has no comment"):
        list(chart.entries("a:\n  # B.\n  b: 1\n  c: 2\n"))


def test_the_schema_knows_the_values_and_no_others() -> None:
    paths = [path for path, _, _ in chart.entries(VALUES)]
    groups = {path.rpartition(".")[0] for path in paths}
    assert schema_paths(SCHEMA, groups) == paths


def schema_paths(schema: Json, groups: set[str], above: str = "") -> list[str]:
    """The values that a schema knows; those of GROUPS hold others."""
    found = []
    for name, child in schema["properties"].items():
        path = f"{above}{name}"
        if path in groups:
            found += schema_paths(child, groups, f"{path}.")
        elif path != "global":  # what an enclosing chart sets for all of its charts
            found.append(path)
    return found


def objects(schema: Any, path: str = "") -> list[tuple[str, Json]]:
    """All object schemas, by where they stand."""
    found: list[tuple[str, Json]] = []
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            found.append((path, schema))
        for key, child in schema.items():
            found += objects(child, f"{path}/{key}")
    elif isinstance(schema, list):
        for number, child in enumerate(schema):
            found += objects(child, f"{path}/{number}")
    return found


def test_unknown_keys_are_refused_everywhere() -> None:
    free = {"/properties/global", *(f"/definitions/affinity/properties/{name}" for name in AFFINITIES)}
    found = objects(SCHEMA)
    assert len(found) > 30
    assert {path for path, schema in found if "additionalProperties" not in schema} == free


AFFINITIES = ("nodeAffinity", "podAffinity", "podAntiAffinity")


def test_a_profile_is_checked_as_the_api_server_does() -> None:
    (path,) = paths.CRDS.glob("nodeswapprofiles*")
    crd = yaml.safe_load(path.read_text(encoding="utf-8"))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    profile = SCHEMA["definitions"]["profile"]
    assert profile["properties"].keys() == spec["properties"].keys()
    assert profile["required"] == spec["required"]
    swap = profile["properties"]["swap"]["properties"]
    assert swap["reserved"]["type"] == ["string", "integer"]
    assert "Kubelet" in swap["behavior"]["enum"]
    assert "x-kubernetes" not in json.dumps(profile)


def test_the_readme_has_each_value_and_escapes_what_a_table_cannot_hold() -> None:
    text = chart.readme("# This | that.\na: 1\n", {"kubeVersion": ">=1.30.0-0"})
    assert "| `a` | `1` | This \\| that. |" in text
    assert "Kubernetes 1.30 or newer" in text
    readme = (paths.CHART / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{path}` |" in readme for path, _, _ in chart.entries(VALUES))


def test_chart_and_package_have_one_version() -> None:
    about = yaml.safe_load((paths.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert about["appVersion"] == about["version"] == swapwarden.__version__
