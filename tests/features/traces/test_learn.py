"""Learning: a log of a known workload gives its times, lengths, sessions and reuse, and none of its texts."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import made_logs
from builders.loops import loop_over
from builders.made_logs import COLUMNS, KnownCall, make_calls
from builders.required import require
from loadgen import cli
from loadgen.base.json_lines import Lines
from loadgen.features.traces.otel_sessions import read_otel
from loadgen.features.traces.trace_blocks import find_prefix_reuse
from loadgen.features.traces.trace_formats import open_rows
from loadgen.features.traces.trace_rows import TraceRows
from loadgen.features.traces.workload import read_workload

SESSIONS = 12
BLOCK = 16
Write = Callable[[Path, Sequence[KnownCall]], Path]

LOGS: dict[str, tuple[Write, list[str]]] = {
    "vllm 0.6": (lambda path, calls: made_logs.write_vllm(path, calls, "0.6"), []),
    "vllm 0.10": (lambda path, calls: made_logs.write_vllm(path, calls, "0.10"), []),
    "vllm 0.32": (lambda path, calls: made_logs.write_vllm(path, calls, "0.32"), []),
    "litellm": (made_logs.write_litellm, []),
    "csv": (made_logs.write_csv, ["--columns", COLUMNS]),
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
    rows, (head, *sessions) = read_workload(Lines.open(str(path), "--trace")), read_rows(path)
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
    rows = read_workload(Lines.open(str(learn(LOGS[name][0](tmp_path / "a.log", calls))), "--trace"))
    known = find_known_reuse(calls)
    assert 0.3 < known < 0.95
    # LiteLLM's texts are cut by bytes, the same for all rows, so that blocks are of 16 tokens on average.
    assert find_reuse(rows) == pytest.approx(known, abs=0.02 if name == "litellm" else 0.001)


def list_parts(text: str) -> set[str]:
    return {text[at : at + 8] for at in range(len(text) - 7)}


@pytest.mark.long
def test_no_eight_bytes_of_a_prompt_are_written(tmp_path: Path) -> None:
    calls = make_calls(1300)
    texts = {message["content"] for call in calls for message in call.messages}
    parts = set().union(*map(list_parts, texts), *map(list_parts, LEAKS))
    assert len(parts) > 10**6
    for name in ("vllm 0.32", "litellm"):
        output = learn(LOGS[name][0](tmp_path / "secret-of-april.log", calls))
        assert b"w.jsonl" not in output.read_bytes()  # gzip's own head would have the name
        assert list_parts(gzip.decompress(output.read_bytes()).decode()) & parts == set()


LEAKS = (
    *made_logs.SECRETS,
    "secret-of-april.log",
    "chatcmpl-0001-",
    "88dc28d0f030c55ed4ab77ed8faf098196cb1c05",
)


def list_hashes(path: Path) -> set[int]:
    return {block for row in read_rows(path)[1:] for call in row["calls"] for block in call.get("ids", ())}


REAL = Path(__file__).parents[2] / "data" / "logs"


def test_a_real_log_of_vllm() -> None:
    head, *sessions = read_rows(learn(REAL / "vllm-0.32-debug.log"))
    lens = sorted([(call["in"], call["out"]) for call in session["calls"]] for session in sessions)
    assert lens == [[(64, 3000)], [(167, 8)], [(200, 16), (418, 16), (636, 16)], [(243, 15)]]
    (given_up,) = (session["calls"][0] for session in sessions if session["calls"][0].get("cancelled"))
    assert given_up["took"] == 1
    (talk,) = (session["calls"] for session in sessions if len(session["calls"]) == 3)
    assert [call.get("keep", 0) for call in talk] == [0, 200 // BLOCK, 418 // BLOCK]
    assert head["left_out"] == {"no request for an answer": 1}
    assert (head["without_end"], head["cancelled"]) == (2, 1)


def test_a_real_log_of_litellm() -> None:
    head, *sessions = read_rows(learn(REAL / "litellm-1.110.jsonl"))
    assert [[(call["in"], call["out"]) for call in session["calls"]] for session in sessions] == [
        [(38, 24), (92, 24), (146, 24)]
    ]
    assert [call["sampling"] for call in sessions[0]["calls"]] == [{"temperature": 0.3}] * 3
    assert head["left_out"] == {"failed: no answer": 1}


SPANS = Path(__file__).parents[2] / "data" / "traces"


@loop_over("name", ["otel_genai.jsonl", "otel_openinference.jsonl", "otel_fan_in.json"])
def test_spans_keep_the_order_of_their_agents(name: str) -> None:
    known = read_otel(open_rows(str(SPANS / name), "--trace"))
    found = read_workload(Lines.open(str(learn(SPANS / name)), "--trace"))
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
    drawn = [list_hashes(learn(log, output=f"{number}.gz")) for number in range(2)]
    chosen = [list_hashes(learn(log, "--salt", salt, output="s.gz")) for salt in ("a", "b", "a")]
    assert len(drawn[0]) == len(drawn[1]) == len(chosen[0]) > 1000
    assert drawn[0] & drawn[1] == chosen[0] & chosen[1] == drawn[0] & chosen[0] == set()
    assert chosen[0] == chosen[2]
    # Nor does one follow from the other by a shift or a mask: their differences and XORs are all different.
    pairs = [np.sort(np.array(list(hashes), np.int64)) for hashes in chosen[:2]]
    assert len(np.unique(pairs[0] ^ pairs[1])) == len(np.unique(pairs[0] - pairs[1])) == len(pairs[0])


def test_the_salt_is_not_in_the_file(tmp_path: Path) -> None:
    log = LOGS["csv"][0](tmp_path / "a.log", make_calls(5))
    path = learn(log, "--columns", COLUMNS, "--salt", "pepper-of-the-house", output="w.jsonl")
    assert b"pepper" not in path.read_bytes()


def test_sessions_stand_in_no_order_of_the_log(tmp_path: Path) -> None:
    log = LOGS["csv"][0](tmp_path / "a.log", make_calls(SESSIONS))
    times = [[row["t"] for row in read_rows(learn(log, "--columns", COLUMNS))[1:]] for _ in range(2)]
    assert times[0] != times[1]
    assert sorted(times[0]) == sorted(times[1]) != times[0]


def test_a_sample_has_whole_sessions(tmp_path: Path) -> None:
    log = LOGS["vllm 0.10"][0](tmp_path / "a.log", make_calls(SESSIONS))
    every = read_rows(learn(log, "--salt", "a"))[1:]
    head, *some = read_rows(learn(log, "--salt", "a", "--sample", "5"))
    assert head["sampled"] == [5, SESSIONS]
    assert some == every[:5]


def test_a_part_of_the_rate_is_whole_sessions_too(tmp_path: Path) -> None:
    log = LOGS["csv"][0](tmp_path / "a.log", make_calls(200))
    every = [str(row) for row in read_rows(learn(log, "--columns", COLUMNS, "--salt", "a"))[1:]]
    some = [
        str(row) for row in read_rows(learn(log, "--columns", COLUMNS, "--salt", "a", "--scale", "0.3"))[1:]
    ]
    assert set(some) < set(every)
    assert 30 < len(some) < 90


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
    assert apart["prompt tokens"] == apart["answer tokens"] == 0


def test_copies_share_what_sessions_share_and_nothing_else(tmp_path: Path) -> None:
    log = LOGS["vllm 0.10"][0](tmp_path / "a.log", make_calls(SESSIONS))
    one, three = (
        read_rows(learn(log, "--salt", "a", "--scale", scale, output=f"{scale}.gz")) for scale in "13"
    )
    assert three[0]["sessions"] == 3 * one[0]["sessions"]
    users: dict[int, int] = {}
    for row in one[1:]:
        for block in {block for call in row["calls"] for block in call.get("ids", ())}:
            users[block] = users.get(block, 0) + 1
    shared = {block for block, count in users.items() if count > 1}
    assert 50 < len(shared) < len(users) / 2
    found = {block for row in three[1:] for call in row["calls"] for block in call.get("ids", ())}
    assert len(found) == len(shared) + 3 * (len(users) - len(shared))
    assert set(users) <= found


def test_copies_begin_while_the_sessions_of_the_log_do() -> None:
    rows = [f"{at},9,s{at}" for at in range(100)] + [f"{at},9,s0" for at in range(100, 1000, 100)]
    Path("a.csv").write_text("\n".join(["ts,in,id", *rows]))
    columns = ("--columns", "time=ts,input=in,session=id")
    _, *sessions = read_rows(learn(Path("a.csv"), *columns, "--scale", "3"))
    assert len(sessions) == 300
    assert max(session["t"] for session in sessions) == 99


WRONG = [
    ("a.log", b"", [], "is empty: give a file with a request"),
    ("a.log", b"\n \n", [], "holds no rows: every line is blank"),
    ("a.log", b"hello\n", [], "is no log that is known: pass --log-format"),
    ("a.log", b"M\xfcller\n", [], "row 1: is not UTF-8"),
    ("a.log", b"\xff\xfe\n", [], "is UTF-16: convert it to UTF-8"),
    ("a.log.zst", b"\x28\xb5\x2f\xfd\x04", [], "is compressed (zstd): unpack it first"),
    ("a.csv", b"ts,in\n1,2\n", ["--columns", "time=at,input=in"], "has no column 'at'"),
    ("a.csv", b"ts;in\n1;2\n", ["--columns", "time=ts,input=inn"], "no column 'inn', did you mean 'in'?"),
    ("a.csv", b"ts,in\n1,2\n", ["--columns", "time=ts"], "name the prompt's length"),
    ("a.csv", b"ts,in\n1,2\n", ["--columns", "tims=ts"], "no such column, did you mean 'time_s'?"),
    ("a.csv", b"ts,in\n1,2\n", ["--columns", "time=ts,time=in"], "time: is given twice"),
    ("a.csv", b"ts,in\n1,2\n", ["--columns", "time"], "write column=NAME"),
    ("a.csv", b"ts,in\nsoon,2\n", ["--columns", "time=ts,input=in"], "row 2: 'soon' is no time"),
    ("a.csv", b"ts,in\n1,2.5\n", ["--columns", "time=ts,input=in"], "row 2: '2.5' is no whole number"),
    ("a.csv", b"ts,in\n1,-2\n", ["--columns", "time=ts,input=in"], "row 2: '-2' is no whole number"),
    ("a.csv", b"ts,in\n1\n", ["--columns", "time=ts,input=in"], "row 2: has 1 columns, and the header 2"),
    ("a.csv", b"ts,in\n1,2\n2,\n", ["--columns", "time=ts,input=in"],
     "row 3: has no length of the prompt: in is empty; fill it in, or leave the row out"),
    ("a.csv", b"ts,e,in\n5,4,2\n", ["--columns", "time=ts,end=e,input=in"], "row 2: it ends before it"),
    ("a.csv", b"ts,in\n", ["--columns", "time=ts,input=in"], "has no request of a model in it"),
    ("a.jsonl", b"[1]\n", ["--columns", "time=ts,input=in"], "row 1: is no JSON object"),
    ("a.log", b'{"startTime":1,"prompt_tokens":1,"completion_tokens":1}\n', [], "row 1: None is no time"),
    ("a.log", b'{"startTime":"2026-01-01T00:00:01Z","endTime":"2026-01-01T00:00:00Z","prompt_tokens":1,'
     b'"completion_tokens":1}\n', [], "row 1: endTime is before startTime"),
    ("a.log", b'1.2.3.4 - - [27/Nov/2026:06:00:00 +0000] "POST /v1/completions HTTP/1.1" 200 5 "-" "-"\n', [],
     "row 1: has no size of the request's body: log it, as `$request_length $request_time`"),
    ("a.log", b'1.2.3.4 - - [27/Nov/2026:06:00:00 +0000] "POST /v1/messages HTTP/1.1" 200 5 "-" "-" 9 1.0\n'
     b"x\n", [], "row 2: is no line of an access log"),
    ("a.log", b'1.2.3.4 - - [27/Nov/2026:06:00:00 +0000] "GET /health HTTP/1.1" 200 5 "-" "-" 9 1.0\n', [],
     "has no request that was answered (1 no request to a model)"),
    ("a.log", b"INFO 10-17 08:00:00 logger.py:37] Received request a: prompt: 'cut\n", [],
     "row 1: a prompt does not end: is the line cut?"),
    ("a.log.gz", gzip.compress(b"x" * 1000)[:-9], [], "is damaged or cut short"),
]  # fmt: skip


@loop_over(("name", "text", "words", "why"), WRONG)
def test_a_wrong_log_is_one_line(
    name: str, text: bytes, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_bytes(text)
    assert cli.main(["data", "learn", name, "-o", "w.jsonl.gz", *words]) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
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
        r"answers       tokens estimated, 270 bytes of a body a token",
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
            assert len(read_workload(Lines.open("w.jsonl", "--trace")))
    assert min(ends.values()) > 20
