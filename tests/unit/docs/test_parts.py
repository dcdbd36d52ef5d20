"""The page of each part names all its flags."""

from __future__ import annotations

import argparse
import pathlib
import re

import pytest
from swapwarden.agent import main as agent
from swapwarden.controller import main as controller
from swapwarden.webhook import main as webhook

DOCS = pathlib.Path(__file__).parents[3] / "docs"
PARTS = {"agent": agent, "controller": controller, "webhook": webhook}
PAGES = {"agent": "agent.md", "controller": "controller.md", "webhook": "admission.md"}


@pytest.mark.parametrize("part", PARTS)
def test_all_flags_are_named(part: str) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    PARTS[part].add_arguments(parser)
    page = (DOCS / PAGES[part]).read_text()
    flags = re.findall(r"(?:^  |, )(--?[a-z][a-z-]*)", parser.format_help(), re.MULTILINE)
    assert flags
    assert [flag for flag in flags if f"`{flag}`" not in page] == []
