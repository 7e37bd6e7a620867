"""The fuzz targets of data sets and traces, on seeds that are cut and changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import fuzz_targets_data as targets

pytestmark = pytest.mark.long

PIECES = [
    *(b"{", b"[", b'"', b"}\n{", b"\r\n", b"\n", b"1e400", b"NaN", b"-1", b"9" * 30, b"\xff", b"\\ud800"),
    *(b'"prompt": ', b'"output_tokens": ', b'"messages": [', b'"turn": 2, ', b'"role": "tool"', b'"n": 2, '),
    *(b'"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]', b"prompt,", b"\xed\xa0\x80"),
]
SEEDS: dict[str, tuple[Callable[[bytes], None], str]] = {
    "prompts": (targets.dataset, "prompts.jsonl"),
    "bodies": (targets.dataset, "chat_bodies.jsonl"),
    "conversation": (targets.dataset, "conversation.jsonl"),
    "csv": (targets.dataset_csv, "prompts.csv"),
    "trace": (targets.trace, "prompts.jsonl"),
}


@pytest.mark.parametrize("name", SEEDS)
def test_any_rows_are_planned_or_refused(name: str) -> None:
    target, file = SEEDS[name]
    seed = (targets.DATASETS / file).read_bytes()

    @given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=8)), max_size=12), st.floats(0, 1))
    def read(pieces: list[bytes], share: float) -> None:
        inserted, at = b"".join(pieces), int(share * len(seed))
        target(seed[:at] + inserted + seed[at:])
        target(seed[:at] + inserted + seed[at + len(inserted) :])

    read()


@pytest.mark.parametrize("target", [targets.odd_rows, targets.odd_traces])
def test_rows_with_odd_values_are_planned_or_refused(target: Callable[[bytes], None]) -> None:
    given(st.binary(min_size=4, max_size=13))(target)()
