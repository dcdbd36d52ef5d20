"""Sizes of the code that `make lint` holds."""

import ast

from hack import count

CLASS = """
class Lamp:
    shade: str
    def __init__(self):
        self.bulb = self._socket = 1
        self.bulb.size = other.size = 2
    async def light(self):
        self.bulb = self.shade
    class Foot:
        weight: int
"""


def test_methods_and_attributes_of_a_class() -> None:
    lamp, foot = count.classes(ast.parse(CLASS))
    assert (count.methods(lamp), count.attributes(lamp)) == (2, 3)
    assert (count.methods(foot), count.attributes(foot)) == (0, 1)


def test_private_attributes_of_others_are_counted_and_no_more() -> None:
    assert count.private(ast.parse("a._b; c()._d = 1; a._b()")) == 3
    assert count.private(ast.parse("self._a; cls._b; row._replace(x=1); a.__dict__; a.b; _c")) == 0


HELD = {"lines": {"main": 600, "client": 500}}


def refused(**sizes: int) -> list[str]:
    return [each.partition(":")[0] for each in count.problems({"lines": sizes}, HELD, {"table": "a row each"})]


def test_new_and_grown_excesses_are_refused() -> None:
    assert refused(main=601, client=500) == ["main"]
    assert refused(main=600, client=500, new=451) == ["new"]
    assert refused(main=600, client=501) == ["client"]


def test_excesses_that_shrank_moved_or_are_allowed_are_not() -> None:
    assert refused(main=600, client=480) == []
    assert refused(renamed=590, client=500) == []
    assert refused(table=900) == []


def test_the_larger_of_two_of_one_name_counts() -> None:
    sizes = {"main": 600}
    for number in (500, 700, 20):
        count.enlarge(sizes, "main", number, 450)
    assert sizes == {"main": 700}
