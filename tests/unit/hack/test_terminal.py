"""Output of a program as a picture."""

import re

from hack.docs import terminal


def test_the_picture_has_the_text_in_its_colours_and_fetches_nothing() -> None:
    svg = terminal.picture("$ kubectl\n\x1b[31mnode-1\x1b[0m")
    named = {text: style for style, text in re.findall(r'<text class="(\S+)"[^>]*>([^<]*)</text>', svg)}
    fills = dict(re.findall(r"\.(\S+) \{ fill: (#\w+)", svg))
    assert {"$&#160;kubectl", "node-1"} <= named.keys()
    assert fills[named["node-1"]] != fills[named["$&#160;kubectl"]]
    assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")
