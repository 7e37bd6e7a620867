"""Quality table: how far each row's server is from the reference, as a table, columns of CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from loadgen.features.quality.quality_record import BACKWARD, FIGURES, Quality, QualityFigure
from loadgen.features.quality.quality_verdict import QualityVerdict, judge_quality
from loadgen.study.arm_qualities import ITSELF, format_spread
from loadgen.study.tables import Table, list_interval_cells, make_table

TITLE = "Quality, against the reference"
_COLUMNS = [figure for figure in FIGURES if figure.title]
_CELLS = [figure.key for figure in FIGURES if figure.key != "bits_per_byte"]  # of which there are two
_LEGEND = (
    "KL divergence in nats a token, the same first choice in % of a text's tokens, perplexity × the "
    "reference's; ± half of the 95 % interval"
)


class RowQuality(msgspec.Struct, frozen=True):
    """A row's quality and the verdict on it; None without a KL divergence."""

    name: str
    quality: Quality
    verdict: QualityVerdict | None


def list_row_qualities(rows: Iterable[tuple[str, Quality | None, float]]) -> list[RowQuality]:
    """List the rows with a quality, each name once, judged by the margin; given are name, quality, margin."""
    found: dict[str, RowQuality] = {}
    for name, quality, margin in rows:
        if quality is not None:
            found.setdefault(name, RowQuality(name, quality, judge_quality(quality, margin)))
    return list(found.values())


def make_quality_table(rows: Sequence[RowQuality]) -> Table:
    """Make the table of rows' qualities, a column for each figure that any row has; notes say why not."""
    shown = [each for each in _COLUMNS if any(getattr(row.quality, each.key) is not None for row in rows)]
    has_bits = any(_has_bits(row.quality) for row in rows)
    titles = ["checkpoint", *(each.title for each in shown), *(["bits/byte"] if has_bits else []), "verdict"]
    body = [
        (
            row.name,
            *(_format_figure(row.quality, each) for each in shown),
            *([_format_bits(row.quality)] if has_bits else []),
            row.verdict.verdict if row.verdict is not None else "-",
        )
        for row in rows
    ]
    floors = dict.fromkeys(row.quality.noise_floor for row in rows if row.quality.noise_floor is not None)
    notes = [f"noise floor: {', '.join(map(format_spread, floors))} nats a token"] if floors else []
    return make_table(
        titles, body, notes=[_LEGEND, *notes, *(note for row in rows for note in _list_notes(row))]
    )


def _format_figure(quality: Quality, figure: QualityFigure) -> str:
    interval = getattr(quality, figure.key)
    return "-" if interval is None else format_spread(interval, figure.scale)


def _has_bits(quality: Quality) -> bool:
    """Whether bits a byte stand for a KL divergence that there is none of."""
    return quality.kl is None and quality.why.get("kl") != ITSELF and quality.bits_per_byte is not None


def _format_bits(quality: Quality) -> str:
    """Format the candidate's and the reference's bits a byte, as 0.812 of 0.790, where they stand for KL."""
    bits = quality.bits_per_byte if _has_bits(quality) else None
    return "-" if bits is None else f"{bits['candidate'].mean:.3f} of {bits['reference'].mean:.3f}"


def _list_notes(row: RowQuality) -> Iterator[str]:
    quality, verdict = row.quality, row.verdict
    if verdict is not None:
        sampled = (
            "" if quality.kl is None else f", {quality.kl.tokens:,} tokens of {quality.kl.answers:,} answers"
        )
        yield f"{row.name}: {verdict.text}{sampled}"
    if quality.kl is not None and quality.kl.direction == BACKWARD:
        yield f"{row.name}: KL(candidate‖reference), since its server cannot score"
    reasons: dict[str, list[str]] = {}
    for each in _COLUMNS:
        if each.key in quality.why:
            reasons.setdefault(quality.why[each.key], []).append(each.title)
    if reasons.pop(ITSELF, None):
        yield f"{row.name}: {ITSELF}"
    yield from (f"{row.name}: no {', '.join(keys)}: {why}" for why, keys in reasons.items())
    yield from (f"{row.name}: {doubt}" for doubt in quality.doubts if doubt not in reasons)


def encode_row_quality(quality: Quality, margin: float) -> dict[str, Any]:
    """Make the JSON object of a row's quality, and of the verdict on it; null without a KL divergence."""
    verdict = judge_quality(quality, margin)
    return {**quality.model_dump(mode="json"), "verdict": None if verdict is None else asdict(verdict)}


def list_quality_figures(quality: Quality | None) -> dict[str, float | None]:
    """List the figures of a quality by name, each with its interval's ends; None for what is not known."""
    cells = (list_interval_cells(key, getattr(quality, key, None)) for key in _CELLS)
    return {name: value for each in cells for name, value in each.items()}


def list_quality_cells(quality: Quality | None, margin: float) -> Mapping[str, Any]:
    """List the cells of CSV by column, all None or empty for a row without a quality."""
    verdict = None if quality is None else judge_quality(quality, margin)
    return {
        **list_quality_figures(quality),
        "quality_verdict": getattr(verdict, "verdict", None),
        "quality_more_tokens": getattr(verdict, "more_tokens", None),
        "quality_doubts": "; ".join(quality.doubts) if quality is not None else "",
    }
