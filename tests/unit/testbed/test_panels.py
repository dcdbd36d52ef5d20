"""The picture of the dashboard: each panel is on it, and shows what was recorded."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from grafana_foundation_sdk.models import units

from testbed import dashboard, panels, recording
from testbed.recording import Answer, Event, Explained, Recording, Series

STEPS = 5
QUERY = dashboard.Query("up", "{{state}} of {{node}}")


def recorded(title: str, *series: Series, events: tuple[Event, ...] = ()) -> Recording:
    explained = Explained("batch", "report", 0.0, {})
    return Recording({"node": "node-1"}, 0.0, 30, STEPS, [*events], {title: [Answer("up", [*series])]}, explained)


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314 it is our own


def drawn(panel: dashboard.Panel, *series: Series, events: tuple[Event, ...] = ()) -> ElementTree.Element:
    row = dashboard.Row("Node $node", (panel,))
    return parsed(panels.draw([row], recorded(panel.title, *series, events=events)))


def texts(picture: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in picture.iter("{http://www.w3.org/2000/svg}text")]


def paths(picture: ElementTree.Element, attribute: str) -> list[str]:
    """What is drawn of values: with an attribute that grid and marks do not have."""
    found = picture.iter("{http://www.w3.org/2000/svg}path")
    return [each.attrib["d"] for each in found if attribute in each.attrib]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, units.BytesIEC, "0"),
        (48 << 20, units.BytesIEC, "48 MiB"),
        (1536.0, units.BytesPerSecondIEC, "1.5 KiB/s"),
        (0.25, units.PercentUnit, "25 %"),
        (0.0004, units.Seconds, "400 µs"),
        (0.012, units.Seconds, "12 ms"),
        (2.5, units.Seconds, "2.5 s"),
        (345600, units.Seconds, "4 days"),
        (30, units.OpsPerSecond, "30/s"),
        (0.2, units.RequestsPerSecond, "0.2 req/s"),
        (2, units.Short, "2"),
    ],
)
def test_numbers_have_the_unit_of_their_panel(value: float, unit: str, text: str) -> None:
    assert panels.number(value, unit) == text


def test_every_unit_of_the_dashboard_can_be_written() -> None:
    for row in dashboard.ROWS:
        for panel in row.panels:
            assert panels.number(1.0, panel.unit).startswith("1")


@pytest.mark.parametrize(
    ("highest", "unit", "expected"),
    [
        (100 << 20, units.BytesIEC, [0, 32 << 20, 64 << 20, 96 << 20, 128 << 20]),
        (0.9, units.Seconds, [0, 0.25, 0.5, 0.75, 1.0]),
        (4, units.Short, [0, 1, 2, 3, 4]),
        (0, units.Short, [0, 1]),
    ],
)
def test_the_axis_has_few_round_numbers_up_to_the_highest_value(
    highest: float, unit: str, expected: list[float]
) -> None:
    assert panels.ticks(highest, unit) == pytest.approx(expected)


def test_a_line_goes_through_its_values_and_leaves_gaps() -> None:
    panel = dashboard.Panel("Nodes", "Some.", units.Short, (QUERY,))
    picture = drawn(panel, Series({"state": "applied", "node": "a"}, [0.0, 4.0, None, 2.0, 2.0]))
    first, second = paths(picture, "stroke")
    (left, bottom), (_, top) = [tuple(map(float, each.split())) for each in first[1:].split("L")]
    assert top < bottom
    x, middle = map(float, second[1:].split("L")[0].split())
    assert x > left
    assert middle == pytest.approx((top + bottom) / 2, abs=0.1)
    assert "applied of a" in texts(picture)


def test_a_value_between_two_gaps_is_a_dot() -> None:
    panel = dashboard.Panel("Nodes", "Some.", units.Short, (QUERY,))
    picture = drawn(panel, Series({"state": "applied"}, [None, None, 1.0, None, None]))
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) == 1


def test_areas_stand_on_one_another() -> None:
    panel = dashboard.Panel("Nodes", "Some.", units.Short, (QUERY,), "stacked")
    below, above = Series({"state": "a"}, [1.0] * STEPS), Series({"state": "b"}, [None, *[1.0] * (STEPS - 1)])
    first, second = paths(drawn(panel, below, above), "fill-opacity")
    tops = [each.split()[1] for each in first[1:].rstrip("Z").split("L")][:STEPS]
    floors = [each.split()[1] for each in second[1:].rstrip("Z").split("L")][STEPS:]
    assert tops == floors


def test_a_table_has_a_line_for_each_series_and_a_number_its_last_value() -> None:
    table = dashboard.Panel("Versions", "Some.", units.Short, (dashboard.Query("up"),), "table")
    said = texts(drawn(table, Series({"version": "0.1", "component": "agent"}, [3.0])))
    assert [each for each in ("component", "version", "agent", "0.1", "3") if each not in said] == []
    one = dashboard.Panel("Leaders", "Some.", units.Short, (QUERY,), "number", 4)
    assert {"2", "applied of a"} <= set(
        texts(drawn(one, Series({"state": "applied", "node": "a"}, [1, 1, 1, 2, None])))
    )


def test_a_panel_without_a_value_says_so() -> None:
    panel = dashboard.Panel("Nodes", "Some.", units.Short, (QUERY,))
    assert "No data" in texts(drawn(panel))
    assert "No data" in texts(drawn(panel, Series({"state": "a"}, [None] * STEPS)))


def test_what_was_done_is_told_and_marked_in_each_panel() -> None:
    panel = dashboard.Panel("Nodes", "Some.", units.Short, (QUERY,))
    said = texts(drawn(panel, Series({"state": "a"}, [1.0] * STEPS), events=(Event(60.4, "a <pod> starts"),)))
    assert said.count("1") >= 2
    assert {"1:00", "a <pod> starts"} <= set(said)


def test_a_long_name_is_cut_to_the_width_of_its_panel() -> None:
    panel = dashboard.Panel("Nodes", "Some.", units.Short, (QUERY,))
    (name,) = [each for each in texts(drawn(panel, Series({"state": "a" * 500}, [1.0] * STEPS))) if "aaa" in each]
    assert name.endswith("…")
    assert len(name) < 60


def test_a_panel_that_asks_something_else_by_now_is_left_out() -> None:
    panel = dashboard.Panel("Nodes", "Some.", units.Short, (dashboard.Query("up > 0"),))
    said = texts(drawn(panel, Series({"state": "a"}, [1.0] * STEPS)))
    assert "Node node-1" in said
    assert "Nodes" not in said


def test_the_panels_of_the_recording_are_on_the_picture_and_it_asks_nobody_for_anything() -> None:
    made = recording.load()
    text = panels.draw(dashboard.ROWS, made)
    said = set(texts(parsed(text)))
    found = [each for row in dashboard.ROWS for each in row.panels if panels.was_recorded(each, made)]
    assert len(found) > 20
    assert {each.title.replace("$node", "node-1") for each in found} - said == set()
    assert set(re.findall(r"https?://[^\"' )]+", text)) == {"http://www.w3.org/2000/svg"}
    assert len(text) < 200_000
