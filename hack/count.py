"""Sizes of the code, held by `make lint`: python -m hack.count show | check | lower.

No module has more than 600 lines, no class more than 20 methods or 12 attributes, and the test equipment no more lines
than SUMS. No two classes of a folder of CODE have one name. Tests may not
ask for more private attributes than before, nor a folder have more weak wordings (english.py). In count.yaml, `allowed`
has exceptions, each for one class in one module, with its reason and its size, and `ratchet` has existing excesses,
which may only shrink, whatever they are renamed to and wherever they move. `lower` records a smaller number.
"""

import ast
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from hack import english
from testbed.base import paths

MODULE_LINES: Final = 600
METHODS: Final = 20
ATTRIBUTES: Final = 12
SUMS: Final = {("testbed", "bench"): 10_000}
"""The most lines of folders together."""
FILE: Final = Path(__file__).with_suffix(".yaml")
CODE: Final = ("operator", "testbed", "bench", "hack", "monitoring", "deploy")
_OF_NAMED_TUPLES: Final = {"_asdict", "_fields", "_field_defaults", "_make", "_replace"}

Sizes = dict[str, dict[str, int]]
"""Excesses by kind and name."""
Allowed = dict[str, dict[str, Any]]
"""By module and class, such as `hack/count.py Table`: the size of each kind, and `reason`."""


def modules(folder: str) -> Iterator[tuple[Path, str]]:
    """Yield the modules of a folder of the repository, with their text."""
    for path in sorted((paths.ROOT / folder).rglob("*.py")):
        yield path, path.read_text(encoding="utf-8")


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    """Yield all classes, also nested ones."""
    return (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef))


def methods(found: ast.ClassDef) -> int:
    """Return how many functions a class defines."""
    return sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in found.body)


def attributes(found: ast.ClassDef) -> int:
    """Return how many fields a class declares or its methods set."""
    declared = {
        each.target.id for each in found.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assigned = {
        each.attr
        for each in ast.walk(found)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    return len(declared | assigned)


def private(tree: ast.AST) -> int:
    """Return how often private attributes of others are used."""
    return sum(
        isinstance(each, ast.Attribute)
        and each.attr.startswith("_")
        and not each.attr.startswith("__")
        and each.attr not in _OF_NAMED_TUPLES
        and not (isinstance(each.value, ast.Name) and each.value.id in {"self", "cls"})
        for each in ast.walk(tree)
    )


def measured() -> Sizes:
    """Return all sizes above their limit."""
    found: Sizes = {"lines": {}, "methods": {}, "attributes": {}}
    named: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    wordings: Counter[str] = Counter()
    for folder in CODE:
        for path, text in modules(folder):
            module = str(path.relative_to(paths.ROOT))
            lines[folder] += text.count("\n")
            wordings[folder] += sum(1 for _ in english.weak(text))
            enlarge(found["lines"], module, text.count("\n"), MODULE_LINES)
            for each in classes(ast.parse(text)):
                enlarge(found["methods"], f"{module} {each.name}", methods(each), METHODS)
                enlarge(found["attributes"], f"{module} {each.name}", attributes(each), ATTRIBUTES)
                named[f"{folder} {each.name}"] += 1
    found["lines together"] = together(lines)
    found["classes of one name"] = {name: number for name, number in named.items() if number > 1}
    tests: Counter[str] = Counter()
    for path, text in modules("tests"):
        tests["/".join(path.relative_to(paths.ROOT / "tests").parts[:-1][:2]) or "."] += private(ast.parse(text))
        wordings["tests"] += sum(1 for _ in english.weak(text))
    found["private in tests"] = {folder: number for folder, number in tests.items() if number}
    found["weak wordings"] = dict(wordings)
    return found


def together(lines: Mapping[str, int]) -> dict[str, int]:
    """Return the sums above their limit, of the LINES of each folder."""
    sums = {folders: sum(lines[folder] for folder in folders) for folders in SUMS}
    return {" + ".join(folders): number for folders, number in sums.items() if number > SUMS[folders]}


def enlarge(sizes: dict[str, int], name: str, number: int, limit: int) -> None:
    """Record the NUMBER of something if it is above LIMIT and above that of others of its name."""
    if number > max(limit, sizes.get(name, 0)):
        sizes[name] = number


def problems(found: Sizes, held: Sizes, allowed: Allowed) -> list[str]:
    """Return a line for each excess that is neither allowed nor held, or that grew, and for each useless exception.

    Names of those that are held do not count: of each kind, the largest may be as large as the largest held, and so on.
    """
    said = []
    for name, sizes in allowed.items():
        for kind in sizes.keys() - {"reason"}:
            if (number := found[kind].get(name, 0)) > sizes[kind]:
                said.append(f"{name}: {kind}: {number}, was {sizes[kind]}")
            elif not number:
                said.append(f"{name}: {kind}: needs no exception in {FILE.name}")
    for kind, sizes in found.items():
        known = held.get(kind, {})
        now = {name: number for name, number in sizes.items() if kind not in allowed.get(name, {})}
        room = itertools.chain(sorted(known.values(), reverse=True), itertools.repeat(0))
        if any(number > limit for number, limit in zip(sorted(now.values(), reverse=True), room, strict=False)):
            grown = sorted(name for name, number in now.items() if number > known.get(name, 0))
            said += [f"{name}: {kind}: {now[name]}, was {known.get(name, 'below the limit')}" for name in grown]
    return said


def lowered(found: Sizes, allowed: Allowed) -> str:
    """Return the exceptions and excesses with their sizes now, as YAML."""
    exceptions = {
        name: each | {kind: found[kind][name] for kind in found if kind in each} for name, each in allowed.items()
    }
    rest = {
        kind: {name: sizes[name] for name in sorted(sizes) if kind not in allowed.get(name, {})}
        for kind, sizes in found.items()
    }
    return yaml.safe_dump({"allowed": exceptions, "ratchet": rest}, sort_keys=False, width=200)


def show() -> None:
    """Print lines by folder, and all excesses."""
    for folder in (*CODE, "tests"):
        below: Counter[str] = Counter()
        for path, text in modules(folder):
            below["/".join(path.relative_to(paths.ROOT).parts[:-1][:3])] += text.count("\n")
        print(f"{below.total():7} {folder}")
        print(*(f"{lines:14} {name}" for name, lines in sorted(below.items()) if name != folder), sep="\n")
    for kind, sizes in measured().items():
        print(f"{kind}: {sum(sizes.values())}")
        print(*(f"{number:14} {name}" for name, number in sorted(sizes.items(), key=lambda one: -one[1])), sep="\n")


def main() -> int:
    """`check`: exit status 1 and a line for each new or grown excess; `lower`; `show`."""
    if sys.argv[1:] not in (["show"], ["check"], ["lower"]):
        print("python -m hack.count show | check | lower", file=sys.stderr)
        return 2
    if sys.argv[1] == "show":
        show()
        return 0
    text = FILE.read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    now, allowed = measured(), content["allowed"]
    found = problems(now, content["ratchet"], allowed)
    if found:
        print(*found, sep="\n")
        print(f"Split it, take as much away, or name it in {FILE.name} with size and reason.", end=" ")
        print("`python -m hack.english` finds wordings.")
    if sys.argv[1] == "lower" and not found:
        FILE.write_text(text.partition("\n")[0] + "\n" + lowered(now, allowed), encoding="utf-8")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
