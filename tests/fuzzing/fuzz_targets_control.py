"""What any bytes may be given to: each raises nothing, but an AssertionError where a bound is broken."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fuzzing.fuzz_files import written
from loadgen.base import untrusted
from loadgen.base.errors import UsageError
from loadgen.engines.engines import METRICS
from loadgen.features.roofline import estimate as stored
from loadgen.plan import model_files
from loadgen.server import checkpoint, engine_config, exchange
from loadgen.server.prometheus import SAMPLED, MetricLines, parse_metrics, select_lines
from loadgen.server.server_counters import make_window

_LONGEST = 8192


def strict(found: BaseModel | None) -> None:
    """A value that a result file can hold: finite, of short printable texts, the same when it is read."""
    if found is None:
        return
    _bounded(json.loads(json.dumps(found.model_dump(), allow_nan=False)))
    assert type(found).model_validate_json(found.model_dump_json()) == found


def _bounded(value: Any) -> None:
    if isinstance(value, str):
        assert value.isprintable()
        assert len(value) <= _LONGEST
    elif isinstance(value, dict):
        for name, one in value.items():
            _bounded(name)
            _bounded(one)
    elif isinstance(value, list):
        for one in value:
            _bounded(one)


def metrics(raw: bytes) -> None:
    """Two answers of /metrics, cut at the first null byte, and a sample between."""
    before, _, after = raw.partition(b"\0")
    sample = parse_metrics(select_lines(200, after, SAMPLED))
    samples = [] if sample.error else [(0.5, sample)]
    strict(
        make_window(
            parse_metrics(select_lines(200, before)), parse_metrics(select_lines(200, after)), samples, "m"
        )
    )


def metric_lines(raw: bytes) -> None:
    """Lines as they are selected, each with a name that is known, whatever stands behind it."""
    names = list(METRICS["vllm"].meanings)
    lines = raw.decode("utf-8", "replace").split("\n")
    known = tuple(f"{names[len(line) % len(names)]}{line}" for line in lines if len(line) < 500)
    found = parse_metrics(MetricLines("vllm", known))
    strict(make_window(found, found, [(0.5, found)]))
    strict(make_window(parse_metrics(MetricLines("vllm")), found))


def server_info(raw: bytes) -> None:
    """An answer of /server_info."""
    strict(engine_config.parse_info(untrusted.parse_json_object(raw)))
    assert exchange.ControlAnswer("/x", 200, raw).message.isprintable()


def log(raw: bytes) -> None:
    """A server's log."""
    found = engine_config.parse_log(raw.decode("utf-8", "replace"))
    strict(found)
    engine_config.render_config(found)


def json_value(raw: bytes) -> None:
    """JSON of any kind."""
    with contextlib.suppress(ValueError):
        untrusted.parse_json(raw)


def _in_directory(*files: tuple[str, bytes]) -> None:
    """A model's directory of these files, read by all that read one."""
    for file, raw in files:
        where = written(raw, file, "-".join(file for file, _ in files))
    name = str(where.parent)
    with contextlib.suppress(UsageError):
        strict(checkpoint.read_checkpoint(name))
    with contextlib.suppress(UsageError):
        assert len(model_files.find_vocabulary(None, name, None).allowed)
    for file, _ in files:
        if file.endswith(".safetensors"):
            with contextlib.suppress(UsageError):
                stored.read_header(Path(name, file))


def config(raw: bytes) -> None:
    """A config.json, and what ModelOpt puts beside it, cut at the first null byte."""
    own, _, beside = raw.partition(b"\0")
    _in_directory(("config.json", own), ("hf_quant_config.json", beside or b"{}"))


def index(raw: bytes) -> None:
    """An index of safetensors."""
    _in_directory(("config.json", b"{}"), ("model.safetensors.index.json", raw), ("a.safetensors", b"x"))


def safetensors(raw: bytes) -> None:
    """A file's header, of the length that it says, and of a right one."""
    _in_directory(
        ("config.json", b"{}"), ("a.safetensors", raw), ("b.safetensors", struct.pack("<Q", len(raw)) + raw)
    )


def gguf_head(raw: bytes) -> None:
    """A GGUF file, from its metadata on."""
    for file, content in (("a.gguf", raw), ("b.gguf", struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 40) + raw)):
        path = written(content, file)
        with contextlib.suppress(UsageError):
            checkpoint.read_head(path)
        with contextlib.suppress(UsageError):
            strict(checkpoint.read_checkpoint(str(path)))
