"""Learning: a log of a known workload gives its times, lengths, sessions and reuse, and none of its texts."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import made_logs
from builders.loops import loop_over, read_tables
from builders.made_logs import COLUMNS, KnownCall, make_calls
from builders.required import require
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines
from loadgen.features.traces.learn.calls import read_time_ns
from loadgen.features.traces.otel_sessions import read_otel
from loadgen.features.traces.trace_blocks import find_prefix_reuse
from loadgen.features.traces.trace_formats import open_rows
from loadgen.features.traces.trace_rows import TraceRows
from loadgen.features.traces.workload import read_workload

SESSIONS = 12
BLOCK = 16
TABLES = read_tables("logs")
Write = Callable[[Path, Sequence[KnownCall]], Path]

CSV = ["--columns", COLUMNS]
ROWS = ["--columns", "time=ts,input=in"]
VLLM = b"INFO 11-27 07:00:00 [logger.py:39] Received request a: prompt: 'Hello', params: SamplingParams("
LOGS: dict[str, tuple[Write, list[str]]] = {
    "vllm 0.6": (lambda path, calls: made_logs.write_vllm(path, calls, "0.6"), []),
    "vllm 0.10": (lambda path, calls: made_logs.write_vllm(path, calls, "0.10"), []),
    "vllm 0.32": (lambda path, calls: made_logs.write_vllm(path, calls, "0.32"), []),
    "litellm": (made_logs.write_litellm, []),
    "csv": (made_logs.write_csv, [*CSV]),
    "nginx": (made_logs.write_nginx, []),
    "nginx, JSON": (lambda path, calls: made_logs.write_nginx(path, calls, as_json=True), []),
    "envoy": (made_logs.write_envoy, []),
    "istio": (lambda path, calls: made_logs.write_envoy(path, calls, istio=True), []),
}
WITH_PROMPTS = [name for name in LOGS if name.startswith(("vllm", "litellm"))]


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def learn(log: Path, *words: str, output: str = "w.jsonl.gz") -> Path:
    assert cli.main(["data", "learn", str(log), "-o", output, *words]) == 0
    return Path(output)


def load(path: Path) -> TraceRows:
    return read_workload(Lines.open(str(path), "--trace"))


def read_rows(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines()]


def find_reuse(rows: TraceRows) -> float:
    counts = np.diff(rows.starts)
    reuse = find_prefix_reuse(rows.hashes, rows.starts[:-1], counts, rows.input_lens, rows.block)
    return int(reuse.tokens.sum()) / int(rows.input_lens.sum())


def find_known_reuse(calls: Sequence[KnownCall]) -> float:
    """The share of prompt tokens, in whole blocks, that an earlier prompt begins with: from tokens alone."""
    seen: set[tuple[int, ...]] = set()
    reused = 0
    for call in calls:
        blocks = range(BLOCK, len(call.ids) + 1, BLOCK)
        held = next((end for end in reversed(blocks) if tuple(call.ids[:end]) in seen), 0)
        reused += min(held, (len(call.ids) - 1) // BLOCK * BLOCK)
        seen |= {tuple(call.ids[:end]) for end in blocks}
    return reused / sum(len(call.ids) for call in calls)


@loop_over("name", list(LOGS))
def test_a_log_comes_back(name: str, tmp_path: Path) -> None:
    """Its times and lengths; turns and sampling where the log has them; and the calls that were given up."""
    calls = make_calls(SESSIONS)
    write, words = LOGS[name]
    path = learn(write(tmp_path / "a.log", calls), *words)
    rows, (head, *sessions) = load(path), read_rows(path)
    assert sorted(rows.input_lens) == sorted(len(call.ids) for call in calls)
    if name != "nginx":  # its own times are of whole seconds
        begin_s = calls[0].begin_s
        assert rows.at_ns.tolist() == [round((call.begin_s - begin_s) * 1e6) * 1000 for call in calls]
        assert rows.input_lens.tolist() == [len(call.ids) for call in calls]
        assert rows.output_lens.tolist() == [call.output_len for call in calls]
    if name in (*WITH_PROMPTS, "csv"):
        lengths = sorted(tuple(call["in"] for call in session["calls"]) for session in sessions)
        assert lengths == sorted(
            tuple(len(call.ids) for call in calls if call.session == session) for session in range(SESSIONS)
        )
    found = [call for session in sessions for call in session["calls"]]
    if name in WITH_PROMPTS:
        sampled = sorted(call["sampling"]["temperature"] for call in found)
        assert sampled == sorted(call.temperature for call in calls)
    if name != "litellm":
        known = sorted(call.took_s for call in calls if call.cancelled)
        assert head["cancelled"] == len(known) > 0
        took_s = sorted(call["took"] for call in found if call.get("cancelled"))
        assert took_s == pytest.approx(known, abs=0.0006)


@loop_over("name", WITH_PROMPTS)
def test_the_reuse_of_a_log_is_kept(name: str, tmp_path: Path) -> None:
    calls = make_calls(40)
    rows = load(learn(LOGS[name][0](tmp_path / "a.log", calls)))
    known = find_known_reuse(calls)
    assert 0.3 < known < 0.95
    # LiteLLM's texts are cut by bytes, the same for all rows, so that blocks are of 16 tokens on average.
    assert find_reuse(rows) == pytest.approx(known, abs=0.02 if name == "litellm" else 0.001)


def list_hashes(*rows: dict[str, Any]) -> set[int]:
    return {block for row in rows for call in row["calls"] for block in call.get("ids", ())}


@pytest.mark.long
def test_no_eight_bytes_of_a_prompt_are_written(tmp_path: Path) -> None:
    def list_parts(text: str) -> set[str]:
        return {text[at : at + 8] for at in range(len(text) - 7)}

    calls = make_calls(1300)
    texts = {message["content"] for call in calls for message in call.messages}
    texts |= {*made_logs.SECRETS, "secret-of-april.log", "chatcmpl-0001-", made_logs.KEY}
    parts = set().union(*map(list_parts, texts))
    assert len(parts) > 10**6
    for name in ("vllm 0.32", "litellm"):
        output = learn(LOGS[name][0](tmp_path / "secret-of-april.log", calls))
        assert b"w.jsonl" not in output.read_bytes()  # gzip's own head would have the name
        assert list_parts(gzip.decompress(output.read_bytes()).decode()) & parts == set()


REAL = Path(__file__).parents[2] / "data" / "logs"


def test_a_real_log_of_vllm() -> None:
    head, *sessions = read_rows(learn(REAL / "vllm-0.32-debug.log"))
    lens = sorted([(call["in"], call["out"]) for call in session["calls"]] for session in sessions)
    assert lens == [[(64, 3000)], [(167, 8)], [(200, 16), (418, 16), (636, 16)], [(243, 15)]]
    (given_up,) = (session["calls"][0] for session in sessions if session["calls"][0].get("cancelled"))
    assert given_up["took"] == 1
    (talk,) = (session["calls"] for session in sessions if len(session["calls"]) == 3)
    assert [call.get("keep", 0) for call in talk] == [0, 200 // BLOCK, 418 // BLOCK]
    assert head["left_out"] == {"no request for a response": 1}
    assert (head["without_end"], head["cancelled"]) == (2, 1)


def test_a_real_log_of_litellm() -> None:
    head, *sessions = read_rows(learn(REAL / "litellm-1.110.jsonl"))
    assert [[(call["in"], call["out"]) for call in session["calls"]] for session in sessions] == [
        [(38, 24), (92, 24), (146, 24)]
    ]
    assert [call["sampling"] for call in sessions[0]["calls"]] == [{"temperature": 0.3}] * 3
    assert head["left_out"] == {"failed: no response": 1}


SPANS = Path(__file__).parents[2] / "data" / "traces"


@loop_over("name", ["otel_genai.jsonl", "otel_openinference.jsonl", "otel_fan_in.json"])
def test_spans_keep_the_order_of_their_agents(name: str) -> None:
    known = read_otel(open_rows(str(SPANS / name), "--trace"))
    found = load(learn(SPANS / name))
    for column in ("starts", "before", "lanes", "depths"):
        assert (
            getattr(require(found.waits), column).tolist() == getattr(require(known.waits), column).tolist()
        )
    assert np.abs(require(found.delays_ns) - require(known.delays_ns)).max() < 2000
    assert found.output_lens.tolist() == known.output_lens.tolist()


_MEASURED = """
import resource, sys
from loadgen import cli
from loadgen.features.traces.learn import learn_command
learn_command.MOST_CALLS = 1000
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
code = cli.main(["data", "learn", "a.csv", "-o", "w.jsonl.gz", "--columns", "time=ts,input=i,session=s"])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(code, peak.split()[1])
"""


@pytest.mark.long
def test_memory_does_not_grow_with_the_log() -> None:
    peaks = []
    for rows in (40_000, 200_000):
        drawn = np.random.default_rng(rows)
        columns = zip(
            drawn.integers(1, 3000, rows).tolist(), drawn.integers(0, rows // 3, rows).tolist(), strict=True
        )
        lines = (f"{at * 0.01:.2f},{prompt},{session}" for at, (prompt, session) in enumerate(columns))
        Path("a.csv").write_text("\n".join(["ts,i,s", *lines]))
        ended = subprocess.run([sys.executable, "-c", _MEASURED], capture_output=True, text=True, check=True)
        code, peak = ended.stdout.split()[-2:]
        assert code == "0", ended.stderr
        peaks.append(int(peak))
    assert peaks[1] < peaks[0] * 1.2


def test_two_salts_share_no_hash(tmp_path: Path) -> None:
    log = LOGS["vllm 0.10"][0](tmp_path / "a.log", make_calls(30))
    drawn = [list_hashes(*read_rows(learn(log))[1:]) for _ in range(2)]
    chosen = [
        list_hashes(*read_rows(learn(log, "--salt", salt, output="s"))[1:]) for salt in ("a", "pepper", "a")
    ]
    assert len(drawn[0]) == len(drawn[1]) == len(chosen[0]) > 1000
    assert drawn[0] & drawn[1] == chosen[0] & chosen[1] == drawn[0] & chosen[0] == set()
    assert chosen[0] == chosen[2]
    # Nor does one follow from the other by a shift or a mask: their differences and XORs are all different.
    pairs = [np.sort(np.array(list(hashes), np.int64)) for hashes in chosen[:2]]
    assert len(np.unique(pairs[0] ^ pairs[1])) == len(np.unique(pairs[0] - pairs[1])) == len(pairs[0])
    learn(log, "--salt", "pepper", output="s")
    assert b"pepper" not in Path("s").read_bytes()


def test_a_sample_and_a_part_are_whole_sessions_in_no_order_of_the_log(tmp_path: Path) -> None:
    log = LOGS["csv"][0](tmp_path / "a.log", make_calls(200))
    first, every = (
        list(map(str, read_rows(learn(log, *names))[1:])) for names in (CSV, (*CSV, "--salt", "a"))
    )
    assert first != every
    assert len(first) == len(every) == 200
    head, *some = read_rows(learn(log, *CSV, "--salt", "a", "--sample", "5"))
    assert (head["sampled"], list(map(str, some))) == ([5, 200], every[:5])
    part = set(map(str, read_rows(learn(log, *CSV, "--salt", "a", "--scale", "0.3"))[1:]))
    assert part < set(every)
    assert 30 < len(part) < 90


def write_bursts(path: Path) -> Path:
    """A log of an hour in which calls come in bursts of up to 20."""
    drawn, at_s, rows = np.random.default_rng(3), 0.0, list[tuple[float, int, int]]()
    while at_s < 3600:
        at_s += float(drawn.exponential(1 / 0.3))
        gaps = drawn.exponential(1 / 20, int(drawn.integers(1, 21)))
        rows += [(at_s + float(after), int(drawn.integers(1, 2000)), int(drawn.integers(1, 300)))
                 for after in np.cumsum(gaps)]  # fmt: skip
    lines = [f"{at_s:.6f},{prompt},{answer}" for at_s, prompt, answer in sorted(rows)]
    path.write_text("\n".join(["ts,i,o", *lines]) + "\n")
    return path


@pytest.mark.long
def test_three_times_the_rate_has_the_same_bursts(tmp_path: Path) -> None:
    log = write_bursts(tmp_path / "a.csv")
    names = ["--columns", "time=ts,input=i,output=o", "--salt", "a"]
    head = read_rows(learn(log, *names, "--scale", "3"))[0]
    apart = {figure["label"]: figure["apart"] for figure in head["fidelity"]["figures"]}
    assert apart["requests"] == 3
    assert apart["requests/s"] == pytest.approx(3, rel=0.001)
    for window in ("10 ms", "100 ms", "1 s"):
        assert apart[f"dispersion over {window}"] == pytest.approx(1, abs=0.03)
    assert apart["prompt tokens"] == apart["output tokens"] == 0


def test_copies_share_what_sessions_share_and_nothing_else(tmp_path: Path) -> None:
    log = LOGS["vllm 0.10"][0](tmp_path / "a.log", make_calls(SESSIONS))
    one, three = (read_rows(learn(log, "--salt", "a", "--scale", scale)) for scale in "13")
    assert three[0]["sessions"] == 3 * one[0]["sessions"]
    users = Counter(block for row in one[1:] for block in list_hashes(row))
    shared = [block for block, count in users.items() if count > 1]
    assert 50 < len(shared) < len(users) / 2
    found = list_hashes(*three[1:])
    assert len(found) == len(shared) + 3 * (len(users) - len(shared))
    assert set(users) <= found


def test_copies_begin_while_the_sessions_of_the_log_do() -> None:
    rows = [f"{at},9,s{at}" for at in range(100)] + [f"{at},9,s0" for at in range(100, 1000, 100)]
    Path("a.csv").write_text("\n".join(["ts,in,id", *rows]))
    columns = ("--columns", "time=ts,input=in,session=id")
    _, *sessions = read_rows(learn(Path("a.csv"), *columns, "--scale", "3"))
    assert len(sessions) == 300
    assert max(session["t"] for session in sessions) == 99


@loop_over(("name", "text", "words", "why"), TABLES["wrong"])
def test_a_wrong_log_is_one_line(
    name: str, text: str, words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = text.replace("HUGE", "1" + "0" * 400)
    Path(name).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert cli.main(["data", "learn", name, "-o", "w.jsonl.gz", *words.split()]) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    assert sorted(path.name for path in Path().iterdir()) == [name]
    Path(name).unlink()


def test_the_log_itself_is_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text("ts,in\n1,2\n")
    words = ["data", "learn", "a.csv", "--columns", "time=ts,input=in", "-o"]
    assert cli.main(["data", "learn", ".", "-o", "w.jsonl"]) == 2
    assert "LOG .: no file there ends in .json, .jsonl: give one" in capsys.readouterr().err
    for output, why in (("a.csv", "is the log itself"), (".", "is a directory"), ("no/a", "no directory no")):
        assert cli.main([*words, output]) == 2
        assert why in capsys.readouterr().err
    assert Path("a.csv").read_text() == "ts,in\n1,2\n"


def test_what_was_done_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LOGS["nginx, JSON"][0](tmp_path / "a.log", make_calls(SESSIONS))
    learn(log)
    printed = capsys.readouterr().out
    for line in (
        r"workload      w\.jsonl\.gz: \d+ calls in \d+ sessions",
        r"log           access",
        r"prompts       tokens estimated, 4 bytes of a body a token",
        r"outputs       tokens estimated, 270 bytes of a body a token",
        r"left out      1 row: no request to a model",
    ):
        assert re.search(f"^{line}$", printed, re.M), line


_VALUES = (
    b"null", b"-1", b"1e400", b"{}", b"[]", b"true", b"9" * 23, b'"x"', b"\0", b"\xf0\x9f", b"[[[[",
    b"\\ud800",
)  # fmt: skip


@pytest.mark.long
def test_a_damaged_log_is_learned_or_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = random.Random(4)
    calls = make_calls(3)
    texts = {name: (write(Path("a.log"), calls).read_bytes(), words) for name, (write, words) in LOGS.items()}
    texts |= {path.name: (path.read_bytes(), []) for path in (*REAL.glob("*l*g*"), *SPANS.glob("otel*l"))}
    ends = {0: 0, 2: 0}
    for _ in range(400):
        text, words = texts[drawn.choice(list(texts))]
        values = list(re.finditer(rb'-?\d+(?:\.\d+)?|"[^"\n]*"', text))
        at = drawn.randrange(len(text))
        match drawn.choice("bcdvv"):
            case "b":
                text = text[:at] + bytes([drawn.randrange(256)]) + text[at + 1 :]
            case "c":
                text = text[:at] or b"x"
            case "d":
                text = text[:at] + text[at + drawn.randint(1, 50) :]
            case "v" if values:
                found = drawn.choice(values[:400])
                text = text[: found.start()] + drawn.choice(_VALUES) + text[found.end() :]
        Path("a.log").write_bytes(text)
        code = cli.main(["data", "learn", "a.log", "-o", "w.jsonl", *words])
        said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("reading")]
        ends[code] += 1
        assert len(said) == (code == 2), said
        if not code:
            assert len(load(Path("w.jsonl")))
    assert min(ends.values()) > 20


@loop_over(("value", "at_ns"), TABLES["times"])
def test_times_are_read_as_they_are_written(value: object, at_ns: int) -> None:
    assert read_time_ns(value) == at_ns


@loop_over("value", [True, None, [1], "soon", "", "inf", -1, float("nan"), {"a": 1}])
def test_what_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is no time"):
        read_time_ns(value)


@loop_over("mark", [",", ";", "\t"])
def test_a_cell_may_go_over_lines_and_be_long(mark: str) -> None:
    log = Path("a.csv")
    log.write_text(f'\nts{mark}p\n\n1{mark}"a\n\nb{mark} ""c"""\n2{mark}"{"long " * 40_000}"\n\n')
    assert sorted(load(learn(log, "--columns", "time=ts,prompt=p")).input_lens) == [3, 50_000]


@loop_over(
    ("days", "begins"),
    [
        (["02-28", "03-01", "03-02"], [0, 1, 2]),
        (["02-28", "02-29", "03-01"], [0, 1, 2]),
        (["11-30", "02-28", "03-01"], [0, 90, 91]),
        (["02-29", "12-31", "01-01"], [0, 306, 307]),
    ],
)
def test_a_year_of_vllm_has_the_days_that_it_names(days: list[str], begins: list[int]) -> None:
    lines = (VLLM.replace(b"11-27", day.encode()).replace(b"request a", b"request %d" % i)
             for i, day in enumerate(days))  # fmt: skip
    Path("a.log").write_bytes(
        b"".join(line + b"max_tokens=1), prompt_token_ids: [1], lora\n" for line in lines)
    )
    assert sorted(row["t"] for row in read_rows(learn(Path("a.log")))[1:]) == [day * 86_400 for day in begins]


def test_a_workload_that_was_cut_at_a_rows_end_is_refused() -> None:
    Path("a.csv").write_text("ts,in\n1,5\n2,5\n3,5\n")
    made = learn(Path("a.csv"), *ROWS, output="w.jsonl")
    made.write_bytes(b"".join(made.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(UsageError, match=r"has 2 of the 3 sessions of its head: copy it whole$"):
        load(made)


def test_stop_strings_are_no_parameters() -> None:
    stops = b"temperature=0.5, stop=['max_tokens=9, min_p=1.2.3, ', ', params: SamplingParams(', \"it's\"], "
    ending = b"max_tokens=99999999999, min_tokens=2, logprobs=None), prompt_token_ids: [1, 2, 3], lora\n"
    Path("a.log").write_bytes(VLLM + stops + ending)
    (call,) = read_rows(learn(Path("a.log")))[1]["calls"]
    assert call == {"t": 0.0, "in": 3, "out": 20_000_000, "sampling": {"min_tokens": 2.0, "temperature": 0.5}}


@loop_over(("text", "cut", "words"), TABLES["cut"])
def test_a_last_line_that_is_still_being_written_is_left_out(
    text: str, cut: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for whole, calls in ((text.encode()[:-cut], 2), (text.rstrip("\n").encode(), 3)):
        Path("a.log").write_bytes(whole)
        learn(Path("a.log"), *words.split())
        said = capsys.readouterr().out
        assert f"{calls} calls in" in said
        assert ("its last line, which the log ends within" in said) == (calls == 2)


def test_blank_lines_of_a_prompt_are_part_of_it() -> None:
    lens = []
    for prompt in (b"ab\ncd", b"ab\n\n\n\n\n\ncd"):
        Path("a.csv").write_bytes(b'ts,p\n1,"%b"\n2,x\n' % prompt)
        lens.append(load(learn(Path("a.csv"), "--columns", "time=ts,prompt=p")).input_lens.tolist())
    assert lens == [[2, 1], [3, 1]]
