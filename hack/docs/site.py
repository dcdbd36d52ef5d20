"""The hook in mkdocs.yml: README.md is the start page, and files outside docs/ that pages link to are in the site.

On the forge a link leads to a file of the repository, `../CONTRIBUTING.md`; the site has such a file as
`repository/CONTRIBUTING.md`, as a page if it is Markdown, and the link leads there.
"""

import posixpath
import re
from collections.abc import Callable

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from testbed.base import paths

ROOT = paths.ROOT
START = "README.md"
ELSEWHERE = "repository"
_LINK = re.compile(r"(\]\()([^()\s#]+)(#[^()\s]*)?(\))")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace "folder/*.md" in the navigation by the pages of the folder."""
    config.nav = [_expanded(each) for each in config.nav or []]
    return config


def _expanded(entry: object) -> object:
    if isinstance(entry, dict):
        return {title: _expanded(below) for title, below in entry.items()}
    if not isinstance(entry, list):
        return entry
    made: list[object] = []
    for each in entry:
        if isinstance(each, str) and "*" in each:
            pages = (ROOT / "docs").glob(each)
            made += [
                str(page.relative_to(ROOT / "docs"))
                for page in sorted(pages, key=lambda one: (one.stem != "index", one))
            ]
        else:
            made.append(_expanded(each))
    return made


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the start page, and what pages link to outside of docs/, and so on from there."""
    pending = [START, *(f"docs/{each.src_uri}" for each in files.documentation_pages())]
    seen = set(pending)
    while pending:
        source = pending.pop()
        if not source.startswith("docs/"):
            files.append(File.generated(config, in_site(source), abs_src_path=str(ROOT / source)))
        if source.endswith(".md"):
            found = targets(source, (ROOT / source).read_text(encoding="utf-8"))
            pending += found - seen
            seen |= found
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 mkdocs's names
    """Have links lead to where the site has what they name."""
    source = in_repository(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = _target(source, link[2])
        return (
            link[1] + posixpath.relpath(in_site(target), here or ".") + (link[3] or "") + link[4] if target else link[0]
        )

    return _outside_fences(markdown, moved)


def in_site(path: str) -> str:
    """Return the path in the site of a file of the repository, both relative to their roots."""
    if path == START:
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{ELSEWHERE}/{path}"


def in_repository(uri: str) -> str:
    """The reverse of in_site."""
    if uri == "index.md":
        return START
    return uri.removeprefix(f"{ELSEWHERE}/") if uri.startswith(f"{ELSEWHERE}/") else f"docs/{uri}"


def targets(source: str, markdown: str) -> set[str]:
    """The files that a page links to, by path in the repository; PluginError for one that is not there."""
    found = {_target(source, link[2]) for link in _LINK.finditer(_FENCE.sub("", markdown))} - {None}
    for each in found:
        if not (ROOT / str(each)).is_file():
            raise PluginError(f"{source} links to {each}, which is no file of this repository")
    return {str(each) for each in found}


def _target(source: str, link: str) -> str | None:
    return None if ":" in link else posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _outside_fences(markdown: str, replace: Callable[[re.Match[str]], str]) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(replace, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replace, markdown[end:])])
