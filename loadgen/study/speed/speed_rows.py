"""Speed rows: tokens per second of one request, by either of the formulas that the Qwen pages publish.

The pages share a title and a unit, not a formula:

* `output/time`: Qwen2 and Qwen2.5 (examples/speed-benchmark in the Qwen repository);
* `(prompt+output)/time`: Qwen3 (docs/source/getting_started/speed_benchmark.md, under Notes).

Of one run they differ by (prompt+output)/output: with 2048 tokens generated, 4 times at an input of 6144,
16 times at 30720, 64 times at 129024. Time is that of the whole request in both, prefill included.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from io import TextIOWrapper
from pathlib import Path

import msgspec

from loadgen.base import parsing
from loadgen.base.errors import UsageError
from loadgen.base.untrusted import open_regular
from loadgen.features.roofline.models import split_name

OUTPUT = "output/time"
TOTAL = "(prompt+output)/time"
UNKNOWN = "unknown"  # of a page that does not have it

Formula = Callable[[float, float, float], float]  # prompt tokens, output tokens, seconds → tokens/s

FORMULAS: dict[str, Formula] = {
    OUTPUT: lambda prompt_tokens, output_tokens, seconds: output_tokens / seconds,
    TOTAL: lambda prompt_tokens, output_tokens, seconds: (prompt_tokens + output_tokens) / seconds,
}


PAGES = {OUTPUT: "Qwen2 and Qwen2.5 pages", TOTAL: "Qwen3 pages"}  # that publish each as `Speed (tokens/s)`


def convert_speed(
    speed_tok_s: float, source: str, target: str, prompt_tokens: int, output_tokens: int
) -> float:
    """Convert one formula's speed into another's: the same request, the same seconds."""
    seconds = FORMULAS[source](prompt_tokens, output_tokens, 1.0) / speed_tok_s
    return FORMULAS[target](prompt_tokens, output_tokens, seconds)


GENERATED = 2048  # tokens, in every published row
UNIT_BYTES = {"MB": 2**20, "GB": 2**30}  # the pages write MB and GB, and divide by these
_QUANTUM = {"MB": Decimal(1), "GB": Decimal("0.01")}
_DIRECTORY = Path(__file__).parent / "published"
_PUBLISHED = {"qwen3_h20_speed": TOTAL, "qwen2_5_a100_speed": OUTPUT}
_MOST_DIGITS = 12  # of a count
_MISPRINTED = {129042: 129024}  # in Qwen3's tables; its text and every other page have 129024


class Memory(msgspec.Struct, frozen=True):
    """Device memory as the pages print it, in MB or GB."""

    amount: Decimal
    unit: str

    @classmethod
    def of_bytes(cls, count: int, unit: str) -> Memory:
        """Convert a count of bytes to a unit, rounded as the pages round: whole MB, hundredths of GB."""
        return cls((Decimal(count) / UNIT_BYTES[unit]).quantize(_QUANTUM[unit]), unit)

    def format_amount(self, unit: str) -> str:
        """Format the amount in a unit; in its own as it was written."""
        if self.unit == unit:
            return str(self.amount)
        return str(self.of_bytes(int(self.amount * UNIT_BYTES[self.unit]), unit).amount)


class EngineSetting(msgspec.Struct, frozen=True):
    """The words that a server was given; equal where words, values and order are."""

    words: tuple[tuple[str, str], ...]

    @classmethod
    def make(cls, **words: object) -> EngineSetting:
        """Make a setting of words and their values, in this order."""
        return cls(tuple((name, str(value)) for name, value in words.items()))

    @classmethod
    def parse(cls, text: str) -> EngineSetting:
        """Parse what `str` writes; raises UsageError where a word has no value."""
        pairs = [word.partition("=") for word in re.split(r"\s+(?=[\w.-]+=)", text.strip())]
        if not all(name and equals for name, equals, _ in pairs):
            raise UsageError(f"{text!r} is not a setting: write it as name=value name=value")
        return cls(tuple((name, value) for name, _, value in pairs))

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.words)


# "Setting 1" is two things on the Qwen2.5 page: this is that of 72B (and of Qwen2-72B).
SETTINGS: Mapping[str, EngineSetting] = {
    name: EngineSetting.make(gpu_memory_utilization=share, max_model_len=tokens, enforce_eager=eager)
    for name, share, tokens, eager in (
        ("Default Setting", 0.9, 32768, False),
        ("Setting 1", 0.98, 4096, True),
        ("Setting 2", 1.0, 4096, True),
        ("Setting 3", 1.0, 8192, True),
        ("Setting 4", 0.9, 65536, False),
        ("Setting 5", 0.9, 131072, False),
    )
}


class SpeedRow(msgspec.Struct, frozen=True):
    """One model at one input length; a row that did not fit has no speed, and its note has the reason."""

    model: str  # without its quantization
    backend: str
    gpu: str
    input_length: int
    quantization: str
    gpu_num: int | None  # None: printed "-"
    speed_tok_s: Decimal | None  # None: printed "-"
    gpu_memory: Memory | None = None
    note: str = ""
    formula: str = OUTPUT  # a key of speed.FORMULAS
    output_length: int = GENERATED
    setting: EngineSetting | None = None
    ttft_ms: Decimal | None = None  # mean; None: not measured, as on the pages
    decode_tok_s: Decimal | None = None  # 1000 / mean TPOT in ms: one answer once it has begun
    run: str = ""  # the directory of its run; "" where nothing ran, or it is not known


class ThroughputRow(msgspec.Struct, frozen=True):
    """Prompts sent all at once: on the Qwen2 page (57B-A14B) 100 and 1000 of 1000 tokens, 100 generated each.

    The page took it from vLLM's benchmark_throughput.py: QPS = requests/time, and Tokens/s =
    (prompt+output)/time over all requests, so that Tokens/s is 1100 times QPS in each of its rows.
    """

    model: str
    quantization: str
    prompts: int
    qps: Decimal
    tokens_per_s: Decimal
    note: str = ""


def round_speed(value: float) -> Decimal:
    """Round a measured figure to the two decimals of the pages."""
    return Decimal(f"{value:.2f}")


def name_settings(settings: Iterable[EngineSetting]) -> dict[EngineSetting, str]:
    """Name each setting in a legend's order: the pages' own first, new ones numbered after them."""
    given = dict.fromkeys(settings)
    names = {setting: name for name, setting in SETTINGS.items() if setting in given}
    new = [setting for setting in given if setting not in names]
    return names | {setting: f"Setting {number}" for number, setting in enumerate(new, len(SETTINGS))}


def find_published(
    model: str, input_length: int, quantization: str = "", backend: str = "", gpu_num: int | None = None
) -> SpeedRow | None:
    """Find the published row of a model, length and quantization, else the name's, else BF16; None without.

    Of several, that of the same backend is taken; else that of an engine that serves, not of Transformers;
    then that of as many GPUs.
    """
    base, named = split_name(model)
    sought = _make_key(base, input_length, quantization or named)
    rows = [
        row for row in list_published() if _make_key(row.model, row.input_length, row.quantization) == sought
    ]

    def distance(row: SpeedRow) -> tuple[bool, bool, bool]:
        other = row.backend.lower() != backend.lower()
        return other, row.backend == "Transformers", row.gpu_num != gpu_num

    return min(rows, key=distance, default=None)


@cache
def list_published() -> tuple[SpeedRow, ...]:
    """List every published row: Qwen3 on H20, Qwen2.5 on A100."""
    return tuple(
        row
        for name, formula in _PUBLISHED.items()
        for row in read_speed_csv(_DIRECTORY / f"{name}.csv", formula)
    )


def read_speed_csv(path: Path, formula: str = OUTPUT) -> list[SpeedRow]:
    """Read a file of speeds; `formula` is of rows that name none. Raises UsageError naming file and line."""
    try:
        with TextIOWrapper(open_regular(path), "utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if missing := sorted({"model", "input_length", "speed_tok_s"} - set(reader.fieldnames or ())):
                raise UsageError(f"{path} is not a speed table: it has no column {', '.join(missing)}")
            rows = []
            for cells in reader:
                try:
                    if None in cells:
                        raise UsageError("it has more cells than the table has columns")
                    given = {key: cell for key, cell in cells.items() if cell}
                    rows.append(_read_row({"formula": formula, **given}))
                except (ValueError, InvalidOperation, KeyError, UsageError) as error:
                    raise UsageError(f"{path}, line {reader.line_num}: not a speed row: {error}") from None
            return rows
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a table of speeds: {error}") from None


def _read_row(cells: Mapping[str, str]) -> SpeedRow:
    """Read a row of text cells; raises ValueError, KeyError or UsageError of a wrong or missing one."""
    amounts = {unit: _parse_decimal(cells, f"gpu_memory_{unit.lower()}") for unit in UNIT_BYTES}
    memory = [Memory(amount, unit) for unit, amount in amounts.items() if amount is not None]
    gpu_num = cells.get("gpu_num", "-")
    if cells["formula"] not in FORMULAS:
        raise UsageError(f"unknown formula {cells['formula']!r}: use one of {', '.join(FORMULAS)}")
    return SpeedRow(
        model=cells["model"],
        backend=cells.get("backend", ""),
        gpu=cells.get("gpu", ""),
        input_length=_parse_count(cells["input_length"]),
        quantization=cells.get("quantization", ""),
        gpu_num=None if gpu_num == "-" else _parse_count(gpu_num),
        speed_tok_s=_parse_decimal(cells, "speed_tok_s"),
        gpu_memory=next(iter(memory), None),
        note=cells.get("note", ""),
        formula=cells["formula"],
        output_length=_parse_count(cells.get("output_length", str(GENERATED))),
        setting=EngineSetting.parse(cells["setting"]) if "setting" in cells else None,
        ttft_ms=_parse_decimal(cells, "ttft_ms"),
        decode_tok_s=_parse_decimal(cells, "decode_tok_s"),
    )


def _parse_count(cell: str) -> int:
    if len(cell) > _MOST_DIGITS:
        raise ValueError(f"{cell[:_MOST_DIGITS]}… is out of bounds")
    return int(cell)


def _parse_decimal(cells: Mapping[str, str], key: str) -> Decimal | None:
    """Parse a cell's number; None of "-" and without the cell; raises ValueError below 0 or out of bounds."""
    cell = cells.get(key, "-")
    if cell == "-":
        return None
    value = Decimal(cell)
    if not (value.is_finite() and value >= 0 and parsing.read_figure(float(value)) is not None):
        raise ValueError(f"{key} is {cell}")
    return value


def _make_key(model: str, input_length: int, quantization: str) -> tuple[str, int, str]:
    word = (quantization or "BF16").lower().replace("bfloat16", "bf16")
    word = re.sub(r"-?([48])bit$", r"-int\1", word)
    kind = "awq-int4" if word == "awq" else word
    return model.lower(), _MISPRINTED.get(input_length, input_length), kind
