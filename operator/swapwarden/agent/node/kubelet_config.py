"""Reads the parts of the kubelet's configuration that concern swap.

The agent exceeds its memory budget of 30 MB without a YAML parser. So a small reader takes the known
top-level entries of the configuration file (--config) and its drop-ins (--config-dir): scalars, and mappings or lists
of scalars, in block or flow style. It skips all other entries. JSON also works.

The kubelet's flags override its files, and are not visible here.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from swapwarden.agent.desired import resolve
from swapwarden.agent.host import files

KIND: Final = "KubeletConfiguration"

_SCALARS: Final = frozenset(
    {
        "kind",
        "cgroupDriver",
        "cgroupRoot",
        "containerRuntimeEndpoint",
        "failSwapOn",
        "memoryReservationPolicy",
        "memoryThrottlingFactor",
        "mergeDefaultEvictionSettings",
    }
)
_MAPPINGS: Final = frozenset({"evictionHard", "featureGates", "memorySwap"})
_LISTS: Final = frozenset({"enforceNodeAllocatable"})
_DROP_INS: Final = 64
_TEXT: Final = 128
"""Longest value that is kept, in characters."""

_KEY = re.compile(r"""(?P<quote>["']?)(?P<key>[A-Za-z][A-Za-z0-9.\-_/]*)(?P=quote)\s*:\s*(?P<value>.*)""")
_QUOTED = re.compile(r"""(["'])(.*)\1""")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?", re.ASCII)
_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | {
    f"{letter}i": 1 << (10 * power) for power, letter in enumerate("KMGTPE", 1)
}
_MEMORY: Final = "memory.available"
_DEFAULT_THRESHOLD: Final = "100Mi"
"""evictionHard's memory.available without an evictionHard (k/k: pkg/kubelet/eviction)."""

Values = dict[str, Any]
"""Values by top-level key: text, a mapping from text to text, or a list of text."""


class ConfigurationError(Exception):
    """A file is invalid or cannot be read; the message names it and says why."""


class Configuration(msgspec.Struct, frozen=True):
    """The kubelet's configuration, with its defaults."""

    source: str
    """The file, and how many drop-ins."""
    fail_swap_on: bool = True
    swap_behavior: str = "NoSwap"
    eviction_memory: str = _DEFAULT_THRESHOLD
    """evictionHard's memory.available as written, or empty."""
    enforce_node_allocatable: tuple[str, ...] = ("pods",)
    memory_qos: bool | None = None
    """The feature gate MemoryQoS; None: the default of the kubelet's version."""
    memory_reservation_policy: str = ""
    """memoryReservationPolicy as written, or empty."""
    memory_throttling_factor: str = ""
    """memoryThrottlingFactor as written, or empty: the default of the kubelet's version."""
    cgroup_driver: str = "cgroupfs"
    cgroup_root: str = "/"
    runtime_endpoint: str = ""

    @property
    def owns(self) -> frozenset[resolve.Owned]:
        """The files of memory that this kubelet sets by a policy of its own.

        Its version, which decides about a gate that is not set, is not known here. So a policy counts unless the gate
        is off. Version 1.36 also throttles with the gate on and no factor: the numbers in its files show that.
        """
        if self.memory_qos is False:
            return frozenset()
        owns = set()
        if self.memory_reservation_policy == "TieredReservation":
            owns.add(resolve.Owned.PROTECTION)
        if self.memory_throttling_factor:
            owns.add(resolve.Owned.THROTTLING)
        return frozenset(owns)

    def threshold(self, memory: int) -> int | None:
        """Return the bytes below which the kubelet evicts on a node with `memory` bytes; 0: never, None: invalid."""
        return _bytes(self.eviction_memory, memory) if self.eviction_memory else 0


class Files(msgspec.Struct, frozen=True):
    """Where the configuration is: a file, a folder of drop-ins (`*.conf`, in the order of their names), or both."""

    file: pathlib.Path | None = None
    drop_ins: pathlib.Path | None = None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self.file is not None or self.drop_ins is not None


def given(arguments: argparse.Namespace) -> Files:
    """Return where the flags say that the configuration is."""
    file, drop_ins = arguments.kubelet_config, arguments.kubelet_config_dir
    return Files(pathlib.Path(file) if file else None, pathlib.Path(drop_ins) if drop_ins else None)


def read(sources: Files) -> Configuration:
    """Read the files. ConfigurationError if any of them is invalid: then nothing is known."""
    file, drop_ins = sources.file, sources.drop_ins
    values: Values = {}
    if file is not None:
        values = _read(file)
    more = files.names(drop_ins, "*.conf") if drop_ins is not None else []
    if len(more) > _DROP_INS:
        raise ConfigurationError(f"{drop_ins} has {len(more)} files: more than {_DROP_INS} are not read")
    if file is None and not more:
        raise ConfigurationError(f"{drop_ins} has no files *.conf")
    for name in more:
        if drop_ins is not None:
            values = _merged(values, _read(drop_ins / name))
    source = str(file or drop_ins)
    return _configuration(values, f"{source} and {len(more)} more" if file is not None and more else source)


def parse(text: str) -> Values:
    """Return the known entries of a configuration in YAML or JSON. ValueError if it is not one."""
    values = _from_json(text) if text.startswith("{") else dict(_from_yaml(text))
    if values.get("kind") != KIND:
        raise ValueError(f"it has no kind: {KIND}")
    return values


def _read(file: pathlib.Path) -> Values:
    text = files.text(file)
    if text is None:
        raise ConfigurationError(f"{file} cannot be read")
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{file}: {error}") from None


def _merged(values: Values, more: Values) -> Values:
    """Merge as the kubelet merges drop-ins: mappings are merged, all else is replaced (JSON merge patch)."""
    mappings = {key: {**values.get(key, {}), **value} for key, value in more.items() if isinstance(value, dict)}
    return {**values, **more, **mappings}


# Meaning of the entries


def _configuration(values: Values, source: str) -> Configuration:
    default = Configuration(source)
    gates = values.get("featureGates", {})
    allocatable = values.get("enforceNodeAllocatable")
    return Configuration(
        source=source,
        fail_swap_on=_flag(values.get("failSwapOn"), default.fail_swap_on),
        swap_behavior=(values.get("memorySwap", {}).get("swapBehavior") or default.swap_behavior)[:_TEXT],
        eviction_memory=_eviction(values),
        enforce_node_allocatable=(
            default.enforce_node_allocatable if allocatable is None else tuple(each[:_TEXT] for each in allocatable[:8])
        ),
        memory_qos=_flag(gates["MemoryQoS"], default=False) if gates.get("MemoryQoS") else None,
        memory_reservation_policy=_scalar_of(values, "memoryReservationPolicy"),
        memory_throttling_factor=_scalar_of(values, "memoryThrottlingFactor"),
        cgroup_driver=(values.get("cgroupDriver") or default.cgroup_driver)[:_TEXT],
        cgroup_root=(values.get("cgroupRoot") or default.cgroup_root)[:_TEXT],
        runtime_endpoint=values.get("containerRuntimeEndpoint", "")[:_TEXT],
    )


def _scalar_of(values: Values, key: str) -> str:
    text = str(values.get(key) or "")[:_TEXT]
    return "" if text == "null" else text


def _eviction(values: Values) -> str:
    """Thresholds that evictionHard leaves out do not exist, unless the kubelet is configured to merge its defaults."""
    hard = values.get("evictionHard")
    if hard and _MEMORY in hard:
        return str(hard[_MEMORY])[:_TEXT]
    merges = _flag(values.get("mergeDefaultEvictionSettings"), default=False)
    return _DEFAULT_THRESHOLD if not hard or merges else ""


def _flag(text: str | None, default: bool) -> bool:  # noqa: FBT001 the value itself is what is chosen
    if not text or text == "null":
        return default
    return text.lower() in {"true", "yes", "on"}


def _bytes(text: str, whole: int) -> int | None:
    """Parse a quantity, or a percentage of `whole`."""
    if match := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text, re.ASCII):
        return int(whole * float(match[1]) / 100)
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, unit = float(match[1]), match[2] or ""
    return math.ceil(number / 1000) if unit == "m" else int(number * _UNITS[unit])


# JSON


def _from_json(text: str) -> Values:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {str(error)[:_TEXT]}") from None
    values: Values = {}
    for key, value in document.items():
        if key in _SCALARS and isinstance(value, str | bool | int | float):
            values[key] = _word(value)
        elif key in _MAPPINGS and isinstance(value, dict):
            values[key] = {str(name): _word(each) for name, each in value.items()}
        elif key in _LISTS and isinstance(value, list):
            values[key] = [_word(each) for each in value]
    return values


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


# YAML


def _from_yaml(text: str) -> Iterator[tuple[str, Any]]:
    for key, value, block in _entries(text.splitlines()):
        if key in _SCALARS:
            yield key, _scalar(value)
        elif key in _MAPPINGS:
            yield key, _mapping(" ".join((value, *block)) if value else block)
        elif key in _LISTS:
            yield key, _list(" ".join((value, *block)) if value else block)


def _entries(lines: Iterable[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the entries of the outermost mapping: key, text after the colon, and the lines of its block."""
    key, value, block = "", "", list[str]()
    for raw in lines:
        line = _uncommented(raw)
        if not line.strip() or line in {"---", "..."}:
            continue
        match = _KEY.fullmatch(line)
        if match is None:
            # A list may have the same indentation as its key.
            block.append(line.strip())
            continue
        if key:
            yield key, value, block
        key, value, block = match["key"], match["value"].strip(), []
    if key:
        yield key, value, block


def _uncommented(line: str) -> str:
    quote = before = ""
    for place, char in enumerate(line):
        doubled = char == before == line[place - 1]  # a quote within quotes
        if quote:
            before, quote = quote, "" if char == quote else quote
        elif doubled or (char in "\"'" and (place == 0 or line[place - 1] in " {[,:")):
            quote = char
        elif char == "#" and (place == 0 or line[place - 1] in " \t"):
            return line[:place].rstrip()
    return line.rstrip()


def _scalar(text: str) -> str:
    match = _QUOTED.fullmatch(text)
    if match:
        return match[2].replace("''", "'") if match[1] == "'" else match[2]
    return "" if text in {"null", "~"} else text


def _mapping(source: str | list[str]) -> Mapping[str, str]:
    """Parse a flow mapping, or the lines of a block of scalars; deeper levels are skipped."""
    mapping = {}
    for item in _flow(source, "{}") if isinstance(source, str) else source:
        match = _KEY.fullmatch(item)
        if match:
            mapping[match["key"]] = _scalar(match["value"].strip())
    return mapping


def _list(source: str | list[str]) -> list[str]:
    if isinstance(source, str):
        return [_scalar(item) for item in _flow(source, "[]")]
    return [_scalar(line.removeprefix("-").strip()) for line in source if line.startswith("-")]


def _flow(text: str, brackets: str) -> list[str]:
    """Return the items between brackets, which contain no commas. ValueError without such brackets."""
    if text in {"null", "~"}:
        return []
    if text[0] != brackets[0] or text[-1] != brackets[1]:
        raise ValueError(f"{text[:_TEXT]!r} is not understood")
    return [item.strip() for item in text[1:-1].split(",") if item.strip()]
