"""Which wordings `hack.english` finds, and where."""

import pytest

from hack import english

MODULE = '''"""What a lamp does."""

LIMIT = 3
"""It is told by the shop."""

def test_a_user_is_told():
    """Return a lamp.

    It goes out at night.
    """
    raise ValueError(f"the lamp {LIMIT} is to be lit")  # others went on
    print("is told", "a \\\\b pattern is told apart")  # noqa: T201 it is told
'''


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
    weak = {
        "tell": "The agent tells the controller.",
        "who": "Do it. Whoever wants swap sets it.",
        "what": "A file. What the kernel holds.",
        "what-is": "Show what is wrong.",
        "is-to": "The limit is to be 0.",
        "goes": "The file goes at the end.",
        "too": "Pods have it, too.",
        "chain": "A limit of pods's.",
        "riddle": "The node has recovered at last.",
        "cleft": "A pod gets 0, which is what was asked.",
        "inversion": "The pod gets 0. So does its container.",
        "dated": "The state is made anew.",
        "where": "Return the limit, None where that is unknown.",
        "seen": "Such nodes were seen often.",
    }
    plain = "Report what the kernel holds. It holds too much: also the node's limit. What does a pod get? Who knows?"
    assert [found for _, found, _ in english.weak(f'"""{weak[name]}"""') if found == name] == [name]
    assert not list(english.weak(f'"""{plain}"""'))
