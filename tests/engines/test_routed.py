"""Two real vLLMs behind a router: balance, cache and totals are the sum of their own counters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from engines import running
from engines.clients import load_run, measured, scrape, start_loadgen
from engines.router import Router
from engines.running import Engine
from loadgen.report.run_writer import encode_run

pytestmark = pytest.mark.engine

_REQUESTS, _INPUT, _OUTPUT = 40, 128, 24
_COUNTERS = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "finished": "vllm:request_success_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
}


@pytest.fixture(scope="module")
def workers(engines_python: Path, model: Path) -> Iterator[list[Engine]]:
    """Two vLLMs with a prefix cache, of which the last test kills one."""
    with ExitStack() as stack:
        flags = ["--max-num-seqs", "8", "--block-size", "32"]
        yield [stack.enter_context(running.vllm(engines_python, model, flags)) for _ in range(2)]


def _arguments(router: Router, workers: list[Engine], model: Path, *more: str) -> list[str]:
    words = f"""--base-url {router.base_url} --model qwen3 --tokenizer {model} --seed 7 --num-warmups 2
        --random-input-len {_INPUT} --random-output-len {_OUTPUT} --metrics-url router={router.metrics_url}"""
    own = [word for each in workers for word in ("--metrics-url", f"worker={each.base_url}")]
    return [*words.split(), *own, *more]


def test_two_workers_are_counted_as_they_count(workers: list[Engine], model: Path, tmp_path: Path) -> None:
    urls = [each.base_url for each in workers]
    with Router(urls, weights=[3, 1]) as router:
        # Half of each prompt is common to all: the prefix cache of each worker finds it.
        load = f"--num-prompts {_REQUESTS} --max-concurrency 4 --random-prefix-len 64".split()
        before = [scrape(url) for url in urls]
        measured(_arguments(router, workers, model, *load, "--num-warmups", "0"), tmp_path)
        after = [scrape(url) for url in urls]
    run = load_run(tmp_path)
    names = run.facts.role_windows
    assert [each.role for each in names] == ["router", "worker", "worker"]
    assert run.facts.window is not None
    for quantity, name in _COUNTERS.items():
        moved = [int(later[name] - earlier[name]) for earlier, later in zip(before, after, strict=True)]
        assert [getattr(each.window, quantity) for each in names[1:]] == moved, quantity
        assert getattr(run.facts.window, quantity) == sum(moved), quantity
    assert run.facts.window.generation_tokens == run.whole.total_output_tokens == _REQUESTS * _OUTPUT
    assert run.facts.window.prefix_hits
    assert [each.window.finished for each in names] == [_REQUESTS, *(router.sent[url] for url in urls)]
    rows = encode_run(run)["loadgen"]
    shares = [row["work_share"] for row in rows["by_role"][1:]]
    assert shares == pytest.approx([0.75, 0.25])
    assert [row["most_over_mean"] for row in rows["role_balance"]] == pytest.approx([1.5, 1.5])
    codes = {finding.rule.code for finding in run.verdict.findings}
    assert codes.isdisjoint({"worker-ended", "foreign-requests", "tokens-differ", "tokens-far-off"})


def test_a_worker_that_is_killed_is_named(workers: list[Engine], model: Path, tmp_path: Path) -> None:
    urls = [each.base_url for each in workers]
    with Router(urls) as router:
        load = ["--num-prompts", "400", "--max-concurrency", "4", "--max-consecutive-failures", "0"]
        with start_loadgen(_arguments(router, workers, model, *load), tmp_path) as process:
            deadline = time.monotonic() + 120
            while router.sent[urls[1]] < 30 and time.monotonic() < deadline:
                time.sleep(0.1)
            workers[1].kill()
            _, error = process.communicate(timeout=300)
    run = load_run(tmp_path)
    ended = [each for each in run.facts.role_windows if each.ended_s is not None]
    assert [each.url for each in ended] == [urls[1]], error
    assert (ended[0].window.generation_tokens or 0) > 0
    (found,) = [each for each in run.verdict.findings if each.rule.code == "worker-ended"]
    assert ended[0].label in found.evidence
    counts = [each.window.generation_tokens or 0 for each in run.facts.role_windows[1:]]
    assert run.facts.window is not None
    assert run.facts.window.generation_tokens == sum(counts)
