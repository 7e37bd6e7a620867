"""Headings of any usual shape name a block's checkpoint, how its weights are stored, and its load."""

from __future__ import annotations

from pathlib import Path

from builders.loops import loop_over
from builders.published_runs import PUBLISHED
from loadgen.features.roofline import machines
from loadgen.study.audit.findings import audit_runs
from loadgen.study.importers.pasted import headings, pasted_pages
from loadgen.study.importers.pasted.headings import Title
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

THOR = (PUBLISHED / "jetson_thor_serving.md").read_text("utf-8")
_FP8 = THOR[THOR.index("### Qwen3-8B-FP8\n") :].split("```bash\n")
HIGH, LOW = (block.split("```")[0] for block in _FP8[1:3])
FP8 = "Qwen3-8B-FP8"
UPPER, LOWER, SHORT = ("High load", "Low load"), ("high load", "low load"), ("high", "low")


def read(page: str) -> list[Reported]:
    """What a page holds, in which {high} and {low} are the blocks of an impossible row."""
    return pasted_pages.read_page(page.replace("{high}", HIGH).replace("{low}", LOW), Path("page.md"))


def subjects(page: str) -> list[tuple[str, str]]:
    assert all(run.checkpoint == FP8 for run in read(page))
    return [(run.name, run.load.name) for run in read(page)]


@loop_over(
    ("title", "name", "model", "load"),
    [
        ("Qwen3-8B-FP4 (high)", "Qwen3-8B-FP4", "Qwen3-8B-FP4", "high"),
        ("Qwen3-8B-FP4 - low load", "Qwen3-8B-FP4", "Qwen3-8B-FP4", "low load"),
        ("Qwen3-8B-FP4 – high-load", "Qwen3-8B-FP4", "Qwen3-8B-FP4", "high-load"),
        ("Qwen3-8B-FP4—high load", "Qwen3-8B-FP4", "Qwen3-8B-FP4", "high load"),
        ("Low load: Qwen3-8B-FP4", "Qwen3-8B-FP4", "Qwen3-8B-FP4", "Low load"),
        ("Qwen3-8B FP4, concurrency 8", "Qwen3-8B-FP4", "Qwen3-8B-FP4", "concurrency 8"),
        ("Qwen3-8B FP8 high load", "Qwen3-8B-FP8 high load", FP8, ""),
        ("Qwen3-8B (FP8, high load)", FP8, FP8, "high load"),
        ("Qwen3 8B FP8 | bs=1", FP8, FP8, "bs=1"),
        ("Qwen/Qwen3-8B-AWQ [8 users]", "Qwen3-8B-AWQ", "Qwen3-8B-AWQ", "8 users"),
        ("Qwen3-8B 4-bit AWQ", "Qwen3-8B-4bit-AWQ", "Qwen3-8B-4bit-AWQ", ""),
        ("Qwen3-8B-GGUF (Q4_K_M)", "Qwen3-8B-GGUF-Q4_K_M", "Qwen3-8B-GGUF-Q4_K_M", ""),
        ("Qwen3-8B Q4_K_M GGUF, low load", "Qwen3-8B-GGUF-Q4_K_M", "Qwen3-8B-GGUF-Q4_K_M", "low load"),
        ("Llama 3.1 8B Instruct - FP8 - high", *["Llama-3.1-8B-Instruct-FP8"] * 2, "high"),
        ("Qwen3-8B-FP8 @ 8 concurrent requests", FP8, FP8, "8 concurrent requests"),
        ("Qwen3-8B-FP8, 2048 in / 128 out", FP8, FP8, "2048 in, 128 out"),
        ("Qwen3-8B-FP8 on Jetson Thor (high load)", "Qwen3-8B-FP8 on Jetson Thor", FP8, "high load"),
        ("Qwen3-8B FP8 KV cache", "Qwen3-8B FP8 KV cache", "Qwen3-8B", ""),
        ("Foo-7B-AWQ (high)", "Foo-7B-AWQ", "Foo-7B-AWQ", "high"),
        ("DeepSeek-V3 (high load)", "DeepSeek-V3", "DeepSeek-V3", "high load"),
        ("Model A - low load", "Model A", "", "low load"),
        ("Qwen3-8B vs Qwen3-14B (high)", "Qwen3-8B vs Qwen3-14B (high)", "", ""),
        ("Qwen3-8B FP8 vs BF16", "Qwen3-8B FP8 vs BF16", "", ""),
        ("Qwen3 on Thor, vllm", "Qwen3 on Thor, vllm", "", ""),
        ("High load (concurrency 8)", "", "", "High load (concurrency 8)"),
        ("n" * 201, "n" * 201, "", ""),
    ],
)
def test_a_title_has_a_name_a_checkpoint_and_a_load(title: str, name: str, model: str, load: str) -> None:
    parsed = headings.parse_title(title)
    assert (parsed.name, parsed.model, parsed.load) == (name, model, load)


def test_how_weights_are_stored_alone_is_no_name() -> None:
    assert headings.parse_title("FP8") == Title(quantization="FP8")
    assert headings.parse_title("AWQ, high load") == Title(quantization="AWQ", load="high load", exact=True)


@loop_over(
    ("page", "loads"),
    [
        ("## Qwen3-8B-FP8 (high)\n```\n{high}```\n## Qwen3-8B-FP8 (low)\n```\n{low}```\n", SHORT),
        ("**Qwen3-8B-FP8 (high)**\n\n{high}\n**Qwen3-8B-FP8 (low)**\n\n{low}", SHORT),
        ("## Qwen3-8B-FP8\n### High load\n{high}\n### Low load\n{low}", UPPER),
        ("## Qwen3-8B-FP8\n## High load\n{high}\n## Low load\n{low}", UPPER),
        ("## High load\n### Qwen3-8B-FP8\n{high}\n## Low load\n### Qwen3-8B-FP8\n{low}", UPPER),
        ("**High load**\n\n**Qwen3-8B-FP8**\n{high}\n**Low load**\n\n**Qwen3-8B-FP8**\n{low}", UPPER),
        ("**Qwen3-8B-FP8**\n\n**High load**\n{high}\n**Low load**\n{low}", UPPER),
        ("# Qwen3-8B\n## FP8\n### high load\n{high}\n### low load\n{low}", LOWER),
        ("# Qwen3-8B\n## FP8, high load\n{high}\n## FP8, low load\n{low}", LOWER),
        ("# FP8\n## Qwen3-8B\n### high\n{high}\n### low\n{low}", SHORT),
        ("## Qwen3-8B-FP8\n- high load\n\n{high}\n- low load\n\n{low}", LOWER),
        ("- Qwen3-8B-FP8 (high)\n\n{high}\n- Qwen3-8B-FP8 (low)\n\n{low}", SHORT),
        ("## Qwen3-8B-FP8\n```\n{high}```\n```\n{low}```\n", ("", "")),
        ("## Qwen3-8B-FP8 (high)\n### Results\n{high}\n## Qwen3-8B-FP8 (low)\n### Results\n{low}", SHORT),
        ("<h2>Qwen3-8B-FP8 (high)</h2><pre>{high}"
         "</pre><h2 id=l><a href='#l'>Qwen3-8B-FP8 (low)</a></h2><pre>{low}</pre>", SHORT),
        ("<h2>Qwen3-8B-FP8</h2>\n<div><h3>\n  High load\n</h3><pre>{high}"
         "</pre><h3>\n  Low load\n</h3><pre>{low}</pre>", UPPER),
        ("<p><strong>Qwen3-8B-FP8 – high</strong></p><pre>{high}"
         "</pre><p><b>Qwen3-8B-FP8 – low</b></p><pre>{low}</pre>", SHORT),
        ("Qwen3-8B-FP8\n============\n\nHigh load\n---------\n\n::\n\n{high}"
         "\nLow load\n--------\n\n::\n\n{low}", UPPER),
        ("\x1b[1m## Qwen3-8B-FP8 (high)\x1b[0m\n{high}\n\x1b[1m## Qwen3-8B-FP8 (low)\x1b[0m\n{low}", SHORT),
    ],
)  # fmt: skip
def test_a_page_of_any_shape_is_of_its_checkpoint_and_found_impossible(
    page: str, loads: tuple[str, str]
) -> None:
    assert subjects(page) == [(FP8, load) for load in loads]
    found = audit_runs(read(page), machines.find_machine("jetson-thor"), None)
    assert [each.level for each in found] == [Level.INVALID] * 2
    assert all(each.findings[0].rule.code == "beyond-roofline" for each in found)


@loop_over(
    ("page", "name", "checkpoint", "load"),
    [
        ("# High load\n{high}", "page", "page", "High load"),
        ("# Qwen3-8B on Thor\n## Our tuned build\n{high}", *["Our tuned build"] * 2, ""),
        ("# Qwen3-8B vs Phi-5\n## Phi-5\n{high}", *["Phi-5"] * 2, ""),
        ("# Tuned\nvllm bench serve --model Qwen/Qwen3-8B-FP8\n{high}", "Tuned", FP8, ""),
        ("# High load\nvllm bench serve --model Qwen/Qwen3-8B-FP8\n{high}", FP8, FP8, "High load"),
        ("# A\n```\nQwen3-8B-FP8\n```\n{high}", "A", "A", ""),
        ("# A\nQwen3-8B-FP8 (high):\n\n{high}", "A", "A", ""),
        ("# A\nQwen3-8B-FP8 is what we ran, under high load.\n\n{high}", "A", "A", ""),
        ("## Qwen3-8B on Orin\n### FP8\n{high}", "Qwen3-8B on Orin, FP8", FP8, ""),
    ],
)
def test_no_checkpoint_is_taken_from_where_none_is_named(
    page: str, name: str, checkpoint: str, load: str
) -> None:
    (run,) = read(page)
    assert (run.name, run.checkpoint, run.load.name) == (name, checkpoint, load)


def test_a_block_in_html_is_found_again_by_its_line() -> None:
    page = "<html><body>\n<h2>\n Qwen3-8B-FP8 (high)\n</h2>\n<div><pre>{high}</pre></div></body>"
    (run,) = read(page)
    assert run.source == "page.md:5"
