"""The ladder: a row for every length whatever becomes of it, and all rows so far on the disk."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from builders.loops import loop_over, read_tables
from builders.serving_scripts import engine_command, launch_command
from fakes.scripted_server import Answer, Asked, api, stream, whole
from fakes.virtual_servers import engine_server
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.report import run_directory
from loadgen.report.run_directory import Result, load
from loadgen.run import session
from loadgen.study.speed import ladder_rows
from loadgen.study.speed.speed_rows import TOTAL, SpeedRow, read_speed_csv

TABLES = read_tables("ladder_command")

# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
LADDER = "ladder = [1, 8, 64]\noutput_len = 4\nnum_prompts = 2\nmax_concurrency = 1\n"
ENGINE = ["--preset", "bench/1024x50", "--served-model-name", "Qwen/Qwen3-8B"]  # 20 ms a token


@pytest.fixture(autouse=True)
def _at_the_foot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile to climb; a server that failed is soon known to live."""
    monkeypatch.setattr(session, "_FAILED_S", 1.0)
    (tmp_path / "p.toml").write_text(LADDER, "utf-8")


def climb(*words: str) -> int:
    return cli.main(["ladder", "--quiet", "--profile", "./p.toml", *words])


def on(line: str, *words: str) -> int:
    return climb("--launch-command", line, *words)


def on_engine(*flags: str, words: tuple[str, ...] = ()) -> int:
    """Climb on the embedded engine as a server that runs already, with flags of its own."""
    with VirtualServing(engine_server(*ENGINE, *flags)) as server:
        return climb("--base-url", server.base_url, *words)


def directory() -> Path:
    (found,) = Path("runs").iterdir()
    return found


def rows() -> list[SpeedRow]:
    return read_speed_csv(directory() / "ladder.csv")


def outcome() -> list[tuple[int, str]]:
    """Of each row: its length, and "measured", or why it was not."""
    return [(row.input_length, "measured" if row.speed_tok_s is not None else row.note) for row in rows()]


def measured(length: int) -> Result:
    """The run of a length, as its directory has it."""
    (found,) = directory().glob(f"*-p-{length}")
    return load(found)


@pytest.mark.whole
def test_every_length_is_a_row_in_order_and_every_file_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert on(engine_command(*ENGINE)) == 0
    found = rows()
    assert [row.input_length for row in found] == [1, 8, 64]
    assert {(row.model, row.quantization, row.formula, row.output_length) for row in found} == {
        ("Qwen3-8B", "", TOTAL, 4)
    }
    place = directory()
    kept = json.loads((place / "ladder.json").read_text("utf-8"))["rows"]
    assert [Decimal(f"{row['speed_tok_s']:.2f}") for row in kept] == [row.speed_tok_s for row in found]
    assert [ladder_rows.make_speed_row(load(place / row["run"]), TOTAL) for row in kept] == found
    assert all((place / row["run"] / "server.log").stat().st_size for row in kept)
    for form in ("html", "rst", "md"):
        text = (place / f"ladder.{form}").read_text("utf-8")
        assert all(str(row.speed_tok_s) in text for row in found)
        assert "served_model_name" not in text
    out = capsys.readouterr().out
    # What doubts a busy machine adds behind it is not asserted.
    assert all(row.note.startswith("SIMULATED, no model ran") for row in found)
    first = found[0]
    assert out.startswith(
        f"input 1: TTFT {first.ttft_ms} ms, decode {first.decode_tok_s} tok/s, "
        f"(prompt+output)/time {first.speed_tok_s} tok/s ({first.note})\n"
    )
    assert out.endswith(f"tables and runs: {place}\n")


def test_a_length_beyond_the_context_limit_is_a_row_of_the_ladder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.toml").write_text("ladder = [64, 8]\noutput_len = 4\nnum_prompts = 1\n", "utf-8")
    assert on_engine("--max-model-len", "32") == 0
    assert outcome() == [(64, "needs 68 tokens, the context limit is 32"), (8, "measured")]
    assert rows()[0].model == "Qwen3-8B"
    out = capsys.readouterr().out
    assert out.startswith("input 64: - (needs 68 tokens, the context limit is 32)\ninput 8: ")


@pytest.mark.parametrize(
    ("warmups", "why"),
    [
        (0, "2 of 2 failed: http-status: 400: no"),
        (1, "every warm-up request failed, the first with http-status: 400: no"),
    ],
)
def test_a_length_that_the_server_refuses_is_a_row_of_the_ladder(warmups: int, why: str) -> None:
    Path("p.toml").write_text(f"{LADDER.replace('8', '9')}num_warmups = {warmups}\n", "utf-8")

    def refuse(asked: Asked) -> Answer:
        refused = len(json.loads(asked.body)["prompt"]) == 9
        return Answer([whole(b'{"error": {"message": "no"}}', "400 Bad")]) if refused else stream(4)

    with VirtualServing(api(refuse)) as server:
        assert climb("--base-url", server.base_url) == 0
    assert [length for length, why in outcome() if why == "measured"] == [1, 64]
    assert outcome()[1][1].startswith(why)


DIES = "Server(lambda asked: die(9, 'CUDA out of memory') if asked.prompt_tokens > 8 else None)"


@pytest.mark.whole
@pytest.mark.parametrize("warmups", [0, 1])
def test_a_server_that_dies_of_a_length_is_started_again_for_the_next(
    warmups: int, tmp_path: Path, ports: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    text = LADDER.replace("[1, 8, 64]", "[1, 64, 4, 65]")
    Path("p.toml").write_text(f"{text}num_warmups = {warmups}\n", "utf-8")
    assert on(launch_command(tmp_path, f"{DIES}.serve()")) == 0
    why = "command ended with 9 during the run: the GPU's memory ran out: end what else uses it, or lower"
    shown = [(length, said[: len(why)]) for length, said in outcome()]
    assert shown == [(1, "measured"), (64, why), (4, "measured"), (65, why)]
    assert len(ports) == 2
    assert len(list(directory().glob("*-command-server*"))) == 2
    assert capsys.readouterr().err.count("\n  | CUDA out of memory\n") == 2
    assert cli.main(["verify", str(directory())]) == 0


@pytest.mark.whole
def test_where_the_server_does_not_start_again_the_rows_say_so(
    tmp_path: Path, ports: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    once = "os.path.exists('started') and die(1, 'once is enough')\nopen('started', 'w').close()\n"
    Path("p.toml").write_text(LADDER.replace("[1, 8, 64]", "[1, 64, 4, 2]"), "utf-8")
    assert on(launch_command(tmp_path, f"{once}{DIES}.serve()")) == 0
    assert [length for length, said in outcome() if said == "measured"] == [1]
    assert outcome()[2:] == [(length, "the server did not start again") for length in (4, 2)]
    assert "command ended with 1 before it was ready" in capsys.readouterr().err
    assert len(ports) == 2


def test_the_published_row_of_the_same_model_stands_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.toml").write_text("ladder = [1, 2]\noutput_len = 4\nnum_prompts = 1\n", "utf-8")
    assert on_engine() == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Published on" in out
    assert "SGLang, 1× H20" in out
    assert "Published with 2048 generated tokens, ours with 4" in out
    ours = rows()[0].speed_tok_s
    assert ours is not None
    assert f"1 {ours} 81.73 {ours / Decimal('81.73'):.2f} SGLang" in out


@pytest.mark.parametrize(("verb", "words", "says"), TABLES["refused"])
def test_what_is_no_ladder_is_refused_before_anything_is_started(
    verb: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb, *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1
    assert not Path("runs").exists()


def test_the_throughput_profiles_print_their_rows_after_the_blocks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["--random-input-len", "30", "--random-output-len", "10", "--num-warmups", "1"]
    words = ["--profile", "qwen-throughput-100,qwen-throughput-1000", *small, "--quiet"]
    with VirtualServing(engine_server(*ENGINE)) as server:
        assert cli.main(["bench", "--base-url", server.base_url, *words]) == 0
    out = capsys.readouterr().out
    block, _, table = out.rpartition("\n\n")
    assert block.count("Serving Benchmark Result") == 2
    *head, _, first, second = table.splitlines()
    assert {"Model", "#", "Prompts", "QPS", "Tokens/s"} <= set(" ".join(head).split())
    for line, prompts in ((first, 100), (second, 1000)):
        (path,) = Path("runs").glob(f"*-qwen-throughput-{prompts}/result.json")
        known = json.loads(path.read_text("utf-8"))
        assert (known["total_input_tokens"], known["total_output_tokens"]) == (30 * prompts, 10 * prompts)
        qps, tokens = prompts / known["duration"], 40 * prompts / known["duration"]
        assert line.split()[:4] == ["Qwen3-8B", str(prompts), f"{qps:.2f}", f"{tokens:.2f}"]


BENCH = ["--preset", "bench/1024x50"]  # 20 ms a token
SHORT = ["-p", "64", "-n", "4", "--num-prompts", "2"]
_SCHEMA = Path(__file__).parents[2] / "data/schemas/llama_benchy_report_0.4.0.json"


def at_depth(*words: str, code: int = 0) -> tuple[Path, list[dict[str, Any]]]:
    """The directory of a command, and its rows."""
    assert cli.main(["ladder", "--quiet", *words]) == code
    (directory,) = Path("runs").glob("*-depth")
    assert not list(Path("runs").glob("*-ladder"))
    rows: list[dict[str, Any]] = json.loads((directory / "depth.json").read_text("utf-8"))["rows"]
    assert all((directory / row["run"]).is_dir() for row in rows if row.get("run"))
    return directory, rows


def test_each_depth_and_concurrency_has_its_batches(capsys: pytest.CaptureFixture[str]) -> None:
    directory, rows = at_depth(*BENCH, "--depth", "0,256", "--concurrency", "1,3", *SHORT)
    assert [(row["depth"], row["concurrency"], row["is_context"], row["cached_tokens"]) for row in rows] == [
        (0, 1, False, 0), (0, 3, False, 0),
        (256, 1, True, 0), (256, 1, False, 256), (256, 3, True, 0), (256, 3, False, 256),
    ]  # fmt: skip
    assert all(len(row["batches"]) == len(row["runs"]) == 2 for row in rows)
    for row in rows:
        for batch in row["batches"]:
            assert len(batch["tg_each"]) == len(batch["ttft_ms"]) == row["concurrency"]
            assert all(45 < speed < 52 for speed in batch["tg_each"])  # the engine's 20 ms a token
    contexts = [run_directory.load(directory / name).facts.profile for name in rows[4]["runs"]]
    assert {(each.prefix_groups, each.max_concurrency, each.input_len) for each in contexts} == {(3, 3, 1)}
    report = json.loads((directory / "llama-benchy.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(json.loads(_SCHEMA.read_text())).validate(report)
    assert len(report["benchmarks"]) == len(rows)
    assert (report["model"][-12:], report["prefix_caching_enabled"]) == (" (simulated)", True)
    text = (directory / "depth.md").read_text("utf-8")
    assert "| ctx_pp @ d256 (c3) |" in text
    assert "| tg4 @ d256 (c1) |" in text
    out = capsys.readouterr().out
    assert out.count("pp64 @ d256 (c3): ") == 1  # as its last batch ends


def test_contexts_that_are_not_cached_give_no_batch() -> None:
    with VirtualServing(engine_server(*BENCH, "--no-enable-prefix-caching")) as server:
        words = ("--base-url", server.base_url, "--depth", "256", "--concurrency", "2", *SHORT)
        directory, rows = at_depth(*words)
    assert [len(row["batches"]) for row in rows] == [2, 0]
    assert rows[1]["note"].startswith("not at that depth: 0 of 256 tokens were cached")
    report = json.loads((directory / "llama-benchy.json").read_text("utf-8"))
    assert [each["is_context_prefill_phase"] for each in report["benchmarks"]] == [True]


def test_contexts_are_sent_again_for_a_batch_that_is_missing() -> None:
    words = (*BENCH, "--depth", "256", "--concurrency", "2", *SHORT)
    directory, _ = at_depth(*words)
    kept = [run_directory.load(path).facts.started for path in sorted(directory.glob("00[34]-*"))]
    shutil.rmtree(next(directory.glob("002-*")))
    directory, rows = at_depth(*words, "--resume", str(directory))
    assert [(len(row["batches"]), row["cached_tokens"]) for row in rows] == [(2, 0), (2, 256)]
    runs = [run_directory.load(path).facts.started for path in sorted(directory.glob("00*"))]
    assert (runs[2:], runs[0] > kept[-1]) == (kept, True)


def test_each_depth_has_a_prompt_and_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    directory, rows = at_depth(*BENCH, "--depth", "0,256", *SHORT)
    cached = {"pp64": 0, "tg4": 0, "pp64 @ d256": 256, "tg4 @ d256": 256}
    assert {row["test"]: row["cached_tokens"] for row in rows} == cached
    assert all(row["requests"] == 2 for row in rows)  # the one that filled the cache is in none
    assert all(row["tok_s"] > 0 and row["std_tok_s"] >= 0 for row in rows)
    assert all(row["tok_s"] < 52 for row in rows[1::2])  # the engine's 20 ms a token
    assert "| pp64 @ d256 |" in (directory / "depth.md").read_text("utf-8")
    out = capsys.readouterr().out
    assert "tg4 @ d256: " in out
    assert "@ dN: after N tokens that the server had in its cache" in out


@loop_over(("words", "says"), TABLES["refused_depths"])
def test_what_is_no_depth_or_concurrency_is_refused_in_a_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ladder", *BENCH, *words]) == 2
    assert says in capsys.readouterr().err
