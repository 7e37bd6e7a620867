"""Values of logs: times, numbers and texts that nobody expects are read exactly, or refused in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from builders.loops import loop_over
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines
from loadgen.features.traces.learn.calls import read_time_ns
from loadgen.features.traces.workload import read_workload

DAY_S = 86_400.0
HUGE = b"1" + b"0" * 400
VLLM = b"INFO 11-27 07:00:00 [logger.py:39] Received request a: prompt: 'Hello', params: SamplingParams("
ROWS = ["--columns", "time=ts,input=in"]
HOT = ["--columns", "time=ts,input=in,temperature=t"]
TIMES = [
    (1790000000.123, 1_790_000_000_123_000_000), ("1790000000.123", 1_790_000_000_123_000_000),
    ("1790000000123", 1_790_000_000_123_000_000), (1790000000123.5, 1_790_000_000_123_500_000),
    (1790000000123456789, 1_790_000_000_123_456_789), ("[1790000000.000000001]", 1_790_000_000_000_000_001),
    ("2026-11-27T09:00:00.25+02:00", 1_795_762_800_250_000_000),
    ("10/Oct/2023:13:55:36 +0200", 1_696_938_936_000_000_000),
    ("2026-11-27 07:00:00.123456789 UTC", 1_795_762_800_123_456_789), (0.001, 1_000_000),
]  # fmt: skip
WRONG = [
    (b"ts,in\n9999999999,5\n", ROWS, "row 2: '9999999999' is no time: it is too far away"),
    (b"ts,in\n1e999999999,5\n", ROWS, "row 2: '1e999999999' is no time: it is too far away"),
    (b"ts,in\n2500-01-01 00:00,5\n", ROWS, "row 2: '2500-01-01 00:00' is no time"),
    (b"ts,in\n2020-01-01,5\n", ROWS, "row 2: '2020-01-01' is no time: give a date and time"),
    (b"ts,in\nnan,5\n", ROWS, "row 2: 'nan' is no time"),
    (b"ts,in\n1,5\n2020-01-01 00:00,5\n", ROWS, "row 3: is over a year from another call"),
    (b'{"ts":%s,"in":5}\n' % HUGE, ROWS, "row 1: 100000"),
    (b'{"ts":1,"in":%s}\n' % HUGE, ROWS, "row 1: 100000"),
    (b'{"ts":1,"in":5,"t":%s}\n' % HUGE, HOT, "is no number"),
    (b"ts,in,t\n1,5,nan\n", HOT, "row 2: 'nan' is no number"),
    (b'ts,in\n\n1,5\n\n2,"5\n3,5\n', ROWS, "row 5: is not valid CSV: unexpected end of data"),
    (b'{"ts":1,"in":5}\n{"ts":2,"in":\n{"ts":3,"in":5}', ROWS, "row 2: is not valid JSON: Expecting value"),
    (b'{"ts":1,"in":5}\n{"ts":1e999,"in":5}\n', ROWS, "row 2: ts is 1e999: give a number"),
    (gzip.compress(b""), ROWS, "is empty: give a file with a request"),
    (VLLM + b"max_tokens=1), prompt_token_ids: [1, 2, , 3], lora\n", [], "row 1: has token ids that are no"),
    (VLLM + b"max_tokens=1), prompt_token_ids: [99999999999], lora\n", [], "row 1: has a token id of more"),
]


@loop_over(("value", "at_ns"), TIMES)
def test_times_are_read_as_they_are_written(value: object, at_ns: int) -> None:
    assert read_time_ns(value) == at_ns


@loop_over("value", [True, None, [1], "soon", "", "inf", -1, float("nan"), {"a": 1}])
def test_what_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is no time"):
        read_time_ns(value)


@loop_over(("text", "words", "why"), WRONG)
def test_a_strange_value_is_one_line(
    text: bytes, words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(text)
    assert cli.main(["data", "learn", str(log), "-o", str(tmp_path / "w.jsonl"), *words]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


@loop_over("mark", [",", ";", "\t"])
def test_a_cell_may_go_over_lines_and_be_long(mark: str, tmp_path: Path) -> None:
    log, made = tmp_path / "a.csv", tmp_path / "w.jsonl"
    log.write_text(f'ts{mark}p\n1{mark}"a\n\nb{mark} ""c"""\n2{mark}"{"long " * 40_000}"\n')
    assert cli.main(["data", "learn", str(log), "-o", str(made), "--columns", "time=ts,prompt=p"]) == 0
    assert sorted(read_workload(Lines.open(str(made), "--trace")).input_lens) == [3, 50_000]


@loop_over(
    ("days", "begins_s"),
    [
        (["02-28", "03-01", "03-02"], [0.0, DAY_S, 2 * DAY_S]),
        (["02-28", "02-29", "03-01"], [0.0, DAY_S, 2 * DAY_S]),
        (["11-30", "02-28", "03-01"], [0.0, 90 * DAY_S, 91 * DAY_S]),
        (["02-29", "12-31", "01-01"], [0.0, 306 * DAY_S, 307 * DAY_S]),
    ],
)
def test_a_year_of_vllm_has_the_days_that_it_names(
    days: list[str], begins_s: list[float], tmp_path: Path
) -> None:
    log, made = tmp_path / "a.log", tmp_path / "w.jsonl"
    lines = (VLLM.replace(b"11-27", day.encode()).replace(b"request a", b"request %d" % i)
             for i, day in enumerate(days))  # fmt: skip
    log.write_bytes(b"".join(line + b"max_tokens=1), prompt_token_ids: [1], lora\n" for line in lines))
    assert cli.main(["data", "learn", str(log), "-o", str(made)]) == 0
    assert sorted(json.loads(row)["t"] for row in made.read_text().splitlines()[1:]) == begins_s


def test_a_workload_that_was_cut_at_a_rows_end_is_refused(tmp_path: Path) -> None:
    log, made = tmp_path / "a.csv", tmp_path / "w.jsonl"
    log.write_text("ts,in\n1,5\n2,5\n3,5\n")
    assert cli.main(["data", "learn", str(log), "-o", str(made), *ROWS]) == 0
    made.write_bytes(b"".join(made.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(UsageError, match=r"has 2 of the 3 sessions of its head: copy it whole$"):
        read_workload(Lines.open(str(made), "--trace"))


def test_stop_strings_are_no_parameters(tmp_path: Path) -> None:
    log, made = tmp_path / "a.log", tmp_path / "w.jsonl"
    stops = b"temperature=0.5, stop=['max_tokens=9, min_p=1.2.3, ', ', params: SamplingParams(', \"it's\"], "
    ending = b"max_tokens=99999999999, min_tokens=2, logprobs=None), prompt_token_ids: [1, 2, 3], lora\n"
    log.write_bytes(VLLM + stops + ending)
    assert cli.main(["data", "learn", str(log), "-o", str(made)]) == 0
    (call,) = json.loads(made.read_text().splitlines()[1])["calls"]
    assert call == {"t": 0.0, "in": 3, "out": 20_000_000, "sampling": {"min_tokens": 2.0, "temperature": 0.5}}


SPAN = b'{"trace_id":"t","span_id":"%d","start_time":%d,"end_time":%d,"attributes":%b}\n'
USED = (
    b'{"gen_ai.operation.name":"chat","gen_ai.usage.input_tokens":5,"gen_ai.usage.output_tokens":3,'
    b'"gen_ai.request.model":"m"}'
)
SPANS = b"".join(SPAN % (i, 10**18 + i * 10**9, 10**18 + i * 10**9 + 10**8, USED) for i in range(1, 4))
LITELLM = b"".join(
    b'{"startTime":"2026-11-27T09:00:0%d","endTime":"2026-11-27T09:00:09","prompt_tokens":5,'
    b'"completion_tokens":3}\n' % i
    for i in range(3)
)
ASKED = b"max_tokens=3), prompt_token_ids: [1, 2, 3], lora: None\n"
VLLMS = b"".join(VLLM.replace(b"request a", b"request %d" % i) + ASKED for i in range(3))
NGINX = b"".join(
    b'1.1.1.1 - - [27/Nov/2026:09:00:0%d +0000] "POST /v1/completions HTTP/1.1" 200 270 "-" "-" 40 1.5\n' % i
    for i in range(3)
)


@loop_over(
    ("text", "cut", "words"),
    [
        (b"ts,in\n1,5\n2,5\n3,500\n", 5, ROWS), (b'ts,in\n1,5\n2,5\n3,"500"\n', 2, ROWS),
        (b'{"ts":1,"in":5}\n{"ts":2,"in":5}\n{"ts":3,"in":5}\n', 3, ROWS),
        ('{"ts":1,"in":5}\n{"ts":2,"in":5}\n{"ts":3,"in":5,"u":"é"}\n'.encode(), 4, ROWS), (LITELLM, 20, []),
        (VLLMS, 86, []), (NGINX, 40, []), (SPANS, 9, []),
    ],
)  # fmt: skip
def test_a_last_line_that_is_still_being_written_is_left_out(
    text: bytes, cut: int, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, made = tmp_path / "a.log", tmp_path / "w.jsonl"
    for whole, calls in ((text[:-cut], 2), (text.rstrip(b"\n"), 3)):
        log.write_bytes(whole)
        assert cli.main(["data", "learn", str(log), "-o", str(made), *words]) == 0
        said = capsys.readouterr().out
        assert (f"{calls} calls in" in said, "its last line, which the log ends within" in said) == (
            (True, calls == 2)
        )


def test_blank_lines_of_a_prompt_are_part_of_it(tmp_path: Path) -> None:
    made = tmp_path / "w.jsonl"
    lens = []
    for prompt in (b"ab\ncd", b"ab\n\n\n\n\n\ncd"):
        (tmp_path / "a.csv").write_bytes(b'\nts,p\n\n1,"%b"\n\n2,x\n' % prompt)
        words = ["data", "learn", str(tmp_path / "a.csv"), "-o", str(made), "--columns", "time=ts,prompt=p"]
        assert cli.main(words) == 0
        lens.append(read_workload(Lines.open(str(made), "--trace")).input_lens.tolist())
    assert lens == [[2, 1], [3, 1]]
