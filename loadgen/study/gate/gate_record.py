"""Gate record: what a gate is asked, the figures with their margins, kept in its directory to judge alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from loadgen.base.errors import UsageError
from loadgen.base.files import write_text
from loadgen.base.parsing import parse_share
from loadgen.base.text import quote_value
from loadgen.figures.figure_table import find_figure, find_named_figure
from loadgen.study.bundle import reading
from loadgen.study.gate.gate_verdict import ALPHA, FIRST_LOOK, MARGIN, GateMetric, GatePlan
from loadgen.study.series_record import SeriesRecord

_LEAST_MARGIN, _MOST_MARGIN = 1e-4, 0.99


def make_gate_metric(name: str, key: str, higher_is_faster: bool | None) -> GateMetric:
    """Make the metric of a figure's key with the usual margin; lower is faster where no side is better."""
    return GateMetric(name=name, key=key, higher_is_faster=bool(higher_is_faster), margin=MARGIN)


def parse_gate_metrics(texts: Sequence[str]) -> list[GateMetric]:
    """Parse `--metric tok/s,ttft_p99`; [] if nothing is named.

    A latency without a statistic is its mean. Raises UsageError of an unknown one, with the nearest, and of
    one that is named twice.
    """
    metrics: dict[str, GateMetric] = {}
    for name in (part.strip() for text in texts for part in text.split(",")):
        metric = _find_metric(name)
        if metric.key in metrics:
            raise UsageError(f"--metric {name}: {metrics[metric.key].name} is the same figure: name it once")
        metrics[metric.key] = metric
    return list(metrics.values())


def lay_margins(metrics: Sequence[GateMetric], texts: Sequence[str]) -> list[GateMetric]:
    """Return the metrics with the margins of `--margin 3% --margin ttft_p99=10%`.

    Raises UsageError of a margin that is no share, or of a metric that is not judged.
    """
    usual, own = MARGIN, dict[str, float]()
    for text in (part.strip() for given in texts for part in given.split(",")):
        name, equals, share = text.rpartition("=")
        try:
            margin = parse_share(share, _LEAST_MARGIN, _MOST_MARGIN)
        except ValueError as error:
            raise UsageError(f"--margin {text}: {error}") from None
        if not equals:
            usual = margin
            continue
        key = _find_metric(name.strip(), "--margin").key
        if key not in {metric.key for metric in metrics}:
            judged = ", ".join(metric.name for metric in metrics)
            raise UsageError(f"--margin {text}: the gate judges {judged}: name it with --metric too")
        own[key] = margin
    return [metric.model_copy(update={"margin": own.get(metric.key, usual)}) for metric in metrics]


def _find_metric(name: str, flag: str = "--metric") -> GateMetric:
    try:
        figure, key = find_named_figure(name)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None
    return make_gate_metric(name, key, figure.higher_is_better)


RECORD = "gate.json"
MOST_PAIRS = 1000  # as many repeats as a campaign has
MOST_METRICS = 1000


def check_is_of_figure(metric: GateMetric) -> GateMetric:
    """Raise ValueError of what is no figure, or not its direction: the record may be a stranger's."""
    figure = find_figure(metric.key)
    if figure is None or figure.higher_is_better is not metric.higher_is_faster:
        raise ValueError(f"{quote_value(metric.key)} is no figure of which this is faster")
    return metric


class GateRecord(SeriesRecord, frozen=True):
    """`gate.json`: the figures with their margins, alpha and the pairs it is spent over."""

    file_name, owner = RECORD, "a gate's"
    format: int = 1
    metrics: tuple[Annotated[GateMetric, AfterValidator(check_is_of_figure)], ...] = Field(
        min_length=1, max_length=MOST_METRICS
    )
    alpha: float = Field(gt=0, lt=0.5)
    max_pairs: int = Field(ge=FIRST_LOOK, le=MOST_PAIRS)
    arms: tuple[str, ...] = Field(min_length=2)  # that are compared, the base first

    @model_validator(mode="after")
    def _has_each_once(self) -> Self:
        for names in (self.arms, [metric.key for metric in self.metrics]):
            if len(set(names)) < len(names):
                raise ValueError(f"{quote_value(max(names, key=list(names).count))} is there twice")
        return self

    @property
    def plan(self) -> GatePlan:
        """The plan of the gate, which looks after each pair."""
        return GatePlan(self.alpha, self.max_pairs, sequential=True)


def list_choices(record: GateRecord) -> tuple[str, ...]:
    """List a remark on each margin and alpha of a bundled gate that is no default: a stranger may set it."""
    remarks = [
        f"its {RECORD} sets a margin of {100 * metric.margin:g} % for {metric.name}: --margin has your own"
        for metric in record.metrics
        if metric.margin != MARGIN
    ]
    if record.alpha != ALPHA:
        remarks.append(f"its {RECORD} sets an alpha of {record.alpha:g}: --alpha has your own")
    return tuple(remarks)


def find_gate(place: Path) -> Path:
    """Find a measured gate's directory: that of the only gate in a bundle, else the place itself."""
    if not reading.is_bundle_file(place):
        return place
    inside = list(reading.find_directory(place).glob(f"*/{RECORD}"))
    return inside[0].parent if len(inside) == 1 else place


def read_gate_record(directory: Path) -> GateRecord | None:
    """Read the record in a measured gate's directory; None if it has none. Raises UsageError if damaged."""
    return GateRecord.read(directory) if (directory / RECORD).is_file() else None


def write_gate_record(directory: Path, record: GateRecord) -> None:
    """Write the record to a campaign's directory; raises UsageError where it has one that differs.

    Another margin, alpha or number of pairs, chosen after some were seen, would have other error rates.
    """
    path = directory / RECORD
    if (kept := read_gate_record(directory)) is not None:
        differ = [name for name in GateRecord.model_fields if getattr(kept, name) != getattr(record, name)]
        if differ:
            judged = (f"{metric.name} (margin {100 * metric.margin:g} %)" for metric in kept.metrics)
            words = {"metrics": ", ".join(judged), "arms": ", ".join(kept.arms)}
            shown = "; ".join(f"{name}: {words.get(name, getattr(kept, name))}" for name in differ)
            raise UsageError(f"{directory} was begun as another gate ({shown}): resume it as it was begun")
        return
    try:
        write_text(path, record.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
