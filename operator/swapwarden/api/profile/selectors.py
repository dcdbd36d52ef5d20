"""Label selectors, in the form of metav1.LabelSelector."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from swapwarden.api import rules
from swapwarden.api.values import LabelKey, ListedLabelValue, MatchLabels


class LabelSelectorRequirement(rules.Model):
    """One expression of a label selector."""

    RULES = (
        rules.Rule(
            "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
            " : !has(self.values) || size(self.values) == 0",
            lambda model: (model.operator in {"In", "NotIn"}) == bool(model.values),
            "In and NotIn need values; Exists and DoesNotExist take none",
        ),
    )

    key: LabelKey
    """Label key that the expression is about."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label is compared with values."""
    values: Annotated[list[ListedLabelValue], pydantic.Field(max_length=64)] = pydantic.Field(default=[])
    """Values for In and NotIn; empty with Exists and DoesNotExist."""


class LabelSelector(rules.Model):
    """A label selector, as metav1.LabelSelector: all parts must match; an empty one matches everything."""

    ATOMIC = True

    match_labels: MatchLabels = pydantic.Field(default={})
    """Labels that must be there, with exactly these values."""
    match_expressions: Annotated[list[LabelSelectorRequirement], pydantic.Field(max_length=32)] = pydantic.Field(
        default=[]
    )
    """Expressions over labels, all of which must hold."""
