"""A real SGLang on the CPU, started by the command itself: its own API, OpenAI's, and nothing left behind."""

from __future__ import annotations

import csv
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from engines import place
from engines.clients import Finished, measured, read_json, start_loadgen
from engines.leftovers import PATIENCE_S, left, until_nothing_is_left
from loadgen.report import run_directory

pytestmark = pytest.mark.engine

_ON_CPU = {"SGLANG_USE_CPU_ENGINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
_CACHE_TOKENS = 65536
_ARGUMENTS = f"""--device cpu --attention-backend torch_native --sampling-backend pytorch
    --disable-overlap-schedule --disable-cuda-graph --max-total-tokens {_CACHE_TOKENS}
    --mem-fraction-static 0.3"""
_SMALL = ["--random-input-len", "64", "--random-output-len", "32"]
_SMALL += ["--num-prompts", "8", "--max-concurrency", "2", "--seed", "7"]
# Profiles: their API, their prompts, and where it is.
_WAYS = {
    "sglang-ids": ("sglang", "ids", "/generate"),
    "openai-ids": ("openai", "ids", "/v1/completions"),
    "sglang-text": ("sglang", "text-vllm", "/generate"),
    "openai-text": ("openai", "text-vllm", "/v1/completions"),
}
# Doubts of times, which eight requests from a client without a core of its own, next to the engine that the
# other half of these tests starts, cannot but raise.
_OF_TIMES = {
    *("reads-late", "concurrency-not-held", "first-wave", "tpot-trend", "throughput-trend"),
    "other-processes",
}


@pytest.fixture(scope="module")
def model(sglang_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny model: no other file's processes have its path in their command lines."""
    return Path(shutil.copytree(place.tiny_model(sglang_python), tmp_path_factory.mktemp("model") / "sglang"))


@pytest.fixture(scope="module")
def launch(sglang_python: Path, model: Path) -> list[str]:
    """Flags that start SGLang on a CPU."""
    words = ["--launch", "sglang", "--server-python", str(sglang_python), "--model", str(model)]
    return [*words, "--server-args", _ARGUMENTS, "--quiet"]


@pytest.fixture(scope="module")
def marks(sglang_python: Path, model: Path) -> tuple[str, ...]:
    """What SGLang's processes are known by: their titles, their interpreter, the model."""
    return "sglang::", str(sglang_python), str(model)


@pytest.fixture(scope="module")
def climbed(
    launch: list[str], marks: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Finished, Path, list[str]]:
    """A ladder, its directory, and the processes that it left."""
    directory = tmp_path_factory.mktemp("ladder")
    (directory / "short.toml").write_text(
        "ladder = [1, 64, 512, 16384]\noutput_len = 32\nnum_prompts = 2\nnum_warmups = 1\n"
        "max_concurrency = 1\nignore_eos = true\ntemperature = 0.0\n"
    )
    finished = measured([*launch, "--profile", "./short.toml"], directory, "ladder", more=_ON_CPU)
    (tables,) = (directory / "runs").glob("*-ladder")
    return finished, tables, left(*marks)


def test_the_ladder_climbs_in_ids_and_notes_what_does_not_fit(
    climbed: tuple[Finished, Path, list[str]],
) -> None:
    finished, directory, leftovers = climbed
    with (directory / "ladder.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["input_length"] for row in table] == ["1", "64", "512", "16384"]
    assert all(float(row["speed_tok_s"]) > 0 for row in table[:3])
    assert table[3]["speed_tok_s"] == "-"
    assert table[3]["note"] == "needs 16416 tokens, the context limit is 8192"
    assert {path.suffix for path in directory.glob("ladder.*")} >= {".csv", ".html", ".rst", ".md", ".json"}
    assert "skip_tokenizer_init=True" in finished.out
    assert leftovers == []


def test_every_rung_went_through_generate_without_a_tokenizer(
    climbed: tuple[Finished, Path, list[str]],
) -> None:
    _, directory, _ = climbed
    rows = read_json(directory / "ladder.json")["rows"]
    for row in rows[:3]:
        facts = _facts(directory / row["run"])
        assert facts["server"]["url"].endswith("/generate")
        assert "--skip-tokenizer-init" in facts["launched"]["command"]
        assert facts["prompt_format"] == "ids"
        length = row["input_length"]
        assert _counted(facts) == {
            "requests finished": (2, 2),
            "prompt tokens": (2 * length, 2 * length),
            "generated tokens": (2 * 32, 2 * 32),
        }


@pytest.fixture(scope="module")
def served(
    launch: list[str], marks: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Path], str, list[str]]:
    """Ids and texts through either API of one server: the runs, what was printed, the processes left."""
    directory = tmp_path_factory.mktemp("served")
    for name, (backend, prompts, _) in _WAYS.items():
        lines = f'backend = "{backend}"\nprompt_format = "{prompts}"\nnum_warmups = 2\n'
        (directory / f"{name}.toml").write_text(lines)
    profiles = ",".join(f"./{name}.toml" for name in _WAYS)
    finished = measured([*launch, *_SMALL, "--profile", profiles], directory, more=_ON_CPU)
    found = (path for path in (directory / "runs").iterdir() if (path / "result.json").exists())
    return {_facts(path)["profile"]["name"]: path for path in found}, finished.out, left(*marks)


def _facts(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(directory / "result.json")["loadgen"]
    return found


def _counted(facts: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """What client and server both count, by either's account."""
    rows = {row["figure"]: (row["client"], row["server"]) for row in facts["reconciliation"]}
    return {name: rows[name] for name in ("requests finished", "prompt tokens", "generated tokens")}


@pytest.mark.parametrize("name", _WAYS)
def test_either_api_counts_as_the_server_does(
    name: str, served: tuple[dict[str, Path], str, list[str]]
) -> None:
    runs, printed, leftovers = served
    facts = _facts(runs[name])
    _, prompts, path = _WAYS[name]
    assert facts["server"]["url"].endswith(path)
    assert facts["prompt_format"] == prompts
    assert _counted(facts) == {
        "requests finished": (8, 8),
        "prompt tokens": (8 * 64, 8 * 64),
        "generated tokens": (8 * 32, 8 * 32),
    }
    grave = {doubt["name"] for doubt in facts["verdict"]["doubts"] if doubt["severity"] != "note"}
    assert grave <= _OF_TIMES
    assert printed.count("Serving Benchmark Result") == len(_WAYS)
    assert leftovers == []


def test_each_answer_of_generate_has_the_times_that_the_server_counts(
    served: tuple[dict[str, Path], str, list[str]],
) -> None:
    run = run_directory.load(served[0]["sglang-ids"])
    window, records = run.facts.window, run.records
    assert window is not None
    for histogram, column in (
        (window.queue, records.server_queue_ns),
        (window.prefill, records.server_prefill_ns),
    ):
        assert histogram is not None
        assert (histogram.count, int((column >= 0).sum())) == (8, 8)
        assert column.sum() / 1e6 == pytest.approx(histogram.count * histogram.mean_ms, rel=0.02)
    assert (records.server_first_token_ns >= records.server_queue_ns + records.server_prefill_ns).all()
    assert (records.server_decode_ns > 0).all()


def test_the_cache_is_emptied_between_runs_of_the_same_prompts(
    served: tuple[dict[str, Path], str, list[str]],
) -> None:
    """Texts of a chosen seed are the same whatever the profile: the second run would find the first one's."""
    runs, _, _ = served
    for name, run in runs.items():
        facts = _facts(run)
        assert facts["cache_reset"] == "emptied before the run"
        rows = {row["figure"]: row["server"] for row in facts["reconciliation"]}
        assert rows["prefix cache hits"] == 0.0, name
    log = (runs["openai-text"] / "server.log").read_text("utf-8", "replace")
    assert log.count('"POST /flush_cache HTTP/1.1" 200') == len(_WAYS)


def test_the_result_says_how_it_was_started_and_what_it_runs(
    served: tuple[dict[str, Path], str, list[str]], sglang_python: Path, model: Path
) -> None:
    runs, _, _ = served
    facts = _facts(runs["sglang-ids"])
    launched, as_run = facts["launched"], facts["as_run"]
    assert launched["how"] == "sglang"
    assert launched["command"][:3] == [str(sglang_python), "-m", "sglang.launch_server"]
    assert "--skip-tokenizer-init" not in launched["command"]
    assert launched["owned"] == "the listening socket belongs to the process tree that was started"
    assert facts["server"]["engine"] == "SGLang"
    assert facts["checkpoint"]["path"] == str(model)
    assert facts["checkpoint"]["quantization"] == "BF16"
    assert as_run["version"] == facts["server"]["version"]
    assert as_run["kv_capacity_tokens"] == _CACHE_TOKENS
    assert as_run["attention_backend"] == "torch_native"
    assert (as_run["cuda_graphs"], as_run["prefix_caching"]) == ("off", "on")
    assert facts["sensed"]["rss"]["peak_bytes"] > 500 << 20
    assert "memory:" in (runs["sglang-ids"] / "report.txt").read_text("utf-8")


def test_a_client_that_is_killed_while_it_measures_leaves_no_server(
    launch: list[str], marks: tuple[str, ...], tmp_path: Path
) -> None:
    words = [*launch, *_SMALL, "--backend", "sglang", "--num-prompts", "100000"]
    with start_loadgen(words, tmp_path, more=_ON_CPU) as process:
        deadline = time.monotonic() + PATIENCE_S
        while _log(tmp_path).count("POST /generate") < 9:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, _log(tmp_path)[-2000:]
            time.sleep(0.1)
        assert any("sglang::scheduler" in words for words in left(*marks))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    until_nothing_is_left(*marks)


def _log(directory: Path) -> str:
    """What the server has said so far."""
    return "".join(path.read_text("utf-8", "replace") for path in directory.glob("runs/*-server/server.log"))
