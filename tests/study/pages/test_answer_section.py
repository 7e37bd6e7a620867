"""What to take is the first section of the page and of its Markdown."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.made_answers import answered, keep_campaign, made_quality, speeds
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.pages.comparison_section import make_answer_section
from loadgen.study.pages.document import Document, compose_document
from loadgen.study.pages.markdown import render_markdown


@pytest.fixture
def document(tmp_path: Path) -> Document:
    keep_campaign(tmp_path, {"fp8": made_quality(0.05)})
    runs = speeds(bf16=100, fp8=190)
    section = make_answer_section(answered(tmp_path, runs))
    return replace(compose_document(runs, compare_runs(runs, ComparisonOptions())), answer=section)


def test_the_page_begins_with_what_to_take(document: Document) -> None:
    html = pytest.importorskip("loadgen.study.pages.html")
    page = html.render_page(document)
    assert 0 < page.index('<section id="answer">') < page.index('<section id="summary">')
    assert "<li>take fp8: the fastest, 1.90 × as fast as bf16</li>" in page
    cell = '<span class="n" data-key="answer.kl" data-value="0.05">0.050</span> <small class="aside">±0.010'
    assert cell in page


def test_markdown_begins_with_what_to_take(document: Document) -> None:
    lines = render_markdown(document).splitlines()
    (title, first, *_) = (line for line in lines if line.startswith("## "))
    assert (title, first) == ("## What to take", "## high-load: 2048 in / 128 out, 100 requests, 8 at a time")
    assert "- take fp8: the fastest, 1.90 × as fast as bf16" in lines
    assert "- its KL is 0.05 (0.04 to 0.06): no limit was asked for" in lines  # no flag: it is a page
    assert "| fp8 | 190.0 ±4.7 | 0.050 ±0.010 | 94.0 ±0.6 |" in lines
