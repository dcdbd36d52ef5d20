"""The metrics of a part of the product: checked by promtool, and compared with docs/metrics.md."""

from __future__ import annotations

import pathlib
import re

from prometheus_client import parser

from testbed.base import process
from testbed.controlplane import programs

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "metrics.md"
# Prometheus' client for Python adds metrics of the process.
_CLIENT = re.compile(r"(process|python)_\w+")
_GROWING = ("_total", "_bucket", "_count", "_sum")

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def documented(part: str) -> dict[str, str]:
    """Type of each metric that docs/metrics.md has for a part, by name."""
    found: dict[str, str] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.split(" | ")]
            name = re.fullmatch(r"\| `(\w+)`", cells[0])
            if name and (section.startswith(f"The {part}\n") or part in cells[3].split(", ")):
                found[name[1]] = cells[1]
    return found


def check(text: str, part: str) -> Series:
    """Have promtool find no fault, and all that is documented with HELP and TYPE, and nothing else; the samples."""
    # It fails with status 3 and a line on stderr for each thing that Prometheus' conventions are against.
    process.run([str(programs.promtool()), "check", "metrics"], timeout=60, text=text)
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    helped = re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE)
    assert sorted(helped) == sorted(types)
    assert {name: kind for name, kind in types.items() if not _CLIENT.fullmatch(name)} == documented(part)
    samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
    assert all(sample.timestamp is None for sample in samples)
    series = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(series) == len(samples), "a series exists twice"
    assert ("swapwarden_build_info", part) in {(name, dict(labels).get("component")) for name, labels in series}
    return series


def growing(before: Series, after: Series) -> int:
    """Have none of the series that only grow be less than before; how many of them are more."""
    both = {key: (value, after[key]) for key, value in before.items() if key in after and key[0].endswith(_GROWING)}
    assert {key: values for key, values in both.items() if values[1] < values[0]} == {}
    return sum(new > old for old, new in both.values())


def values(series: Series, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name by their labels' values, in the order of the labels' names."""
    return {tuple(text for _, text in labels): value for (found, labels), value in series.items() if found == name}
