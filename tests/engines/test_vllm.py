"""The main job against a real vLLM."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import clients
from engines.clients import Finished, loadgen, measured, read_json, read_run, scrape, start_loadgen
from engines.running import Engine
from loadgen.figures.metrics import Metrics, compute_metrics
from loadgen.figures.per_request import MetricOptions
from loadgen.records.record import Records
from loadgen.server import scraper
from loadgen.server.exchange import ServerAddress
from loadgen.server.scraper import MetricsScraper
from loadgen.server.server_counters import ServerWindow
from loadgen.verdict.reconcile import count_foreign_requests, find_mismatches, reconcile_figures

pytestmark = pytest.mark.engine

_SAMPLES = Path(__file__).resolve().parents[1] / "data" / "results"
_PROMPT, _GENERATED = "vllm:prompt_tokens_total", "vllm:generation_tokens_total"
_PATIENCE_S = 60.0
# A vLLM that is stopping ends its streams with "abort" or leaves them without another word, and refuses
# what comes after that in several ways, or never answers it.
_STOPPED = {"aborted", "stall", "truncated", "connect", "http-status", "in-band-error"}


def _drop_in(engine: Engine, model: Path) -> list[str]:
    """The command of our README with a smaller load."""
    return f"""--base-url {engine.base_url} --model qwen3 --tokenizer {model} --dataset-name random
        --random-input-len 256 --random-output-len 64 --num-prompts 32 --max-concurrency 8""".split()


def _labels(block: str) -> list[str]:
    """Headers whole, rows up to their figure."""
    return [line if line[:1] in "-=" else line[:40] for line in block.splitlines()]


def _deltas(engine: Engine, before: dict[str, float], expected: tuple[int, int]) -> tuple[int, int]:
    """How far the server's own token counters have moved; it may publish the last step a moment late."""
    deadline = time.monotonic() + 10
    while True:
        after = scrape(engine.base_url)
        moved = int(after[_PROMPT] - before[_PROMPT]), int(after[_GENERATED] - before[_GENERATED])
        if moved == expected or time.monotonic() > deadline:
            return moved
        time.sleep(0.1)


def _totals(result: dict[str, Any]) -> tuple[int, int]:
    return result["total_input_tokens"], result["total_output_tokens"]


def test_the_drop_in_command_gives_the_known_block_and_the_servers_totals(
    vllm: Engine, model: Path, tmp_path: Path
) -> None:
    before = scrape(vllm.base_url)
    finished = measured(_drop_in(vllm, model), tmp_path)
    sample = Finished(0, (_SAMPLES / "vllm_bench_serve.stdout.txt").read_text("utf-8"), "")
    assert _labels(finished.block) == _labels(sample.block)
    totals = _totals(read_run(tmp_path)[0])
    assert totals == (32 * 256, 32 * 64)
    assert _deltas(vllm, before, totals) == totals
    # A doubt of others' processes may take its room in the terminal.
    (report,) = (tmp_path / "runs").glob("*/report.txt")
    assert "tokens: as reported by the server in usage" in report.read_text("utf-8")


def test_the_result_file_has_every_key_of_vllms(vllm: Engine, model: Path, tmp_path: Path) -> None:
    saved = ["--save-result", "--save-detailed", "--result-filename", "ours.json"]
    measured([*_drop_in(vllm, model), *saved], tmp_path)
    sample = read_json(_SAMPLES / "vllm_bench_serve.json")
    assert sample.keys() - read_json(tmp_path / "ours.json").keys() == set()


def test_identical_texts_give_what_vllm_bench_serve_gets(
    vllm: Engine, engines_python: Path, model: Path, tmp_path: Path
) -> None:
    shared = f"""--base-url {vllm.base_url} --backend vllm --endpoint /v1/completions --model qwen3
        --tokenizer {model} --dataset-name random --random-input-len 200 --random-output-len 48
        --num-prompts 16 --max-concurrency 1 --seed 0 --ignore-eos --temperature 0""".split()
    ours_too = ["--prompt-format", "text-vllm", "--save-result", "--save-detailed"]
    before = scrape(vllm.base_url)
    measured([*shared, *ours_too, "--result-filename", "ours.json"], tmp_path)
    ours = read_json(tmp_path / "ours.json")
    assert _deltas(vllm, before, _totals(ours)) == _totals(ours)
    theirs = clients.vllm_bench(engines_python, shared, tmp_path)
    assert _totals(ours) == _totals(theirs)
    assert ours["output_lens"] == theirs["output_lens"]
    assert ours["input_lens"] == theirs["input_lens"]
    assert ours["generated_texts"] == theirs["generated_texts"]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("--backend openai-chat --endpoint /v1/chat/completions", id="chat"),
        pytest.param("--backend openai-chat --disable-stream", id="chat whole"),
        pytest.param("--disable-stream", id="completions whole"),
        pytest.param("--continuous-usage", id="usage on every message"),
        pytest.param("--transport httpx", id="httpx"),
        pytest.param("--request-rate 40 --burstiness 0.5", id="open loop"),
    ],
)
def test_every_way_of_asking_counts_what_the_server_counts(
    more: str, vllm: Engine, model: Path, tmp_path: Path
) -> None:
    before = scrape(vllm.base_url)
    measured([*_drop_in(vllm, model), "--temperature", "0", *more.split()], tmp_path)
    result = read_run(tmp_path)[0]
    assert (result["completed"], result["total_output_tokens"]) == (32, 32 * 64)
    assert _deltas(vllm, before, _totals(result)) == _totals(result)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--model nope", "vLLM does not serve 'nope'; it serves qwen3"),
        ("--random-output-len 5000", "qwen3 accepts 4096"),
        ('--extra-body {"top_p":5}', "top_p must be in (0, 1]"),
        ("--endpoint /v1/nowhere/completions", "404"),
    ],
)
def test_what_cannot_be_measured_ends_in_one_line(more: str, said: str, vllm: Engine, tmp_path: Path) -> None:
    flags = f"--base-url {vllm.base_url} --profile smoke --num-prompts 4 {more}".split()
    finished = loadgen(flags, tmp_path)
    assert finished.code == 1
    assert said in finished.err
    assert finished.err.count("\n") == 1


def test_messages_of_several_tokens_are_counted_token_by_token(
    caching_vllm: Engine, model: Path, tmp_path: Path
) -> None:
    measured([*_drop_in(caching_vllm, model), "--continuous-usage"], tmp_path)
    records = read_run(tmp_path)[1]
    assert records.exact_tokens.all()
    assert records.tokens.sum() == 32 * 64
    assert np.bincount(records.tokens).argmax() == 4  # as its --stream-interval says


def test_a_server_that_is_stopped_in_the_middle_leaves_failures(doomed_vllm: Engine, tmp_path: Path) -> None:
    kinds = _end_in_the_middle(doomed_vllm, signal.SIGTERM, tmp_path)
    assert kinds <= _STOPPED


def test_a_server_that_is_killed_in_the_middle_leaves_failures(
    doomed_caching_vllm: Engine, tmp_path: Path
) -> None:
    kinds = _end_in_the_middle(doomed_caching_vllm, signal.SIGKILL, tmp_path)
    assert kinds <= {"truncated", "connect"}


def _end_in_the_middle(doomed: Engine, number: signal.Signals, directory: Path) -> set[str]:
    """The kinds of failures of a run whose server got a signal while it answered: no request succeeds."""
    long = f"""--base-url {doomed.base_url} --random-input-len 32 --random-output-len 4000
        --num-prompts 6 --max-concurrency 4 --stall-timeout 5 --save-result --save-detailed
        --result-filename cut.json""".split()
    seen = scrape(doomed.base_url)[_GENERATED]
    with start_loadgen(long, directory) as process:
        deadline = time.monotonic() + _PATIENCE_S
        while scrape(doomed.base_url)[_GENERATED] < seen + 400:
            assert time.monotonic() < deadline, "no tokens came"
            time.sleep(0.05)
        os.kill(doomed.process.pid, number)
        _, err = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 1, err
    assert "every request failed" in err
    found = [error.partition(":")[0] for error in read_json(directory / "cut.json")["errors"]]
    assert len(found) == 6
    return set(found)


def _observed(engine: Engine, arguments: list[str], directory: Path) -> tuple[ServerWindow, Metrics, Records]:
    """A run of loadgen with an observer beside it, and what the two say."""
    directory.mkdir(exist_ok=True)
    observer = MetricsScraper(ServerAddress(engine.base_url), "qwen3")
    assert observer.scrape_before(idle_s=10.0) == ""
    with observer.sampling():
        measured([*arguments, "--no-observe"], directory)
    records = read_run(directory)[1]
    return observer.scrape_after(), compute_metrics(records, MetricOptions()), records


def test_client_and_server_count_the_same_and_each_answer_tells_its_queue(
    caching_vllm: Engine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scraper, "SAMPLING_SHARE", 1.0)  # the gauges once a second, whatever it costs
    load = [*_drop_in(caching_vllm, model), "--seed", "13", "--random-output-len", "256"]
    window, metrics, records = _observed(caching_vllm, load, tmp_path / "first")
    assert (window.settled, window.reset, window.models) == (True, False, ("qwen3",))
    assert (window.generation_tokens, window.prompt_tokens) == (32 * 256, 32 * 256)
    assert (metrics.total_output_tokens, metrics.total_input_tokens) == (32 * 256, 32 * 256)
    assert window.requests == {"length": 32}
    assert [m.figure for m in find_mismatches(window, metrics) if "mean" not in m.figure] == []
    assert count_foreign_requests(window, metrics) == 0
    assert (window.peak("running"), window.peak("waiting")) == (4, 4)
    assert window.prefix_hits == 0

    assert window.queue is not None
    queued_ns = records.server_queue_ns
    assert (queued_ns >= 0).all()
    assert float(queued_ns.mean()) / 1e6 == pytest.approx(window.queue.mean_ms, rel=0.01)
    found = {row.figure: row for row in reconcile_figures(window, metrics, records)}
    told = found["TTFT by response, mean"]
    assert told.client is not None
    assert told.server is not None
    assert 0 < told.server < told.client
    assert window.ttft is not None
    assert window.ttft.mean_ms == pytest.approx(metrics.ttft.mean_ms, rel=0.2)


def test_the_same_prompts_again_are_seen_to_come_from_the_prefix_cache(
    caching_vllm: Engine, model: Path, tmp_path: Path
) -> None:
    load = [*_drop_in(caching_vllm, model), "--seed", "11", "--random-output-len", "8"]
    first, again = (_observed(caching_vllm, load, tmp_path / name)[0] for name in ("first", "again"))
    # Of eight blocks of 32 tokens all but the last: the last token is always computed.
    assert (first.prefix_hits, again.prefix_hits) == (0, 32 * 224)


def _judged(finished: Finished, directory: Path) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
    """The doubts of a run by name, and the rest of what its result says of it."""
    assert finished.code == 0, finished.err
    ours = read_run(directory)[0]["loadgen"]
    return {doubt["name"]: doubt for doubt in ours["verdict"]["doubts"]}, ours


def test_the_servers_counts_equal_ours_in_the_report(vllm: Engine, model: Path, tmp_path: Path) -> None:
    finished = loadgen([*_drop_in(vllm, model), "--num-warmups", "8"], tmp_path)
    doubts, ours = _judged(finished, tmp_path)
    rows = {row["figure"]: (row["client"], row["server"]) for row in ours["reconciliation"]}
    assert rows["requests finished"] == (32, 32)
    assert rows["generated tokens"] == (32 * 64, 32 * 64)
    assert rows["prompt tokens"] == (32 * 256, 32 * 256)
    # Its lines in the terminal may lack them, where a doubt of others' processes takes their room.
    (report,) = (tmp_path / "runs").glob("*/report.txt")
    printed = report.read_text("utf-8").splitlines()
    assert "server-reported figures: as vllm counts them" in printed
    of_rows = [re.split(" {2,}", line) for line in printed if line.startswith(tuple(rows))]
    differences = {cells[0]: cells[-1] for cells in of_rows}
    assert {differences[figure] for figure in ("requests finished", "generated tokens", "prompt tokens")} == {
        "0"
    }
    counted = {"tokens-differ", "tokens-far-off", "foreign-requests", "prefix-cache", "counters-reset"}
    assert counted & doubts.keys() == set()


def test_low_load_after_high_load_of_one_seed_is_a_warm_cache(
    caching_vllm: Engine, model: Path, tmp_path: Path
) -> None:
    """The published Jetson Thor pages: the second run's prompts were the first ten of the first run's."""
    same = ["--seed", "0", "--prompt-format", "text-vllm", "--random-input-len", "384"]
    found = []
    for name, requests, at_once in (("high", "24", "8"), ("low", "6", "1")):
        directory = tmp_path / name
        directory.mkdir()
        load = ["--num-prompts", requests, "--max-concurrency", at_once, *same]
        found.append(_judged(loadgen([*_drop_in(caching_vllm, model), *load], directory), directory))
    (cold, _), (warm, ours) = found
    assert "prefix-cache" not in cold
    assert warm["prefix-cache"]["severity"] == "suspect"
    assert "%" in warm["prefix-cache"]["evidence"]
    assert ours["verdict"]["level"] != "VALID"
