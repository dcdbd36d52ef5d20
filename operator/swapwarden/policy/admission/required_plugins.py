"""Have the container runtime refuse a `Disabled` pod's containers while its plugin, which holds them at 0, is away.

The runtime's default validator reads the annotation, if an administrator has turned it on (containerd/nri:
plugins/default-validator/default-validator.go, pkg/plugin/annotations.go). Of the lists that apply to a container it
reads the most specific one only: that of the container, that of the pod, the plain one. So each list must have the
name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from swapwarden.api import names, runtime_link
from swapwarden.policy.admission import answers
from swapwarden.policy.observed.new_pods import NewPod

KEY: Final = runtime_link.REQUIRED_ANNOTATION
VALUE: Final = f'["{runtime_link.PLUGIN}"]'
PREFIX: Final = f'["{runtime_link.PLUGIN}", '
"""Stands for the bracket of a list that has others."""

# The same expressions are those of the policies that stand in for the webhook: RE2 and Python read them alike.
_BLANK: Final = r"[ \t\r\n]*"
LIST: Final = rf"{_BLANK}\[(?s:.*)\]{_BLANK}"
"""A list in brackets. YAML has another form, which is left as it is."""
EMPTY: Final = rf"{_BLANK}\[{_BLANK}\]{_BLANK}"
NAMED: Final = rf"""(?s:.*)[\[, \t\r\n]["']?{runtime_link.PLUGIN}["']?{_BLANK}[,\]](?s:.*)"""


def operations(pod: NewPod) -> Iterator[answers.Operation]:
    """Yield the patch for a new pod with annotations, for those that a policy keeps from all swap; nothing for others.

    Pods of DaemonSets in the node's network are left out: the plugin's own pod may need them to start.
    """
    annotations = pod.annotations
    if annotations.get(names.POLICY_ANNOTATION) != names.Policy.DISABLED:
        return
    if pod.is_of_daemon_set and pod.spec.host_network:
        return
    if KEY not in annotations:
        yield _add(KEY, VALUE)
    for key, value in annotations.items():
        if (key == KEY or key.startswith(f"{KEY}/")) and (extended := with_plugin(value)) != value:
            yield _add(key, extended)


def with_plugin(listed: str) -> str:
    """Return a list of required plugins with ours in it; one that is not in brackets unchanged."""
    if not re.fullmatch(LIST, listed) or re.fullmatch(NAMED, listed):
        return listed
    if re.fullmatch(EMPTY, listed):
        return VALUE
    return f"{PREFIX}{listed.partition('[')[2]}"


def _add(key: str, value: str) -> answers.Operation:
    return answers.Operation("add", answers.pointer("metadata", "annotations", key), value)
