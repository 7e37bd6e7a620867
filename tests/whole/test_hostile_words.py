"""Logs, answers of /server_info and model files that are none, or of megabytes: in time, and bounded."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.features.roofline import estimate
from loadgen.plan import model_files
from loadgen.server import checkpoint
from loadgen.server.engine_config import EngineConfig, parse_info, parse_log, render_config

_LINE_BYTES = 400_000
TABLES = read_tables("hostile_words")


def spell(value: Any) -> Any:
    """A cell of a table, where <9*400> is a 9 four hundred times."""
    is_text = isinstance(value, str)
    return re.sub(r"<([^<>]+)\*(\d+)>", lambda found: found[1] * int(found[2]), value) if is_text else value


@loop_over("piece", TABLES["pieces"])
def test_a_log_of_one_line_is_read_in_linear_time(piece: str) -> None:
    """A search that begins again at each piece would take minutes: a line of 80 kB took 32 s."""
    begin_s = time.process_time()
    found = parse_log(piece * (_LINE_BYTES // len(piece)))
    assert time.process_time() - begin_s < 5
    strict(found)


def strict(found: EngineConfig) -> dict[str, Any]:
    """What a result file holds of it; raises where it cannot, or where a text is long or no text."""
    held = dict(json.loads(json.dumps(found.model_dump(), allow_nan=False)))
    for name, value in held.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str):
                assert one.isprintable()
                assert len(one) <= (8192 if name == "flags" else 300)
    assert EngineConfig.model_validate_json(found.model_dump_json()) == found
    render_config(found)
    return held


@loop_over(("log", "field", "value"), [tuple(map(spell, row)) for row in TABLES["logs"]])
def test_a_log_says_what_can_be_or_nothing(log: str, field: str, value: object) -> None:
    held = strict(parse_log(log))
    if field == "flags" and value is None:
        assert "s3cr3t" not in held["flags"]
    else:
        assert held[field] == value


def test_a_secret_is_not_half_shown_where_flags_are_cut() -> None:
    for length in range(8150, 8200):
        flags = parse_info({"launch_command": "x" * length + " --api-key sk-abcdefghijklmnopqrstuv"}).flags
        assert "abc" not in flags


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


ODD: list[Any] = [
    None, True, -1, 0, 1e308, "x", "9" * 5000, "\ud800", "\x1b[2J", "x" * 10_000, [], {}, [1, "2", None],
    nested(900),
]  # fmt: skip


@loop_over("odd", ODD)
@loop_over("path", sorted({field.path for engine in ENGINES for field in engine.info_fields}))
def test_any_value_in_server_info_is_kept_bounded_or_dropped(path: str, odd: Any) -> None:
    info: Any = odd
    for step in reversed(path.split(".")):
        info = [info] if step.isdecimal() else {step: info}
    strict(parse_info(info))
    strict(parse_info({"speculative_algorithm": odd, "vllm_config": {"speculative_config": {"method": odd}}}))


# Model files.


def config(place: Path, raw: bytes) -> None:
    (place / "config.json").write_bytes(raw)


def fifo(place: Path) -> None:
    os.mkfifo(place / "config.json")


def gguf_fifo(place: Path) -> None:
    os.mkfifo(place / "a.gguf")


def kernel(place: Path) -> None:
    (place / "config.json").symlink_to("/proc/kmsg")


def zeroes(place: Path) -> None:
    (place / "a.gguf").symlink_to("/dev/zero")


@loop_over("made", [fifo, gguf_fifo, kernel, zeroes])
def test_a_directory_of_devices_is_no_model_and_holds_nobody_up(
    tmp_path: Path, made: Callable[[Path], None]
) -> None:
    made(tmp_path)
    with pytest.raises(UsageError, match=r"model|GGUF|JSON"):
        checkpoint.read_checkpoint(str(tmp_path))
    with pytest.raises(UsageError):
        model_files.read_vocabulary(tmp_path)


@loop_over("name", ["x" * 10_000, "/" + "x" * 300, "a\0b", "~nobody-of-this-name/x", "/proc/kmsg"])
def test_a_name_of_any_kind_is_no_fault(name: str) -> None:
    with contextlib.suppress(UsageError):  # as a session, which does without
        assert checkpoint.read_checkpoint(name) is None
    assert model_files.locate_model(name) is None
    assert model_files.find_vocabulary(None, name, None).allowed[0] == 1000
    if "kmsg" not in name:
        assert checkpoint.read_checkpoint(name) is None


@loop_over(("raw", "said"), [
    (b"[" * 200_000, "is not valid JSON"),
    (b"[1]", "is not a JSON object"),
    (b"\xff\x00", "is not valid JSON"),
    (b"x" * (65 << 20), "larger than"),
])  # fmt: skip
def test_a_config_that_is_none_is_said(tmp_path: Path, raw: bytes, said: str) -> None:
    config(tmp_path, raw)
    with pytest.raises(UsageError, match=said):
        checkpoint.read_checkpoint(str(tmp_path))


@loop_over("odd", [10**30, -1, 1e400, "x", [1], True, None, {"a": 1}])
@loop_over("key", ["max_position_embeddings", "hidden_size", "num_hidden_layers", "vocab_size"])
def test_a_config_of_odd_numbers_declares_nothing_of_them(tmp_path: Path, key: str, odd: object) -> None:
    config(tmp_path, json.dumps({key: odd, "vocab_size": odd}).encode())
    found = checkpoint.read_checkpoint(str(tmp_path))
    assert found is not None
    assert (found.max_positions, found.hidden_size, found.layers) == (None, None, None)
    assert len(model_files.find_vocabulary(None, str(tmp_path), None).allowed) == 4000


def test_words_of_a_config_are_bounded(tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "model_type": "\ud800" * 9,
        "architectures": ["x" * 9999],
        "torch_dtype": "\x1b[2J",
    }
    odd["quantization_config"] = {"quant_method": "\x00" * 9, "weight_block_size": [nested(400)]}
    config(tmp_path, json.dumps(odd).encode())
    found = checkpoint.read_checkpoint(str(tmp_path))
    assert found is not None
    for value in json.loads(json.dumps(found.model_dump(), allow_nan=False)).values():
        assert not isinstance(value, str) or (value.isprintable() and len(value) <= 300)


@loop_over("part", ["../../outside", "/etc/passwd", "x" * 5000, 7, None])
def test_an_index_names_no_file_elsewhere(tmp_path: Path, part: object) -> None:
    config(tmp_path, b"{}")
    (tmp_path.parent / "outside").write_bytes(b"12345")
    (tmp_path / "a.safetensors").write_bytes(b"123")
    index = {"weight_map": {"a": part, "b": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    found = checkpoint.read_checkpoint(str(tmp_path))
    assert found is not None
    assert found.weight_bytes == 3


@loop_over("raw", [
    struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 63),
    struct.pack("<4sIQQ", b"GGUF", 3, 0, 9) + struct.pack("<Q", 1 << 63),
    struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 0, 1 << 63),
    struct.pack("<4sIQQQ1s", b"GGUF", 3, 0, 1, 1, b"a") + struct.pack("<IIQ", 9, 9, 1 << 62) * 5000,
])  # fmt: skip
def test_a_gguf_head_of_nonsense_is_a_head(tmp_path: Path, raw: bytes) -> None:
    place = tmp_path / "a.gguf"
    place.write_bytes(raw)
    assert checkpoint.read_head(place)[1] == {}
    assert checkpoint.read_checkpoint(str(place)) is not None


def test_a_tensor_of_a_million_dimensions_is_refused(tmp_path: Path) -> None:
    head = json.dumps({"a": {"dtype": "F32", "shape": [10**18] * 50_000, "data_offsets": [0, 0]}}).encode()
    place = tmp_path / "a.safetensors"
    place.write_bytes(struct.pack("<Q", len(head)) + head)
    with pytest.raises(UsageError, match="its header is invalid for a"):
        estimate.read_header(place)
