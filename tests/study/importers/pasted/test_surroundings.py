"""Surroundings: two results of a page are repeats only if it says so, or if nothing between them differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.study.compare import run_groups
from loadgen.study.importers import result_sources


def make_block(ttft_ms: float, speed: float) -> str:
    seconds = 12800 / speed
    rows = {
        "Successful requests:": "100",
        "Maximum request concurrency:": "10",
        "Benchmark duration (s):": f"{seconds:.2f}",
        "Total input tokens:": "102400",
        "Total generated tokens:": "12800",
        "Request throughput (req/s):": f"{100 / seconds:.2f}",
        "Output token throughput (tok/s):": f"{speed:.2f}",
        "Mean TTFT (ms):": f"{ttft_ms:.2f}",
        "Mean TPOT (ms):": "12.00",
    }
    body = "".join(f"{label:<41}{figure}\n" for label, figure in rows.items())
    return f"{' Serving Benchmark Result '.center(50, '=')}\n{body}{'=' * 50}\n"


A, B = make_block(80, 640), make_block(70, 700)
TABLE = "| TTFT (ms) | TPOT (ms) | Output tok/s |\n|---|---|---|\n| {} | 12 | {} |\n"
LIST = """
+-----------+--------------+
| TTFT (ms) | Output tok/s |
+===========+==============+
| {:>9} | {:>12} |
+-----------+--------------+
"""
ELEMENT = "<tr><th>TTFT (ms)</th><th>Output tok/s</th></tr>\n<tr><td>{}</td><td>{}</td></tr></table>\n"
BENCH = "vllm bench serve --model Qwen/Qwen3-8B --random-output-len 128 --max-concurrency 10\n"
SERVE = f"$ vllm serve Qwen/Qwen3-8B {{}}\n$ {BENCH}"


def write_pages(above: str, below: str, *, between: str = "\n", fence: str = "```") -> str:
    """Write a page of two blocks, each below its own words."""
    first, second = (f"{words}{between}{fence}\n{block}```\n" for words, block in ((above, A), (below, B)))
    return f"# Qwen3-8B\n\n{first}\n{second}"


def write_html(head: str, first: str, second: str) -> str:
    """Write two blocks as HTML, each below its own element."""
    return f"<h1>Qwen3-8B</h1>{head}\n{first}<pre>{A}</pre>\n{second}<pre>{B}</pre>\n"


def write_bare(block: str) -> str:
    """Write a block as one cell of a table has it."""
    return f"<pre>{block}</pre>".replace("\n", "<br>")


def write_tables(above: str, below: str, *, form: str = TABLE) -> str:
    """Write a page of two tables of a row each, each below its own words."""
    return f"# Qwen3-8B\n\n{above}\n\n{form.format(80, 640)}\n{below}\n\n{form.format(70, 700)}"


def write_rows(column: str, first: str, second: str) -> str:
    """Write a table of two rows with one more column."""
    head = f"# Qwen3-8B\n\n| {column} | TTFT (ms) | Output tok/s |\n|---|---|---|\n"
    return f"{head}| {first} | 80 | 640 |\n| {second} | 70 | 700 |\n"


def write_cells(first: str, second: str) -> str:
    """Write two blocks in two cells of a row, each below its title."""
    row = f"| {write_bare(A)} | {write_bare(B)} |"
    return f"# Qwen3-8B\n\n| {first} | {second} |\n|---|---|\n{row}\n"


def list_objects(key: str, first: str, second: str) -> list[dict[str, object]]:
    """List two results as objects, each with a value under `key`."""
    return [{key: value, "result": block.splitlines()} for value, block in ((first, A), (second, B))]


APART = {
    "sentence": write_pages("TP4 before PR, `X=0`:", "TP4 after PR, `X=0`:"),
    "sentences of one length": write_pages("Here is main, as it is:", "And this is my branch:"),
    "a sentence of three lines": write_pages("It\nran with TP1\nall day:", "It\nran with TP2\nall day:"),
    "a comma": write_pages("2 nodes, tp", "2 nodes, pp"),
    "numbers": write_pages("QPS=4", "QPS=8"),
    "an image": write_pages("![before](a.png)", "![after](b.png)"),
    "a flag in words": write_pages("Without `--enable-x`", "With `--enable-x`"),
    "numbered, with words": write_pages("Run 1 (TP4):", "Run 2 (TP8):"),
    "Chinese": write_pages("优化前", "优化后"),
    "a heading": write_pages("## Before", "## After"),
    "a heading's load": write_pages("### Optimized", "### Not optimized"),
    "a neutral heading": write_pages("With TP1:\n\n#### Results", "With TP2:\n\n#### Results"),
    "bold": write_pages("**Before**", "**After**"),
    "another machine's prompt": f"user@h100:~$ ./bench.sh\n{A}user@h200:~$ ./bench.sh\n{B}",
    "an item": write_pages("- Before", "- After"),
    "a numbered item": write_pages("1. eager mode", "2. graph mode"),
    "a fence's word": f"# Qwen3-8B\n\n```before\n{A}```\n\n```after\n{B}```\n",
    "a fence's title": f'# Qwen3-8B\n\n```sh title="before"\n{A}```\n\n```sh title="after"\n{B}```\n',
    "comments in a fence": f"# Qwen3-8B\n\n```bash\n# Now\n{A}# Original\n{B}```\n",
    "lines in one fence": f"# Qwen3-8B\n\n```\nbaseline\n{A}\nours\n{B}```\n",
    "the first without words": f"# Qwen3-8B\n\n```\n{A}```\n\nWith the patch:\n\n```\n{B}```\n",
    "a server's short flag": write_pages(SERVE.format("-tp 1"), SERVE.format("-tp 2")),
    "a server's flag": write_pages(SERVE.format("--enforce-eager"), SERVE.format("")),
    "a benchmark's flag": write_pages("vllm bench serve --temperature 0.7", "vllm bench serve"),
    "a variable": write_pages("export VLLM_BACKEND=FA3", "export VLLM_BACKEND=FLASHINFER"),
    "a log": write_pages("INFO 11-29 10:00:01 Using FlashInfer", "INFO 11-29 10:07:41 Using Triton"),
    "details": write_html("", "<summary>Before</summary>", "<details><summary>After</summary>"),
    "details in Markdown": write_pages("<details>\n<summary>main</summary>\n",
        "</details>\n<details>\n<summary>PR</summary>\n"),
    "paragraphs": write_html("", "<p>Before the change:</p>", "<p>After it:</p>"),
    "a figure's caption": write_html("", "<figure><figcaption>TP1</figcaption>",
        "</figure><figure><figcaption>TP2</figcaption>"),
    "an HTML comment": write_pages("<!-- before -->", "<!-- after -->"),
    "tabs of Docusaurus": write_pages('<TabItem value="a" label="Before">',
        '</TabItem><TabItem value="b" label="After">'),
    "reStructuredText": f"Qwen3-8B\n========\n\nBefore::\n\n{A}\nAfter::\n\n{B}",
    "two cells": write_cells("Before", "After"),
    "two rows of a table": (
        "# Qwen3-8B\n\n| Side | Result |\n|---|---|\n"
        f"| Before | {write_bare(A)} |\n| After | {write_bare(B)} |\n"
    ),
    "two cells above their titles": f"| {write_bare(A)} | {write_bare(B)} |\n|---|---|\n| Before | After |\n",
    "two rows of HTML": (
        f"<table>\n<tr><th>Before</th><td><pre>{A}</pre></td></tr>\n"
        f"<tr><th>After</th><td><pre>{B}</pre></td></tr>\n</table>\n"
    ),
    "two cells of HTML": (
        "# Qwen3-8B\n\n<table><tr><th>Before</th><th>After</th></tr><tr><td>\n\n```\n"
        f"{A}```\n\n</td><td>\n\n```\n{B}```\n\n</td></tr></table>\n"
    ),
    "JSON": json.dumps(
        list_objects("command", "sglang serve --gemm-backend cutlass", "sglang serve --gemm-backend trtllm"),
        indent=1,
    ),
    "JSON lines": "\n".join(map(json.dumps, list_objects("side", "before", "after"))),
    "JSON in one line": json.dumps(list_objects("side", "before", "after")),
    "sentences above tables": write_tables("Before:", "After:"),
    "long sentences above tables": write_tables("This is main, as it is.", "This is the branch, as it is."),
    "captions of tables": write_tables("Table 1: eager", "Table 2: graphs"),
    "captions in HTML": (
        f"<h1>Qwen3-8B</h1>\n<table><caption>Before</caption>{ELEMENT.format(80, 640)}"
        f"<table><caption>After</caption>{ELEMENT.format(70, 700)}"
    ),
    "tables of a terminal": write_tables("$ bench before", "$ bench after", form=LIST),
    "tables in reStructuredText": write_tables(".. table:: Before", ".. table:: After", form=LIST),
    "two columns of words": write_rows("Change", "before", "after"),
}  # fmt: skip

REPEATS = {
    "run": write_pages("Run 1:", "Run 2:"),
    "run of": write_pages("Run 1 of 3", "Run 2 of 3"),
    "ordinals": write_pages("First run:", "Second run:"),
    "again": write_pages("vLLM 0.11, TP4:", "Again:"),
    "trials": write_pages("**Trial #1**", "**Trial #2**"),
    "rounds as headings": write_pages("### Round 1", "### Round 2"),
    "items": write_pages("- run 1", "- run 2"),
    "seeds": write_pages("vllm bench serve --seed 1", "vllm bench serve --seed 2"),
    "Chinese": write_pages("第一次测试", "第二次测试"),
    "the same words": write_pages("Main:", "Main:"),
    "the same words in other signs": write_pages("**Main**, TP4:", "**Main** TP4"),
    "nothing": write_pages("", ""),
    "nothing below an introduction": f"# Qwen3-8B\n\nBoth ran on one H100.\n\n```\n{A}{B}```\n",
    "a fence's language": f"# Qwen3-8B\n\n```bash\n{A}```\n\n```console\n{B}```\n",
    "dates": write_pages("2026-11-29 10:00", "2026-11-29 10:20"),
    "progress": write_pages("100%|███| 100/100 [00:20<00:00]", "100%|███| 100/100 [00:24<00:00]"),
    "a log": write_pages("(APIServer pid=1) INFO 11-29 10:00:01 [utils.py:88] Sampling from [256, 256]",
        "(APIServer pid=2) INFO 11-29 10:07:41 [utils.py:88] Sampling from [256, 256]"),
    "files": write_pages("Results saved to out/a-1.json", "Results saved to out/a-2.json"),
    "ports": write_pages("vllm serve m --port 8001", "vllm serve m --port 8002"),
    "a command again": f"```\n{SERVE.format('-tp 2')}{A}$ {BENCH}{B}```\n",
    "what a shell prints": f"$ time ./bench\n{A}\nreal\t0m20.3s\nuser\t0m1.2s\n$ time ./bench\n{B}",
    "tokens of SGLang's client": write_pages("#Input tokens: 102400", "#Input tokens: 102113"),
    "JSON": json.dumps(list_objects("run", "1", "2"), indent=1),
    "run in a cell": write_cells("Run 1", "Run 2"),
    "runs above tables": write_tables("Run 1:", "Run 2:"),
    "a column of runs": write_rows("Run", "1", "2"),
    "a column of seeds": write_rows("seed", "7", "8"),
    "reports of ours": "".join(
        f"server: vLLM 0.11, model Qwen/Qwen3-8B, http://127.0.0.1:{port}/v1\n{block}verdict: {level}\n"
        f"P99 TTFT {port} ms\n\n"
        for port, block, level in ((8001, A, "VALID"), (8002, B, "SUSPECT: 3 % of the answers came late"))
    ),
}  # fmt: skip


def name_rows(page: str, directory: Path) -> list[tuple[str, str]]:
    """Return name and load of each of a page's rows in a comparison."""
    path = directory / "page.md"
    path.write_text(page, "utf-8")
    runs = result_sources.read_sources([str(path)]).reported
    assert len(runs) == 2
    return [(name, run.load.name) for name, run in zip(run_groups.name_rows(runs), runs, strict=True)]


def test_captions_that_stand_below_are_of_what_is_above_them(tmp_path: Path) -> None:
    page = write_tables("", "*Table 1: before*") + "\n*Table 2: after*\n"
    assert [name for name, _ in name_rows(page, tmp_path)] == [
        "Qwen3-8B (Table 1: before)",
        "Qwen3-8B (Table 2: after)",
    ]


def test_what_stands_farther_above_is_of_all_results_below_it(tmp_path: Path) -> None:
    page = "".join(f"{words}\n\n{A}\n" for words in ("TP1\n\nlow:", "high:", "TP2\n\nlow:", "high:", "high:"))
    path = tmp_path / "page.md"
    path.write_text(page, "utf-8")
    names = run_groups.name_rows(result_sources.read_sources([str(path)]).reported)
    assert names == [
        "page (TP1 low)", "page (TP1 high)", "page (TP2 low)", "page (TP2 high)", "page (TP2 high)",
    ]  # fmt: skip


@pytest.mark.parametrize("form", APART)
def test_what_stands_by_two_results_tells_them_apart(form: str, tmp_path: Path) -> None:
    first, second = name_rows(APART[form], tmp_path)
    assert first != second


@pytest.mark.parametrize("form", REPEATS)
def test_two_results_are_repeats_if_the_page_says_so_or_nothing_differs(form: str, tmp_path: Path) -> None:
    first, second = name_rows(REPEATS[form], tmp_path)
    assert first == second
