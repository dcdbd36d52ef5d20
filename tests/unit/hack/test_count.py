"""Sizes of the code that `make lint` holds."""

import ast

import yaml

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
    return [each.partition(":")[0] for each in count.problems({"lines": sizes}, HELD, {})]


def test_new_and_grown_excesses_are_refused() -> None:
    assert refused(main=601, client=500) == ["main"]
    assert refused(main=600, client=500, new=451) == ["new"]
    assert refused(main=600, client=501) == ["client"]


def test_excesses_that_shrank_or_moved_are_not() -> None:
    assert refused(main=600, client=480) == []
    assert refused(renamed=590, client=500) == []


ALLOWED = {"shop/a.py Table": {"reason": "a field for each column", "attributes": 14}}


def test_an_exception_is_for_one_class_of_one_module_of_one_size() -> None:
    def refused(methods: int = 0, **sizes: int) -> list[str]:
        found = {"attributes": {f"shop/{module}.py Table": size for module, size in sizes.items()}, "methods": {}}
        count.enlarge(found["methods"], "shop/a.py Table", methods, 20)
        return count.problems(found, {}, ALLOWED)

    assert refused(a=14) == []
    assert refused(a=15) == ["shop/a.py Table: attributes: 15, was 14"]
    assert refused(a=14, b=13) == ["shop/b.py Table: attributes: 13, was below the limit"]
    assert refused(a=14, methods=21) == ["shop/a.py Table: methods: 21, was below the limit"]
    assert refused() == ["shop/a.py Table: attributes: needs no exception in count.yaml"]


def test_smaller_sizes_are_recorded() -> None:
    found = {"lines": {"main": 500}, "attributes": {"shop/a.py Table": 13}}
    recorded = yaml.safe_load(count.lowered(found, ALLOWED))
    assert recorded["allowed"] == {"shop/a.py Table": {"reason": "a field for each column", "attributes": 13}}
    assert recorded["ratchet"] == {"lines": {"main": 500}, "attributes": {}}


def test_the_test_equipment_has_one_limit_in_all() -> None:
    assert count.together({"testbed": 7_000, "bench": 3_000, "hack": 9_000}) == {}
    assert count.together({"testbed": 7_000, "bench": 3_001}) == {"testbed + bench": 10_001}


def test_the_larger_of_two_of_one_name_counts() -> None:
    sizes = {"main": 600}
    for number in (500, 700, 20):
        count.enlarge(sizes, "main", number, 450)
    assert sizes == {"main": 700}
