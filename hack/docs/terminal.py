"""python -m hack.docs.terminal TEXT PICTURE: draw a program's output as SVG, with its colours (`make pictures`)."""

import io
import sys
from pathlib import Path

import rich.console
import rich.terminal_theme
import rich.text

COLUMNS = 110

# rich's own frame, without its window, and without its fonts, which would be fetched from the network.
_FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
<rect fill="#292929" x="1" y="1" width="{width}" height="{height}" rx="8"/>
<g transform="translate({terminal_x}, 20)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def picture(text: str) -> str:
    """Return the SVG of a terminal of 110 columns with TEXT in it, whose colours are ANSI sequences."""
    console = rich.console.Console(file=io.StringIO(), record=True, width=COLUMNS, legacy_windows=False)
    console.print(rich.text.Text.from_ansi(text))
    return console.export_svg(theme=rich.terminal_theme.SVG_EXPORT_THEME, code_format=_FRAME, unique_id="terminal")


if __name__ == "__main__":
    _, source, target = map(Path, sys.argv)
    target.write_text(picture(source.read_text(encoding="utf-8")), encoding="utf-8")
