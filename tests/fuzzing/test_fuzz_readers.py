"""The fuzz targets of readers, on seeds that are cut and changed; `python -m fuzz` runs them longer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import fuzz_targets_readers as targets

pytestmark = pytest.mark.long

DATA = Path(__file__).parents[1] / "data"
PIECES = [
    b"{",
    b"[",
    b'"',
    b"1e400",
    b"NaN",
    b"9" * 30,
    b"\n",
    b"\\\n",
    b"============ Serving Benchmark Result ============\n",
    b"Successful requests: ",
    b"Mean TTFT (ms): ",
    b"\xff",
    b"\x1b]0;",
    b"a.b = ",
    b"[[checkpoints]]\n",
    b"name = ",
    b"=cmd",
    b"\xed\xa0\x80",
    b"vllm bench serve ",
    b"Namespace(",
    b"&#99999999;",
    b"model,input_length,speed_tok_s\n",
    b"1,",
    b"| Model | tok/s |\n|---|---|\n| ",
    b"+----+----+\n| ",
    b"<table><tr><td rowspan=3>Model<td>",
    b"  Input  Speed\n  -----  -----\n",
    b"Qwen3-8B FP8 (high)\n",
]
SEEDS: dict[Callable[[bytes], None], str] = {
    targets.page: "results/vllm_bench_serve.stdout.txt",
    targets.results: "results/vllm_bench_serve.json",
    targets.printed: "results/k6.stdout.txt",
    targets.profile: "../../profiles/smoke.toml",
    targets.campaign: "../../profiles/campaigns/demo.toml",
    targets.text: "published/jetson_thor_serving.csv",
}


@pytest.mark.parametrize("target", SEEDS, ids=["page", "results", "printed", "profile", "campaign", "text"])
def test_any_bytes_are_read(target: Callable[[bytes], None]) -> None:
    seed = (DATA / SEEDS[target]).read_bytes()

    @given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=8)), max_size=20), st.floats(0, 1))
    def read(pieces: list[bytes], share: float) -> None:
        inserted, at = b"".join(pieces), int(share * min(len(seed), 4000))
        target(inserted)
        target(seed[:at] + inserted)
        target(seed[:at] + inserted + seed[at + len(inserted) :][:4000])

    read()
