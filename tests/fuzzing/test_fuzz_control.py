"""Any bytes for what a server, a log or a model's files say: a bounded value, or words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing.fuzz_targets_control import TARGETS

pytestmark = pytest.mark.long

DATA = Path(__file__).parents[1] / "data"
# Pieces that mean something, so that what is made of them goes deeper than the first check.
WORDS = {
    "metrics": [
        b"vllm:generation_tokens_total",
        b'{model_name="m"} ',
        b"1e400",
        b"NaN",
        b"\n",
        b"\0",
        b' le="x"',
    ],
    "metric_lines": [b'{le="', b'",', b"} ", b"+Inf", b"-1", b"nan", b"\n", b"\\", b"{} 1", b" 9e99"],
    "log": [
        b"server_args=ServerArgs(",
        b"tp_size=",
        b"KV cache size: ",
        b" tokens",
        b"# GPU blocks: ",
        b"\n",
        b"9",
    ],
    "gguf_head": [
        b"\x01" + b"\0" * 7 + b"a",
        b"\x08\0\0\0",
        b"\x09\0\0\0",
        b"\xff" * 8,
        b"general.architecture",
    ],
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["config_groups", "weights", "quantization_config", "quant_method", "text_config", "vocab_size",
         "weight_map", "tp_size", "internal_states", "memory_usage", "weight", "startup_time", "load_weight",
         "dtype", "shape", "data_offsets", "eos_token_id", "quantization", "vllm_config", "bits",
         "group_size"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def recorded(name: str) -> list[bytes]:
    """Real ones, to be cut and changed."""
    folders = {"metrics": "metrics", "log": "server_logs_as_run", "server_info": "server_logs_as_run"}
    if name not in folders:
        return []
    suffix = ".json" if name == "server_info" else ".log" if name == "log" else ".txt"
    return [path.read_bytes() for path in sorted((DATA / folders[name]).glob(f"*{suffix}"))]


def inputs(name: str) -> st.SearchStrategy[bytes]:
    """Bytes of every kind for a target: any, of its words, of JSON, or recorded ones with a part replaced."""
    kinds: list[st.SearchStrategy[bytes]] = [st.binary(max_size=300)]
    if name in WORDS:
        kinds.append(
            st.lists(st.sampled_from(WORDS[name]) | st.binary(max_size=3), max_size=30).map(b"".join)
        )
    if name not in ("metrics", "metric_lines", "log", "gguf_head"):
        kinds.append(JSON.map(lambda value: json.dumps(value).encode()))
    if real := recorded(name):
        kinds.append(
            st.builds(_changed, st.sampled_from(real), st.integers(0, 1 << 20), st.binary(max_size=30))
        )
    return st.one_of(kinds)


def _changed(raw: bytes, at: int, by: bytes) -> bytes:
    place = at % (len(raw) + 1)
    return raw[:place] + by + raw[place + len(by) :]


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_any_bytes_are_a_bounded_value_or_words(name: str) -> None:
    target: Callable[[bytes], None] = TARGETS[name]

    @given(inputs(name))
    def once(raw: bytes) -> None:
        target(raw)

    once()


def test_a_target_notices_what_is_not_bounded() -> None:
    from fuzzing.fuzz_targets_control import strict
    from loadgen.server.engine_config import EngineConfig

    bad: list[Any] = [
        EngineConfig(version="\x1b"),
        EngineConfig(load_s=float("nan")),
        EngineConfig(version="x" * 9000),
    ]
    for one in bad:
        with pytest.raises((AssertionError, ValueError)):
            strict(one)
