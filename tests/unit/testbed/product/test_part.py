from __future__ import annotations

from testbed.product import part

TEXT = """\
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{code="200",verb="GET"} 7
requests_total{code="500",verb="GET"} 2
requests_total{code="200",verb="POST"} 1.5e+01
requests_total_more{code="200",verb="GET"} 100
up 1
"""


def test_samples_are_added_up_that_have_the_labels() -> None:
    assert part.total(TEXT, "requests_total") == 24
    assert part.total(TEXT, "requests_total", verb="GET") == 9
    assert part.total(TEXT, "requests_total", verb="GET", code="500") == 2
    assert part.total(TEXT, "up") == 1


def test_a_missing_metric_is_0() -> None:
    assert part.total(TEXT, "requests_total", verb="PUT") == 0
    assert part.total(TEXT, "requests") == 0
