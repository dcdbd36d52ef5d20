"""Lines of logs, as those of the other processes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator

import pytest
from swapwarden.nri import logs
from swapwarden.telemetry import logs as of_the_others


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    yield
    logs.configure("info", "json")


@pytest.mark.parametrize("form", ["json", "text"])
def test_lines_are_the_same_as_those_of_the_other_processes(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.123)
    logs.configure("info", form)
    logs.error("main", "it ä failed\n\u2028", node="n 1", count=2, path=["\udcff", "x" * 5000])
    record = logging.LogRecord("swapwarden.nri.main", logging.ERROR, "", 0, "it ä failed\n\u2028", None, None)
    record.created = 1_700_000_000.123
    record.__dict__ |= {"node": "n 1", "count": 2, "path": ["\udcff", "x" * 5000]}
    formatter = of_the_others.JsonFormatter() if form == "json" else of_the_others.TextFormatter()
    assert capsys.readouterr().err == formatter.format(record) + "\n"


def test_less_severe_events_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "json")
    logs.info("main", "b")
    logs.warning("main", "c")
    logs.error("main", "d")
    assert [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == ["c", "d"]


def test_names_that_are_no_text_do_not_cost_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.info("main", "a\udcff")
    assert json.loads(capsys.readouterr().err)["message"] == "a\\udcff"
