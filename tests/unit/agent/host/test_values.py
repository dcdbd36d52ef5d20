import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.host import values

PAGE = 4096


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max", values.NO_LIMIT),
        ("0", 0),
        ("4095", 0),
        ("69943297", 69943296),
        ("9223372036854771712", values.NO_LIMIT),  # PAGE_COUNTER_MAX: the kernel shows it as max
        ("9223372036854767616", 9223372036854767616),
        ("9223372036854775807", values.NO_LIMIT),
    ],
)
def test_parse_floors_to_the_page_as_the_kernel_does(text: str, limit: int) -> None:
    assert values.parse(text, PAGE) == limit


@pytest.mark.parametrize("text", ["", "-1", "1k", " 1", "+1", "Max", "1.0", "٣"])
def test_parse_refuses_what_the_kernel_would(text: str) -> None:
    with pytest.raises(ValueError, match="neither max nor a number"):
        values.parse(text, PAGE)


@given(st.integers(0, 2**52))
def test_render_and_parse_are_inverse(pages: int) -> None:
    limit = values.parse(str(pages * PAGE), PAGE)
    assert values.parse(values.render(limit), PAGE) == limit
