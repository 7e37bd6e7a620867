"""Pages: pasted blocks are read whatever surrounds them, each under the nearest heading."""

from __future__ import annotations

import html
import re
from pathlib import Path

from builders.loops import loop_over, loop_over_named
from loadgen.report.result_block import LAYOUTS, render_block
from loadgen.study.importers.pasted import pasted_pages
from loadgen.study.run_summary import Reported

PUBLISHED = Path(__file__).parents[3] / "data" / "published"
THOR = (PUBLISHED / "jetson_thor_serving.md").read_text("utf-8")
RESULTS = Path(__file__).parents[3] / "data" / "results"
BLOCK = THOR[THOR.index("====") : THOR.index("```\n\n- low")]
HERE = Path("page.md")


def read(text: str) -> list[Reported]:
    return pasted_pages.read_page(text, HERE)


def one(text: str) -> Reported:
    (found,) = read(text)
    return found


FIGURES = one(BLOCK).figures


@loop_over_named(
    "around",
    {
        "CRLF": lambda text: text.replace("\n", "\r\n"),
        "CR": lambda text: text.replace("\n", "\r"),
        "HTML-escaped": lambda text: html.escape(text),
        "entities": lambda text: text.replace("(ms)", "&#40;ms&#41;"),
        "tabs": lambda text: text.replace("      ", "\t"),
        "in a table": lambda text: "\n".join(f"| {line} |" for line in text.splitlines()),
        "in two columns": lambda text: text.replace(":  ", ": | ").replace("\n", " |\n| "),
        "quoted": lambda text: "\n".join(f"> {line}" for line in text.splitlines()),
        "in comments": lambda text: "\n".join(f"# {line}" for line in text.splitlines()),
        "indented": lambda text: "\n".join(f"    {line}" for line in text.splitlines()),
        "colours": lambda text: "\n".join(f"\x1b[32m{line}\x1b[0m" for line in text.splitlines()),
        "prompts": lambda text: f"user@thor:~$ vllm bench serve\n{text}$ exit\n",
        "a comment": lambda text: text.replace("150.59", "150.59   # slow"),
        "a unit": lambda text: text.replace("150.59", "150.59 s"),
        "all on one line": lambda text: " ".join(text.split()),
        "lower case": lambda text: text.lower().replace("serving", "Serving"),
        "wider, as the Rust client": lambda text: text.replace("=====\n", "==========\n"),
        "tags": lambda text: "\n".join(f"<td>{line}</td><br>" for line in text.splitlines()),
        "decimal commas": lambda text: text.replace(".", ","),
        "groups": lambda text: (
            text.replace("204169", "204,169").replace("12419", "12.419").replace("1438.24", "1,438.24")
        ),
    },
)
def test_what_surrounds_a_block_does_not_matter(around: object) -> None:
    assert callable(around)
    known = one(around(BLOCK))
    assert known.figures == FIGURES
    assert known.remarks == ()


def test_an_older_block_of_sglang_s_lacks_nothing_that_it_ever_had() -> None:
    figures = one((RESULTS / "sglang_rust.stdout.txt").read_text("utf-8")).figures
    block = render_block({**figures, "backend": "sglang-oai"}, LAYOUTS["sglang"])
    later = re.compile(
        r"^(Protocol|Peak|Total input (text|vision)|.*TPOT|.*Time per Output|P9[05]).*\n", re.M
    )
    old = one(later.sub("", block).replace("Max request", "Max reqeuest"))
    assert (old.engine, len(old.remarks)) == ("SGLang", 1)
    assert old.figures["max_concurrency"] == 256
    assert "mean_tpot_ms" not in old.figures


@loop_over("text", ["", "\n", "no block", "Serving Benchmark Result", "=" * 50, "# Heading\n"])
def test_a_page_without_a_block_holds_none(text: str) -> None:
    assert read(text) == []
