"""Hooks of mkdocs: pages from outside docs, links to files, folders in the navigation."""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "report-a-vulnerability.md",  # security.md is there
}
# a link to a folder leads to one of its pages or files
_FOLDERS = {
    "docs/adr": "adr/0001-fetch-and-produce-over-our-own-connection.md",
    "docs/runbooks": "runbooks/RelayCheckFailed.md",
    "deploy": "files/deploy/compose.yaml",
    "deploy/grafana": "files/deploy/grafana/overview.json",
    "deploy/prometheus": "files/deploy/prometheus/prometheus.yaml",
}
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of folders in the navigation; the site is where the package says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.site_url = project.get("urls", {}).get("Documentation", "")
    docs = Path(config.docs_dir)
    listed = set(_leaves(config.nav))
    found = {str(path.relative_to(docs)) for path in docs.rglob("*.md")} | set(_PAGES.values())
    config.nav = list(_expanded(config.nav, found, listed))
    rest = sorted(found - set(_leaves(config.nav)))
    if rest:  # pages that nobody has put anywhere yet
        config.nav.append({"More": rest})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are outside docs, and the files that pages link to."""
    for path, page in _PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for path in (ROOT / "relay.example.yaml", ROOT / "LICENSE", *(ROOT / "deploy").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = f"files/{path.relative_to(ROOT)}"
            # a page would be rendered; a README beside a manifest is read where it is
            if path.suffix != ".md":
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links to files of the repository lead to their copies in the site."""
    here = page.file.src_uri
    origin = next((path for path, name in _PAGES.items() if name == here), f"docs/{here}")

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[1]))
        site = _FOLDERS.get(target) or _PAGES.get(target) or target.removeprefix("docs/")
        if site == target and target not in _PAGES:
            site = f"files/{target}"
        return posixpath.relpath(site, posixpath.dirname(here) or ".")

    return _LINK.sub(link, markdown)


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [leaf for child in children for leaf in _leaves(child)]


def _expanded(nav: list[Any], found: set[str], listed: set[str]) -> list[Any]:
    kept = []
    for entry in nav:
        title, value = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if isinstance(value, list):
            value = _expanded(value, found, listed)
        elif value.endswith("/"):
            value = sorted(name for name in found - listed if name.startswith(value))
        if value:
            kept.append({title: value} if title else value)
    return kept
