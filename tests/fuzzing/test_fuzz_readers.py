"""The fuzz targets of readers, on seeds that are cut and changed; `python -m fuzz` runs them longer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import fuzz_targets_data as data
from fuzzing import fuzz_targets_readers as targets

pytestmark = pytest.mark.long

DATA = Path(__file__).parents[1] / "data"
PIECES = [
    *(b"{", b"[", b'"', b"1e400", b"NaN", b"9" * 30, b"\n", b"\r\n", b"\\\n", b"\xff", b"\xed\xa0\x80"),
    *(b"============ Serving Benchmark Result ============\n", b"Successful requests: ", b"Mean TTFT (ms): "),
    *(b"[[checkpoints]]\n", b"name = ", b"a.b = ", b"=cmd", b"\x1b]0;", b"vllm bench serve ", b"Namespace("),
    *(b"model,input_length,speed_tok_s\n", b"1,", b"| Model | tok/s |\n|---|---|\n| ", b"+----+----+\n| "),
    *(b"<table><tr><td rowspan=3>Model<td>", b"&#99999999;", b"  Input  Speed\n  -----  -----\n"),
    b"Qwen3-8B FP8 (high)\n",
]
ROWS = [  # pieces of data sets and traces
    *(b"}\n{", b"-1", b"\\ud800", b'"prompt": ', b'"output_tokens": ', b'"messages": [', b'"turn": 2, '),
    *(b'"role": "tool"', b'"n": 2, ', b"prompt,"),
    b'"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]',
]
SEEDS: dict[str, tuple[Callable[[bytes], None], str]] = {
    "page": (targets.page, "results/vllm_bench_serve.stdout.txt"),
    "results": (targets.results, "results/vllm_bench_serve.json"),
    "printed": (targets.printed, "results/k6.stdout.txt"),
    "profile": (targets.profile, "../../profiles/smoke.toml"),
    "campaign": (targets.campaign, "../../profiles/campaigns/demo.toml"),
    "text": (targets.text, "published/jetson_thor_serving.csv"),
    "prompts": (data.dataset, "datasets/prompts.jsonl"),
    "bodies": (data.dataset, "datasets/chat_bodies.jsonl"),
    "conversation": (data.dataset, "datasets/conversation.jsonl"),
    "csv": (data.dataset_csv, "datasets/prompts.csv"),
    "trace": (data.trace, "datasets/prompts.jsonl"),
}


@pytest.mark.parametrize("name", SEEDS)
def test_any_bytes_are_read(name: str) -> None:
    target, file = SEEDS[name]
    seed, is_data = (DATA / file).read_bytes(), target.__module__ == data.__name__
    pieces = st.sampled_from([*PIECES[:11], *ROWS] if is_data else PIECES)

    @given(st.lists(st.one_of(pieces, st.binary(max_size=8)), max_size=20), st.floats(0, 1))
    def read(pieces: list[bytes], share: float) -> None:
        inserted, at = b"".join(pieces), int(share * min(len(seed), 4000))
        target(inserted)
        target(seed[:at] + inserted)
        target(seed[:at] + inserted + seed[at if is_data else at + len(inserted) :][:4000])

    read()


@pytest.mark.parametrize("target", [data.odd_rows, data.odd_traces])
def test_rows_with_odd_values_are_planned_or_refused(target: Callable[[bytes], None]) -> None:
    given(st.binary(min_size=4, max_size=13))(target)()
