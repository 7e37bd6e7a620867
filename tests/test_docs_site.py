"""The docs as a site: every page is reached, links lead somewhere, made tables have every row."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import doc_tables
import engine_tables
import field_tables
import folder_table
import llms_txt
import pytest

import loadgen
from fakes import faults_table
from loadgen.base.errors import ExitCode
from loadgen.cli import VERBS, render_help
from loadgen.engines.engines import METRICS
from loadgen.engines.refusals import FIELDS
from loadgen.facts.run_facts import Facts
from loadgen.features.roofline.machines import list_machines
from loadgen.figures.figure_table import FIGURES, LATENCY, SPEED
from loadgen.figures.metrics import ClientHealth
from loadgen.plan import profile
from loadgen.records.record import Columns
from loadgen.settings import request_settings, setting, vllm_flags
from loadgen.settings.server_settings import ServerKeys
from loadgen.settings.setting import list_rows
from loadgen.settings.table import PROFILE_KEYS, TABLE
from loadgen.study.audit.findings import CHECKS
from loadgen.study.compare.comparability import COMPARABILITY
from loadgen.verdict.verdict import DOUBTS
from test_glossary import WORDS

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").is_file())
PAGES = sorted(path.name for path in ROOT.glob("docs/*.md"))
TABLED = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FOUND_BROKEN = ROOT / "tests" / "whole" / "found_broken.csv"
FOLDERS = {path.parent.name for path in ROOT.glob("loadgen/*/__init__.py")}
MOST_WORDS = 44_984  # that people wrote in docs/: only downwards
MEASURED = ("benchmarks.md", "comparing-calibration.md", "gate-calibration.md")  # benchmarks/ has tables
LINK = re.compile(r"\]\(([\w./-]+\.\w+)(?:#[\w-]+)?\)")


@pytest.mark.whole
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    pages = [path.read_text("utf-8") for path in tmp_path.glob("*.html")]
    assert len(pages) == len(PAGES) + 1  # and that of an address without a page
    assert (tmp_path / "llms.txt").read_text("utf-8") == llms_txt.make()
    twice = [name for page in pages for name in re.findall(r'<h\d id="([^"]+_\d+)"', page)]
    assert twice == []  # the second heading of a name


def test_llms_txt_has_every_page_of_the_menu_and_what_it_is_about() -> None:
    menu = """site_name: Tool
site_description: What it does
nav:
  - Overview: index.md
  - Start:
      - A page: page.md
      - Another: other.md
"""
    page = "# A page\n\n```\ncode\n```\n\nIt says [much](other.md) of\n`a.toml` at once, and to everyone.\n"
    other = "# Another\n\n**Short.** One is not enough to say what it is all about. Two are.\n\nMore.\n"
    text = llms_txt.render(menu, {"page.md": page, "other.md": other})
    assert text.startswith("# Tool\n\n> What it does\n\nEvery run has a verdict")
    assert (
        text.partition("\n\n## ")[2]
        == """Start

- [A page](page.md): It says much of `a.toml` at once, and to everyone.
- [Another](other.md): Short. One is not enough to say what it is all about.
"""
    )


def test_llms_txt_of_these_docs_has_a_sentence_for_each_page() -> None:
    rows = re.findall(r"^- \[.+\]\(([\w-]+\.md)\): (\S.{20,})$", llms_txt.make(), re.M)
    assert sorted(["index.md", *(name for name, _ in rows)]) == PAGES


def test_the_menu_names_every_page_once_and_the_index_leads_to_each() -> None:
    menu = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(menu) == PAGES
    links = {name: LINK.findall((ROOT / "docs" / name).read_text("utf-8")) for name in PAGES}
    assert len(links["index.md"]) == len({*links["index.md"]}) <= 20
    within_two = {*links["index.md"], *(name for page in links["index.md"] for name in links[page])}
    assert {*PAGES} - within_two - {"index.md"} == set()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_the_pages_outside_lead_to_files(name: str) -> None:
    missing = [link for link in LINK.findall((ROOT / name).read_text("utf-8")) if not (ROOT / link).is_file()]
    assert missing == []


def test_the_changelog_is_a_list_of_one_line_entries() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").partition("\n## ")[2].splitlines()[1:]
    entries = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in entries if not line.startswith("- ") or len(line) > 125] == []


def test_the_readme_fits_on_a_page_and_shows_pictures() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120
    pictures = [ROOT / link for link in LINK.findall(text) if link.endswith(".png")]
    assert len(pictures) >= 2
    assert all(picture.stat().st_size < 200_000 for picture in pictures)


def test_each_of_ten_tasks_has_a_command_a_small_picture_and_a_page() -> None:
    sections = (ROOT / "docs" / "recipes.md").read_text("utf-8").split("\n## ")[1:]
    assert len(sections) == 10
    for section in sections:
        assert re.search(r"^```\n\.venv/bin/loadgen ", section, re.M), section
        (picture,) = re.findall(r"!\[[^\]]+\]\((pictures/[\w.-]+)\)", section)
        assert (ROOT / "docs" / picture).stat().st_size < 80_000
        assert re.search(r"\]\([\w-]+\.md\)", section), section


def test_the_words_that_people_wrote_stay_under_their_ceiling() -> None:
    texts = {name: doc_tables.remove_tables((ROOT / "docs" / name).read_text("utf-8")) for name in PAGES}
    own = [re.sub(r"^\|.*" if name in MEASURED else r"\Z", "", texts[name], flags=re.M) for name in PAGES]
    assert sum(len(text.split()) for text in own) <= MOST_WORDS


def test_every_table_stands_on_one_page() -> None:
    marks = [name for page in TABLED for name in doc_tables.find_tables(page.read_text("utf-8"))]
    assert sorted(marks) == sorted(doc_tables.TABLES)


@pytest.mark.parametrize("path", TABLED, ids=lambda path: str(path.name))
def test_the_tables_of_a_page_are_those_of_the_code(path: Path) -> None:
    page = path.read_text("utf-8")
    stale = "the code has changed since: run .venv/bin/python scripts/doc_tables.py"
    assert doc_tables.fill(page) == page, stale
    assert (
        page.count("<!-- table ") == page.count("<!-- end of table -->") == len(doc_tables.find_tables(page))
    )


def test_a_table_is_written_between_its_marks() -> None:
    page = "before\n\n<!-- table speeds -->\nwhat it was\n\n<!-- end of table -->\n\nafter\n"
    table = doc_tables.TABLES["speeds"]().strip()
    written = f"before\n\n<!-- table speeds -->\n\n{table}\n\n<!-- end of table -->\n\nafter\n"
    assert doc_tables.fill(page) == written
    assert doc_tables.fill(written) == written


def _strip_histograms(names: Iterable[str]) -> set[str]:
    return {name.removesuffix("_bucket").removesuffix("_sum") for name in names}


ROWS: dict[str, list[str]] = {
    "verbs": [f"? | `loadgen {name}` |" for name in VERBS],
    "api": [f"[`loadgen.{name}`]" for name in loadgen.__all__],
    "apis": [*request_settings.APIS, *request_settings.API_ALIASES, *request_settings.REFUSED_APIS],
    "flags-vllm": [flag for flag, *_ in vllm_flags.list_flags()],
    "flags": [f"`{row.option}`" for row in TABLE if row.group in setting.GROUP_ORDER],
    "profiles": list(profile.list_shipped()),
    "profile-keys": [f"| `{row.name}` |" for row in list_rows(*PROFILE_KEYS) if row.group],
    "server-keys": [f"| `{row.name}` |" for row in list_rows(ServerKeys)],
    "latencies": [row.key for row in FIGURES if row.kind is LATENCY and row.definition],
    "speeds": [row.key for row in FIGURES if row.kind is SPEED and row.definition],
    "doubts": [f"| `{rule.code}` |" for rule in DOUBTS],
    "audit-doubts": [f"| `{rule.code}` |" for rule in CHECKS],
    "comparability": [f"| `{rule.code}` |" for rule in COMPARABILITY],
    "machines": [f"| `{key}` |" for key in list_machines()],
    "facts": [f"| `{name}` |" for name in Facts.__struct_fields__],
    "arrivals": [f"| `{name}` |" for name in Columns.__struct_fields__],
    "makes": [f"`{row.name}`" for row in list_rows(*PROFILE_KEYS)],
    "counters": [f"`{name}`" for metrics in METRICS.values() for name in _strip_histograms(metrics.meanings)],
    "launch-flags": [
        *(row.option for row in list_rows(ServerKeys) if row.kinds[0] in (int, float, str, bool)),
        "refused: ",
    ],
    "refused-fields": [f"`{name}`" for name in FIELDS],
    "health": [f"| `{name}` |" for name in ClientHealth.__struct_fields__],
    "folders": [f"| `{name}` |" for name in FOLDERS],
    "dependencies": [re.split(r"[>=]", each)[0] for each in PROJECT["dependencies"]],
    "faults": [fault.name for faults in faults_table.SECTIONS.values() for fault in faults],
    "evidence": [f"\n{rule.code}: " for rule in DOUBTS],
    "found-broken": [f"| {cells[0]} |" for cells in csv.reader(FOUND_BROKEN.read_text("utf-8").splitlines())],
}


@pytest.mark.parametrize("name", ROWS)
def test_a_table_has_every_row(name: str) -> None:
    table = doc_tables.TABLES[name]()
    assert [row for row in ROWS[name] if row not in table] == []
    assert len(ROWS[name]) >= 2


def test_the_flags_of_a_launch_are_those_of_its_commands() -> None:
    table = dict(engine_tables.list_launch_flags())
    words = "vLLM: `--max-num-seqs N`<br>SGLang: `--max-running-requests N`<br>transformers serve: refused: "
    assert table["`--max-running N`"].startswith(words)
    assert [flag for flag, text in table.items() if "4243" in text] == []  # a sample value


def test_every_stored_field_is_described() -> None:
    fields = [*field_tables.describe_facts(), *field_tables.describe_arrays()]
    assert [name for name, words in fields if not words] == []


def test_a_field_is_described_by_its_comment_behind_it_or_else_before_it() -> None:
    assert field_tables.describe_fields(Described) == {
        "plain": "", "behind": "a time", "before": "two lines; null: none", "last": '"" if empty',
    }  # fmt: skip


class Described:
    """Fields with and without a comment, and a method."""

    plain: int
    behind: int  # A time.
    # Two lines;
    # None: none.
    before: int | None
    last: str = ""  # "" if empty

    def method(self) -> None:
        """A method is not a field."""  # nor is its comment


def test_the_exit_codes_of_help_and_docs_are_those_that_there_are() -> None:
    assert [int(code) for code in ExitCode] == sorted({*ExitCode})
    assert "exit-codes" in doc_tables.find_tables((ROOT / "docs" / "reliability.md").read_text("utf-8"))
    shown = re.findall(r"^\| (\d+) \| (.+) \|$", doc_tables.TABLES["exit-codes"](), re.M)
    assert [(int(code), text.replace("`", "")) for code, text in shown] == [
        (int(code), code.meaning) for code in ExitCode
    ]
    listed = re.findall(r"^ +(\d+)  (.+)$", render_help().partition("Exit codes:\n")[2], re.M)
    assert [(int(code), text) for code, text in listed] == [(int(code), code.meaning) for code in ExitCode]


def test_tables_are_in_the_fields_words() -> None:
    texts = {
        name: re.sub(r"```.*?```|`[^`]+`", "", made(), flags=re.S) for name, made in doc_tables.TABLES.items()
    }
    found = {name: sorted({match[0] for match in WORDS.finditer(text)}) for name, text in texts.items()}
    assert {name: words for name, words in found.items() if words} == {}


def read_rows(heading: str) -> list[list[str]]:
    """The cells of the table of CONTRIBUTING.md whose head begins with these words."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.partition(f"\n| {heading}")[2].partition("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def test_contributing_places_code_in_real_folders() -> None:
    rows = read_rows("what | where |")
    places = [re.findall(r"`([\w/]+)`", where)[0] for _, where in rows]
    assert [name for name in places if name not in FOLDERS and not (ROOT / name).is_dir()] == []
    assert len(rows) > 10


def test_each_recipe_of_contributing_names_files_and_tests_that_exist() -> None:
    rows = read_rows("one more | where | tests |")
    missing = []
    for _, where, tests in rows:
        files = re.findall(r"`([\w.-]+/[\w./-]*)`", where)
        missing += [
            name for name in files if not any((at / name).exists() for at in (ROOT, ROOT / "loadgen"))
        ]
        missing += [name for name in re.findall(r"`([^`]+)`", tests) if not (ROOT / "tests" / name).exists()]
        assert "`" in tests
    assert len(rows) > 10
    assert missing == []


def test_contributing_is_a_page() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text("utf-8").split()) <= 1500


def test_the_design_names_every_folder_in_the_order_of_imports() -> None:
    page = (ROOT / "docs" / "design.md").read_text("utf-8")
    before, _, _ = page.partition(": the first line of each folder's")
    order = folder_table.read_order()
    assert re.findall(r"`([a-z]+)`", before)[-len(order) :] == order


def test_every_module_that_the_design_names_exists() -> None:
    page = (ROOT / "docs" / "design.md").read_text("utf-8")
    named = re.findall(rf"`((?:{'|'.join(sorted(FOLDERS))})/[\w/]+)", page)
    missing = [
        name for name in named if not [*ROOT.glob(f"loadgen/{name}"), *ROOT.glob(f"loadgen/{name}.py")]
    ]
    assert missing == []
    assert len(named) > 50


def test_every_address_of_the_project_begins_with_its_home() -> None:
    urls = PROJECT["urls"]
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
