"""The site leads to the same files as the forge does."""

from __future__ import annotations

from pathlib import Path

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from hack.docs import site


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MkDocsConfig:
    """A site of a repository with a start page, two pages, and a folder that is not part of docs/."""
    monkeypatch.setattr(site, "ROOT", tmp_path)
    for path, text in {
        "README.md": "[one](docs/one.md) ![picture](docs/images/a.svg)",
        "docs/one.md": "[chart](../deploy/README.md#values) [folder](howto/two.md)\n```text\n[no](../link.md)\n```\n",
        "docs/howto/two.md": "[start](../../README.md), [one](../one.md#x), [here](#y), [web](https://example.com/z.md)",
        "docs/images/a.svg": "",
        "deploy/README.md": "[values](values.yaml) [page](../docs/howto/two.md)",
        "deploy/values.yaml": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    made = MkDocsConfig()
    made.load_dict({"site_name": "test", "docs_dir": str(tmp_path / "docs"), "site_dir": str(tmp_path / "site")})
    made.load_dict({"use_directory_urls": False, "plugins": []})
    assert made.validate() == ([], [])
    monkeypatch.setattr(made.plugins, "_current_plugin", None, raising=False)  # as while a hook is called
    return made


def files_of(config: MkDocsConfig) -> Files:
    docs = Path(config.docs_dir)
    found = [str(path.relative_to(docs)) for path in docs.rglob("*") if path.is_file()]
    return Files([File(each, config.docs_dir, config.site_dir, use_directory_urls=False) for each in found])


def shown(uri: str, config: MkDocsConfig) -> str:
    """The Markdown that the site is made from."""
    files = site.on_files(files_of(config), config)
    file = files.get_file_from_path(uri)
    assert file
    page = Page(None, file, config)
    return site.on_page_markdown(file.content_string, page=page, config=config, files=files)


def test_what_pages_link_to_is_added_with_what_that_links_to(config: MkDocsConfig) -> None:
    before = {each.src_uri for each in files_of(config)}
    after = {each.src_uri for each in site.on_files(files_of(config), config)}
    assert after - before == {"index.md", "repository/deploy/README.md", "repository/deploy/values.yaml"}


def test_links_lead_to_where_the_site_has_the_file(config: MkDocsConfig) -> None:
    assert shown("index.md", config) == "[one](one.md) ![picture](images/a.svg)"
    assert shown("one.md", config).splitlines() == [
        "[chart](repository/deploy/README.md#values) [folder](howto/two.md)",
        "```text",
        "[no](../link.md)",
        "```",
    ]
    assert shown("howto/two.md", config) == (
        "[start](../index.md), [one](../one.md#x), [here](#y), [web](https://example.com/z.md)"
    )
    assert shown("repository/deploy/README.md", config) == "[values](values.yaml) [page](../../howto/two.md)"


def test_a_link_to_nothing_is_an_error_that_names_both(config: MkDocsConfig, tmp_path: Path) -> None:
    (tmp_path / "docs/one.md").write_text("[gone](../gone.md)")
    with pytest.raises(PluginError, match=r"docs/one.md links to gone.md, which is no file"):
        site.on_files(files_of(config), config)


def test_a_folder_of_pages_stands_in_the_navigation_in_order(config: MkDocsConfig, tmp_path: Path) -> None:
    (tmp_path / "docs/howto/another.md").write_text("")
    config.nav = ["index.md", {"How to": ["one.md", "howto/*.md", "absent/*.md"]}]
    site.on_config(config)
    assert config.nav == ["index.md", {"How to": ["one.md", "howto/another.md", "howto/two.md"]}]
