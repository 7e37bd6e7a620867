"""A run beside the others of its page: what should be alike and is not, and what is too much alike."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from builders.loops import loop_over
from builders.published_runs import loaded, run
from loadgen.report.load_identity import Load
from loadgen.study.audit.findings import audit_runs
from loadgen.study.consistency.subject import find_usual, group_pages
from loadgen.study.run_summary import Reported

OTHERS = [run("a"), run("b", median_ttft_ms=98.71), run("c", median_ttft_ms=98.72)]
ALONE = loaded(name="low", requests=10, max_concurrency=1)
# One at a time: 10 requests of 60 ms and 63 tokens of 5 ms, where the full load leaves 25.5 ms a prompt.
_LOW: dict[str, Any] = {
    "completed": 10,
    "total_input_tokens": 5120,
    "total_output_tokens": 640,
    "duration": 3.76,
    "request_throughput": 2.66,
    "output_throughput": 170.21,
    "total_token_throughput": 1531.91,
    **{f"{rank}_{key}_ms": 5.01 for rank in ("mean", "median", "p99") for key in ("tpot", "itl")},
}


def low(ttft_ms: float = 60.12, **figures: Any) -> Reported:
    ttft = {f"{rank}_ttft_ms": ttft_ms for rank in ("mean", "median", "p99")}
    return run("m", ALONE, **{**_LOW, **ttft, "duration": 3.16 + 0.01 * ttft_ms, **_RATELESS, **figures})


_RATELESS = dict.fromkeys(("request_throughput", "output_throughput", "total_token_throughput"))


def found(one: Reported, *beside: Reported) -> dict[str, str]:
    audited = audit_runs([one, *beside], None, None)[0]
    return {
        each.rule.code: each.evidence for each in audited.findings if each.rule.code != "thin-percentiles"
    }


def test_runs_that_are_alike_are_let_be() -> None:
    for one in OTHERS:
        assert found(one, *(other for other in OTHERS if other is not one)) == {}


@loop_over(
    ("one", "name", "evidence"),
    [
        (
            run("d", loaded(requests=80), completed=80),
            "requests-differ",
            "requests: 80, the others under this load 40",
        ),
        (
            run("d", loaded(max_concurrency=8)),
            "concurrency-differs",
            "concurrency 8, the others under this load 4",
        ),
        (
            run("d", total_input_tokens=40960),
            "prompts-differ",
            "1024.0 tokens per prompt, the others under this load 512",
        ),
        (
            run("d", total_output_tokens=2400),
            "answers-short",
            "2400 of 2560 output tokens: 60.0 per request, not 64 (requested), 6.25 % less work",
        ),
        (
            run("d", loaded(asked_output_len=None), total_output_tokens=2400),
            "answers-short",
            "2400 of 2560 output tokens: 60.0 per request, not 64 (by the page's other runs), "
            "6.25 % less work",
        ),
        (
            run("d", loaded(asked_input_len=1024), total_input_tokens=20480),
            "prompts-off",
            "512.0 tokens per prompt, 1024 requested",
        ),
        (run("d"), "duplicate", "10 figures equal those of a high to the digit"),
    ],
)
def test_what_is_unlike_is_told(one: Reported, name: str, evidence: str) -> None:
    assert found(one, *OTHERS)[name] == evidence


@loop_over(
    ("one", "name"),
    [
        (run("d", loaded(name="other", requests=80), completed=80), "requests-differ"),
        (run("d", loaded(name="", requests=80), completed=80), "requests-differ"),
        (run("d", total_input_tokens=20560), "prompts-differ"),  # a chat template's
        (run("d", loaded(asked_input_len=500)), "prompts-off"),
        (run("d", total_output_tokens=2550), "answers-short"),
        (run("d", loaded(max_concurrency=None)), "concurrency-differs"),
        (Reported("d", {"speed_tok_s": 5.5}, Load("high"), "x"), "duplicate"),
    ],
)
def test_what_is_alike_enough_is_not(one: Reported, name: str) -> None:
    assert name not in found(one, *OTHERS)


def test_of_two_nobody_is_the_odd_one() -> None:
    assert "requests-differ" not in found(run("d", loaded(requests=80), completed=80), OTHERS[0])
    assert [
        find_usual([1, 2]),
        find_usual([1, 1]),
        find_usual([1, 1, 2]),
        find_usual([1, 1, 2, 2]),
        find_usual([]),
    ] == [
        None,
        None,
        1,
        None,
        None,
    ]


def test_answers_of_uneven_length_are_short_of_nothing_that_is_told() -> None:
    uneven = [run(name, loaded(asked_output_len=None), total_output_tokens=n) for name, n in
              (("a", 2403), ("b", 2511), ("c", 2287))]  # fmt: skip
    assert all("answers-short" not in found(one, *(o for o in uneven if o is not one)) for one in uneven)


def test_another_page_is_nobodys_company() -> None:
    here = [replace(one, source=f"here.md:{line}") for line, one in enumerate(OTHERS)]
    there = replace(run("d", loaded(requests=80), completed=80), source="there.md:7", file="there.md")
    too = replace(run("e"), source="there.md:9", file="there.md")
    assert "requests-differ" not in found(there, too, *here)
    assert [len(one.runs) for one in group_pages([there, too, *here])] == [2, 2, 3, 3, 3]


def test_a_cold_prompt_takes_what_a_full_load_leaves_for_it() -> None:
    assert "warm-cache" not in found(low(), run())
    assert "warm-cache" not in found(low(ttft_ms=13.12), run())  # no mark, and half of it


def test_the_same_prompts_and_half_the_time_are_the_cache() -> None:
    one, other = low(ttft_ms=10.12), run()
    one = replace(one, load=replace(one.load, seed=0))
    other = replace(other, load=replace(other.load, seed=0))
    assert found(one, other)["warm-cache"] == (
        "its prompts are those of high, by their seed; TTFT 10.12 ms, where high leaves 26 ms for each "
        "prompt (2.5 times that): a prefix cache hit"
    )
    assert "warm-cache" not in found(one, replace(other, load=replace(other.load, seed=1)))
    assert "warm-cache" not in found(replace(one, name="another"), other)
    digests = [replace(each, plan_digest="abc") for each in (low(ttft_ms=10.12), run())]
    assert "by their digest" in found(*digests)["warm-cache"]
    assert "warm-cache" not in found(digests[0], replace(digests[1], plan_digest="def"))


def test_without_a_mark_it_takes_a_fifth_of_the_time() -> None:
    assert found(low(ttft_ms=4.12), run())["warm-cache"] == (
        "TTFT 4.12 ms, where high leaves 26 ms for each prompt (6.2 times that): most likely sent "
        "before, or on another server"
    )
    assert "warm-cache" not in found(low(ttft_ms=4.12, total_input_tokens=10240), run())  # other prompts
