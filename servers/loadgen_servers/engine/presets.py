"""Presets: named machines and models, from presets.toml or from JSON."""

from __future__ import annotations

import difflib
import tomllib
from importlib import resources

import msgspec

from loadgen_servers.engine.scheduler import Limits
from loadgen_servers.engine.step_times import FittedTiming, RooflineTiming, Timing

DEFAULT = "jetson-thor/qwen3-8b-bf16"


class UnknownPreset(ValueError):
    """No preset has that name; the message names the nearest."""


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published closed-loop run that a preset's constants reproduce; only what its page prints."""

    concurrency: int
    requests: int
    prompt_tokens: int
    total_output_tokens: int
    output_tokens: int
    duration_s: float | None = None
    mean_ttft_ms: float | None = None
    mean_tpot_ms: float | None = None
    median_itl_ms: float | None = None
    p99_itl_ms: float | None = None


class Preset(msgspec.Struct, frozen=True):
    """A machine serving a model: its limits, its step times, and where the constants come from."""

    name: str
    model: str
    source: str
    note: str
    max_model_len: int
    limits: Limits
    timing: Timing
    published: tuple[Published, ...]


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    source: str
    max_model_len: int
    max_num_batched_tokens: int
    kv_cache_tokens: int
    timing: dict[str, float]
    max_num_seqs: int = 256
    note: str = ""
    published: tuple[Published, ...] = ()


class _Given(_Row, forbid_unknown_fields=True, kw_only=True):
    name: str


def presets() -> dict[str, Preset]:
    """Every preset by name, in the order of the file."""
    text = resources.files(__package__).joinpath("presets.toml").read_text("utf-8")
    rows = msgspec.convert(tomllib.loads(text), dict[str, _Row])
    return {name: _preset(name, row) for name, row in rows.items()}


def given(text: str) -> Preset:
    """The preset of a JSON object: a row of presets.toml with its `name`; raises ValueError.

    Its `timing` is of FittedTiming, or of RooflineTiming where it has `dense_ms`.
    """
    try:
        row = msgspec.json.decode(text, type=_Given)
        return _preset(row.name, row)
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"--preset-json: {error}") from None


def _preset(name: str, row: _Row) -> Preset:
    kind = RooflineTiming if "dense_ms" in row.timing else FittedTiming
    return Preset(
        name=name,
        model=row.model,
        source=row.source,
        note=row.note,
        max_model_len=row.max_model_len,
        limits=Limits(row.max_num_seqs, row.max_num_batched_tokens, row.kv_cache_tokens),
        timing=kind(**row.timing),
        published=row.published,
    )


def preset(name: str) -> Preset:
    """The preset of that name; raises UnknownPreset."""
    table = presets()
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, 1, 0.0)
    raise UnknownPreset(f"no preset named {name!r}; the nearest is {near[0]!r} (--list-presets shows all)")
