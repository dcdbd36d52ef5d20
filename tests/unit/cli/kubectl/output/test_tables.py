from __future__ import annotations

import contextlib
import datetime
import io
import json

import msgspec
import pytest
import yaml
from swapwarden.cli.kubectl.output import tables


class Row(msgspec.Struct):
    name: str
    size: int | None


COLUMNS: tuple[tables.Column[Row], ...] = (
    tables.Column("NAME", lambda row: tables.Cell(row.name, "bold red")),
    tables.Column("SIZE", lambda row: tables.size(row.size), right=True),
    tables.Column("MORE", lambda _: "x" * 300, wide=True),
)
ROWS = [Row("a", 1536), Row("a-longer-one", None)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(form: tables.Form, stream: io.StringIO | None = None) -> str:
    out = stream or io.StringIO()
    with contextlib.redirect_stdout(out):
        tables.show(form, ROWS, COLUMNS, name=lambda row: f"row/{row.name}")
    return out.getvalue()


def test_a_table_in_a_pipe_is_plain() -> None:
    assert shown(tables.Form()) == (
        "NAME                SIZE\n"
        "a                  1.5Ki\n"
        "a-longer-one   <unknown>\n"
    )  # fmt: skip
    assert shown(tables.Form(headers=False)).startswith("a  ")


def test_nothing_is_cut_off_or_wrapped() -> None:
    assert "x" * 300 in shown(tables.Form("wide"))
    assert len(shown(tables.Form("wide")).splitlines()) == 3


@pytest.mark.parametrize(
    ("color", "environment", "terminal", "coloured"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {}, True, False),
    ],
)
def test_when_there_is_colour(
    monkeypatch: pytest.MonkeyPatch,
    color: str,
    environment: dict[str, str],
    terminal: bool,
    coloured: bool,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = shown(tables.Form(color=color), Terminal() if terminal else io.StringIO())
    assert ("\x1b[1;31ma" in text) is coloured
    assert ("\x1b" in text) is coloured


def test_forms_for_programs() -> None:
    expected = {"items": [{"name": "a", "size": 1536}, {"name": "a-longer-one", "size": None}]}
    assert json.loads(shown(tables.Form("json"))) == expected
    assert yaml.safe_load(shown(tables.Form("yaml"))) == expected
    assert shown(tables.Form("name")) == "row/a\nrow/a-longer-one\n"


def test_text_of_others_cannot_control_the_terminal() -> None:
    row = Row("\x1b]0;title\x07two\nlines [red]markup[/red] :smile:", 0)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        tables.show(tables.Form(headers=False), [row], COLUMNS, name=lambda each: each.name)
    assert out.getvalue() == "�]0;title�two�lines [red]markup[/red] :smile:   0\n"


def test_shares() -> None:
    assert tables.share(1, 3) == "33%"
    assert tables.share(0, 0) == "<none>"
    assert tables.share(None, 3) == tables.share(1, None) == "<unknown>"


def test_size() -> None:
    assert [tables.size(number) for number in (None, 0, 20 << 20)] == ["<unknown>", "0", "20Mi"]


@pytest.mark.parametrize(
    ("since", "text"),
    [
        ("2026-01-09T23:59:18Z", "42s"),
        ("2026-01-09T23:54:55Z", "5m5s"),
        ("2026-01-09T23:30:05Z", "29m"),
        ("2026-01-09T21:55:00Z", "2h5m"),
        ("2026-01-09T04:55:00Z", "19h"),
        ("2026-01-07T20:00:00Z", "2d4h"),
        ("2025-12-20T20:00:00Z", "20d"),
        ("2026-01-11T00:00:00Z", "0s"),
        ("2026-01-09T23:59:18", ""),
        ("soon", ""),
        ("", ""),
    ],
)
def test_age(since: str, text: str) -> None:
    assert tables.age(since, datetime.datetime(2026, 1, 10, tzinfo=datetime.UTC)) == text
