"""Data sets and traces from the command line to a recording server: what the file holds is what arrives."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from builders.loops import loop_over
from builders.only_run import stored
from fakes.counting_api import CountingApi, Refusal, refuses_ids, refuses_images
from fakes.scripted_server import Answer, Asked, End
from fakes.virtual_run import serving
from loadgen import cli
from loadgen.base.errors import ExitCode
from loadgen.records.record import Records
from loadgen.report.run_directory import ARRIVALS

pytestmark = pytest.mark.usefixtures("elsewhere")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
DATA = ROOT / "tests" / "data" / "datasets"
CHAT = ["--backend", "openai-chat"]
LAID_OVER = {"stream", "stream_options", "ignore_eos"}  # by the plan, on every body
Values = dict[str, bytes]


def bench(api: CountingApi, *words: str | Path) -> int:
    """A run against a recording server, one request at a time."""
    with serving(api) as server:
        line = ["bench", "--quiet", "--base-url", server.base_url, "--max-concurrency", "1"]
        return cli.main([*line, *map(str, words)])


def values(body: bytes) -> Values:
    """The bytes of each field's value, as they stand."""
    decoded = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return {name: bytes(value) for name, value in decoded.items()}


def rows(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def arrived(api: CountingApi, count: int) -> list[Values]:
    """The bodies of the run: what came before them was sent to learn what the server takes."""
    assert len(api.served) >= count
    return [values(body) for body in api.served[-count:]]


@pytest.mark.parametrize(("file", "words", "laid"), [
    pytest.param(EXAMPLES / "bodies_with_tools.jsonl", [], {}, id="tools and a JSON schema"),
    pytest.param(EXAMPLES / "images.jsonl", [], {}, id="an image as a data URL"),
    pytest.param(DATA / "odd_bodies.jsonl", [], {}, id="numbers and escapes as they are written"),
    pytest.param(DATA / "odd_bodies.jsonl", ["--temperature", "0.5", "--extra-body", '{"top_k": 7}'],
                 {"temperature": b"0.5", "top_k": b"7"}, id="what flags lay over"),
])  # fmt: skip
def test_whole_bodies_arrive_as_they_stand_in_the_file(file: Path, words: list[str], laid: Values) -> None:
    api = CountingApi()
    assert bench(api, *CHAT, "--dataset-path", file, *words) == 0
    wanted = [values(row) for row in rows(file)]
    sent = arrived(api, len(wanted))
    for want, got in zip(wanted, sent, strict=True):
        assert {name: value for name, value in got.items() if name in laid} == laid
        assert got["stream"] == b"true"
        assert got["model"] == want.get("model", b'"m"')
        over = {*LAID_OVER, *laid, "model"}
        assert {n: v for n, v in got.items() if n not in over} == {
            n: v for n, v in want.items() if n not in over
        }


@pytest.mark.parametrize("named", [[], ["--dataset-name", "custom"]], ids=["recognised", "custom"])
def test_prompts_are_sent_with_the_lengths_of_their_rows_or_vllms(named: list[str]) -> None:
    api, file = CountingApi(), EXAMPLES / "prompts.jsonl"
    line = ["--skip-chat-template", "--disable-shuffle", "--num-prompts", "6"]
    assert bench(api, *CHAT, *named, *line, "--dataset-path", file) == 0
    wanted = [json.loads(row) for row in rows(file)]
    sent = [json.loads(body) for body in api.served[-len(wanted) :]]
    assert [body["messages"] for body in sent] == [[{"role": "user", "content": r["prompt"]}] for r in wanted]
    lengths = [body.get("max_tokens", body.get("max_completion_tokens")) for body in sent]
    assert lengths == [256 if named else row["output_tokens"] for row in wanted]


def test_a_window_of_a_trace_is_sent_at_its_times_with_its_prefixes() -> None:
    """The rows from 3 s to 9 s, ten times as fast, all clipped to 600 tokens: a shared block, and 88 more."""
    api, file = CountingApi(), EXAMPLES / "mooncake.jsonl"
    window = ["--trace-window", "3:9", "--speed-up", "10"]
    short = ["--trace-max-input-len", "600", "--trace-max-output-len", "3", "--trace-too-long", "clip"]
    with serving(api) as server:
        line = ["bench", "--quiet", "--base-url", server.base_url, "--trace", str(file), "--trace-format"]
        assert cli.main([*line, "mooncake", *window, *short]) == 0
    wanted = [row for row in map(json.loads, rows(file)) if 3000 <= row["timestamp"] < 9000]
    sent = [json.loads(body) for body in api.served[-len(wanted) :]]
    by_time = sorted((row["timestamp"], min(row["input_length"], 600)) for row in wanted)
    assert sorted(len(body["prompt"]) for body in sent) == sorted(length for _, length in by_time)
    firsts = {tuple(body["prompt"][:512]) for body in sent if len(body["prompt"]) > 512}
    assert len(firsts) == len({row["hash_ids"][0] for row in wanted if row["input_length"] > 512})
    (directory,) = Path("runs").iterdir()
    due_ns = Records.load(directory / ARRIVALS).intended_ns
    ms = np.array([time for time, _ in by_time]) - by_time[0][0]
    assert ((due_ns - due_ns.min()) // 1_000_000).tolist() == (ms // 10).tolist()
    data = stored()[0]["data"]
    assert (data["kind"], data["sent"], data["schedule"]["requests"]) == ("trace", len(wanted), len(wanted))


# What cannot be sent is refused in one line before anything of it is sent.


OF_THE_FILES = (b"salty", b"Oslo", b"inhabitants? Answer", b"What colour", b"bright or dark")


@loop_over(("words", "refusal", "reported"), [
    (["--backend", "openai-chat", "--dataset-path", str(EXAMPLES / "images.jsonl")], refuses_images, "image"),
    (["--trace", str(EXAMPLES / "timed.jsonl"), "--trace-format", "timed"], refuses_ids, "prompt"),
])  # fmt: skip
def test_what_a_server_refuses_ends_the_command_before_the_file_is_sent(
    words: list[str], refusal: Refusal, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api = CountingApi(refusal=refusal)
    with serving(api) as server:
        code = cli.main(["bench", "--quiet", "--base-url", server.base_url, *words])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert reported in err
    assert [body for body in (*api.served, *api.refused) if any(text in body for text in OF_THE_FILES)] == []


@loop_over(("content", "reported"), [
    (b"", "is empty"),
    (b"\x1f\x8b\x08\x00rest", "gzip cannot unpack it"),
    (b'{"prompt": "caf\xe9"}\n', "UTF-8"),
    (b'{"prompt": "a", "output_tokens": 4}\n{"timestamp": 0, "input_length": 4, "output_length": 4}\n',
     "row 2"),
    (b'{"prompt": "a", "output_tokens": 4}\n{"prompt": 7, "output_tokens": 4}\n', "row 2"),
    (b'{"prompt": "a"}\n', "row 1"),
    (b'{"text": "a"}\n', "row 1"),
    (b'{"prompt": "a", "output_tokens": -3}\n', "row 1"),
    (b"not JSON\n", "row 1"),
])  # fmt: skip
def test_a_bad_file_is_refused_by_file_and_row_and_nothing_is_sent(
    content: bytes, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows.jsonl").write_bytes(content)
    with serving(api := CountingApi()) as server:
        code = cli.main(["bench", "--quiet", "--base-url", server.base_url, "--dataset-path", "rows.jsonl"])
    out, err = capsys.readouterr()
    assert (code, out, api.served) == (ExitCode.USAGE, "", [])
    assert err.count("\n") == 1
    assert "rows.jsonl" in err
    assert reported in err


# Chat without a tokenizer: prompts of words whose length only the server knows.


WORDS = [
    "--backend", "openai-chat", "--random-output-len", "3", "--max-concurrency", "2", "--num-prompts", "20",
]  # fmt: skip


@pytest.mark.parametrize("tokenize", [True, False], ids=["a server with /tokenize", "usage alone"])
@pytest.mark.parametrize("length", [32, 200, 1024])
def test_prompts_reach_the_length_that_the_server_counts(tokenize: bool, length: int) -> None:
    api = CountingApi(tokenize=tokenize)
    with serving(api) as server:
        words = ["bench", "--quiet", "--base-url", server.base_url, *WORDS, "--random-input-len", str(length)]
        assert cli.main(words) == 0
    counts = api.counts()[-20:]
    assert sum(counts) / 20 == pytest.approx(length, rel=0.01)
    assert len(set(api.served[-20:])) == 20
    facts, _ = stored()
    assert facts["data"]["text"]
    assert facts["metrics"]["total_input_tokens"] == sum(counts)


@pytest.mark.parametrize(
    ("tokenize", "answered", "path"),
    [(False, 0, "/v1/chat/completions"), (False, 3, "/v1/chat/completions"), (True, 3, "/tokenize")],
    ids=["never", "only at first", "only at first, by /tokenize"],
)
@pytest.mark.parametrize("flag", ["--request-timeout", "--stall-timeout"])
def test_a_server_that_stops_counting_costs_one_timeout_and_a_line(
    tokenize: bool, answered: int, path: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api, posts = CountingApi(tokenize=tokenize), itertools.count()

    def script(asked: Asked) -> Answer:
        counts = asked.head.startswith("POST ") and (tokenize or "/tokenize" not in asked.head)
        return Answer([], End.HANG) if counts and next(posts) >= answered else api(asked)

    with serving(script) as server:
        url = f"{server.base_url}{path}"
        words = ["bench", "--quiet", "--base-url", server.base_url, *WORDS, "--turns", "2", flag, "0.5"]
        begin_s = time.monotonic()
        assert cli.main(words) == 1
        assert time.monotonic() - begin_s < 5.0
    fault = f"{url}, asked how many tokens it counts in a prompt, does not answer within 0.5 s"
    assert (
        capsys.readouterr().err == f"loadgen: {fault}: pass --tokenizer to need no answer, or raise {flag}\n"
    )
