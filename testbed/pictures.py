"""python -m testbed.pictures: the pictures of the documentation, made anew from the recording of a real run.

They need no cluster: testbed.realrun makes the recording.
"""

import datetime
import io
import sys
from pathlib import Path

import rich.console
import rich.terminal_theme
from swapwarden.cli.kubectl import explanation, screen

from testbed import dashboard, panels, recording

FOLDER = Path(__file__).resolve().parents[1] / "docs/images"
_COLUMNS = 110

# rich's own frame, without its window and its fonts, which would be fetched from elsewhere.
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


def explain(explained: recording.Explained) -> str:
    """An SVG of what `kubectl swap explain` says of the pod of a recording."""
    console = rich.console.Console(
        file=io.StringIO(),
        record=True,
        width=_COLUMNS,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(f"$ kubectl swap explain {explained.pod} -n {explained.namespace}")
    now = datetime.datetime.fromtimestamp(explained.at, datetime.UTC)
    screen.draw(console, explanation.explain(recording.replayed(explained)), now, screen.UNICODE)
    return console.export_svg(theme=rich.terminal_theme.SVG_EXPORT_THEME, code_format=_FRAME, unique_id="explain")


def drawn() -> dict[str, str]:
    """All pictures: contents by name."""
    made = recording.load()
    return {"explain.svg": explain(made.explained), "dashboard.svg": panels.draw(dashboard.ROWS, made)}


def main() -> int:
    """Write the pictures to docs/images, and say which panels are not on them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in drawn().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
    made = recording.load()
    for panel in (each for row in dashboard.ROWS for each in row.panels):
        if not panels.was_recorded(panel, made):
            print(f"the panel {panel.title!r} is not on the picture: it was not recorded; make recording")
    return 0


if __name__ == "__main__":
    sys.exit(main())
