"""Quality passage: the qualities of checkpoints as a table with notes on each, as JSON, and as cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from loadgen.base.passages import Passage
from loadgen.base.tables import list_interval_cells, make_table
from loadgen.study.quality.arm_qualities import format_spread
from loadgen.study.quality.quality_record import (
    BACKWARD,
    FIGURES,
    ITSELF,
    Quality,
    QualityVerdict,
    bound_share,
    describe_tail,
    describe_usual_kl,
    judge_quality,
)

_COLUMNS = {key: (title, scale) for key, (title, scale) in FIGURES.items() if title}
_CELLS = [key for key in FIGURES if key != "bits_per_byte"]  # of which there are two
_LEGEND = (
    "KL divergence in nats a token, the same first choice in % of a text's tokens, or of greedy answers', "
    "perplexity × the reference's; ± half of the 95 % interval"
)


class RowQuality(msgspec.Struct, frozen=True):
    """A row's quality, and the KL up to which it is the same as the reference."""

    name: str
    quality: Quality
    margin: float

    @property
    def verdict(self) -> QualityVerdict | None:
        """The verdict; None without a KL divergence."""
        return judge_quality(self.quality, self.margin)


def make_quality_passage(rows: Sequence[RowQuality]) -> Passage:
    """Make the passage of rows' qualities, a column for each figure that any row has; notes say why not."""
    shown = [key for key in _COLUMNS if any(getattr(row.quality, key) is not None for row in rows)]
    bits = list(map(_write_bits, rows))
    has_bits = any(cell != "-" for cell in bits)
    titles = ["checkpoint", *(_COLUMNS[key][0] for key in shown), *["bits/byte"] * has_bits, "verdict"]
    body = []
    for row, cell in zip(rows, bits, strict=True):
        intervals = ((getattr(row.quality, key), _COLUMNS[key][1]) for key in shown)
        cells = ["-" if interval is None else format_spread(interval, scale) for interval, scale in intervals]
        verdict = row.verdict.verdict if row.verdict is not None else "-"
        body.append((row.name, *cells, *[cell] * has_bits, verdict))
    floors = dict.fromkeys(row.quality.noise_floor for row in rows if row.quality.noise_floor is not None)
    notes = [_LEGEND] if shown else []
    notes += [f"noise floor: {', '.join(map(format_spread, floors))} nats a token"] if floors else []
    notes += [note for row in rows for note in _list_quality_notes(row)]
    if any(row.quality.kl is not None for row in rows):
        notes.append("usual KL: of Llama 2 7B and Llama 3 8B to 16 bits (docs/quality.md)")
    if not any(row.quality.of_reference for row in rows):
        notes.append(f"reference: {', '.join(dict.fromkeys(row.quality.reference for row in rows))}")
    table = make_table(titles, body, notes=notes)
    return Passage("Quality, against the reference", "quality", "Quality", table=table)


def _write_bits(row: RowQuality) -> str:
    """Write the bits per byte of both sides in place of a KL divergence that is not known; else "-"."""
    quality, per_byte = row.quality, row.quality.bits_per_byte
    if per_byte is None or quality.kl is not None or quality.of_reference:
        return "-"
    return f"{per_byte['candidate'].mean:.3f} of {per_byte['reference'].mean:.3f}"


def _list_quality_notes(row: RowQuality) -> Iterator[str]:
    quality, verdict = row.quality, row.verdict
    if verdict is not None and (kl := quality.kl) is not None:
        sampled = f"{kl.tokens:,} tokens of {kl.answers:,} answers"
        yield f"{row.name}: {verdict.text}, {sampled}; KL {describe_usual_kl(kl.mean)}"
        if kl.highest:
            rare = f"at most {100 * bound_share(0, kl.answers):.2g} % of prompts are worse (95 %)"
            found = (f"worst answer {kl.highest[0]:.3g} nats a token, {rare}", describe_tail(kl, row.margin))
            yield f"{row.name}: {'; '.join(filter(None, found))}"
        if kl.direction == BACKWARD:
            yield f"{row.name}: KL(candidate‖reference), since its server cannot score"
    if quality.same_answers is not None:
        count, most = quality.settings.get("answers"), quality.settings.get("answer_tokens")
        yield f"{row.name}: {count} greedy answers of {most} tokens at most, up to the first that differs"
    reasons: dict[str, list[str]] = {}
    for key, (title, _) in _COLUMNS.items():
        if key in quality.why:
            reasons.setdefault(quality.why[key], []).append(title)
    if quality.of_reference:
        reasons.pop(ITSELF, None)
        yield f"{row.name}: {ITSELF}"
    yield from (f"{row.name}: no {', '.join(keys)}: {why}" for why, keys in reasons.items())
    yield from (f"{row.name}: {doubt}" for doubt in quality.doubts if doubt not in reasons)


def encode_row_quality(quality: Quality, margin: float) -> dict[str, Any]:
    """Make the JSON object of a row's quality, and of the verdict on it; null without a KL divergence."""
    verdict, kl = judge_quality(quality, margin), quality.kl
    return {
        **quality.model_dump(mode="json"),
        "verdict": None if verdict is None else asdict(verdict),
        "usual": None if kl is None else describe_usual_kl(kl.mean),
    }


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
