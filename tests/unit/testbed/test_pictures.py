from __future__ import annotations

import re

from testbed import pictures


def test_the_picture_shows_what_the_command_prints_today() -> None:
    checked_in = (pictures.FOLDER / pictures.EXPLAIN).read_text(encoding="utf-8")
    assert checked_in == pictures.explain(), "make it anew: python -m testbed.pictures"


def test_it_asks_nobody_for_anything() -> None:
    addresses = set(re.findall(r"https?://[^\"' )]+", pictures.explain()))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "url(#" in pictures.explain()
    assert "@import" not in pictures.explain()
