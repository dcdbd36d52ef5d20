"""What `make lint` holds of the code's sizes."""

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


def test_what_is_new_or_grew_is_refused() -> None:
    found = {"lines": {"new": 500, "grown": 501, "known": 600, "shrunk": 470, "allowed": 900}}
    held = {"lines": {"grown": 500, "known": 600, "shrunk": 480, "gone": 700, "allowed": 800}}
    refused = count.problems(found, held, {"allowed": "generated"})
    assert [each.partition(":")[0] for each in refused] == ["grown", "new"]
    assert count.lowered(found, held, {"allowed": "generated"}) == {
        "lines": {"grown": 500, "known": 600, "shrunk": 470}
    }


def test_the_larger_of_two_of_one_name_counts() -> None:
    sizes = {"main": 600}
    for number in (500, 700, 20):
        count.enlarge(sizes, "main", number, 450)
    assert sizes == {"main": 700}
