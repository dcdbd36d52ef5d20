"""Which wordings `hack.english` finds, and where."""

from pathlib import Path

import pytest

from hack import english

FOLDER = Path(__file__).parent
MODULE = (FOLDER / "weak_module.txt").read_text(encoding="utf-8")
WEAK = dict(line.split(": ", 1) for line in (FOLDER / "weak_wordings.txt").read_text(encoding="utf-8").splitlines())
"""A wording for each pattern. The texts are no Python, or the tool would count them here."""


def test_prose_is_judged_by_line_and_nothing_else() -> None:
    assert sorted((line, name) for line, name, _ in english.weak(MODULE)) == [
        (1, "what"),
        (4, "tell"),
        (6, "tell"),
        (9, "goes"),
        (11, "goes"),
        (11, "is-to"),
    ]


@pytest.mark.parametrize("name", english.PATTERNS)
def test_each_pattern_finds_its_wording_and_leaves_plain_text(name: str) -> None:
    plain = "Report what the kernel holds. It holds too much: also the node's limit. What does a pod get? Who knows?"
    assert [found for _, found, _ in english.weak(f'"""{WEAK[name]}"""') if found == name] == [name]
    assert not list(english.weak(f'"""{plain}"""'))


def test_markdown_is_judged_outside_of_code_blocks() -> None:
    page = f"# Title\n\n```text\n{WEAK['tell']}\n```\n\n{WEAK['tell']}\n"
    assert [(line, name) for line, name, _ in english.weak_in_text(page, ".md")] == [(7, "tell")]


@pytest.mark.parametrize("comment", ["# {}", "a: 1  # {}", "{{{{- /* {} */}}}}", "{{{{/*\n{}\n*/}}}}"])
def test_comments_of_yaml_and_templates_are_judged_and_values_are_not(comment: str) -> None:
    text = f"name: {WEAK['tell']}\n{comment.format(WEAK['tell'])}\n"
    found = [(line, name) for line, name, _ in english.weak_in_text(text, ".yaml")]
    assert found == [(3 if "\n" in comment else 2, "tell")]
