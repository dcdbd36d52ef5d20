"""The CEL of the admission policies, written by hand in the chart, against the tables of the webhook.

That both answer alike is tested on a real API server (tests/integration/webhook/test_modes.py, test_policies.py); this
finds a slip of the pen at once.
"""

from __future__ import annotations

import re

import pytest
from swapwarden.api import names
from swapwarden.policy.admission import pod_annotations

from testbed.base import paths

TEMPLATES = paths.CHART / "templates" / "admission"
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.iterdir()))
MESSAGES = re.sub(r"'\s*\+ '", "", TEXT).replace(r"\'", "'")
"""With texts over several lines put together."""


def test_each_key_in_a_policy_is_one_of_ours() -> None:
    known = {value for value in vars(names).values() if isinstance(value, str)} | {pod_annotations.DOMAIN}
    found = {key.replace("~1", "/") for key in re.findall(r"(?<!\w)[a-z][a-z.-]*swapwarden\.dev(?:/|~1)[a-z-]*", TEXT)}
    found |= set(re.findall(r"(?<![\w.-])swapwarden\.dev/[a-z-]*", TEXT))
    assert {names.POLICY_ANNOTATION, names.CONTAINER_LIMIT_PREFIX, names.SWAP_LABEL} <= found
    assert found - known == set()


def test_each_policy_that_is_compared_exists() -> None:
    compared = re.findall(r"variables\.policy (?:==|!=) '(\w*)'", TEXT)
    listed = re.findall(r"variables\.policy in \[([^]]*)\]", TEXT)
    found = {*compared, *(policy for each in listed for policy in re.findall(r"\w+", each))}
    assert found == set(names.Policy) - {names.Policy.NO_PREFERENCE}


@pytest.mark.parametrize(
    "message",
    [
        pod_annotations.DISABLED_HAS_NONE,
        pod_annotations.MORE_THAN_POD,
        pod_annotations.NO_CONTAINER,
        pod_annotations.OF_DAEMON_SET,
        pod_annotations.SELECTS_ANOTHER,
        pod_annotations.NO_SUCH_KEY,
        pod_annotations.AS_LABEL,
        pod_annotations.NOT_PLACED,
        pod_annotations.NODE_CHOSEN,
        pod_annotations.DAEMON_SET_CHOOSES,
        pod_annotations.OVERRULED,
    ],
)
def test_the_policies_give_the_reasons_of_the_webhook(message: str) -> None:
    assert message in MESSAGES
