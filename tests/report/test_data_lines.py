"""The lines of a report on its data: each is of facts alone, and random prompts have what they always had."""

from __future__ import annotations

from typing import Any

from builders import made_data
from builders.loops import loop_over_named, read_tables
from builders.made_cases import INPUT, changed, closed, observed, open_loop, run
from loadgen.plan.planned_requests import DataFacts
from loadgen.records.record import UNKNOWN
from loadgen.report import report, run_lines
from loadgen.report.run_directory import Result
from loadgen.verdict.evidence import RunEvidence

TABLES = read_tables("data_lines")

FILE = {"dataset_path": "rows.jsonl"}
TRACE = {"trace": "trace.jsonl", "max_concurrency": None}
SKIPPED = {"fewer than 2 turns": 1200, "longer than 2,048 tokens": 3}
BOTH = DataFacts(input=made_data.lengths(1023.4, 819, 1229), output=made_data.lengths(1023.4, 819, 1229))
SPREAD = made_data.lengths(1023.4, 819, 1229)


def result(case: RunEvidence) -> Result:
    return Result(case.facts, case.records)


def of_file(**facts: Any) -> RunEvidence:
    return run(None, FILE, **{"data": made_data.data(), "prompt_format": "text", **facts})


def of_trace(rate_per_s: float = 100.0, **schedule: Any) -> RunEvidence:
    data = made_data.trace(rate_per_s, **schedule)
    return run(open_loop(), TRACE, data=data)


@loop_over_named(
    ("facts", "prompts"),
    {
        "ids, as ever": (
            {"prompt_format": "ids", "ids_source": "the tokenizer"},
            "ids, random token ids of exactly the planned length, from the tokenizer",
        ),
        "random text, as ever": (
            {"prompt_format": "text-vllm", "tokenizer": "DIR"},
            "text-vllm, text whose length depends on the server's tokenizer, made with the tokenizer DIR",
        ),
        "words": (
            {"prompt_format": "words", "data": DataFacts(text="common words")},
            "words, text of common words, as long as asked by the server's own count",
        ),
        "a corpus": (
            {"prompt_format": "corpus", "data": DataFacts(text="book.txt"), "tokenizer": "DIR"},
            "corpus, text of book.txt, of exactly the planned length by the tokenizer DIR",
        ),
        "rows of a file": (
            {"prompt_format": "text", "data": made_data.data(skipped=SKIPPED, clipped=2, repeated=20)},
            "sharegpt, 320 of 640 rows of rows.jsonl (0123456789ab); left out 1,203 (fewer than 2 turns: "
            "1,200; longer than 2,048 tokens: 3); 2 clipped; 20 requests send a row again; as the file "
            "has them",
        ),
        "a trace": (
            {"prompt_format": "ids", "ids_source": "V", "data": made_data.trace()},
            "trace, 320 of 640 rows of trace.jsonl (0123456789ab); ids, random token ids of exactly the "
            "planned length, from V",
        ),
        "no file": (
            {
                "prompt_format": "text",
                "tokenizer": "DIR",
                "data": DataFacts(kind="prefix_repetition", text="random tokens, decoded"),
            },
            "prefix_repetition; random tokens, decoded, lengths by the tokenizer DIR",
        ),
        "a trace's own repeats": (
            {"prompt_format": "ids", "ids_source": "V", "data": made_data.data("trace", repeated=7)},
            "trace, 320 of 640 rows of rows.jsonl (0123456789ab); 7 requests have an earlier prompt; ids, "
            "random token ids of exactly the planned length, from V",
        ),
    },
)
def test_the_prompts_are_named_by_kind_and_file(facts: dict[str, Any], prompts: str) -> None:
    assert run_lines.describe_prompts(run(**facts).facts) == prompts


@loop_over_named(
    ("case", "lines"),
    {
        "random, all alike": (run(), []),
        "planned, all alike": (run(data=DataFacts(input=made_data.lengths())), []),
        "a range ratio": (
            run(None, {"range_ratio": "0.2", "compat": "sglang"}, data=BOTH),
            [
                "lengths: prompts 819 to 1,229 tokens, mean 1,023.4 sent (P50 1,023, P90 1,229, P99 1,229), "
                "uniform by --random-range-ratio 0.2 (compat sglang); outputs 819 to 1,229 tokens, mean "
                "1,023.4 sent (P50 1,023, P90 1,229, P99 1,229), uniform by --random-range-ratio 0.2 (compat "
                "sglang)"
            ],
        ),
        "a distribution": (
            run(None, {"input_dist": "normal:mean=1024,sd=100"}, data=DataFacts(input=SPREAD)),
            [
                "lengths: prompts 819 to 1,229 tokens, mean 1,023.4 sent (P50 1,023, P90 1,229, P99 1,229), "
                "by --input-dist normal:mean=1024,sd=100"
            ],
        ),
        "a file": (
            of_file(data=made_data.data(input=SPREAD)),
            [
                "lengths: prompts 819 to 1,229 tokens, mean 1,023.4 sent (P50 1,023, P90 1,229, P99 1,229); "
                "outputs 11 tokens each"
            ],
        ),
        "lengths that only the server knows": (
            of_file(data=made_data.data("bodies", input=None, output=None)),
            ["lengths: prompts 100 tokens each, by the server's count; responses without a limit"],
        ),
        "lengths that are not known": (
            run(changed(closed(), input_tokens=UNKNOWN), FILE, data=made_data.data(input=None, output=None)),
            ["lengths: prompts of unknown length; responses without a limit"],
        ),
        "some without a limit": (
            of_file(data=made_data.data(output=made_data.lengths(11, 11, 11, known=300))),
            [
                "lengths: prompts 100 tokens each; outputs 11 tokens each; 20 of 320 requests without a "
                "length of their own"
            ],
        ),
        "words, by the server's count": (
            run(changed(closed(), 2, input_tokens=INPUT + 1), prompt_format="words"),
            [
                "lengths: prompts 100.0 tokens asked on average, 100.5 by the server's count (+0.50 %; sd "
                "0.5, 100 to 101)"
            ],
        ),
        "words of many lengths": (
            run(
                None,
                {"range_ratio": "0.2"},
                prompt_format="words",
                data=DataFacts(input=made_data.lengths(99.5, 80, 120)),
            ),
            [
                "lengths: prompts 99.5 tokens asked on average (80 to 120, uniform by --random-range-ratio "
                "0.2 (compat vllm)), 100.0 by the server's count (+0.50 %; sd 0.0, 100 to 100)"
            ],
        ),
        "words that no one counted": (
            run(changed(closed(), input_tokens=UNKNOWN), prompt_format="words"),
            ["lengths: prompts 100.0 tokens asked on average; the server counted none"],
        ),
    },
)
def test_lengths_are_those_that_were_sent(case: RunEvidence, lines: list[str]) -> None:
    assert [line for line in run_lines.describe_data(result(case)) if line.startswith("lengths")] == lines


@loop_over_named(
    ("case", "lines"),
    {
        "random prompts share nothing": (run(), []),
        "a shared prefix": (
            run(None, {"prefix_len": 100}, window=observed(prefix_hits=16000)),
            [
                "reuse: 50.0 % of the prompt tokens expected (cache empty at first, without a limit); 50.0 % "
                "cached by the server's counters (16,000 of 32,000)"
            ],
        ),
        "by usage and by counters": (
            run(changed(closed(), cached_tokens=40), FILE, data=made_data.data(reusable=0.412)),
            [
                "reuse: 41.2 % of the prompt tokens expected (cache empty at first, without a limit); 40.0 % "
                "cached by usage (12,800 of 32,000); 0.0 % cached by the server's counters (0 of 32,000)"
            ],
        ),
        "not reported": (
            run(None, FILE, data=made_data.data(reusable=0.412), window=None),
            [
                "reuse: 41.2 % of the prompt tokens expected (cache empty at first, without a limit); the "
                "server reports no cached tokens"
            ],
        ),
        "not known before": (
            run(changed(closed(), cached_tokens=25), FILE, data=made_data.data(), window=None),
            ["reuse: 25.0 % cached by usage (8,000 of 32,000)"],
        ),
        "neither": (run(None, FILE, data=made_data.data()), []),
    },
)
def test_expected_reuse_stands_next_to_the_cached(case: RunEvidence, lines: list[str]) -> None:
    assert [line for line in run_lines.describe_data(result(case)) if line.startswith("reuse")] == lines


@loop_over_named(("schedule", "line"), TABLES["schedules"])
def test_a_traces_times_are_one_line(schedule: dict[str, Any], line: str) -> None:
    found = list(run_lines.describe_data(result(of_trace(**schedule))))
    assert found[-1] == f"schedule: {line}"


def test_the_short_report_has_a_line_of_a_file_and_none_of_random() -> None:
    case = of_file(data=made_data.data(skipped=SKIPPED))
    line = "prompts: sharegpt, 320 of 640 rows of rows.jsonl (0123456789ab); left out 1,203\n"
    assert line in report.render_short(result(case), "runs/r")
    assert "prompts: " not in report.render_short(result(run()), "runs/r")
