"""`loadgen compare`: runs, campaigns and others' results in one table a load, with verdicts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.analysis.comparison import campaigns, ceilings, comparison, export, memory_fit, rankings, render
from loadgen.analysis.comparison.ceilings import Hardware
from loadgen.analysis.comparison.comparison import MARGIN
from loadgen.analysis.comparison.model import Comparison
from loadgen.analysis.importers import sources
from loadgen.analysis.importers.sources import Sources
from loadgen.errors import UsageError
from loadgen.protocol.layout import wrapped
from loadgen.protocol.printable import json_text, plain
from loadgen.results import speed_tables
from loadgen.results.printing import printed
from loadgen.results.speed_tables import Table
from loadgen.session.options import add_roofline_flags
from loadgen.spelling import Parser, arguments
from loadgen.workload.paths import place

_MOST_TROUBLES = 10  # that are told one by one
_Form = tuple[
    Callable[[Sequence[Comparison]], str], Callable[[Table], str], Callable[[str], str]
]  # how a comparison, another table and its title are written
_TEXT: _Form = render.text, speed_tables.text, lambda title: "\n".join(wrapped(title, "")) + "\n"
_MARKDOWN: _Form = (
    render.markdown,
    speed_tables.markdown,
    lambda title: f"### {speed_tables.markdown_text(title)}\n\n",
)
_CSV: _Form = export.csv, speed_tables.csv, lambda title: ""


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 where there are figures."""
    given = arguments(compare_parser(), argv)
    config = None if given.model_config is None else place(given.model_config)
    asked = Asked(
        baseline=given.baseline,
        margin=None if given.margin is None else given.margin / 100,
        alpha=given.alpha,
        headline=given.headline,
        allow_unlike=given.allow_unlike,
        hardware=Hardware(given.hardware, given.bandwidth, config),
    )
    places, again = _places(given.places)
    read = sources.read(places)
    complain([*again, *read.troubles])
    printed(plain(_shown(compared(read, asked, campaigns.told(places)), given)), sys.stdout, end="")
    return 0


class Asked(msgspec.Struct, frozen=True):
    """What a user asks of a comparison; None or empty: the campaign's, or the default. Raises UsageError."""

    baseline: str = ""
    margin: float | None = None  # what counts as equivalent: 0.02 is 2 %
    alpha: float = 0.05
    headline: str = ""
    allow_unlike: bool = False
    hardware: Hardware = Hardware()

    def __post_init__(self) -> None:
        if self.margin is not None and not 0 < self.margin < 1:
            raise UsageError(f"--margin {100 * self.margin:g}: give percent, above 0 and below 100")
        if not 0 < self.alpha < 1:
            raise UsageError(f"--alpha {self.alpha:g}: give a probability, as 0.05")


def compared(read: Sources, asked: Asked, campaign: campaigns.CampaignSettings) -> list[Comparison]:
    """A table a load of everything that was read; raises UsageError."""
    margin = next((share for share in (asked.margin, campaign.margin) if share is not None), MARGIN)
    hardware = asked.hardware
    if hardware.key is None and hardware.bandwidth_gb_per_s is None:
        hardware = replace(hardware, key=campaign.hardware)
    ask = comparison.ComparisonOptions(
        baseline=asked.baseline,
        margin=margin,
        alpha=asked.alpha,
        headline=asked.headline,
        allow_unlike=asked.allow_unlike,
        campaign_baseline=campaign.baseline,
    )
    runs, lacking = ceilings.completed(read.reported, hardware)
    found = comparison.compare(runs, ask, read.failures)
    if found and any(run.ceiling is None for run in runs):
        found[0] = replace(found[0], remarks=(*found[0].remarks, *lacking))
    return found


def compare_parser() -> argparse.ArgumentParser:
    """The flags of `loadgen compare`."""
    parser = Parser(
        prog="loadgen compare",
        allow_abbrev=False,
        description="Compare checkpoints: runs, campaigns and others' results, a table a load.",
        epilog="docs/comparing.md describes how a difference is judged, and what is not compared.",
    )
    add = parser.add_argument
    where = "a run's directory, one of runs, a campaign's, or a result file or page of anyone's"
    add("places", nargs="+", metavar="PLACE", help=where)
    baseline = "the row to compare with (default: the campaign's, else the first in BF16, else the first)"
    add("--baseline", metavar="NAME", default="", help=baseline)
    add("--margin", type=float, metavar="%", help="what counts as equivalent, in percent (default 2)")
    add("--alpha", type=float, metavar="P", default=0.05, help="chance of a false verdict (default 0.05)")
    headline = "the figure that decides (default output_throughput; with a request rate mean_e2el_ms)"
    add("--headline", metavar="KEY", default="", help=headline)
    add("--allow-unlike", action="store_true", help="compare other loads and machines too, marked")
    add_roofline_flags(parser.add_argument_group("roofline"))
    form = parser.add_argument_group("output").add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="for a pull request")
    form.add_argument("--csv", action="store_true", help="a line a figure, with every digit")
    form.add_argument("--json", action="store_true", help="everything, p-values too")
    instead = parser.add_argument_group("other tables, instead")
    instead.add_argument("--rankings", action="store_true", help="rows by speed")
    instead.add_argument("--effects", action="store_true", help="models × quantizations, × that of BF16")
    instead.add_argument("--fits", action="store_true", help="what goes into 8, 16, 24, 48 and 96 GiB")
    return parser


def _places(named: Sequence[str]) -> tuple[list[str], list[str]]:
    """Each place once, and a line on each that was named before."""
    real = [place(one).resolve() for one in named]
    first = [one for at, one in enumerate(named) if real[at] not in real[:at]]
    again = [one for at, one in enumerate(named) if real[at] in real[:at]]
    return first, [f"{one} was named before: it is read once" for one in again]


def complain(troubles: Sequence[str]) -> None:
    """What could not be read, on the standard error: the table is of what could."""
    for trouble in troubles[:_MOST_TROUBLES]:
        printed(f"loadgen: {plain(trouble)}", sys.stderr)
    if len(troubles) > _MOST_TROUBLES:
        printed(f"loadgen: {len(troubles) - _MOST_TROUBLES} more could not be read", sys.stderr)


def _shown(found: Sequence[Comparison], given: argparse.Namespace) -> str:
    drawn = _drawn(found, given)
    if given.json:
        told: dict[str, Any] = export.json(found)
        told |= {name: _json(table) for name, _, table in drawn}
        return json_text(told, indent=1) + "\n"
    comparisons, other, titled = _MARKDOWN if given.markdown else _CSV if given.csv else _TEXT
    if not drawn:
        return comparisons(found)
    return "\n".join(titled(title) + other(table) for _, title, table in drawn)


def _drawn(found: Sequence[Comparison], given: argparse.Namespace) -> list[tuple[str, str, Table]]:
    """The other tables that are asked for: key in the JSON, title, table."""
    drawn = []
    for number, one in enumerate(found, 1):
        load = f", {said}" if (said := render.described(one.load)) != render.UNTOLD else ""
        if given.rankings:
            drawn.append((f"ranking_{number}", f"Ranking{load}", rankings.ranking(one)))
        if given.effects:
            drawn.append((f"effects_{number}", f"Effect of quantization{load}", rankings.effects(one)))
    if given.fits:
        drawn.append(("fits", "What fits which memory (GiB)", memory_fit.fits(found)))
    return drawn


def _json(table: Table) -> dict[str, Any]:
    keys = [column.key for column in table.columns]
    return {"rows": [dict(zip(keys, row, strict=True)) for row in table.body], "notes": list(table.notes)}
