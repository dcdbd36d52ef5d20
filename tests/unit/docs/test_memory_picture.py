"""docs/images/memory-high.svg is drawn by hand, to scale: each bar is at the planner's numbers."""

from __future__ import annotations

import html.parser

import pytest
from swapwarden.api import names, quantity
from swapwarden.policy.memory import qos, settings
from swapwarden.policy.swap import limits

from testbed.base import paths
from tests.unit.objects import GI, container, facts, pod

PICTURE = paths.ROOT / "docs/images/memory-high.svg"
Attributes = dict[str, str]


class Bars(html.parser.HTMLParser):
    """The groups of the picture with a limit of swap, each with its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Attributes, list[Attributes]]] = []
        self.feed(PICTURE.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        if "data-swap" in own:
            self.found.append((own, []))
        elif tag == "rect" and self.found and "class" in own:
            self.found[-1][1].append(own)

    handle_startendtag = handle_starttag


Bar = tuple[Attributes, list[Attributes]]
BARS: list[Bar] = Bars().found
REQUEST, LIMIT, PERCENT = 2 * GI, 3 * GI, 80
TOLERANCE = 0.002


def part(bar: Bar, name: str) -> tuple[float, float]:
    """Begin and end of a part in GiB, by the length of the request, which all bars have; 0 if it is not there."""
    places = {each["class"]: (float(each["x"]), float(each["width"])) for each in bar[1]}
    begin, length = places["protected"]
    start, width = places.get(name, (begin, 0.0))
    unit = length / (REQUEST / GI)
    return (start - begin) / unit, (start - begin + width) / unit


def planned(swap: int) -> float | None:
    row = pod(container(request=REQUEST, limit=LIMIT))
    reason = names.Reason.WORKLOAD_LIMIT
    each = tuple(limits.ContainerDecision(one.name, one.id, str(swap), reason) for one in row.containers)
    memory = settings.MemoryQoS(throttling_percent=PERCENT)
    decided = qos.decide(
        memory,
        facts(),
        row,
        limits.PodDecision(str(swap), reason, each),
    )
    assert decided is not None
    return None if decided.high is None else decided.high / GI


@pytest.mark.parametrize("bar", BARS)
def test_a_bar_is_to_scale(bar: Bar) -> None:
    swap = quantity.capped(bar[0]["data-swap"])
    high = planned(swap) if bar[0]["data-plan"] == "yes" else (REQUEST + (LIMIT - REQUEST) * PERCENT / 100) / GI
    assert part(bar, "memory") == pytest.approx((0, high or LIMIT / GI), abs=TOLERANCE)
    if high is None:
        assert part(bar, "swapped") == part(bar, "stalled") == (0, 0)
    else:
        assert part(bar, "swapped") == pytest.approx((high, high + swap / GI), abs=TOLERANCE)
        assert part(bar, "stalled") == pytest.approx((high + swap / GI, (LIMIT + swap) / GI), abs=TOLERANCE)


def test_only_the_bar_that_is_not_planned_is_slowed_below_the_limit() -> None:
    slowed = [0 < part(bar, "stalled")[0] < LIMIT / GI - TOLERANCE for bar in BARS]
    assert slowed == [bar[0]["data-plan"] == "no" for bar in BARS]
    assert {True, False} == set(slowed)
