import json
import logging
import pathlib
import sys

import hypothesis
import pytest
from hypothesis import strategies
from swapwarden.telemetry import log_lines, logs


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


def test_values_unknown_to_json_are_logged_as_text() -> None:
    line = logs.JsonFormatter().format(record(error=OSError("no space"), path={"of": pathlib.Path("/etc")}))
    assert line.endswith('"error": "no space", "path": {"of": "/etc"}}')


def test_text_ends_with_the_fields() -> None:
    line = logs.TextFormatter().format(record(node="n1"))
    assert line == "2023-11-14T22:13:20.123Z WARNING swapwarden.test: wrote 0 node=n1"


# --- foreign text ---

FORGED = "x\n2023-11-14T22:13:20.123Z INFO    swapwarden.webhook.server: pod refused pod=other"
FORMATTERS = [logs.JsonFormatter(), logs.TextFormatter()]


@hypothesis.given(text=strategies.text(), formatter=strategies.sampled_from(FORMATTERS))
@hypothesis.example(text=FORGED, formatter=FORMATTERS[1])
@hypothesis.example(text="\x7f\x9b2J\u2028\u202e", formatter=FORMATTERS[1])
def test_text_of_others_stays_on_its_line(text: str, formatter: logging.Formatter) -> None:
    line = formatter.format(record(pod=text))
    assert not {"\n", "\r"} & set(line)
    made = record()
    made.msg, made.args = text, ()
    assert not {"\n", "\r"} & set(formatter.format(made))


@hypothesis.given(strategies.text())
@hypothesis.example(FORGED)
def test_a_text_line_shows_no_character_that_is_not_printable(text: str) -> None:
    assert logs.TextFormatter().format(record(pod=text)).isprintable()


def test_a_value_with_spaces_cannot_be_taken_for_several_fields() -> None:
    line = logs.TextFormatter().format(record(reason="no swap pod=other", empty="", quote='a"b'))
    assert line.endswith(r'wrote 0 reason="no swap pod=other" empty="" quote="a\"b"')


@pytest.mark.parametrize("formatter", FORMATTERS)
@pytest.mark.parametrize(
    "value", ["x" * 2_000_000, ["x" * 1000] * 2000, {"x" * 3_000_000: 1}, OSError("x" * 2_000_000)]
)
def test_a_huge_value_is_cut(formatter: logging.Formatter, value: object) -> None:
    line = formatter.format(record(pod=value, node="n1"))
    assert len(line) < 2 * log_lines.MAX_FIELD
    assert "more)" in line
    assert "n1" in line


@pytest.mark.parametrize("formatter", FORMATTERS)
def test_of_a_huge_traceback_the_end_is_logged(formatter: logging.Formatter) -> None:
    try:
        raise RuntimeError("x" * 1_000_000 + FORGED + " the end")
    except RuntimeError:
        made = record()
        made.exc_info = sys.exc_info()
    text = formatter.format(made)
    assert len(text) < 2 * log_lines.MAX_EXCEPTION
    assert "the end" in text
    assert all(line.startswith("  ") for line in text.splitlines()[1:])
