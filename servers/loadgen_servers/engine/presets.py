"""Presets: named machines and models, from presets.toml or from JSON."""

from __future__ import annotations

import difflib
import tomllib
from importlib import resources

import msgspec

from loadgen_servers.engine.scheduler import Limits
from loadgen_servers.engine.step_times import FittedTiming, RooflineTiming, Timing

DEFAULT = "jetson-thor/qwen3-8b-bf16"
_SHOWN = 4  # names where none is near
_NEAR = 0.8  # of 1: a slip of the finger, not another name


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


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine serving a model: its limits, its step times, and where the constants come from.

    `constants`, in files `timing`, are of FittedTiming, or of RooflineTiming where they have `dense_ms`.
    """

    name: str
    model: str
    source: str
    max_model_len: int
    max_num_batched_tokens: int
    kv_cache_tokens: int
    constants: dict[str, float] = msgspec.field(name="timing")
    max_num_seqs: int = 256
    note: str = ""
    published: tuple[Published, ...] = ()

    @property
    def limits(self) -> Limits:
        """The limits of a batch."""
        return Limits(self.max_num_seqs, self.max_num_batched_tokens, self.kv_cache_tokens)

    @property
    def timing(self) -> Timing:
        """The step times; raises TypeError for a constant that they do not have."""
        return (RooflineTiming if "dense_ms" in self.constants else FittedTiming)(**self.constants)


def presets() -> dict[str, Preset]:
    """Every preset by name, in the order of the file."""
    text = resources.files(__package__).joinpath("presets.toml").read_text("utf-8")
    rows = tomllib.loads(text).items()
    return {name: msgspec.convert({"name": name, **row}, Preset) for name, row in rows}


def given(text: str) -> Preset:
    """The preset of a JSON object: a row of presets.toml with its `name`; raises ValueError."""
    try:
        row = msgspec.json.decode(text, type=Preset)
        _ = row.timing  # raises where a constant is unknown
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"--preset-json: {error}") from None
    return row


def preset(name: str) -> Preset:
    """The preset of that name; raises ValueError, which names the nearest."""
    table = presets()
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, 1, _NEAR)
    hint = f"the nearest is {near[0]!r}" if near else f"there are {', '.join(list(table)[:_SHOWN])}, …"
    raise ValueError(f"no preset named {name!r}; {hint} (`loadgen engine --list-presets` shows all)")
