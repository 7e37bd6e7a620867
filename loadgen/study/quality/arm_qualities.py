"""Arm qualities: what is stored of each arm's quality, and as a table with notes, a line, JSON and cells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from loadgen.base.passages import Passage
from loadgen.base.tables import list_interval_cells, make_table
from loadgen.base.text import count_decimals
from loadgen.base.untrusted import read_file_bytes, read_line, read_mapping
from loadgen.facts.run_facts import Cell
from loadgen.study.quality.divergence import judge_contents
from loadgen.study.quality.quality_record import (
    BACKWARD,
    FIGURES,
    ITSELF,
    MeanInterval,
    Quality,
    QualityVerdict,
    bound_share,
    describe_tail,
    describe_usual_kl,
    judge_quality,
)
from loadgen.study.quality.reference_file import read_reference

QUALITY = "quality"  # the folder in a campaign's directory
FAILED = "failed"  # in that folder: why an arm's quality is not known
REFERENCE_FILE = "reference.jsonl.gz"  # in a campaign's folder
SCORES, BACK = ".jsonl.gz", "-back.jsonl.gz"  # after an arm's id
_MOST_BYTES = 64 << 20
_RUNS, _DEPTH = "cells", 4  # of a campaign's runs, at most so deep: a ladder or a search has several
_DAMAGE = OSError, ValueError, RecursionError


def make_arm_id(checkpoint: str, server: str) -> str:
    """Make an arm's id from its checkpoint and server, valid as a file name: Qwen3-8B-FP8-vllm."""
    return re.sub(r"[^\w.]+", "-", f"{checkpoint}-{server}")


def judge_arm(directory: Path, arm: str, most_bytes: int | None = None) -> Quality:
    """Compute the quality of the arm of an id from the files of a campaign's quality folder.

    An arm without a file of its own is the reference. Raises UsageError of a file that cannot be read, or has
    more than `most_bytes` uncompressed.
    """
    read = [read_reference(directory / REFERENCE_FILE, most_bytes)]
    for end in (SCORES, BACK):
        if not (path := directory / f"{arm}{end}").is_file():
            break
        read.append(read_reference(path, most_bytes))
    return judge_contents(*read)


def read_quality(path: Path) -> Quality | None:
    """Read the quality in a file; None without one, or where a figure of it is no finite number."""
    try:
        found = Quality.model_validate_json(read_file_bytes(path, _MOST_BYTES))
        json.dumps(found.model_dump(), allow_nan=False)  # raises ValueError of the others
        return found
    except (*_DAMAGE, TypeError):
        return None


def read_arm_quality(campaign: Path, checkpoint: str, server: str) -> Quality | None:
    """Read an arm's quality in a campaign's directory; None where it has none.

    One that has failed, or whose file is damaged, has the reason and no figures.
    """
    name = f"{make_arm_id(checkpoint, server)}.json"
    path = campaign / QUALITY / name
    if (found := read_quality(path)) is not None:
        return found
    try:
        failure = read_mapping(json.loads(read_file_bytes(campaign / QUALITY / FAILED / name, _MOST_BYTES)))
        reason = read_line(str(failure.get("reason", "")))
    except _DAMAGE:
        if not path.is_file():
            return None
        reason = f"{QUALITY}/{name} is damaged: `loadgen campaign --resume` measures it again"
    return _make_unknown(reason)


def _make_unknown(reason: str) -> Quality:
    return Quality(reference="", candidate="", why=dict.fromkeys(FIGURES, reason))


def find_run_quality(run: Path, cell: Cell | None) -> Quality | None:
    """Find the quality of a run's server: in the run's directory, else in the campaign's of its cell.

    None if there is none; a damaged one has the reason and no figures. A run alone has it as `quality.json`,
    which `loadgen quality --json` prints.
    """
    if (own := run / f"{QUALITY}.json").is_file():
        return read_quality(own) or _make_unknown(
            f"{own.name} is damaged: measure it again with `loadgen quality --json`"
        )
    campaign = next((each.parent for each in run.parents[:_DEPTH] if each.name == _RUNS), None)
    if cell is None or campaign is None:
        return None
    return read_arm_quality(campaign, cell.checkpoint, cell.server)


def format_spread(interval: MeanInterval, scale: float = 1.0) -> str:
    """Format a mean and half its interval, × `scale`, as 0.0310 ±0.0010: that in two digits."""
    half = scale * interval.half
    decimals = count_decimals(half, 2) if half > 0 else 4
    return f"{scale * interval.mean:.{decimals}f} ±{half:.{decimals}f}"


def describe_quality(quality: Quality, margin: float) -> str:
    """Describe in a line how far a candidate is: KL and agreement, as far as known, and the verdict."""
    verdict = judge_quality(quality, margin)
    parts = [f"no KL: {quality.why.get('kl', 'the reason is not known')}"]
    if quality.kl is not None:
        parts = [f"KL {format_spread(quality.kl)} nats a token"]
    elif quality.same_answers is not None:
        parts = [f"{format_spread(quality.same_answers, 100)} % of greedy responses the same"]
    if quality.agreement is not None:
        parts.append(f"{format_spread(quality.agreement, 100)} % top-1 agreement")
    return "; ".join([*parts, *([] if verdict is None else [verdict.text])])


_COLUMNS = {key: (title, scale) for key, (title, scale) in FIGURES.items() if title}
_CELLS = [key for key in FIGURES if key != "bits_per_byte"]  # of which there are two
_LEGEND = (
    "KL divergence in nats a token, top-1 agreement in % of a text's tokens, or of greedy responses', "
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
        sampled = f"{kl.tokens:,} tokens of {kl.answers:,} responses"
        yield f"{row.name}: {verdict.text}, {sampled}; KL {describe_usual_kl(kl.mean)}"
        if kl.highest:
            rare = f"at most {100 * bound_share(0, kl.answers):.2g} % of prompts are worse (95 %)"
            worst = f"worst response {kl.highest[0]:.3g} nats a token, {rare}"
            yield f"{row.name}: {'; '.join(filter(None, (worst, describe_tail(kl, row.margin))))}"
        if kl.direction == BACKWARD:
            yield f"{row.name}: KL(candidate‖reference), since its server cannot score"
    if quality.same_answers is not None:
        count, most = quality.settings.get("answers"), quality.settings.get("answer_tokens")
        yield f"{row.name}: {count} greedy responses of {most} tokens at most, up to the first that differs"
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
