"""Causes: what real engines' last words are taken to mean."""

from __future__ import annotations

from pathlib import Path

from builders.loops import loop_over, read_tables
from loadgen_servers.process.failure_causes import cause

TABLES = read_tables("failure_causes")

LOGS = Path(__file__).parents[2] / "data" / "server_logs"
SAID = TABLES["logs"]
SERVED = ("sglang_serves", "vllm_serves", "llamacpp_serves")


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text("utf-8")


def test_every_kept_log_is_looked_at() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == {*SAID, *SERVED}


@loop_over("name", SAID)
def test_a_known_last_word_is_explained_in_one_line(name: str) -> None:
    found = cause(log(name), 1)
    assert SAID[name] in found
    assert "\n" not in found
    assert "{" not in found


@loop_over("name", SAID)
def test_the_explanation_survives_what_the_tail_clips(name: str) -> None:
    clipped = "\n".join(line[:200] for line in log(name).splitlines())
    assert cause(clipped, 1) == cause(log(name), 1)


@loop_over("name", SERVED)
def test_what_a_server_logs_and_lives_with_is_no_cause(name: str) -> None:
    assert cause(log(name), 1) == ""


@loop_over(("line", "begin"), TABLES["lines"])
def test_a_line_is_explained(line: str, begin: str) -> None:
    assert cause(f"Loading weights\n{line}", 1).startswith(begin)


@loop_over("line", TABLES["no causes"])
def test_what_does_not_explain_an_end_is_not_taken_for_it(line: str) -> None:
    assert cause(line, 1) == ""


@loop_over(("exit_code", "begin"), [
    (-9, "killed, as the kernel does"), (137, "killed, as the kernel does"),
    (-4, "it uses instructions that this CPU does not have"), (139, "it crashed (segmentation fault)"),
    (-7, "it ran out of shared memory"), (0, ""), (1, ""), (-15, ""), (None, ""),
])  # fmt: skip
def test_without_a_word_the_signal_counts(exit_code: int | None, begin: str) -> None:
    found = cause("Loading weights", exit_code)
    assert found.startswith(begin)
    assert bool(found) == bool(begin)


def test_a_known_line_counts_more_than_the_signal() -> None:
    assert cause(log("vllm_gated"), -9).startswith("the model is gated")
