"""Proof: one run, whose every figure, doubt and printed line is held to what its arrivals give."""

from __future__ import annotations

import filecmp
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from loadgen import __version__
from loadgen.base.errors import UsageError
from loadgen.base.rule import Severity
from loadgen.base.untrusted import read_file_bytes
from loadgen.features.routed.reconciled_roles import count_by_role
from loadgen.figures.metrics import DEFINITIONS_VERSION
from loadgen.plan.planned_requests import LengthFacts
from loadgen.plan.random_prompts import IDS, find_length_bounds, parse_range_ratio
from loadgen.report import report, run_directory, run_writer
from loadgen.report.result_block import LAYOUTS
from loadgen.report.result_file import OURS
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT, Result
from loadgen.server import sample_file
from loadgen.server.sample_file import MOST_KEPT, SAMPLES
from loadgen.settings.data_settings import RANDOM
from loadgen.study.audit.findings import audit_runs
from loadgen.study.bundle.reading import LARGEST_RESULT
from loadgen.study.importers.clients.loadgen_runs import CAMPAIGN, CELLS, FAILED
from loadgen.study.run_summary import summarise_run

OF_ARRIVALS, OF_SCORES = "arrivals", "scores"  # from which figures follow
# A sum of floats in another order, as another machine's numpy makes it, differs by less.
_RELATIVE = 1e-9
_LONGEST = 120
_NUMBER = re.compile(r"\d[\d,.e+-]*")
_ADDED_TOKENS = 8  # that a tokenizer adds to each prompt, at most
_NEAR = "equal to nine digits only, as where another machine adds up in another order"
_OTHERWISE = "in other bytes, as with a key that stands twice, other spaces or another order"


class Difference(msgspec.Struct, frozen=True):
    """A figure or line that is not what the arrivals give: its file and name, as stated and as found."""

    name: str
    stated: str
    found: str
    source: str = OF_ARRIVALS  # of what was found

    def __str__(self) -> str:
        return f"{self.name} is {self.stated}, the {self.source} give {self.found}"


class Proof(msgspec.Struct):
    """What became of one run, or of a series' record: how many of its values and lines were held to arrivals,
    what differs, what could not be checked, and what the audit found that the run's own verdict has not."""

    place: str = ""
    values: int = 0
    differences: list[Difference] = []
    unchecked: list[str] = msgspec.field(default_factory=list, name="not_checked")
    verdict: str = ""
    requests: int = 0
    audit: list[str] = []
    source: str = OF_ARRIVALS  # of what was found

    @property
    def proven(self) -> bool:
        """Whether everything was checked, and is as the arrivals give it."""
        return not self.differences and not self.unchecked


def excuse_version(by: object, definitions: object, held: Proof) -> None:
    """Move differences to the unchecked if a file is `by` another version, or of other definitions.

    Its words and keys may be that version's own; other numbers of the same definitions still differ.
    """
    if (by, definitions) == (__version__, DEFINITIONS_VERSION):
        return
    kept = [
        each
        for each in held.differences
        if definitions == DEFINITIONS_VERSION
        and _NUMBER.sub("0", each.stated) == _NUMBER.sub("0", each.found)
    ]
    others = [str(each) for each in held.differences if each not in kept]
    written = f"written by loadgen {by or 'of no version'}, definitions {definitions}"
    held.unchecked = [f"{each} ({written})" for each in (*others, *held.unchecked)]
    held.differences = kept


def encode_record(value: Any) -> bytes:
    """Encode a value as the records of series are written: JSON with an indent of 1, and a line end."""
    return (json.dumps(value, allow_nan=False, indent=1) + "\n").encode()


def hold_document(raw: bytes, made: bytes, file: str, held: Proof) -> None:
    """Compare a JSON file with what this version writes; add each value that differs to `held`.

    What differs in a float's last digits alone is unchecked: another machine adds up in another order. With
    equal values the file still differs where keys stand twice or in another order.
    """
    stated, found, before = json.loads(raw), json.loads(made), len(held.differences)
    near = hold_values(stated, found, file, held)
    if near:
        more = f" and {len(near) - 1} more" if near[1:] else ""
        held.unchecked.append(f"{file}: {near[0]}{more}: {_NEAR}")
    if raw != made and len(held.differences) == before:
        # Written again it has the same digits: only bytes that say nothing else may differ.
        again = json.dumps(stated, allow_nan=False, indent=1 if made[-1:] == b"\n" else None)
        in_order = json.dumps(_blank(stated)) == json.dumps(_blank(found))
        if not (near and in_order and again.encode() == raw.removesuffix(b"\n")):
            held.differences.append(Difference(file, _OTHERWISE, "the same values once, in their order"))


def _blank(value: Any) -> Any:
    """Return a JSON value with null for each float, which may differ in its last digits."""
    if isinstance(value, dict):
        return {key: _blank(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_blank(inner) for inner in value]
    return None if isinstance(value, float) else value


def hold_archive(path: Path, write: Callable[[Path], None], held: Proof) -> None:
    """Compare a columns file with what `write` writes again; other bytes are only noted as unchecked."""
    held.values += 1
    with TemporaryDirectory(prefix="loadgen-verify-") as scratch:
        write(again := Path(scratch) / path.name)
        if not filecmp.cmp(path, again, shallow=False):
            held.unchecked.append(f"{path.name}: other bytes than this loadgen writes of its columns")


def hold_values(stated: Any, found: Any, file: str, held: Proof) -> list[str]:
    """Compare two JSON values leaf by leaf, and add differences to `held`, `file` before each one's name.

    Return the names of numbers that are equal to nine digits alone.
    """
    near = list[str]()
    for name, first, second in _walk(stated, found, ""):
        held.values += 1
        if type(first) is type(second) and first == second:
            continue
        if _is_near(first, second):
            near.append(name)
        else:
            held.differences.append(Difference(f"{file}: {name}", _show(first), _show(second), held.source))
    return near


def hold_copies(run: Result, held: Proof) -> None:
    """Compare what a result states a second time with its other place: the server's gauges, planned lengths.

    Gauges are in samples.npz too; a window's tokens are those of the servers behind the router.
    Lengths are of a plan, so they are compared only where all of it was sent.
    """
    facts, records = run.facts, run.records
    kept = {(each.quantity, each.where): each for each in run.samples.series}
    for gauge in () if facts.shards or not kept else sample_file.list_gauge_series(facts.window, 0):
        other, own = kept.get((gauge.quantity, gauge.where)), sample_file.thin_series(gauge, MOST_KEPT)
        if other is None:
            held.differences.append(Difference(f"{SAMPLES}: {gauge.quantity}", "missing", "samples of it"))
        else:
            stated, found = ([each.values.tolist(), np.diff(each.at_ns).tolist()] for each in (own, other))
            hold_values(stated, found, f"{RESULT}: window.samples {gauge.quantity}", held)
    if facts.window is not None and facts.window.is_known and facts.role_windows:
        sums = count_by_role(facts.role_windows)
        whole = {quantity: getattr(facts.window, quantity) for quantity in sums}
        hold_values(whole, sums, f"{RESULT}: window", held)
    if run.sessions is not None or len(records) != facts.requests:
        return
    planned_lens = {"input": records.planned_input, "output": records.planned_output}
    for name, planned in planned_lens.items():
        stated_lens: LengthFacts | None = getattr(facts.data, name)
        if stated_lens is not None and stated_lens.known == len(records) and (planned > 0).all():
            lens = asdict(LengthFacts.measure(planned) or stated_lens)
            hold_values(asdict(stated_lens), lens, f"{RESULT}: loadgen.data.{name}", held)


def hold_lengths(run: Result, held: Proof) -> None:
    """Compare the lengths that a workload asks of random prompts with the shortest and longest planned.

    Texts may be re-encoded to a few tokens more or less: theirs may be a tenth off. Lengths of a
    distribution, of classes, of conversations and of a file are not compared.
    """
    facts, profile = run.facts, run.facts.profile
    if facts.data.kind != RANDOM or run.sessions is not None or profile.classes:
        return
    ratios = parse_range_ratio(profile.range_ratio, profile.compat)
    rows = (
        ("input_len", profile.input_dist, ratios[0], profile.prefix_len, run.records.planned_input),
        ("output_len", profile.output_dist, ratios[1], 0, run.records.planned_output),
    )
    for name, drawn, ratio, prefix, planned in rows:
        if drawn or not len(planned) or not (planned > 0).all():
            continue
        low, high = (
            prefix + length for length in find_length_bounds(getattr(profile, name), ratio, profile.compat)
        )
        exact = name == "output_len" or facts.prompt_format == IDS
        slack = 0.0 if exact else 0.1 * high + _ADDED_TOKENS
        least, most = int(planned.min()), int(planned.max())
        held.values += 1
        if least < low - slack or most > high + slack:
            stated = f"{getattr(profile, name)}, which asks for {low} to {high} tokens"
            where = f"{RESULT}: loadgen.profile.{name}"
            held.differences.append(Difference(where, stated, f"{least} to {most}"))


_MISSING: Any = object()


def _walk(stated: Any, found: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield each leaf of two JSON values by its dotted name; what one of them lacks is _MISSING."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for key in dict.fromkeys((*stated, *found)):
            inner = f"{name}.{key}" if name else str(key)
            yield from _walk(stated.get(key, _MISSING), found.get(key, _MISSING), inner)
    elif isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        for number, pair in enumerate(zip(stated, found, strict=True)):
            yield from _walk(*pair, f"{name}[{number}]")
    else:
        yield name, stated, found


def _is_near(stated: Any, found: Any) -> bool:
    """Whether two numbers, of which one is not whole, differ by at most 1e-9 of themselves."""
    kinds = {type(stated), type(found)}
    is_number = float in kinds and kinds <= {float, int}
    return is_number and math.isclose(stated, found, rel_tol=_RELATIVE, abs_tol=1e-12)


def hold_report(raw: bytes, run: Result, held: Proof) -> None:
    """Compare a printed report with each form that the arrivals give; add the nearest one's other lines."""
    stated = raw.decode("utf-8", "backslashreplace").split("\n")
    held.values += len(stated) - 1
    found, fewest = list[str](), math.inf
    for explain, layout in ((explain, layout) for explain in (False, True) for layout in LAYOUTS):
        made = report.render_report(run, explain, layout) + "\n"
        if made.encode("utf-8", "backslashreplace") == raw:
            return
        if (differing := len({*stated} ^ {*made.split("\n")})) < fewest:
            found, fewest = made.split("\n"), differing
    # The lines that differ lie between the first ones and the last ones that are the same.
    fewer = min(len(stated), len(found))
    first = next((at for at in range(fewer) if stated[at] != found[at]), fewer)
    after = next((at for at in range(fewer - first) if stated[-1 - at] != found[-1 - at]), fewer - first)
    left, right = stated[first : len(stated) - after], found[first : len(found) - after]
    for at, (line, gives) in enumerate(zip_longest(left, right), first + 1):
        if line != gives:
            shown = ("no line" if each is None else _show(each.strip()) for each in (line, gives))
            held.differences.append(Difference(f"{REPORT}: line {at}", *shown))


def _show(value: object) -> str:
    text = "missing" if value is _MISSING else value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_MOST_REPORT = 4 << 20
_DEEPEST = 4  # folders of a cell, from its run to the campaign's
# A stranger's file can make a computation raise these: they cost the proof.
DAMAGE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, OSError)


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Raise what a damaged file makes of a computation as a UsageError that begins with its path."""
    try:
        yield
    except (UsageError, *DAMAGE) as error:
        if isinstance(error, UsageError) and str(error).startswith(tuple(f"{path}{end}" for end in "/: ")):
            raise
        raise UsageError(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from None


def prove_run(directory: Path, place: str, root: Path | None = None) -> Proof:
    """Compute all that a run states again from its arrivals, and compare; without them it is unchecked.

    The cell of a campaign's run is unchecked unless the campaign's directory is `root` or lies below it.
    Raises UsageError if there is no finished run, or it is damaged.
    """
    root = root or directory
    with naming_damage(directory):
        if not (directory / ARRIVALS).is_file():
            return Proof(place, unchecked=[f"it has no {ARRIVALS}: nothing proves its figures"])
        run, held = run_directory.load(directory), Proof(place)
        raw = read_file_bytes(directory / RESULT, LARGEST_RESULT)
        hold_document(raw, json.dumps(run_writer.encode_run(run), allow_nan=False).encode(), RESULT, held)
        hold_copies(run, held)
        hold_lengths(run, held)
        if (printed := directory / REPORT).is_file():
            hold_report(read_file_bytes(printed, _MOST_REPORT), run, held)
        else:
            held.unchecked.append(f"it has no {REPORT}: its printed lines are not here")
        hold_archive(directory / ARRIVALS, run.records.save, held)
        if run.samples.error:
            held.unchecked.append(run.samples.error)
        elif run.samples.series:
            hold_archive(directory / SAMPLES, partial(sample_file.save, run.samples), held)
        is_in_campaign = any(  # in a cell of one whose directory is `root` or below it
            each.name in (CELLS, FAILED) and (each.parent / CAMPAIGN).is_file() and each.is_relative_to(root)
            for each in directory.parents[: _DEEPEST if directory != root else 0]
        )
        if run.facts.cell is not None and not is_in_campaign:
            held.unchecked.append(f"that it is of {run.facts.cell.arm}: there is no {CAMPAIGN} of it here")
        definitions = json.loads(raw)[OURS].get("definitions_version")
        excuse_version(run.facts.environment.get("loadgen"), definitions, held)
        own = {finding.rule.code for finding in run.verdict.findings}
        audited = audit_runs([summarise_run(directory, run)], None, None)
        held.audit = [  # what it finds beyond the verdict, notes left out
            f"{finding.rule.code}: {finding.evidence}"
            for each in audited
            for finding in each.findings
            if finding.rule.code not in own and finding.rule.severity is not Severity.NOTE
        ]
        held.verdict, held.requests = run.verdict.level.value, len(run.records)
        return held
