"""Speed rows: tokens per second of one request, by either of the formulas that the Qwen pages publish.

A row is drawn in the shapes of the pages, and in three of our own: it becomes cells by key, a shape has the
keys and titles of its columns, a renderer draws them.

The pages share a title and a unit, not a formula:

* `output/time`: Qwen2 and Qwen2.5 (examples/speed-benchmark in the Qwen repository);
* `(prompt+output)/time`: Qwen3 (docs/source/getting_started/speed_benchmark.md, under Notes).

Of one run they differ by (prompt+output)/output: with 2048 tokens generated, 4 times at an input of 6144,
16 times at 30720, 64 times at 129024. Time is that of the whole request in both, prefill included.
"""

from __future__ import annotations

import csv
import html as hypertext
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import cache
from io import TextIOWrapper
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from loadgen.base import parsing
from loadgen.base.errors import UsageError
from loadgen.base.tables import Column, Table, render_csv_table, render_markdown_table, render_text_table
from loadgen.base.text import clean_line
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


class TableShape(msgspec.Struct, frozen=True):
    """How a page draws its table."""

    columns: tuple[Column, ...]
    spanned: int = 0  # leading columns in which equal neighbours are one cell
    optional: frozenset[str] = frozenset()  # left out where every cell is empty
    narrow: bool = False  # what all rows share is in the heading, the speed has the name of its formula


_TITLES = {
    "model": "Model", "input_length": "Input Length", "quantization": "Quantization", "gpu_num": "GPU Num",
    "speed_tok_s": "Speed (tokens/s)", "gpu_memory_mb": "GPU Memory (MB)", "gpu_memory_gb": "GPU Memory (GB)",
    "note": "Note", "prompts": "# Prompts", "qps": "QPS", "tokens_per_s": "Tokens/s",
    "ttft_ms": "TTFT (ms)", "decode_tok_s": "Decode (tokens/s)",
    "published": "Published (tokens/s)", "ratio": "Ratio", "where": "Published on",
}  # fmt: skip
_CSV_KEYS = (
    "model", "backend", "gpu", "input_length", "quantization", "gpu_num", "speed_tok_s", "gpu_memory_mb",
    "note", "formula", "output_length", "setting", "ttft_ms", "decode_tok_s",
)  # fmt: skip


def _make_shape(keys: str, spanned: int = 2, optional: Collection[str] = ()) -> TableShape:
    return TableShape(tuple(Column(key, _TITLES[key]) for key in keys.split()), spanned, frozenset(optional))


# An engine that takes all memory at its start has none to report: no column, as on the pages.
_SPEED = "model input_length quantization gpu_num speed_tok_s"
QWEN3 = _make_shape(f"{_SPEED} gpu_memory_mb note", optional={"gpu_memory_mb"})
_BY_GB = _make_shape(f"{_SPEED} gpu_memory_gb note", optional={"gpu_memory_gb"})
_UNSPACED = [replace(column, title=column.title.replace(" (", "(")) for column in _BY_GB.columns]
QWEN2_5 = replace(_BY_GB, columns=tuple(_UNSPACED))
# Columns that the pages lack come first: the two times that one speed is made of.
_MEASURED = "model input_length ttft_ms decode_tok_s speed_tok_s quantization gpu_num gpu_memory_gb note"
MARKDOWN = _make_shape(_MEASURED, optional={"ttft_ms", "decode_tok_s", "gpu_memory_gb"})
TERMINAL = replace(MARKDOWN, narrow=True)
CSV = TableShape(tuple(Column(key, key) for key in _CSV_KEYS))
THROUGHPUT = _make_shape("model quantization prompts qps tokens_per_s note", 0, {"note"})
_COMPARED = _make_shape("model input_length quantization speed_tok_s published ratio where")


def draw_speeds(rows: Sequence[SpeedRow], form: str) -> str:
    """Draw our own rows in a form of `TABLES`, each in its shape of `SHAPES`."""
    return TABLES[form](make_speed_table(rows, SHAPES[form]))


def draw_ladder(rows: Sequence[SpeedRow], form: str) -> str:
    """Draw our own rows in a form of `TABLES`; as text with published speeds next to them, if any."""
    drawn = draw_speeds(rows, form)
    published = draw_next_to_published(rows) if form == "text" else ""
    return f"{drawn}\n{published}" if published else drawn


def make_speed_table(
    rows: Sequence[SpeedRow], shape: TableShape, notes: Sequence[str] | None = None
) -> Table:
    """Make a table of rows in a shape, with notes below: those given, or formula, lengths and settings.

    Settings have names where there are several, or one of the pages'.
    """
    names, keys = (
        name_settings(row.setting for row in rows if row.setting),
        [each.key for each in shape.columns],
    )
    lone = [setting for setting in names if setting not in SETTINGS.values()] if len(names) == 1 else []
    if notes is None:
        formulas = dict.fromkeys(row.formula for row in rows)
        other = dict.fromkeys(f"{row.output_length}" for row in rows if row.output_length != GENERATED)
        shared = next(iter(formulas)) if shape.narrow and len(formulas) == 1 else ""
        meant = f"{shared}: Speed (tokens/s) of the {PAGES[shared]}" if shared else ""
        notes = [meant or f"Speed = {' or '.join(formulas)}"] if rows else []
        notes += [f"{' or '.join(other)} tokens generated"] if other else []
        notes += [f"Server: {setting}" for setting in lone] or write_legend(names)
        if any(row.decode_tok_s is not None for row in rows) and "decode_tok_s" in keys:
            notes.insert(0, "TTFT is a mean; Decode = 1000 / mean TPOT")
    cells = [_make_cells(row, {} if lone or "setting" in keys else names) for row in rows]
    if not shape.narrow:
        return _make_table(cells, shape, notes)
    # Facts that all rows share leave the table: the formula is the title, the quantization in the heading.
    columns = list(shape.columns)
    if len({row.formula for row in rows}) == 1:
        spaced = re.sub(r"([+/])", r" \1 ", rows[0].formula)
        columns = [replace(each, title=spaced) if each.key == "speed_tok_s" else each for each in columns]
    if len({row.quantization for row in rows}) == 1:
        columns = [each for each in columns if each.key != "quantization"]
        headings = (" ".join(filter(None, (row["model"], row["quantization"]))) for row in cells)
        cells = [row | {"model": heading} for row, heading in zip(cells, headings, strict=True)]
    return _make_table(cells, replace(shape, columns=tuple(columns)), notes)


def write_legend(names: Mapping[EngineSetting, str]) -> list[str]:
    """Write a legend's lines as the pages do: `[Setting 1]=(gpu_memory_utilization=0.98 …)`."""
    return [f"[{name}]=({setting})" for setting, name in names.items()]


def draw_throughput(rows: Sequence[ThroughputRow], form: str, shape: TableShape = THROUGHPUT) -> str:
    """Draw throughput rows in a form of `TABLES`; QPS and Tokens/s as `ThroughputRow` defines them."""
    return TABLES[form](_make_table(list(map(_make_words, rows)), shape, ()))


def draw_next_to_published(rows: Sequence[SpeedRow]) -> str:
    """Draw rows next to published speeds, converted to the rows' formula, as text; "" if none is there."""
    cells, notes = [], dict.fromkeys(f"Speed = {row.formula}" for row in rows)
    others = [
        find_published(row.model, row.input_length, row.quantization, row.backend, row.gpu_num)
        for row in rows
    ]
    for row, other in zip(rows, others, strict=True):
        theirs = other.speed_tok_s if other else None
        if other and theirs and other.formula != row.formula:
            lengths = other.input_length, other.output_length
            theirs = round_speed(convert_speed(float(theirs), other.formula, row.formula, *lengths))
            notes[f"Published as {other.formula}, converted to {row.formula}"] = None
        if other and row.output_length != GENERATED:
            notes[f"Published with {GENERATED} generated tokens, ours with {row.output_length}"] = None
        ratio = f"{row.speed_tok_s / theirs:.2f}" if row.speed_tok_s and theirs else "-"
        where = f"{other.backend}, {other.gpu_num or '-'}× {other.gpu}" if other else "-"
        cells.append(_make_cells(row, {}) | {"published": str(theirs or "-"), "ratio": ratio, "where": where})
    return render_text_table(_make_table(cells, _COMPARED, list(notes))) if any(others) else ""


def _make_cells(row: SpeedRow, names: Mapping[EngineSetting, str]) -> dict[str, str]:
    """Make every cell a shape may ask for; "-" where nothing ran, empty where nothing was reported."""
    absent = "-" if row.speed_tok_s is None else ""
    name = names.get(row.setting, "").removesuffix(" Setting") if row.setting else ""
    memory = row.gpu_memory
    return _make_words(row) | {
        "gpu_memory_mb": memory.format_amount("MB") if memory else absent,
        "gpu_memory_gb": memory.format_amount("GB") if memory else absent,
        "note": ", ".join(filter(None, (name, row.note))),
        "setting": str(row.setting or ""),
    }


def _make_words(row: SpeedRow | ThroughputRow) -> dict[str, str]:
    return {key: "-" if value is None else str(value) for key, value in asdict(row).items()}


def _make_table(rows: Sequence[Mapping[str, str]], shape: TableShape, notes: Sequence[str]) -> Table:
    """Make a table of rows in a shape, without optional columns in which every cell is empty or "-"."""
    left_out = {key for key in shape.optional if not any(row[key].strip("-") for row in rows)}
    columns = tuple(column for column in shape.columns if column.key not in left_out)
    body = tuple(tuple(clean_line(" ".join(row[column.key].split())) for column in columns) for row in rows)
    return Table(columns, body, shape.spanned, tuple(clean_line(" ".join(note.split())) for note in notes))


def render_html_table(table: Table) -> str:
    """Write a table as HTML in the layout of the Qwen3 page, cells of models and lengths spanning rows."""
    lines = ['<table border="1" cellpadding="8" style="width:100%; border-collapse: collapse;">']
    lines += ["    <thead>", "        <tr>"]
    lines += [f"            <th>{hypertext.escape(column.title)}</th>" for column in table.columns]
    lines += ["        </tr>", "    </thead>", "    <tbody>"]
    for row, counts in zip(table.body, table.count_spans(), strict=True):
        cells = [hypertext.escape(cell) for cell in row]
        begun = [
            f'<td rowspan="{count}">{cell}</td>' for count, cell in zip(counts, cells, strict=False) if count
        ]
        rest = "".join(f"<td>{cell}</td>" for cell in cells[table.spanned :])
        inside = [*begun[:-1], "".join(begun[-1:]) + rest]
        lines += ["        <tr>", *(f"            {line}" for line in inside), "        </tr>"]
    lines += ["    </tbody>", "</table>"]
    if table.notes:
        lines += ["<ul>", *(f"    <li>{hypertext.escape(note)}</li>" for note in table.notes), "</ul>"]
    return "\n".join(lines) + "\n"


def render_rst_table(table: Table) -> str:
    """Write a table as the grid of reStructuredText of the Qwen2 pages, its notes a list below."""
    titles = tuple(column.title for column in table.columns)
    body = [tuple(map(_escape_rst, row)) for row in table.list_shown()]
    widths = [
        max(column.width, *(len(row[index]) for row in [titles, *body]))
        for index, column in enumerate(table.columns)
    ]

    def rule(letter: str, begun: Sequence[int] = ()) -> str:
        letters = [letter if index >= len(begun) or begun[index] else " " for index in range(len(widths))]
        return f"+{'+'.join(letter * (width + 2) for letter, width in zip(letters, widths, strict=True))}+"

    def line(row: Sequence[str]) -> str:
        return f"|{'|'.join(f' {cell:<{width}} ' for cell, width in zip(row, widths, strict=True))}|"

    lines = [rule("-"), line(titles), rule("=")]
    for index, (row, begun) in enumerate(zip(body, table.count_spans(), strict=True)):
        lines += [rule("-", begun), line(row)] if index else [line(row)]
    lines += [rule("-")] if body else []
    lines += ["", *(f"  * {_escape_rst(note)}" for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def _escape_rst(cell: str) -> str:
    """Escape what begins markup in a cell; the underscores inside auto_gptq do not."""
    return re.sub(r"[\\*`|]|_(?![A-Za-z0-9_])", r"\\\g<0>", cell)


def draw_cells(
    cells: Sequence[Mapping[str, str]], titles: Mapping[str, str], form: str, notes: Sequence[str]
) -> str:
    """Draw rows of cells by column, those of `titles` that are not empty, in a form of `TABLES`."""
    columns = tuple(Column(key, title) for key, title in titles.items() if any(row[key] for row in cells))
    body = tuple(tuple(row[column.key] for column in columns) for row in cells)
    return TABLES[form](Table(columns, body, 1, tuple(notes)))


TABLES: dict[str, Callable[[Table], str]] = {
    "text": render_text_table,
    "html": render_html_table,
    "rst": render_rst_table,
    "md": render_markdown_table,
    "csv": render_csv_table,
}
SHAPES: dict[str, TableShape] = {"text": TERMINAL, "html": QWEN3, "rst": QWEN2_5, "md": MARKDOWN, "csv": CSV}
