"""Speed tables: rows of speeds in the shapes of the Qwen pages, and in three of our own.

A row becomes cells by key, a shape has the keys and titles of its columns, a renderer draws them.
"""

from __future__ import annotations

import html as hypertext
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
from msgspec.structs import asdict, replace

from loadgen.base.tables import Column, Table, render_csv_table, render_markdown_table, render_text_table
from loadgen.base.text import clean_line
from loadgen.study.speed.speed_rows import (
    GENERATED,
    PAGES,
    SETTINGS,
    EngineSetting,
    SpeedRow,
    ThroughputRow,
    convert_speed,
    find_published,
    name_settings,
    round_speed,
)


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
# What the pages do not have comes first: the two times that one speed is made of.
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
    # What all rows share: their formula is the speed's title, their quantization in the heading.
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
