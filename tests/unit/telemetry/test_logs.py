import json
import logging
import pathlib
import sys

from swapwarden.telemetry import logs


def record(**extra: object) -> logging.LogRecord:
    made = logging.getLogger("swapwarden.test").makeRecord(
        "swapwarden.test", logging.WARNING, "file", 1, "wrote %s", ("0",), None, extra=extra
    )
    made.created = 1_700_000_000.123
    return made


def test_json_carries_message_and_fields() -> None:
    assert json.loads(logs.JsonFormatter().format(record(node="n1", count=2))) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "warning",
        "logger": "swapwarden.test",
        "message": "wrote 0",
        "node": "n1",
        "count": 2,
    }


def test_json_is_one_line_whatever_is_logged() -> None:
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError:
        made = record(text="a\nb")
        made.exc_info = sys.exc_info()
    line = logs.JsonFormatter().format(made)
    assert "\n" not in line
    assert "two\nlines" in json.loads(line)["exception"]


def test_names_that_are_no_text_do_not_cost_the_line() -> None:
    line = logs.JsonFormatter().format(record(cgroup="a\udcff", count=2, more={1, 2}))
    assert json.loads(line)["cgroup"] == "a\\udcff"


def test_what_json_does_not_know_is_told_as_text() -> None:
    line = logs.JsonFormatter().format(record(error=OSError("no space"), path={"of": pathlib.Path("/etc")}))
    assert line.endswith('"error": "no space", "path": {"of": "/etc"}}')


def test_text_ends_with_the_fields() -> None:
    line = logs.TextFormatter().format(record(node="n1"))
    assert line == "2023-11-14T22:13:20.123Z WARNING swapwarden.test: wrote 0 node=n1"
