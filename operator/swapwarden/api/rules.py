"""Rules about several fields at once, each written once for the API server (CEL) and once for the models.

tests/contract has the cases on which both must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import pydantic
from pydantic import alias_generators


class Rule(NamedTuple):
    """A condition on an object, whose fields are valid by themselves."""

    cel: str
    holds: Callable[[Any], bool]
    """Return whether the decoded object meets the condition: the same as `cel`, for Python."""
    message: str
    field: str = ""
    """The fieldPath that the API server names, relative to the object."""


def field_name(name: str) -> str:
    """Return the name in YAML of a field."""
    return alias_generators.to_camel(name).replace("Qos", "QoS")


def _extend(schema: dict[str, Any], model: type[Any]) -> None:
    if model.ATOMIC:
        schema["x-kubernetes-map-type"] = "atomic"
    if model.RULES:
        schema["x-kubernetes-validations"] = [
            {"rule": rule.cel, "message": rule.message, **({"fieldPath": rule.field} if rule.field else {})}
            for rule in model.RULES
        ]


class Model(pydantic.BaseModel):
    """Base of all parts of a profile: camelCase in YAML, unknown fields refused, immutable, RULES checked."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
    ATOMIC: ClassVar[bool] = False
    """Whether server-side apply replaces it as a whole (x-kubernetes-map-type)."""

    model_config = pydantic.ConfigDict(
        alias_generator=field_name,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        json_schema_extra=_extend,
    )

    @pydantic.model_validator(mode="after")
    def _keeps_the_rules(self) -> Self:
        for rule in self.RULES:
            if not rule.holds(self):
                raise ValueError(rule.message)
        return self
