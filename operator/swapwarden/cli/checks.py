"""Checks of the API server before admission: names, texts, quantities; with its wording."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pydantic

from swapwarden.api import names, quantity, values
from swapwarden.cli import documents
from swapwarden.policy.observed.pods import WirePod

_VERSIONS: Final = {"": "v1", names.GROUP: names.API_VERSION}
"""Accepted versions by group; all other groups that count have v1."""


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_RULE = "a name has at most 63 characters, of a-z, 0-9 and -, with a letter or digit at both ends"
_LABEL_LENGTH = 63
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_SUBDOMAIN_RULE = "a name has at most 253 characters, of a-z, 0-9, - and ., with a letter or digit at both ends"
_SUBDOMAIN_LENGTH = 253

_AT = re.compile(r"(?P<text>.*?)(?: - at `(?P<key>key in )?\$\.?(?P<path>.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


class InvalidError(Exception):
    """The object cannot be used; all that is wrong with it, as paths and reasons."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__()
        self.problems = problems


def name_of(document: documents.Json) -> str:
    """Check the common fields of all kinds and return the object's name; InvalidError."""
    version, group = document["apiVersion"], document["apiVersion"].rpartition("/")[0]
    known = _VERSIONS.get(group, f"{group}/v1")
    if version != known:
        raise InvalidError(("apiVersion", _unsupported(version, [known])))
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        raise InvalidError(("metadata", f"expected a mapping, got {documents.type_name(metadata)}"))
    wrong = list(wrong_texts(metadata))
    name = metadata.get("name")
    generated = metadata.get("generateName")
    if not name and document["kind"] == "Pod" and isinstance(generated, str) and generated:
        name = metadata["name"] = f"{generated}x"  # what the API server would add
    if name is None or name == "":
        wrong.append(("metadata.name", "Required value"))
    elif not isinstance(name, str):
        wrong.append(("metadata.name", f"expected a string, got {shown(name)}: put it in quotes"))
    elif not _SUBDOMAIN.fullmatch(name) or len(name) > _SUBDOMAIN_LENGTH:
        wrong.append(("metadata.name", f"Invalid value: {shown(name)}: {_SUBDOMAIN_RULE}"))
    if wrong:
        raise InvalidError(*wrong)
    return str(name)


def wrong_texts(metadata: documents.Json) -> Iterator[tuple[str, str]]:
    """Yield labels and annotations that YAML does not take for text: numbers and truth values without quotes."""
    for part in ("labels", "annotations"):
        entries = metadata.get(part, {})
        if isinstance(entries, dict):
            for key, value in entries.items():
                if not isinstance(value, str):
                    yield f"metadata.{part}[{key}]", f"expected a string, got {shown(value)}: put it in quotes"


def with_texts_only(document: documents.Json) -> documents.Json:
    """Return the object without the labels and annotations of wrong_texts."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return document
    texts = {
        part: {key: value for key, value in entries.items() if isinstance(value, str)}
        for part in ("labels", "annotations")
        if isinstance(entries := metadata.get(part), dict)
    }
    return {**document, "metadata": {**metadata, **texts}}


def from_msgspec(message: str) -> tuple[str, str]:
    """Return path and reason of "Expected `str`, got `int` - at `$.spec.nodeName`"."""
    match = _AT.fullmatch(message)
    text, path = (match["text"], match["path"] or "") if match else (message, "")
    missing = _MISSING.fullmatch(text)
    if missing:
        return documents.join(path, missing["name"]), "Required value"
    return path, text.replace("`", "")


def wrong_names(wire: WirePod) -> Iterator[tuple[str, str]]:
    spec = wire.spec
    namespace = wire.metadata.namespace
    if not _is_label(namespace):
        yield "metadata.namespace", f"Invalid value: {shown(namespace)}: {_LABEL_RULE}"
    for key, value in wire.metadata.labels.items():
        if len(key) > values.LABEL_KEY_LENGTH or not re.fullmatch(values.LABEL_KEY_PATTERN, key):
            yield "metadata.labels", f"Invalid value: {shown(key)}: {values.LABEL_KEY_REFUSAL}"
        elif len(value) > _LABEL_LENGTH or not re.fullmatch(values.LABEL_VALUE_PATTERN, value):
            yield f"metadata.labels[{key}]", f"Invalid value: {shown(value)}: {values.LABEL_VALUE_REFUSAL}"
    seen: set[str] = set()
    for part, containers in (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers or ()),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for index, name in enumerate(one.name for one in containers):
            path = f"spec.{part}[{index}].name"
            if not _is_label(name):
                yield path, f"Invalid value: {shown(name)}: {_LABEL_RULE}"
            elif name in seen:
                yield path, f"Duplicate value: {shown(name)}"
            seen.add(name)


def _is_label(name: str) -> bool:
    return len(name) <= _LABEL_LENGTH and _LABEL.fullmatch(name) is not None


def wrong_quantities(stated: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for path, text in stated:
        try:
            quantity.nano(text)
        except quantity.QuantityError as error:
            yield path, f"Invalid value: {error}"


def from_pydantic(error: pydantic.ValidationError) -> Iterator[tuple[str, str]]:
    """Return paths and reasons in the words of the API server."""
    for detail in error.errors(include_url=False):
        path = ""
        for step in detail["loc"]:
            path = documents.join(path, f"[{step}]" if isinstance(step, int) else str(step))
        given, context = detail["input"], detail.get("ctx", {})
        match detail["type"]:
            case "missing":
                reason = "Required value"
            case "extra_forbidden":
                reason = "unknown field"
            case "enum" | "literal_error":
                reason = _unsupported(given, re.findall(r"'([^']*)'", str(context["expected"])))
            case _:
                message = str(context["error"]) if "error" in context else detail["msg"]
                value = "" if isinstance(given, (dict, list)) else f"{shown(given)}: "
                reason = f"Invalid value: {value}{message}"
        yield path, reason


def _unsupported(value: Any, accepted: Iterable[str]) -> str:
    return f"Unsupported value: {shown(value)}: supported values: {', '.join(map(shown, accepted))}"


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:80]}..."
