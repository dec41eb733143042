"""What the documentation names exists: paths, modules, pages; and what is generated is current."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import doc_pages
import pytest
from importable import exists
import yaml
from doc_blocks import PAGES, ROOT

from arttrace.records import semconv
from arttrace.capture.base.variables import NAMES, PREFIX
from trainer.demo.recipe import base_model_path

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
HISTORY = ROOT / "CHANGELOG.md"
NAMES_OF_0_1 = ROOT / "docs" / "reference" / "names-of-0.1.md"
CODE = re.compile(r"`+([^`\n]+)`+")
TRACKED = set(
    subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
)
FOLDERS = {str(parent) for path in TRACKED for parent in Path(path).parents}
TOP = {path.partition("/")[0] for path in TRACKED if "/" in path}


@pytest.mark.parametrize("path", doc_pages.pages(), ids=lambda path: path.name)
def test_a_generated_page_is_current(path: Path) -> None:
    current = path.read_text(encoding="utf-8")
    assert current == doc_pages.pages()[path], "write it anew: python tests/docs/doc_pages.py"


def test_every_environment_variable_is_in_the_settings() -> None:
    sources = [path for package in ("arttrace", "trainer") for path in (ROOT / package).rglob("*.py")]
    found = {
        name for path in sources for name in re.findall(r"[\"']((?:ARTTRACE|LANGFUSE)_[A-Z_]+[A-Z])[\"']", path.read_text("utf-8"))
    }
    assert {f"{PREFIX}{name}" for name in NAMES} == {name for name in found if name.startswith(PREFIX)}
    settings = doc_pages.pages()[doc_pages.DOCS / "reference" / "settings.md"]
    shown = set(re.findall(r"`((?:ARTTRACE|LANGFUSE)_[A-Z_]+)`", settings))
    assert found - shown == set(doc_pages.INTERNAL), "add it to the table of its settings, or to doc_pages.py"


@pytest.mark.parametrize("module", ["arttrace", "arttrace.loop", "arttrace.mcp", "arttrace.rewards"])
def test_the_api_page_has_every_public_name(module: str) -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    [listed] = re.findall(rf"^::: {module}\n    options:\n(?:      inherited_members: .*\n)?      members:\n((?:        - \w+\n)+)", text, re.MULTILINE)
    assert set(re.findall(r"- (\w+)", listed)) == set(importlib.import_module(module).__all__)


def test_the_demos_model_is_named_as_the_demo_makes_it_now() -> None:
    shown = {(page.name, one) for page in PAGES for one in re.findall(r"base-seed-1-\w+", page.read_text("utf-8"))}
    assert shown
    assert {one for _, one in shown} == {base_model_path(1).name}, shown


def test_every_page_of_the_site_is_in_the_navigation() -> None:
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(_leaves(SITE["nav"])) == sorted(pages)


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [leaf for one in inner for leaf in _leaves(one)]


def _names(page: Path) -> list[str]:
    """What stands between backticks in running text: code blocks are programs of their own."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return CODE.findall(text)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in (HISTORY, NAMES_OF_0_1)], ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    missing = [name for name in _names(page) if _is_path(name) and name.rstrip("/") not in TRACKED | FOLDERS]
    missing += [name for name in _names(page) if _is_module(name) and not exists(name)]
    assert not missing


def _is_path(name: str) -> bool:
    head, slash, _ = name.partition("/")
    return bool(slash) and head in TOP and re.fullmatch(r"[\w./-]+", name) is not None


def _is_module(name: str) -> bool:
    known = {value for value in vars(semconv).values() if isinstance(value, str)}
    return re.fullmatch(r"(arttrace|trainer)(\.\w+)+", name) is not None and name not in known


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_test_that_a_page_names_exists(page: Path) -> None:
    named = [re.fullmatch(r"(tests/[\w/]+\.py)::(\w+)", name) for name in _names(page)]
    missing = [one[0] for one in named if one and not re.search(rf"def {one[2]}\b", (ROOT / one[1]).read_text("utf-8"))]
    assert missing == []


LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?:|mailto:|#)([^)\s]+)\)")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if ROOT / "docs" not in page.parents], ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_of_pages_outside_the_site_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link.partition("#")[0]).exists()]


def test_the_readme_shows_the_decorator_first_and_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert "@arttrace.trajectory" in lines[:20]


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_forms_and_workflows_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_the_changelog_has_no_relative_link() -> None:
    assert not LINK.findall(HISTORY.read_text(encoding="utf-8")), "it is read from the root and from the site's pages"
