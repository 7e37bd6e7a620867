"""The docs as a site: every page is reached, every link leads somewhere, docs/api.md is the docstrings."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import loadgen
from loadgen.figures import figure_table

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").is_file())
PAGES = sorted(path.name for path in ROOT.glob("docs/*.md"))
FOLDERS = {path.parent.name for path in ROOT.glob("loadgen/*/__init__.py")}
LINK = re.compile(r"\]\(([\w./-]+\.\w+)(?:#[\w-]+)?\)")


@pytest.mark.whole
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    assert (tmp_path / "index.html").is_file()


def test_the_index_and_the_menu_name_every_page_once() -> None:
    index = LINK.findall((ROOT / "docs" / "index.md").read_text("utf-8"))
    menu = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted([*index, "index.md"]) == PAGES
    assert sorted(menu) == PAGES
    assert [page for page in menu if page != "index.md"] == index


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_the_pages_outside_lead_to_files(name: str) -> None:
    missing = [link for link in LINK.findall((ROOT / name).read_text("utf-8")) if not (ROOT / link).is_file()]
    assert missing == []


def test_the_readme_fits_on_a_page_and_shows_pictures() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120
    pictures = [ROOT / link for link in LINK.findall(text) if link.endswith(".png")]
    assert len(pictures) >= 2
    assert all(picture.stat().st_size < 200_000 for picture in pictures)


def script(name: str) -> Any:
    """A script of the project as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_api_page_is_made_of_the_docstrings_as_they_are() -> None:
    made = script("api_docs")
    assert made.PAGE.read_text("utf-8") == made.rendered(loadgen), "run python scripts/api_docs.py"


@pytest.mark.parametrize("name", ["from-vllm.md", "from-others.md"])
def test_the_pages_of_flags_have_the_tables_as_they_are(name: str) -> None:
    made, page = script("flag_docs"), (ROOT / "docs" / name).read_text("utf-8")
    assert page == made.written(page, made.TABLES[name]), "run python scripts/flag_docs.py"
    assert page.count("\n| --- |") == len(made.TABLES[name])


def test_the_page_of_metrics_has_the_tables_as_they_are() -> None:
    made = script("figure_docs")
    page = made.PAGE.read_text("utf-8")
    assert page == made.written(page), "run python scripts/figure_docs.py"
    assert all(table in page for table in figure_table.tables())


def test_contributing_asks_ten_questions_about_real_folders() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    _, _, section = text.partition("## Where does it go")
    answers = re.findall(r"^\d+\. .*?→ `loadgen/([a-z]+)/", section.partition("\n## ")[0], re.M | re.S)
    assert len(answers) == 10
    assert set(answers) <= FOLDERS


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/design.md"])
def test_every_folder_has_a_row_where_the_folders_are_explained(name: str) -> None:
    rows = re.findall(r"^\| `([a-z]+)` \|", (ROOT / name).read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(FOLDERS)


def test_every_address_of_the_project_begins_with_its_home() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
