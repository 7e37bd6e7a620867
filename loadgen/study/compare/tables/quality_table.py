"""Quality table: how far each row's server is from the reference, as a table, columns of CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from loadgen.features.quality.quality_record import BACKWARD, MeanInterval, Quality
from loadgen.features.quality.quality_verdict import QualityVerdict, judge_quality
from loadgen.study.arm_qualities import ITSELF, format_spread
from loadgen.study.tables import Table, make_table

TITLE = "Quality, against the reference"
_FIGURES = ("kl", "noise_floor", "agreement", "perplexity_ratio")
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
    keys = [key for key in _TITLES if any(getattr(row.quality, key) is not None for row in rows)]
    has_bits = any(_has_bits(row.quality) for row in rows)
    titles = ["checkpoint", *(_TITLES[key] for key in keys), *(["bits/byte"] if has_bits else []), "verdict"]
    body = [
        (
            row.name,
            *(_format_figure(getattr(row.quality, key), key) for key in keys),
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


_TITLES = {
    "kl": "KL",
    "agreement": "same first %",
    "perplexity_ratio": "perplexity",
}


def _format_figure(interval: MeanInterval | None, key: str) -> str:
    """Format a figure with half its interval, of agreement in percent; "-" if it is None."""
    return "-" if interval is None else format_spread(interval, 100.0 if key == "agreement" else 1.0)


def _has_bits(quality: Quality) -> bool:
    """Whether bits a byte stand for a KL divergence that there is none of."""
    return quality.kl is None and quality.why.get("kl") != ITSELF and quality.bits_per_byte is not None


def _format_bits(quality: Quality) -> str:
    """Format the candidate's and the reference's bits a byte, as 0.812 of 0.790, where they stand for KL."""
    bits = quality.bits_per_byte if _has_bits(quality) else None
    return "-" if bits is None else f"{bits['candidate'].mean:.3f} of {bits['reference'].mean:.3f}"


def _list_notes(row: RowQuality) -> Iterator[str]:
    """Yield the verdict, the direction if it is not the usual one, why figures are missing, and doubts."""
    quality, verdict = row.quality, row.verdict
    if verdict is not None:
        sampled = (
            "" if quality.kl is None else f", {quality.kl.tokens:,} tokens of {quality.kl.answers:,} answers"
        )
        yield f"{row.name}: {verdict.text}{sampled}"
    if quality.kl is not None and quality.kl.direction == BACKWARD:
        yield f"{row.name}: KL(candidate‖reference), since its server cannot score"
    reasons: dict[str, list[str]] = {}
    for key, why in quality.why.items():
        if key in _TITLES:
            reasons.setdefault(why, []).append(_TITLES[key])
    if reasons.pop(ITSELF, None):
        yield f"{row.name}: {ITSELF}"
    yield from (f"{row.name}: no {', '.join(keys)}: {why}" for why, keys in reasons.items())
    yield from (f"{row.name}: {doubt}" for doubt in quality.doubts if doubt not in reasons)


def encode_row_quality(quality: Quality, margin: float) -> dict[str, Any]:
    """Make the JSON object of a row's quality, and of the verdict on it; null without a KL divergence."""
    verdict = judge_quality(quality, margin)
    return {**quality.model_dump(mode="json"), "verdict": None if verdict is None else asdict(verdict)}


_LISTED = tuple(f"{key}{end}" for key in _FIGURES for end in ("", "_low", "_high"))


def list_quality_figures(quality: Quality | None) -> dict[str, float | None]:
    """List the figures of a quality by name, each with its interval's ends, None if unknown; {} of None."""
    if quality is None:
        return {}
    found = {key: getattr(quality, key) for key in _FIGURES}
    ends = {"": "mean", "_low": "low", "_high": "high"}
    return {
        f"{key}{end}": getattr(interval, name, None)
        for key, interval in found.items()
        for end, name in ends.items()
    }


def list_quality_cells(quality: Quality | None, margin: float) -> Mapping[str, Any]:
    """List the cells of CSV by column, all None or empty for a row without a quality."""
    verdict = None if quality is None else judge_quality(quality, margin)
    return {
        **dict.fromkeys(_LISTED),
        **list_quality_figures(quality),
        "quality_verdict": getattr(verdict, "verdict", None),
        "quality_more_tokens": getattr(verdict, "more_tokens", None),
        "quality_doubts": "; ".join(quality.doubts) if quality is not None else "",
    }
