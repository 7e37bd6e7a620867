"""Every target of `python -m fuzz`: it is there, and reads what is kept of it, also with a part changed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.targets import HERE, TARGETS, inputs
from fuzzing.fuzz_targets_control import strict
from loadgen.server.engine_config import EngineConfig

MOST_BYTES = 600_000  # of the whole corpus
SUSPECTS = [b"", b"\0", b"\xff" * 64, b"[" * 5000, b'{"a":' * 5000, b"9" * 5000]
# Pieces that mean something, so that what is made of them goes deeper than the first check.
PIECES = [
    *(b"{", b"[", b'"', b"1e400", b"NaN", b"+Inf", b"-1", b"9" * 30, b"\n", b"\r\n", b"\\\n", b"\xff", b"\0"),
    *(b"============ Serving Benchmark Result ============\n", b"Successful requests: ", b"Mean TTFT (ms): "),
    *(b"[[checkpoints]]\n", b"name = ", b"a.b = ", b"=cmd", b"\x1b]0;", b"vllm bench serve ", b"Namespace("),
    *(b"model,input_length,speed_tok_s\n", b"1,", b"| Model | tok/s |\n|---|---|\n| ", b"+----+----+\n| "),
    *(b"<table><tr><td rowspan=3>Model<td>", b"&#99999999;", b"  Input  Speed\n  -----  -----\n"),
    *(b"Qwen3-8B FP8 (high)\n", b"\xed\xa0\x80", b"}\n{", b"\\ud800", b'"prompt": ', b'"output_tokens": '),
    *(b'"messages": [', b'"turn": 2, ', b'"role": "tool"', b'"n": 2, ', b"prompt,"),
    b'"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]',
    *(b"vllm:generation_tokens_total", b'{model_name="m"} ', b'{le="', b'",', b"} ", b"{} 1", b" 9e99"),
    *(b"server_args=ServerArgs(", b"tp_size=", b"KV cache size: ", b" tokens", b"# GPU blocks: "),
    *(b"\x01" + b"\0" * 7 + b"a", b"\x08\0\0\0", b"\x09\0\0\0", b"\xff" * 8, b"general.architecture"),
    *(b'"quantization_config": {', b'"weight_map": {', b'"internal_states": [{', b'"data_offsets": ['),
]


def function(name: str) -> Callable[[bytes], None]:
    module, _, attribute = TARGETS[name].function.partition(":")
    found: Callable[[bytes], None] = getattr(import_module(module), attribute)
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_names_what_is_there(name: str) -> None:
    assert callable(function(name))
    assert [find_spec(module) for module in TARGETS[name].instrumented if find_spec(module) is None] == []
    assert inputs(name) != []


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    files = [path for path in (HERE / "corpus").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert {path.parent.name for path in files} <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_kept_is_read_and_the_usual_suspects(name: str) -> None:
    read = function(name)
    for raw in (*SUSPECTS, *(path.read_bytes() for path in inputs(name))):
        read(raw)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_are_read(name: str) -> None:
    """Also what is kept with pieces put into it, or over a part of it."""
    read = function(name)
    kept = [b"", *(path.read_bytes()[: 2 * TARGETS[name].longest] for path in inputs(name))]
    pieces = st.lists(st.sampled_from(PIECES) | st.binary(max_size=24), max_size=20).map(b"".join)

    @given(st.sampled_from(kept), st.integers(0, 8192), pieces, st.booleans())
    def changed(raw: bytes, at: int, piece: bytes, over: bool) -> None:
        at %= len(raw) + 1
        read(raw[:at] + piece + raw[at + len(piece) * over :])

    changed()


@pytest.mark.parametrize("odd", [{"version": "\x1b"}, {"load_s": float("nan")}, {"version": "x" * 9000}])
def test_a_target_notices_what_is_not_bounded(odd: dict[str, object]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        strict(EngineConfig.model_validate(odd))
