"""The CustomResourceDefinitions in crds/ and the API reference, from the models.

By hand: no library takes models of pydantic and of msgspec.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml
from pydantic import alias_generators
from swapwarden.api import names, profile, rules, state, values
from swapwarden.api.conditions import ConditionType

from hack.generate import files
from testbed.base import paths

Schema = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Repeat repeated content: people read the file, and anchors are hard to follow."""

    def ignore_aliases(self, _: object) -> bool:
        return True


_DROPPED = ("title", "$defs", "additionalProperties")
"""Keys of JSON Schema that structural schemas either refuse or imply."""


def structural(schema: Schema, definitions: dict[str, Schema] | None = None, *, defaults: bool = True) -> Schema:
    """Turn JSON Schema as pydantic and msgspec write it into a structural schema, as CRDs require.

    References are resolved, `X | null` becomes X (an absent field means the same), titles are removed, and `default`
    stays only if `defaults` is true and the default means something (not null, not an empty list or map).
    """
    definitions = definitions if definitions is not None else schema.get("$defs", {})
    if "$ref" in schema:
        target = structural(definitions[schema["$ref"].rpartition("/")[2]], definitions, defaults=defaults)
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return {**target, **structural(own, definitions, defaults=defaults)}
    if "anyOf" in schema:
        (variant,) = (option for option in schema["anyOf"] if option.get("type") != "null")
        own = {key: value for key, value in schema.items() if key != "anyOf"}
        return {
            **structural(variant, definitions, defaults=defaults),
            **structural(own, definitions, defaults=defaults),
        }
    result: Schema = {key: value for key, value in schema.items() if key not in _DROPPED}
    if "properties" in result:
        result["properties"] = {
            name: structural(child, definitions, defaults=defaults) for name, child in result["properties"].items()
        }
    if result.get("type") == "integer":
        result.setdefault("format", "int32" if result.get("maximum", 2**63) < 2**31 else "int64")
    if "items" in result:
        result.setdefault("x-kubernetes-list-type", "atomic")
        result["items"] = structural(result["items"], definitions, defaults=defaults)
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        result["additionalProperties"] = structural(values, definitions, defaults=defaults)
    if not defaults or not result.get("default"):
        result.pop("default", None)
    if not result.get("required"):
        result.pop("required", None)
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "enum" in result:
        result["type"] = "string"
    return result


def described(schema: Schema, *modules: Any) -> Schema:
    """Describe fields in a JSON schema by the docstrings below them in the classes of MODULES."""
    classes = {name: each for module in modules for name, each in vars(module).items() if inspect.isclass(each)}
    for name, definition in {**schema["$defs"], schema.get("title", ""): schema}.items():
        properties = definition.get("properties", {})
        for base in reversed(classes[name].__mro__ if properties else ()):
            for field, text in _docstrings(base).items():
                if field in properties:
                    properties[field] = {"description": text, **properties[field]}
    return schema


def _docstrings(found: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class, each in one line."""
    if not found.__module__.startswith("swapwarden.api."):
        return {}
    (tree,) = ast.parse(inspect.getsource(found)).body
    in_yaml = rules.field_name if issubclass(found, rules.Model) else alias_generators.to_camel
    fields = dict(zip(tree.body, tree.body[1:], strict=False)) if isinstance(tree, ast.ClassDef) else {}
    return {
        in_yaml(field.target.id): " ".join(ast.literal_eval(below.value).split())
        for field, below in fields.items()
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr)
    }


def _definition(
    *, kind: str, plural: str, short: str, description: str, properties: Schema, columns: list[Schema]
) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Cluster",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["swapwarden"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": description,
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                **properties,
                            },
                        }
                    },
                }
            ],
        },
    }


def _column(name: str, path: str, description: str, *, kind: str = "string", wide: bool = False) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": 1} if wide else column


def _condition(name: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{name}")].{field}'


def profile_crd() -> Schema:
    """The CustomResourceDefinition of NodeSwapProfile."""
    schema = structural(
        described(
            profile.NodeSwapProfile.model_json_schema(mode="validation"),
            profile,
            profile.spec,
            profile.memory,
            profile.pressure,
            profile.status,
            values,
        )
    )
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    # The API server fills in nested defaults only where the parent exists.
    for child in spec["properties"].values():
        default = child.get("default")
        if isinstance(default, dict):
            child["default"] = {}
            if not any(default.values()):
                del child["default"]
    status.pop("default", None)
    for child in status["properties"].values():
        child.pop("default", None)
    return _definition(
        kind=names.PROFILE_KIND,
        plural=names.PROFILE_PLURAL,
        short="nsp",
        description="The swap policy of a set of nodes. If it is deleted, its nodes leave it in waves.",
        properties={"spec": spec, "status": status},
        columns=[
            _column("Behavior", ".spec.swap.behavior", "How pods get swap."),
            _column("Mode", ".spec.mode", "Enforce or Audit."),
            _column("Priority", ".spec.priority", "The highest wins.", kind="integer"),
            _column("Nodes", ".status.nodes.matched", "Nodes governed.", kind="integer"),
            _column("Applied", ".status.nodes.applied", "Nodes that applied the plan.", kind="integer"),
            _column("Degraded", ".status.nodes.degraded", "Nodes with a problem.", kind="integer"),
            _column("Ready", _condition(ConditionType.READY), "Whether all governed nodes applied the plan."),
            _column("Reason", _condition(ConditionType.READY, "reason"), "Why they did not all.", wide=True),
            _column("Pending", ".status.nodes.pending", "Nodes that have yet to apply.", kind="integer", wide=True),
            _column("No-Agent", ".status.nodes.withoutAgent", "Nodes without an agent.", kind="integer", wide=True),
            _column(
                "Incompatible", ".status.nodes.incompatible", "Nodes that can't limit swap.", kind="integer", wide=True
            ),
            _column("Reserved", ".spec.swap.reserved", "Swap kept back from pods.", wide=True),
            _column(
                "Conflicted", _condition(ConditionType.CONFLICTED), "Whether another profile ties with it.", wide=True
            ),
            _column("Age", ".metadata.creationTimestamp", "Time since creation.", kind="date"),
        ],
    )


def state_crd() -> Schema:
    """The CustomResourceDefinition of NodeSwapState."""
    schema = structural(
        described(msgspec.json.schema(state.NodeSwapState), state, state.spec, state.status), defaults=False
    )
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    return _definition(
        kind=names.STATE_KIND,
        plural=names.STATE_PLURAL,
        short="nss",
        description="The controller's plan of one node's swap, and the agent's report. Do not edit.",
        properties={"spec": spec, "status": status},
        columns=[
            _column("Profile", ".spec.profileRef.name", "The profile in force."),
            _column("Mode", ".spec.mode", "Absent means Enforce."),
            _column("Swap", ".status.facts.swapBytes", "Total swap in bytes.", kind="integer"),
            _column("Ready", _condition(ConditionType.READY), "Whether the node is as its profile says."),
            _column("Applied", _condition(ConditionType.APPLIED), "Whether the kernel holds what the spec says."),
            _column("Degraded", _condition(ConditionType.DEGRADED), "Whether the agent has a problem."),
            _column(
                "Drifted", _condition(ConditionType.DRIFTED), "Whether others changed the values lately.", wide=True
            ),
            _column("Epoch", ".spec.epoch", "Leadership term of the last writer.", kind="integer", wide=True),
            _column("Age", ".metadata.creationTimestamp", "Time since creation.", kind="date"),
        ],
    )


def _type_of(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "additionalProperties" in schema:
        return f"map of {_type_of(schema['additionalProperties'])}"
    if schema.get("type") == "array":
        return f"list of {_type_of(schema['items'])}"
    return " \\| ".join(f"`{value}`" for value in schema["enum"]) if "enum" in schema else str(schema["type"])


def _rows(schema: Schema, path: str) -> Iterator[str]:
    required = schema.get("required", [])
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        default = f"`{child['default']}`" if child.get("default") not in (None, {}) else ""
        text = " ".join(str(child.get("description", "")).split())
        yield f"| `{here}` | {_type_of(child)} | {'yes' if name in required else ''} | {default} | {text} |"
        inner = child
        if "additionalProperties" in child:
            inner, here = child["additionalProperties"], f"{here}.<key>"
        elif child.get("type") == "array":
            inner, here = child["items"], f"{here}[]"
        yield from _rows(inner, here)


def _rules(schema: Schema, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        yield f"- `{path}`: {rule['message']}"
    for name, child in schema.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}")
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from _rules(schema["additionalProperties"], f"{path}.<key>")


def reference(definitions: list[Schema]) -> str:
    """The API reference in Markdown: one table for each kind, one row for each field."""
    lines = [
        "# API reference",
        "",
        "Generated from the models in `operator/swapwarden/api` by `make generate`; do not edit.",
        "",
    ]
    for definition in definitions:
        kind = definition["spec"]["names"]
        (version,) = definition["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        lines += [
            f"## {kind['kind']} ({names.GROUP}/{version['name']})",
            "",
            f"{schema['description']} Cluster-scoped; short name `{kind['shortNames'][0]}`.",
            "",
            "| field | type | required | default | meaning |",
            "|---|---|---|---|---|",
        ]
        parts = {part: schema["properties"][part] for part in ("spec", "status")}
        lines += list(_rows({"properties": parts, "required": schema.get("required", [])}, ""))
        rules = list(_rules(schema, ""))
        if rules:
            lines += ["", "Checked by the API server:", "", *rules]
        lines.append("")
    return "\n".join(lines)


def definitions() -> dict[str, str]:
    """Both CRDs as text, by the name of their files."""
    head = "# Generated from operator/swapwarden/api by `make generate`; do not edit.\n"
    return {
        f"{definition['metadata']['name']}.yaml": head
        + yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=120)
        for definition in (profile_crd(), state_crd())
    }


def generated() -> files.Made:
    """CRDs and API reference."""
    crds = {paths.CRDS / name: text for name, text in definitions().items()}
    return {**crds, paths.DOCS / "api-reference.md": reference([profile_crd(), state_crd()])}
