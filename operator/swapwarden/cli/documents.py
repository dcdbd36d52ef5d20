"""Kubernetes objects in YAML and JSON files, as kubectl reads them."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import yaml

try:
    from yaml import CSafeLoader as Loader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader as Loader  # type: ignore[assignment] # the same interface, slower

Json = dict[str, Any]

STDIN: Final = "-"
SUFFIXES: Final = (".json", ".yaml", ".yml")

_INT_BITS: Final = 1024
"""Larger numbers mean nothing in any object, and Python refuses to print those of more than 4,300 digits."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A place in the input: the file, the number of its document (from 1), and the path in that document."""

    file: str
    document: int = 0
    path: str = ""

    def below(self, path: str) -> Place:
        """Return the same document, at `path` from here."""
        return dataclasses.replace(self, path=join(self.path, path))

    def __str__(self) -> str:
        parts = [self.file, f"document {self.document}" if self.document else "", self.path]
        return ": ".join(part for part in parts if part)


@dataclasses.dataclass(frozen=True)
class Message:
    """A message about the input."""

    place: Place
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclasses.dataclass(frozen=True)
class Found:
    """An object as it was read, without null values, which the API server also drops."""

    place: Place
    object: Json


@dataclasses.dataclass
class Log:
    """Problems of the input, and notes about it."""

    problems: list[Message] = dataclasses.field(default_factory=list)
    notes: list[Message] = dataclasses.field(default_factory=list)

    def problem(self, place: Place, text: str) -> None:
        """Note what makes the input unusable."""
        self.problems.append(Message(place, text))

    def refuse(self, place: Place, problems: Iterable[tuple[str, str]]) -> None:
        """Note what makes an object unusable, by paths and reasons."""
        for path, reason in problems:
            self.problem(place.below(path), reason)

    def note(self, place: Place, text: str) -> None:
        """Note what does not."""
        self.notes.append(Message(place, text))


def join(path: str, rest: str) -> str:
    """Put two parts of a path together: spec and swap, items and [3]."""
    return f"{path}.{rest}" if path and rest and not rest.startswith("[") else f"{path}{rest}"


def read(names: list[str], log: Log) -> Iterator[Found]:
    """Yield all objects in the files, directories (not the ones inside) and, for "-", standard input, in this order."""
    for name in names:
        for file, text in _texts(name, log):
            for place, document in _cleaned(file, text, log):
                if document is not None:
                    yield from _expand(place, document, log)


def read_one(name: str, log: Log) -> Found | None:
    """Return the only document of a file, of whatever kind; None with a problem in the log."""
    cleaned = [one for file, text in _texts(name, log) for one in _cleaned(file, text, log) if one[1] is not None]
    if log.problems:
        return None
    if len(cleaned) != 1 or not isinstance(cleaned[0][1], dict):
        kinds = ", ".join(type_name(document) for _, document in cleaned) or "nothing"
        log.problem(Place(name), f"expected one document with a mapping, got {kinds}")
        return None
    return Found(*cleaned[0])


def _texts(name: str, log: Log) -> Iterator[tuple[str, str]]:
    for file, content in _contents(name, log):
        try:
            yield file, content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            log.problem(Place(file), f"not UTF-8 text: {error.reason} at byte {error.start}")


def _contents(name: str, log: Log) -> Iterator[tuple[str, bytes]]:
    if name == STDIN:
        yield "standard input", sys.stdin.buffer.read()
        return
    path = pathlib.Path(name)
    try:
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
            if not files:
                log.problem(Place(name), f"no file in this directory ends in one of {', '.join(SUFFIXES)}")
        for file in files:
            yield str(file), file.read_bytes()
    except OSError as error:
        log.problem(Place(error.filename or name), f"cannot be read: {error.strerror}")


def _cleaned(file: str, text: str, log: Log) -> Iterator[tuple[Place, Any]]:
    """Yield the documents without null values."""
    for place, document in _documents(file, text, log):
        try:
            # Without aliases no document holds more keys and values than characters, and one.
            cleaned = _without_nulls(document, [len(text) + 1])
        except RecursionError:
            log.problem(place, "nested too deeply")
        except _UnusableError as error:
            log.problem(place, str(error))
        else:
            yield place, cleaned


class _UnusableError(Exception):
    """The document holds more than an object can."""


_JSON_TYPES: Final = ("null", "bool", "int", "float", "str", "seq", "map")


class _Loader(Loader):
    """Reads YAML as kubectl does, as far as it matters here: times stay text; keys that come twice are noticed."""

    yaml_implicit_resolvers = {  # noqa: RUF012 the name and the form are PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":value"))]
        for first, resolvers in Loader.yaml_implicit_resolvers.items()
    }
    # Tags such as !!binary would give values that no object can hold; None is the entry that refuses unknown tags.
    yaml_constructors = {  # noqa: RUF012 the name and the form are PyYAML's
        tag: constructor
        for tag, constructor in Loader.yaml_constructors.items()
        if tag is None or tag.endswith(tuple(f":{name}" for name in _JSON_TYPES))
    }

    def __init__(self, stream: str, twice: list[str]) -> None:
        """`twice` gets the keys that come twice in a mapping."""
        super().__init__(stream)
        self.twice = twice

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 PyYAML's signature
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        self.twice += _repeated(keys)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Keep 12:30 as text: YAML 1.1 reads 750, kubectl does not."""
        if ":" in node.value:
            return node.value
        return self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)


def _repeated(keys: list[str]) -> list[str]:
    return [key for key, count in collections.Counter(keys).items() if count > 1]


def _documents(file: str, text: str, log: Log) -> Iterator[tuple[Place, Any]]:
    place, twice = Place(file, 1), list[str]()

    def mapping(pairs: list[tuple[str, Any]]) -> Json:
        twice.extend(_repeated([key for key, _ in pairs]))
        return dict(pairs)

    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text, object_pairs_hook=mapping)
        except (ValueError, RecursionError):
            twice.clear()  # YAML's own brackets, perhaps; if not, its parser reports the error
        else:
            _note_twice(place, twice, log)
            yield place, document
            return
    try:
        loader = _Loader(text, twice)
        while loader.check_data():  # type: ignore[no-untyped-call] # the stubs lack it
            document = loader.get_data()
            _note_twice(place, twice, log)
            twice.clear()
            yield place, document
            place = Place(file, place.document + 1)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        log.problem(place, f"not YAML: {error.problem or error.context}{where}")
    except (yaml.YAMLError, ValueError) as error:
        log.problem(place, f"not YAML: {' '.join(str(error).split())}")
    except RecursionError:
        log.problem(place, "nested too deeply")


def _note_twice(place: Place, keys: list[str], log: Log) -> None:
    for key in keys:
        log.note(place, f"the key {key!r} is repeated in one mapping; the last one counts")


def _without_nulls(value: Any, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        raise _UnusableError("its aliases expand to too much")
    if isinstance(value, dict):
        return {
            str(_without_nulls(key, budget)): _without_nulls(child, budget)
            for key, child in value.items()
            if child is not None
        }
    if isinstance(value, list):
        return [_without_nulls(child, budget) for child in value]
    if isinstance(value, str) and not value.isascii():
        return value.encode(errors="replace").decode()  # JSON can escape half a surrogate pair, which is no character
    if isinstance(value, int) and value.bit_length() > _INT_BITS:
        raise _UnusableError(f"holds a number of {value.bit_length()} bits, which is more than an object can")
    return value


def _expand(place: Place, document: Any, log: Log, inherited: tuple[str, str] = ("", "")) -> Iterator[Found]:
    """Yield the document, or the objects in it where it is a List; those of a PodList inherit their kind."""
    if not isinstance(document, dict):
        log.problem(place, f"expected an object with apiVersion and kind, got {type_name(document)}")
        return
    document = {"apiVersion": inherited[0], "kind": inherited[1], **document}
    version, kind = document["apiVersion"], document["kind"]
    for key, value in (("apiVersion", version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            log.problem(place.below(key), "Required value")
            return
    if not kind.endswith("List") or ("items" not in document and kind != "List"):
        yield Found(place, document)
        return
    items = document.get("items", [])
    if not isinstance(items, list):
        log.problem(place.below("items"), f"expected a list, got {type_name(items)}")
        return
    item_kind = kind.removesuffix("List")
    for index, item in enumerate(items):
        yield from _expand(
            place.below(f"items[{index}]"), item, log, inherited=(version if item_kind else "", item_kind)
        )


def type_name(value: Any) -> str:
    """Return how a value's type is called in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "a mapping"
