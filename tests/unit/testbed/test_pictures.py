from __future__ import annotations

import re

import pytest

from testbed import pictures, recording


@pytest.mark.parametrize("name", ["explain.svg", "dashboard.svg"])
def test_the_pictures_show_what_is_drawn_of_the_recording_today(name: str) -> None:
    checked_in = (pictures.FOLDER / name).read_text(encoding="utf-8")
    assert checked_in == pictures.drawn()[name], "make it anew: python -m testbed.pictures"


def test_there_are_no_others() -> None:
    assert {path.name for path in pictures.FOLDER.iterdir()} == pictures.drawn().keys()


def test_an_explanation_asks_nobody_for_anything() -> None:
    text = pictures.explain(recording.load().explained)
    assert set(re.findall(r"https?://[^\"' )]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "url(#" in text
    assert "@import" not in text
