"""The controller's page names what there is."""

from __future__ import annotations

import argparse
from pathlib import Path

from swapwarden.controller import main
from swapwarden.telemetry import metrics

PAGE = (Path(__file__).parents[3] / "docs/controller.md").read_text()
ELSEWHERE = ("swapwarden_agent_", "swapwarden_webhook_")
"""Metrics of other parts, which other tests may have imported into this process."""


def test_all_flags_are_named() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    main.add_arguments(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings]
    assert [flag for flag in flags if f"`{flag}`" not in PAGE] == []


def test_all_metrics_are_named() -> None:
    own = [metric.name for metric in metrics.REGISTRY if not metric.name.startswith(ELSEWHERE)]
    assert [name for name in own if f"`{name}`" not in PAGE] == []
