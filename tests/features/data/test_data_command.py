"""`loadgen data`: what would be sent is shown, of random prompts and files alike, and nothing is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.data_files import jsonl, planned
from builders.loops import loop_over, read_tables
from builders.required import require
from loadgen import cli
from loadgen.engines.engines import ENGINES
from loadgen.features.data import row_kinds
from loadgen.plan import plan, profile, trace_heads
from loadgen.plan.request_sources import ModelTarget, Seed

TABLES = read_tables("data_command")

DATA = Path(__file__).parents[2] / "data" / "datasets"

SEEDED = ["--seed", "7"]


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["data", *words, *SEEDED]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(capsys, *words, "--json"))
    return found


@loop_over(("words", "lines"), TABLES["random"])
def test_random_prompts_are_shown(words: str, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    printed = shown(capsys, *words.split()).splitlines()
    assert [line for line in lines if line not in printed] == []
    assert [line for line in printed if len(line) > 80] == []


@loop_over(("words", "lines"), TABLES["turns"])
def test_turns_that_are_made_here_are_shown(
    words: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = " ".join(shown(capsys, "--turns", "4", "--num-sessions", "5", *words.split()).split())
    assert [line for line in lines if line not in printed] == []


def test_one_is_not_plural(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    rows = [(i, length, 1, [1]) for i, length in enumerate((5, 5, 90))]
    file = jsonl(Path.cwd(), [dict(zip(names, row, strict=True)) for row in rows])
    printed = shown(capsys, file, "--trace-format", "mooncake", "--trace-max-input-len", "20").splitlines()
    assert "left out      1 row: longer than --trace-max-input-len" in printed
    assert "outputs       1 token each" in printed


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--num-prompts", "3", "--input-len", "4", "--request-rate", "2")
    assert (found["kind"], found["requests"], found["seed"]) == ("random", 3, 7)
    assert found["input_tokens"]["most"] == found["input_tokens"]["least"] == 4
    assert (found["arrivals"]["instants"], len(found["example"]["prompt"])) == (3, 4)


@loop_over(("words", "message"), TABLES["refusals"])
def test_what_cannot_be_shown_is_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("s.json").write_text('[{"conversations": []}]', "utf-8")
    Path("c.jsonl").write_text('{"prompt": "a"}', "utf-8")
    assert cli.main(["data", *words.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"loadgen: {message}")
    assert said.count("\n") == 1


@loop_over(("name", "content", "traced"), TABLES["traces"])
def test_a_trace_is_known_by_its_first_row(name: str, content: str, traced: bool) -> None:
    Path(name).write_text(content, "utf-8")
    assert trace_heads.is_trace(name) is traced


def test_a_directory_is_a_trace_and_a_missing_file_none() -> None:
    Path("d").mkdir()
    assert [trace_heads.is_trace(name) for name in ("d", "nowhere")] == [True, False]


def test_the_text_of_a_body_is_its_messages() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": parts}]
    assert row_kinds.read_body_text(json.dumps({"messages": messages}).encode()) == "a\nb"
    assert row_kinds.read_body_text(b'{"prompt": "c"}') == "c"


def test_the_plan_is_written_as_rows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num-prompts", "3", "--input-len", "4", "--output-len", "2", "--export-requests", "out.jsonl"]
    lines = shown(capsys, *words).splitlines()
    rows = [json.loads(line) for line in Path("out.jsonl").read_text("utf-8").splitlines()]
    assert [(len(row["prompt"]), row["output_tokens"]) for row in rows] == [(4, 2)] * 3
    (digest,) = (line.split()[1].strip(",") for line in lines if line.startswith("plan "))
    assert f"requests: out.jsonl, 3 rows of token ids; plan {digest}" in lines
    assert "sent by: loadgen bench --dataset-path out.jsonl --ignore-eos" in lines


@pytest.mark.usefixtures("engines")
def test_a_run_writes_the_plan_that_it_sends(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--quiet --preset instant --num-prompts 3 --input-len 4 --output-len 2 --export-requests f.jsonl"
    assert cli.main(["bench", *words.split()]) == 0
    printed = capsys.readouterr().out
    (run,) = Path("runs").iterdir()
    facts = json.loads((run / "result.json").read_text("utf-8"))["loadgen"]
    assert f"requests: f.jsonl, 3 rows of token ids; plan {facts['plan_digest']}" in printed
    assert len(Path("f.jsonl").read_text("utf-8").splitlines()) == 3


@pytest.mark.whole
@loop_over("words", ["--repeat 2", "--profile smoke,chat"])
def test_one_file_has_one_plan(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--export-requests", "f.jsonl", "--quiet", *words.split()]) == 2
    assert "--export-requests writes one plan" in capsys.readouterr().err
    assert not Path("f.jsonl").exists()


def test_conversations_are_shown_as_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(DATA / "mlperf_edge_agentic_excerpt.jsonl")
    printed = shown(capsys, file, "--max-concurrency", "2").splitlines()
    lines = [
        "kind          conversations, sent to /v1/chat/completions",
        "requests      7",
        "sessions      1; 7 turns each",
        "recorded      1 user, 7 assistant, 6 tool, 7 tool calls, 1 conversations with tools",
        "arrivals      sessions as responses come, 2 at a time",
    ]
    unfolded = " ".join(" ".join(printed).split())
    assert [line for line in lines if " ".join(line.split()) not in unfolded] == []
    found = as_json(capsys, file)
    assert found["sessions"]["turns"] == {"least": 7, "mean": 7, "most": 7}
    assert found["recorded"] == {
        "user": 1, "assistant": 7, "tool": 6, "tool calls": 7, "conversations with tools": 1,
    }  # fmt: skip


def test_turns_are_exported_as_conversations_that_are_sent_alike(capsys: pytest.CaptureFixture[str]) -> None:
    lens = "--input-len 9 --output-len 4 --random-prefix-len 5"
    words = f"--turns 3 --num-sessions 2 {lens} --think-time 2 --export-requests f.jsonl"
    printed = shown(capsys, *words.split())
    assert "requests: f.jsonl, 12 rows of conversations; plan" in printed
    assert "sent by: loadgen bench --dataset-path f.jsonl --ignore-eos --backend openai-chat" in printed
    keys = {"turns": 3, "num_sessions": 2, "input_len": 9, "output_len": 4, "prefix_len": 5, "think_time": 2}
    first = plan.make(profile.build(keys), ModelTarget(ENGINES[0], "served"), Seed(7, chosen=True))
    again = planned("f.jsonl", ignore_eos=True, backend="openai-chat")
    assert [again.payload(i) for i in range(6)] == [first.payload(i) for i in range(6)]
    assert require(again.turns).delays_ns.tolist() == require(first.turns).delays_ns.tolist()


def test_bodies_of_sessions_are_exported_without_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(DATA / "mlperf_edge_agentic_excerpt.jsonl")
    printed = " ".join(shown(capsys, file, "--export-requests", "f.jsonl").split())
    assert "f.jsonl, 7 rows of whole bodies; plan" in printed
    assert "which request follows which response, and after what delay, is not in it: each row is" in printed


def test_requests_of_another_api_of_messages_are_exported_as_chat(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"conversation_id": "a", "turn": 1, "role": "user", "content": "q", "system": "s", "max_tokens": 7},
        {"conversation_id": "a", "turn": 2, "role": "assistant", "content": "r"},
    ]
    words = [jsonl(Path.cwd(), rows), "--backend", "anthropic-messages", "--export-requests", "g.jsonl"]
    printed = " ".join(shown(capsys, *words).split())
    assert "sent by: loadgen bench --dataset-path g.jsonl --backend openai-chat" in printed
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    assert json.loads(Path("g.jsonl").read_bytes()) == {"messages": messages, "max_completion_tokens": 7}
    printed = shown(
        capsys, "--turns", "2", "--num-sessions", "1", "--export-requests", "h.jsonl", *words[1:3]
    )
    assert (
        "sent by: loadgen bench --dataset-path h.jsonl --ignore-eos --backend anthropic-messages" in printed
    )
