"""How far our figures, `vllm bench serve`'s and the server's own histograms lie apart, on a real vLLM.

Run by hand, after tests/engines/install.sh: `PYTHONPATH=tests python -m engines.compare_vllm [--pairs 7]`.
Both clients send the same texts, in pairs, one after the other, in turn first; the server keeps no prefixes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import clients, running
from engines.place import engines_python, tiny_model

# Ours and vLLM's figure, and the server's histogram of the same name; seconds there, milliseconds here.
FIGURES = {
    "TTFT": ("mean_ttft_ms", "vllm:time_to_first_token_seconds"),
    "TPOT": ("mean_tpot_ms", "vllm:request_time_per_output_token_seconds"),
    "ITL": ("mean_itl_ms", "vllm:inter_token_latency_seconds"),
    "E2EL": ("mean_e2el_ms", "vllm:e2e_request_latency_seconds"),
}
INPUT_LEN, OUTPUT_LEN = 256, 128


@dataclass(frozen=True)
class Measured:
    """One client's run: mean milliseconds by its own account and by the server's of the same window."""

    own: dict[str, float]
    server: dict[str, float]
    input_tokens: int
    output_tokens: int
    duration_s: float


@dataclass(frozen=True)
class Bench:
    """A server and what both clients are told of the load."""

    engine: running.Engine
    python: Path
    model: Path
    requests: int
    concurrency: int

    def arguments(self, seed: int) -> list[str]:
        """Flags that both clients spell and mean alike."""
        words = f"""--base-url {self.engine.base_url} --backend vllm --endpoint /v1/completions --model qwen3
            --tokenizer {self.model} --dataset-name random --random-input-len {INPUT_LEN}
            --random-output-len {OUTPUT_LEN} --num-prompts {self.requests} --ignore-eos --temperature 0
            --max-concurrency {self.concurrency} --seed {seed} --percentile-metrics ttft,tpot,itl,e2el"""
        return words.split()

    def ours(self, seed: int, directory: Path) -> dict[str, Any]:
        """A run of ours."""
        more = ["--prompt-format", "text-vllm", "--save-result", "--result-filename", "ours.json", "--quiet"]
        finished = clients.loadgen([*self.arguments(seed), *more], directory)
        if finished.code:
            raise SystemExit(finished.err)
        return clients.read_json(directory / "ours.json")

    def theirs(self, seed: int, directory: Path) -> dict[str, Any]:
        """A run of `vllm bench serve`."""
        return clients.vllm_bench(self.python, self.arguments(seed), directory)

    def measured(self, run: Callable[[int, Path], dict[str, Any]], seed: int) -> Measured:
        """A run between two looks at the server's histograms."""
        before = clients.scrape(self.engine.base_url)
        with tempfile.TemporaryDirectory() as directory:
            result = run(seed, Path(directory))
        after = clients.scrape(self.engine.base_url)
        server = {}
        for name, (_, histogram) in FIGURES.items():
            total, count = (after[histogram + end] - before[histogram + end] for end in ("_sum", "_count"))
            server[name] = 1000 * total / count
        return Measured(
            own={name: result[key] for name, (key, _) in FIGURES.items()},
            server=server,
            input_tokens=result["total_input_tokens"],
            output_tokens=result["total_output_tokens"],
            duration_s=result["duration"],
        )


def pairs(bench: Bench, count: int) -> tuple[list[Measured], list[Measured]]:
    """Ours and theirs, `count` times, each with the same seed, taking turns at going first."""
    ours: list[Measured] = []
    theirs: list[Measured] = []
    for seed in range(count):
        runs = [(bench.ours, ours), (bench.theirs, theirs)]
        for run, kept in runs if seed % 2 else reversed(runs):
            kept.append(bench.measured(run, seed))
    return ours, theirs


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.3f}"


def _ratio(values: list[float]) -> str:
    return f"{statistics.median(values):.4f} ({min(values):.4f}–{max(values):.4f})"


def table(ours: list[Measured], theirs: list[Measured]) -> str:
    """Medians over the pairs, in milliseconds, and each client over what the server says of its own run."""
    lines = [
        "| mean, ms | loadgen | server, then | loadgen ÷ server "
        "| vllm bench | server, then | vllm bench ÷ server |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in FIGURES:
        cells = [name]
        for runs in (ours, theirs):
            cells.append(_median([run.own[name] for run in runs]))
            cells.append(_median([run.server[name] for run in runs]))
            cells.append(_ratio([run.own[name] / run.server[name] for run in runs]))
        lines.append("| " + " | ".join(cells) + " |")
    same = [
        (a.input_tokens, a.output_tokens) == (b.input_tokens, b.output_tokens)
        for a, b in zip(ours, theirs, strict=True)
    ]
    lines += [
        "",
        f"Input and output tokens are equal in {sum(same)} of {len(same)} pairs. "
        f"Median duration: {_median([run.duration_s for run in ours])} s, "
        f"theirs {_median([run.duration_s for run in theirs])} s.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    count = parser.parse_args().pairs
    python = engines_python()
    if isinstance(python, str):
        raise SystemExit(python)
    model = tiny_model(python)
    with running.vllm(python, model, ["--no-enable-prefix-caching"]) as engine:
        for requests, concurrency in ((24, 1), (96, 8)):
            bench = Bench(engine, python, model, requests, concurrency)
            with tempfile.TemporaryDirectory() as warm:
                bench.ours(1000 + concurrency, Path(warm))
            print(f"\nConcurrency {concurrency}, {requests} requests, {count} pairs\n", flush=True)
            print(table(*pairs(bench, count)), flush=True)


if __name__ == "__main__":
    main()
