import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.host import cgroupfs

PAGE = 4096


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max", cgroupfs.NO_LIMIT),
        ("0", 0),
        ("4095", 0),
        ("69943297", 69943296),
        ("9223372036854771712", cgroupfs.NO_LIMIT),  # PAGE_COUNTER_MAX: the kernel shows it as max
        ("9223372036854767616", 9223372036854767616),
        ("9223372036854775807", cgroupfs.NO_LIMIT),
    ],
)
def test_parse_floors_to_the_page_as_the_kernel_does(text: str, limit: int) -> None:
    assert cgroupfs.parse(text, PAGE) == limit


@pytest.mark.parametrize("text", ["", "-1", "1k", " 1", "+1", "Max", "1.0", "٣"])
def test_parse_refuses_what_the_kernel_would(text: str) -> None:
    with pytest.raises(ValueError, match="neither max nor a number"):
        cgroupfs.parse(text, PAGE)


@given(st.integers(0, 2**52))
def test_render_and_parse_are_inverse(pages: int) -> None:
    limit = cgroupfs.parse(str(pages * PAGE), PAGE)
    assert cgroupfs.parse(cgroupfs.render(limit), PAGE) == limit
