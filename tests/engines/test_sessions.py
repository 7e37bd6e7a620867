"""Sessions on real servers: vLLM with tools turn by turn by its own counters, and uvicorn's idle timeout."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import uvicorn_app
from engines.clients import measured, read_run, scrape
from engines.running import Engine
from loadgen.records.record import Records
from loadgen_servers.process.running import free_port

pytestmark = pytest.mark.engine
_EXCERPT = Path(__file__).resolve().parents[1] / "data" / "datasets" / "mlperf_edge_agentic_excerpt.jsonl"
_TURNS = 7
_COUNTERS = {
    "answers": "vllm:time_to_first_token_seconds_count",
    "ttft_s": "vllm:time_to_first_token_seconds_sum",
    "cached": "vllm:prefix_cache_hits_total",
    "prompt": "vllm:prefix_cache_queries_total",
}
_GAPS_S = (4.9, 5.1, 6.0)


@dataclass
class TurnCounters:
    """The server's counters after each of its answers, in a thread of their own; a context manager."""

    base_url: str
    seen: list[dict[str, float]] = field(default_factory=list)

    def __enter__(self) -> TurnCounters:
        self.over = threading.Event()
        self.seen.append(self._read())
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self._note(self._read())

    def _watch(self) -> None:
        while not self.over.wait(0.05):
            self._note(self._read())

    def _note(self, counters: dict[str, float]) -> None:
        if counters["answers"] > self.seen[-1]["answers"]:
            self.seen.append(counters)

    def _read(self) -> dict[str, float]:
        found = scrape(self.base_url)
        return {name: found.get(counter, 0.0) for name, counter in _COUNTERS.items()}

    def of_turns(self, turns: int) -> dict[str, np.ndarray]:
        """What each of the last turns added, one answer at a time."""
        assert [b["answers"] - a["answers"] for a, b in zip(self.seen, self.seen[1:], strict=False)] == [
            1.0
        ] * (len(self.seen) - 1)
        last = self.seen[-turns - 1 :]
        return {name: np.diff([each[name] for each in last]) for name in _COUNTERS}


def _run(directory: Path) -> tuple[dict[str, Any], Records]:
    result, records = read_run(directory)
    return result["loadgen"], records


def test_each_turn_has_the_servers_own_cached_share(caching_vllm: Engine, tmp_path: Path) -> None:
    words = f"--base-url {caching_vllm.base_url} --model qwen3 --backend openai-chat --max-concurrency 1"
    more = "--reset-cache --turn-delays 4 --output-len 16 --session-header X-Session-ID --dataset-path"
    with TurnCounters(caching_vllm.base_url) as counters:
        measured([*words.split(), *more.split(), str(_EXCERPT)], tmp_path)
    _, records = _run(tmp_path)
    assert (len(records), len(records.failed)) == (_TURNS, 0)
    theirs = counters.of_turns(_TURNS)
    assert records.input_tokens.tolist() == theirs["prompt"].astype(int).tolist()
    assert records.cached_tokens.tolist() == theirs["cached"].astype(int).tolist()
    assert (records.cached_tokens[1:] > 0).all()
    ours_s = (records.arrival_ns[records.start[:-1]] - records.sent_ns) / 1e9
    # The server begins to count once it has the prompt's tokens: ours is never less.
    assert (ours_s > theirs["ttft_s"] - 0.001).all()


@pytest.fixture
def default_uvicorn(engines_python: Path) -> Iterator[Engine]:
    """uvicorn with nothing set but its address."""
    port, place = free_port(), Path(__file__).parent
    argv = [str(engines_python), "-m", "uvicorn", "uvicorn_app:app", "--app-dir", str(place)]
    with Engine([*argv, "--host", "127.0.0.1", "--port", str(port)], port) as engine:
        yield engine


def _turn(gap_s: float, turn: int) -> dict[str, Any]:
    """A row of a conversation of two short turns, the second after a gap."""
    row = {"conversation_id": f"{gap_s}", "turn": turn, "role": ("assistant", "user")[turn % 2]}
    return {**row, "content": "a", **({"delay_seconds": gap_s} if turn == 3 else {})}


@pytest.mark.alone
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_gaps_around_uvicorns_idle_timeout_cost_nothing(
    transport: str, default_uvicorn: Engine, tmp_path: Path
) -> None:
    rows = [_turn(gap_s, turn) for gap_s in _GAPS_S for turn in (1, 2, 3, 4)]
    file = tmp_path / "gaps.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = f"--base-url {default_uvicorn.base_url} --backend openai-chat --max-concurrency {len(_GAPS_S)}"
    measured([*words.split(), "--transport", transport, "--dataset-path", str(file)], tmp_path)
    facts, records = _run(tmp_path)
    assert (len(records), len(records.failed)) == (2 * len(_GAPS_S), 0)
    assert records.resends.tolist() == [0] * 2 * len(_GAPS_S)
    assert facts["client"]["reconnects"] == 2  # after 5.1 and 6 s
    ttft_s = (records.arrival_ns[records.start[:-1]] - records.sent_ns) / 1e9
    assert ttft_s == pytest.approx(uvicorn_app.PREFILL_S, abs=0.1)
