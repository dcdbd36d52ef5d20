"""Files of the chart that are made from others: CRDs, the schema of its profiles, CEL of its policies, its README.

README and schema are committed: pages link to the one, and most of the other is written by hand.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml
from swapwarden.api import names, quantity, throttling
from swapwarden.policy.admission import pod_annotations, required_plugins

from hack.generate import crd, files
from monitoring import alerts
from testbed.base import paths

_PROFILE_CRD = "nodeswapprofiles.swapwarden.dev.yaml"
_DROPPED = ("default", "format")

_HEAD = """\
<!-- Made from values.yaml by `make generate`; do not edit. -->
# Swapwarden's Helm chart

    make chart
    helm install swapwarden {path} --namespace swapwarden-system --create-namespace --set image.repository=IMAGE

Kubernetes {kubernetes}, nodes with cgroup v2. In the repository, docs/install.md says what happens at installation,
upgrade and removal; docs/security.md, what each part may do.

## Values

`values.schema.json` checks them: an unknown or wrong value is refused, and named.

| key | default | |
|---|---|---|
"""

_MATCHES = re.compile(r"(self|key)\.matches\(r?'([^']*)'\)")
Json = Any


class ChartError(Exception):
    """The generator does not understand a file of the chart; the text names the place."""


def entries(text: str) -> Iterator[tuple[str, Json, str]]:
    """Yield each value of a values.yaml: its path (`agent.resources`), its default, and the comment above it.

    A mapping whose keys have comments is descended into, one without them is a value. ChartError for a value without a
    comment.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise ChartError("values.yaml is no mapping")
    yield from _entries(root, text.splitlines(), ())


def _entries(mapping: yaml.MappingNode, lines: list[str], above: tuple[str, ...]) -> Iterator[tuple[str, Json, str]]:
    for key, value in mapping.value:
        path = (*above, str(key.value))
        comment = _comment(lines, key.start_mark.line)
        inner = (
            isinstance(value, yaml.MappingNode)
            and not value.flow_style
            and any(_comment(lines, child.start_mark.line) for child, _ in value.value)
        )
        if inner:
            yield from _entries(value, lines, path)
            continue
        if not comment:
            raise ChartError(f"values.yaml, line {key.start_mark.line + 1}: {'.'.join(path)} has no comment above it")
        loaded = yaml.safe_load(yaml.serialize(value))
        yield ".".join(path), loaded, comment


def _comment(lines: list[str], line: int) -> str:
    found = []
    while line and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        found.append(lines[line].strip().removeprefix("#").strip())
    return " ".join(reversed(found))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def readme(text: str, chart: Json) -> str:
    """Return the chart's README, from its values.yaml and its Chart.yaml."""
    kubernetes = f"{chart['kubeVersion'].removeprefix('>=').removesuffix('.0-0')} or newer"
    head = _HEAD.format(path=paths.CHART.relative_to(paths.ROOT), kubernetes=kubernetes)
    rows = [f"| `{path}` | `{json.dumps(default)}` | {_cell(comment)} |\n" for path, default, comment in entries(text)]
    return head + "".join(rows)


def json_schema(structural: Json) -> Json:
    """Return a JSON schema from a CRD's structural schema, which refuses unknown fields, for Helm to check values by.

    Rules in CEL are left to the API server, except for the patterns in them.
    """
    schema = {key: value for key, value in structural.items() if key not in _DROPPED and not key.startswith("x-")}
    if structural.get("x-kubernetes-int-or-string"):
        schema |= {"type": ["string", "integer"], "minimum": 0}
    if structural.get("x-kubernetes-list-type") == "set":
        schema["uniqueItems"] = True
    for rule in structural.get("x-kubernetes-validations", ()):
        if found := _MATCHES.search(rule["rule"]):
            schema |= {"pattern": found[2]} if found[1] == "self" else {"propertyNames": {"pattern": found[2]}}
    if "properties" in schema:
        schema["properties"] = {key: json_schema(value) for key, value in schema["properties"].items()}
        schema["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = json_schema(schema[key])
    return schema


def values_schema(text: str, crd: Json) -> str:
    """Return values.schema.json with new definitions of a profile, from the CRD of profiles, and of an alert."""
    schema = json.loads(text)
    (version,) = crd["spec"]["versions"]
    schema["definitions"]["profile"] = json_schema(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    schema["definitions"]["alert"] = {"enum": [alert.name for alert in alerts.ALERTS]}
    return json.dumps(schema, indent=2) + "\n"


def _cel(*values: str) -> str:
    """Texts as CEL writes them, with commas between."""
    return ", ".join("'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'" for value in values)


def vocabulary_templates() -> str:
    """Return the code's lists that the chart's templates need, as named templates: for Helm and in CEL."""
    whole = [rule for rule in pod_annotations.RULES if not rule.per_container]
    defined = {
        "swapwarden.policies": json.dumps(sorted(names.Policy)),
        "swapwarden.quantityLength": str(quantity.MAX_LENGTH),
        "swapwarden.cel.policies": f"[{_cel(*sorted(names.Policy))}]",
        "swapwarden.cel.ownKeys": f"[{_cel(*(rule.key for rule in whole))}]",
        "swapwarden.cel.sentKeys": f"[{_cel(*(rule.key for rule in whole if not rule.about_memory))}]",
        "swapwarden.cel.memoryKeys": f"[{_cel(*(rule.key for rule in whole if rule.about_memory))}]",
        "swapwarden.cel.otherKeys": f"[{_cel(*(rule.key for rule in whole if not rule.is_amount))}]",
        "swapwarden.cel.reservations": f"[{_cel(*pod_annotations.RESERVATIONS)}]",
        "swapwarden.cel.reclaimModes": f"[{_cel(*pod_annotations.RECLAIM_MODES)}]",
        "swapwarden.cel.reclaiming": f"[{_cel(*pod_annotations.RECLAIMING)}]",
        "swapwarden.cel.throttlingPattern": _cel(f"^({throttling.SYNTAX})$"),
        "swapwarden.cel.quantityPattern": _cel(f"^({quantity.SYNTAX})$"),
        "swapwarden.cel.nodeLabels": f"[{_cel(*names.NODE_LABELS)}]",
        "swapwarden.cel.requiredKey": _cel(required_plugins.KEY),
        "swapwarden.cel.requiredValue": _cel(required_plugins.VALUE),
        "swapwarden.cel.requiredPrefix": _cel(required_plugins.PREFIX),
        "swapwarden.cel.requiredList": _cel(f"^({required_plugins.LIST})$"),
        "swapwarden.cel.requiredEmpty": _cel(f"^({required_plugins.EMPTY})$"),
        "swapwarden.cel.requiredNamed": _cel(f"^({required_plugins.NAMED})$"),
        "swapwarden.cel.publicLabels": f"[{_cel(*names.PUBLIC_LABELS)}]",
    }
    parts = ["{{/* Made by `make chart`; do not edit. */}}\n"]
    parts += [f'{{{{- define "{name}" -}}}}\n{content}\n{{{{- end -}}}}\n' for name, content in defined.items()]
    return "".join(parts)


def generated() -> files.Made:
    """Return the generated files of the chart that are committed."""
    chart = yaml.safe_load((paths.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    schema = (paths.CHART / "values.schema.json").read_text(encoding="utf-8")
    return {
        paths.CHART / "README.md": readme((paths.CHART / "values.yaml").read_text(encoding="utf-8"), chart),
        paths.CHART / "values.schema.json": values_schema(schema, yaml.safe_load(crd.definitions()[_PROFILE_CRD])),
    }


def uncommitted() -> files.Made:
    """Return the generated files of the chart that are not committed."""
    folder = paths.CHART / "files" / "crds"
    return {
        paths.CHART / "templates" / "_vocabulary.tpl": vocabulary_templates(),
        **{folder / each.name: each.read_text(encoding="utf-8") for each in paths.CRDS.glob("*.yaml")},
    }
