"""The dashboard fits Grafana's own types, and the code that makes its series."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models import dashboard as models

from monitoring import promql
from monitoring.dashboard import build, panels, rows
from tests.unit.monitoring.series import unknown

QUERIES = [
    pytest.param(query, id=f"{panel.title}-{number}")
    for row in rows.ROWS
    for panel in row.panels
    for number, query in enumerate(panel.queries)
]


@pytest.mark.parametrize("query", QUERIES)
def test_what_a_query_reads_is_made_by_somebody(query: panels.Query) -> None:
    expression = rows.plain(query.expression)
    assert list(promql.selectors(expression))
    assert "$" not in expression.replace('"$1"', "")
    assert unknown(expression) == []


@pytest.mark.parametrize("query", QUERIES)
def test_the_name_of_a_series_is_made_of_its_labels(query: panels.Query) -> None:
    named = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
    assert named <= promql.grouped(query.expression)


def test_variables_read_existing_series() -> None:
    queries = [each["query"] for each in json.loads(build.rendered())["templating"]["list"]]
    read = [re.fullmatch(r"label_values\((.*), (\w+)\)", query) for query in queries if query != "prometheus"]
    assert len(read) == 2
    for found in read:
        assert found is not None
        assert unknown(rows.plain(f"max by ({found[2]}) ({found[1]})")) == []


def test_grafana_s_own_types_take_it_and_give_it_back_as_it_is() -> None:
    plugins.register_default_plugins()
    shown = json.loads(build.rendered())
    taken = models.Dashboard.from_json(shown)
    assert json.loads(encoder.JSONEncoder(sort_keys=True).encode(taken)) == shown


def test_a_field_that_grafana_does_not_have_would_not_come_back() -> None:
    plugins.register_default_plugins()
    shown = json.loads(build.rendered())
    (panel,) = [each for each in panels_of(shown) if each["title"] == "Swap"]
    panel["targets"][0]["expression"] = "up"
    taken = models.Dashboard.from_json(shown)
    assert json.loads(encoder.JSONEncoder(sort_keys=True).encode(taken)) != shown


def panels_of(shown: Any) -> Iterator[Any]:
    """All panels that are no rows."""
    yield from (each for each in shown["panels"] if each["type"] != "row")


def test_panels_have_numbers_and_places_of_their_own() -> None:
    shown = json.loads(build.rendered())
    assert [each["id"] for each in shown["panels"]] == list(range(1, len(shown["panels"]) + 1))
    taken: set[tuple[int, int]] = set()
    for each in shown["panels"]:
        place = each["gridPos"]
        cells = {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}
        assert not cells & taken, each["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    titles = [each["title"] for each in panels_of(shown)]
    assert len(set(titles)) == len(titles) > 20


def test_each_panel_says_what_it_shows_and_where_from() -> None:
    for panel in panels_of(json.loads(build.rendered())):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
