"""Find weak wordings in docstrings, comments, messages and names of tests: python -m hack.english [--only NAME] [PATH].

It finds them; a person rewrites. `hack.count` holds how many each folder may have. In folders it reads Python, the text
of Markdown, and the comments of YAML and of the chart's templates; the last three are not counted.
"""

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PATTERNS: Final = {
    "tell": (r"\b(tell|tells|told|telling|untold)\b", "report, show, log, return, detect"),
    "who": (r"(^|[.:;]\s+)[Ww]ho(ever)? (may|wants|types|can|has|asks|is)\b", "name the person: users who ..., you"),
    "what": (r"(^|[.;:]\s+)What\b(?![^.]*\?)", "say what it returns or does: Return the ..., Whether ..."),
    "what-is": (r"\bwhat (is|was|are|were|has|have|had|others|nobody|somebody)\b", "the noun: values, settings, files"),
    "is-to": (r"\b(is|are|was|were) to (be|hold|have|go|stay|take|get|come|see|do|say|show)\b", "must, should"),
    "goes": (r"\b(goes|comes|is there|are there|is let|are let|went on)\b", "is removed, appears, exists, continues"),
    "too": (r", too(?=[.,;:)]|\s*$)", "also"),
    "chain": (r"\bof [a-z]+'s\b", "the noun as an adjective"),
    "riddle": (r"\b(seldomer|at last|made good|let alone|puts up with)\b", "less often, finally, recovered, tolerates"),
    "cleft": (r"\b(which|that) is what\b|\bthat it does\b", "subject, verb, object"),
    "inversion": (
        r"(^|[.;:]\s+)(So|Thus|Nor|Only then|Never|Not) (is|are|was|were|does|do|did|has|have|can)\b",
        "the subject first",
    ),
    "dated": (r"\b(anew|[Ww]hoever|another now)\b", "again, recreate; users who, each that; the current one differs"),
    "where": (r"\bwhere (none|that|no)\b", "if there is none, if unknown, if so"),
    "seen": (r"\b(was|were) seen\b|\bto be had\b", "who saw it; is available"),
}
"""Name -> (regular expression, what to write instead)."""
_PYTHON: Final = ".py"
_COMMENTED: Final = (".yaml", ".tpl")
_WEAK: Final = {name: re.compile(pattern, re.MULTILINE) for name, (pattern, _) in PATTERNS.items()}


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Give the line and text of each docstring, comment, message (a string of four words or more) and test name."""
    tree = ast.parse(source)
    alone = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            message = len(re.findall(r"[A-Za-z]{2,}", each.value)) > 3 and "\\" not in each.value  # else a pattern
            if message or id(each) in alone:
                yield each.lineno, each.value
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_"):
            yield each.lineno, each.name.removeprefix("test_").replace("_", " ")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# (noqa|type:|pragma)", token.string):
            yield token.start[0], token.string.lstrip("# ")


def weak(source: str) -> Iterator[tuple[int, str, str]]:
    """Give the line, the pattern's name and the surroundings of each weak wording of a module."""
    for line, text in prose(source):
        yield from _weak(line, text)


def weak_in_text(source: str, suffix: str) -> Iterator[tuple[int, str, str]]:
    """Give the same for a file that is no Python: text outside of code blocks, or comments, depending on its suffix."""
    if suffix in _COMMENTED:
        for match in re.finditer(r"#[^\n]*|\{\{-?\s*/\*.*?\*/", source, re.DOTALL):
            comment = match[0].lstrip("{-/*# \n")
            yield from _weak(1 + source.count("\n", 0, match.end() - len(comment)), comment)
        return
    # Lines stay where they were.
    plain = re.sub(
        r"^ *```.*?^ *```$", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL | re.MULTILINE
    )
    yield from _weak(1, plain)


def _weak(line: int, text: str) -> Iterator[tuple[int, str, str]]:
    for name, pattern in _WEAK.items():
        for match in pattern.finditer(text):
            around = " ".join(text[max(0, match.start() - 60) : match.end() + 60].split())
            yield line + text.count("\n", 0, match.start()), name, around


def main() -> None:
    """Print each place and what to write instead."""
    parser = argparse.ArgumentParser(prog="hack.english", description="Find weak wordings.")
    parser.add_argument("--only", choices=PATTERNS, help="print these only")
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("operator")], metavar="PATH")
    options = parser.parse_args()
    for root in options.paths:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.suffix not in (_PYTHON, ".md", *_COMMENTED):
                continue
            text = path.read_text(encoding="utf-8")
            for line, name, around in weak(text) if path.suffix == _PYTHON else weak_in_text(text, path.suffix):
                if options.only in (None, name):
                    print(f"{path}:{line}: {around}   [{name}: {PATTERNS[name][1]}]")


if __name__ == "__main__":
    main()
