"""Pages: pasted blocks are read whatever surrounds them, each under the nearest heading."""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path

from builders.loops import loop_over, loop_over_named
from loadgen.report.result_block import LAYOUTS, render_block
from loadgen.study.compare import run_groups
from loadgen.study.importers.pasted import pasted_blocks, pasted_pages
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


def test_every_block_of_the_jetson_page_has_the_figures_of_its_row() -> None:
    with (PUBLISHED / "jetson_thor_serving.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = read(THOR)
    assert [(known.name, known.load.name) for known in found] == [
        (row.pop("model"), f"{row.pop('load')} load") for row in rows
    ]
    for known, row in zip(found, rows, strict=True):
        assert known.figures == {
            pasted_blocks.find_key(label): float(cell) for label, cell in row.items() if cell
        }
        assert known.remarks == ()
        assert known.told_by == "page"


def test_a_block_is_found_again_by_file_and_line() -> None:
    lines = THOR.splitlines()
    for known in read(THOR):
        file, _, line = known.source.rpartition(":")
        assert file == str(HERE)
        assert "Serving Benchmark Result" in lines[int(line) - 1]


def test_lengths_are_means_of_what_was_counted() -> None:
    first = read(THOR)[0]
    load = first.load
    assert (first.input_len, first.output_len, load.max_concurrency) == (2041.69, 124.19, 8)
    assert (load.asked_output_len, load.seed, load.requests) == (None, None, None)


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


def test_an_ambiguous_figure_is_left_out_and_named() -> None:
    text = "\n".join(["=== Serving Benchmark Result ===", "Mean TTFT (ms): 1.234", "=" * 50])
    known = one(text)
    assert known.figures == {}
    assert known.remarks[0].startswith("Mean TTFT (ms): 1.234 is ambiguous")


def test_what_is_no_number_is_left_out_and_named() -> None:
    known = one(BLOCK.replace("974.57", "---").replace("150.59", "xxx").replace("90.57", "nan"))
    assert {key: known.figure(key) for key in known.figures if known.figure(key) is not None} == {
        key: value for key, value in FIGURES.items() if key not in ("mean_ttft_ms", "duration", "p99_tpot_ms")
    }
    assert known.remarks == (
        "Benchmark duration (s): 'xxx' is not a number: left out",
        "Mean TTFT (ms): '---' is not a number: left out",
        "missing duration, mean_ttft_ms",
    )


def test_of_a_block_that_is_cut_off_the_rest_is_kept_and_the_lack_is_told() -> None:
    cut = BLOCK[: BLOCK.index("Median TPOT")]
    fenced = f"## A-8B\n\n```bash\n{cut}\n## B-8B\n\n```bash\n{BLOCK}```\n"
    first, second = read(fenced)
    assert (first.name, second.name) == ("A-8B", "B-8B")
    assert first.figures == {key: FIGURES[key] for key in list(FIGURES)[:12]}
    assert first.remarks == ("the block is cut off: missing median_tpot_ms, mean_itl_ms, median_itl_ms",)
    assert (second.figures, second.remarks) == (FIGURES, ())


def test_a_figure_at_the_very_end_of_a_cut_page_may_be_cut_itself() -> None:
    cut = BLOCK[: BLOCK.index("974.57") + 3]
    assert "mean_ttft_ms" not in one(cut).figures
    assert one(cut).figures["total_token_throughput"] == 1438.24


def test_two_blocks_without_a_rule_between_them_are_two() -> None:
    cut = BLOCK[: BLOCK.index("Median TPOT")]
    assert len(read(f"{cut}\n{BLOCK}")) == 2


@loop_over(
    "command",
    [
        "vllm bench serve --model m --random-input-len 2048 --random-output-len 128 --num-prompts 100 "
        "--max-concurrency 8 --seed 0",
        "$ vllm bench serve \\\n   --input-len=2048 --output-len=128 \\\n --num-prompts 100 "
        "--max-concurrency=8 --seed 0",
        "python -m sglang.bench_serving --random-input 2048 --random-output 128 --num-prompt 100 "
        "--max-concurrency 8 --seed 0",
        "Namespace(seed=0, num_prompts=100, random_input_len=2048, random_output_len=128, max_concurrency=8, "
        "model='m')\nWARNING: vllm bench serve no longer sets temperature==0",
        "vllm bench serve --seed 0 --max-concurrency 8 --num-prompts 100 --random-input-len 2048 "
        "--random-output-len 128 --model 'it's",
    ],
)
def test_the_command_above_a_block_tells_what_was_asked_for(command: str) -> None:
    load = one(f"## A-8B\n```bash\n{command}\n```\nprints\n```\n{BLOCK}```").load
    assert (load.asked_input_len, load.asked_output_len, load.requests, load.seed) == (2048, 128, 100, 0)


def test_a_command_of_another_concurrency_is_not_the_block_s() -> None:
    load = one(f"vllm bench serve --max-concurrency 1 --seed 0\n{BLOCK}").load
    assert (load.max_concurrency, load.seed) == (8, None)


def test_without_a_heading_the_command_s_model_is_the_name() -> None:
    assert one(f"vllm bench serve --model Qwen/Qwen3-8B-FP8\n{BLOCK}").name == "Qwen3-8B-FP8"


def test_a_block_of_sglang_s_says_what_its_client_does_otherwise() -> None:
    known = one((RESULTS / "sglang_rust.stdout.txt").read_text("utf-8"))
    assert known.engine == "vLLM"
    assert known.load.request_rate_per_s == float("inf")
    assert [remark.partition(":")[0] for remark in known.remarks] == ["SGLang's client"]


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


REPORT = (
    "SIMULATED: the embedded engine answered, with the timing of instant; no model ran\n"
    "server: loadgen engine 0.1.0, model Qwen/Qwen3-8B, http://127.0.0.1:8000/v1/completions\n"
    f"{BLOCK}\nverdict: SIMULATED, SUSPECT (not checked: roofline): x\nand: y\n"
)


@loop_over(
    ("report", "simulated", "level"),
    [
        (REPORT, "instant", "SUSPECT"),
        ("".join(f"> {line}\n" for line in REPORT.splitlines()), "instant", "SUSPECT"),
        (REPORT[REPORT.index("server:") :], "an unnamed preset", "SUSPECT"),
        (REPORT[REPORT.index("server:") :].replace("SIMULATED, ", ""), "", "SUSPECT"),
        (REPORT.replace("SIMULATED, SUSPECT", "VALID"), "instant", "VALID"),
        (REPORT.replace("with the timing of instant", ""), "an unnamed preset", "SUSPECT"),
        (REPORT.replace("verdict", "## next\nverdict"), "instant", ""),
    ],
)
def test_a_pasted_report_of_ours_keeps_what_it_says(report: str, simulated: str, level: str) -> None:
    known = one(report)
    assert (known.name, known.engine, known.simulated, known.level) == (
        "Qwen3-8B",
        "loadgen engine 0.1.0",
        simulated,
        level,
    )


@loop_over(
    ("load", "limit"),
    [
        ("high (c=8)", 8), ("concurrency 8", 8), ("8 users", 8), ("batch size: 1", 1), ("bs=1", 1),
        ("16 at a time", 16), ("high load", None), ("2048 in / 128 out", None), ("4 req/s", None),
    ],
)  # fmt: skip
def test_a_load_s_words_give_its_concurrency(load: str, limit: int | None) -> None:
    block = "\n".join(line for line in BLOCK.splitlines() if "concurrency" not in line)
    assert one(f"## Qwen3-8B ({load})\n{block}").load.max_concurrency == limit
    assert one(f"## Qwen3-8B ({load})\n{BLOCK}").load.max_concurrency == 8


def test_blocks_under_commands_that_differ_in_a_flag_are_two_sides() -> None:
    command = (
        "vllm bench serve --model m --num-prompts 9 --seed {} --temperature {} --result-filename {}.json"
    )
    text = "\n\n".join(f"{command.format(n, t, n)}\n{BLOCK}" for n, t in enumerate(("0", "0.7", "0.7")))
    unread = [dict(run.unread) for run in read(text)]
    assert unread == [{"temperature": "0"}, {"temperature": "0.7"}, {"temperature": "0.7"}]


@loop_over(
    ("above", "names"),
    [
        (("Before:", "After:"), ["Qwen3-8B (Before)", "Qwen3-8B (After)"]),
        (("concurrency 8", "concurrency 16"), ["Qwen3-8B (concurrency 8)", "Qwen3-8B (concurrency 16)"]),
        (("vllm serve m --max-num-seqs 64", "vllm serve m --max-num-seqs 256"),
         ["Qwen3-8B (max_num_seqs 64)", "Qwen3-8B (max_num_seqs 256)"]),
        (("vllm serve m --enforce-eager --port 1", "vllm serve m --port 2"),
         ["Qwen3-8B (enforce_eager on)", "Qwen3-8B"]),
        (("VLLM_USE_V1=0 vllm bench serve --model m", "VLLM_USE_V1=1 vllm bench serve --model m"),
         ["Qwen3-8B (VLLM_USE_V1 0)", "Qwen3-8B (VLLM_USE_V1 1)"]),
        (("Run 1", "Run 2"), ["Qwen3-8B", "Qwen3-8B"]),
        (("100%|███| 100/100 [00:20<00:00]", "100%|███| 100/100 [00:24<00:00]"), ["Qwen3-8B", "Qwen3-8B"]),
        (("export RUN_ID=7", "export RUN_ID=8"), ["Qwen3-8B", "Qwen3-8B"]),
    ],
)  # fmt: skip
def test_the_lines_above_a_block_tell_it_from_another(above: tuple[str, str], names: list[str]) -> None:
    text = "# Qwen3-8B\n\n" + "\n\n".join(f"{line}\n\n```\n{BLOCK}```" for line in above)
    assert run_groups.name_rows(read(text)) == names
