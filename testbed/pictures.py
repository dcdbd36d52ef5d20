"""python -m testbed.pictures: the pictures of the documentation, made anew from what the commands print.

They are of a made-up pod on a made-up node: what they show is what `kubectl swap explain` prints of such objects.
"""

import datetime
import io
import sys
from pathlib import Path

import msgspec
import rich.console
import rich.terminal_theme
from swapwarden.api import names, state
from swapwarden.cli.kubectl import explanation, screen, workloads
from swapwarden.policy import nodes, plan, pods, profiles

FOLDER = Path(__file__).resolve().parents[1] / "docs/images"
EXPLAIN = "explain.svg"
COMMAND = "kubectl swap explain report-6d5f8b7c9-x2x4q -n batch"
_COLUMNS = 110
_GI = 1 << 30
_NOW = datetime.datetime(2026, 1, 1, 2, tzinfo=datetime.UTC)

_POD = {
    "metadata": {
        "name": "report-6d5f8b7c9-x2x4q",
        "namespace": "batch",
        "uid": "1",
        "labels": {"pod-template-hash": "6d5f8b7c9"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "report-6d5f8b7c9", "controller": True}
        ],
    },
    "spec": {
        "nodeName": "batch-1",
        "containers": [
            {"name": "app", "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}},
            {"name": "proxy", "resources": {"requests": {"memory": "64Mi"}, "limits": {"memory": "64Mi"}}},
        ],
    },
    "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
}

# rich's own frame, without its window and its fonts, which would be fetched from elsewhere.
_FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
<rect fill="#292929" x="1" y="1" width="{width}" height="{height}" rx="8"/>
<g transform="translate({terminal_x}, 20)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def explain() -> str:
    """An SVG of what `kubectl swap explain` says of a pod that has a share of its node's swap."""
    console = rich.console.Console(
        file=io.StringIO(),
        record=True,
        width=_COLUMNS,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(f"$ {COMMAND}")
    screen.draw(console, explanation.explain(_seen()), _NOW, screen.UNICODE)
    return console.export_svg(theme=rich.terminal_theme.SVG_EXPORT_THEME, code_format=_FRAME, unique_id="explain")


def _seen() -> explanation.Seen:
    """A node with half as much swap as memory, a profile for it, and an agent on which all is well."""
    pod = msgspec.convert(_POD, workloads.Pod)
    node = nodes.NodeRow("batch-1", "2", {"pool": "batch"}, 4 * _GI, 8 * _GI)
    selector = (profiles.Requirement("pool", "In", frozenset({"batch"})),)
    batch = profiles.Profile(
        "batch-nodes",
        selector=selector,
        generation=3,
        priority=200,
        behavior=names.Behavior.LIMITED_SWAP,
        system_reserved="25%",
    )
    everywhere = profiles.Profile("all-nodes", priority=100)
    disk = state.SwapDevice("/dev/dm-1", "partition", 4 * _GI, backing="nvme", encrypted=True)
    facts = state.Facts(2, True, 4 * _GI, 8 * _GI, devices=[disk])  # noqa: FBT003 a field of the struct
    spec = plan.plan_node(batch, nodes.facts(node, facts), [pods.project(pod)])
    applied = state.Condition("Applied", "True", "AsSpecified", last_transition_time="2026-01-01T00:10:00Z")
    status = state.StateStatus(observed_generation=1, profile=spec.profile, facts=facts, conditions=[applied])
    return explanation.Seen(
        pod,
        node=node,
        profiles={one.name: one for one in (batch, everywhere)},
        state=state.NodeSwapState(state.ObjectMeta(name="batch-1", generation=1), spec, status),
        others=(),
        has_agent=True,
        used=explanation.Usage(12 << 20, {"app": 12 << 20}),
    )


def main() -> int:
    """Write the pictures to docs/images."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / EXPLAIN).write_text(explain(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
