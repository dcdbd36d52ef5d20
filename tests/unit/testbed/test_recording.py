"""A recording is read as it was written, and `kubectl swap explain` reads it as it reads a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from swapwarden.cli.kubectl import explanation, session

from testbed import dashboard, recording

MADE = recording.load()


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    recording.save(MADE, tmp_path / "again.json")
    assert recording.load(tmp_path / "again.json") == MADE
    assert (tmp_path / "again.json").read_bytes() == recording.FILE.read_bytes()


def test_a_series_has_a_value_for_each_step_and_that_of_a_table_one() -> None:
    tables = {panel.title for row in dashboard.ROWS for panel in row.panels if panel.kind == "table"}
    for title, answers in MADE.panels.items():
        for series in (each for found in answers for each in found.series):
            assert len(series.values) == (1 if title in tables else MADE.steps), title


def test_the_pod_of_the_recording_is_explained_from_its_answers() -> None:
    told = explanation.explain(recording.replayed(MADE.explained))
    assert (told.namespace, told.name) == (MADE.explained.namespace, MADE.explained.pod)
    assert told.node == MADE.facts["node"]


def test_what_was_not_recorded_is_not_there() -> None:
    with pytest.raises(session.NotFound, match="was not recorded"):
        recording.replayed(recording.Explained("batch", "report", 0.0, {}))


def test_what_no_reader_needs_is_left_out_of_objects() -> None:
    found = {"metadata": {"name": "a", "managedFields": [{}]}, "list": [{"images": [1], "b": 1}]}
    assert recording.trimmed(found) == {"metadata": {"name": "a"}, "list": [{"b": 1}]}
