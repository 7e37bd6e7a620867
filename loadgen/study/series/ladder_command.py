"""`loadgen ladder`: the speed of one request at ever longer prompts, or after ever more cached tokens."""

from __future__ import annotations

import argparse
import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import msgspec
from msgspec.structs import asdict

from loadgen.base import files, parsing, signals, untrusted
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import MeasureError, UsageError, decide_exit_code
from loadgen.base.printing import print_one_object, print_text, refuse_without_result
from loadgen.base.structs import replace
from loadgen.base.text import clean_text, quote_value
from loadgen.base.version import __version__
from loadgen.engines.engines import find_by_name
from loadgen.figures import objectives
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report import run_writer
from loadgen.report.run_directory import Result
from loadgen.run.attach import collect_settings
from loadgen.run.command import progress
from loadgen.run.command.bench import check, make_seed
from loadgen.run.command.options import Options, bench_parser, parse
from loadgen.run.launched_server import dry_run
from loadgen.run.session import Session
from loadgen.settings.validation import ServerSettings
from loadgen.study.series import point_runs
from loadgen.study.series.point_runs import MeasuredPoint, PointServers, Step
from loadgen.study.series.series_store import refuse_flags
from loadgen.study.speed import ladder_rows, speed_tables
from loadgen.study.speed.ladder_rows import GENERATION, PROMPT, BatchRow, BatchTest, DepthRow, DepthTest
from loadgen.study.speed.speed_rows import FORMULAS, TOTAL, SpeedRow

DEFAULT_PROFILE = "qwen-speed"
_PROMPT, _ANSWER, _REPEATS = 2048, 128, 5
_USUAL = {"input_len": _PROMPT, "output_len": _ANSWER, "num_prompts": _REPEATS}  # with --depth alone
_TOKENS = "tokens, none of them twice: 0,4096"
_LEVELS = "concurrencies, none of them twice: 1,2,5,10"


def main(argv: Sequence[str]) -> int:
    """Run `loadgen ladder`, with --depth speed at depth; return the exit code, 0 if any rung was measured.

    --dry-run only prints the command that would start the server.
    """
    options = parse(argv, ladder_parser())
    _refuse_flags(options)
    workload = _load_workload(options)
    check(options)
    asked = collect_settings(options, [workload])
    if options.launching.engine == "sglang" and asked.skip_tokenizer is None:
        asked = asked.model_copy(update={"skip_tokenizer": True})
    refuse_without_result(options.json, {"--dry-run": options.launching.dry_run})
    if options.launching.dry_run:
        print_text(dry_run(options, asked), sys.stdout)
        return 0
    kind: type[Climb[Any, Any]] = LadderClimb if options.depth is None else DepthClimb
    if options.batch_sizes is not None:
        kind = BatchClimb
    with print_one_object(options.json) as results:
        climb = kind.begin(workload, options)
        code = climb.finish(lambda ladder: _climb(ladder, options, asked))
        results += [climb.encode_rows()] if climb.rows else []
        return code


def ladder_parser() -> argparse.ArgumentParser:
    """Make the parser of `bench`, with the flags of the formula and of speed at depth."""
    parser = bench_parser()
    parser.prog = "loadgen ladder"
    parser.description = "Measure one request at a time at ever longer prompts, as the Qwen pages do."
    parser.epilog = f"Without --profile: {DEFAULT_PROFILE}. The other flags are those of `loadgen bench`."
    formula = f"formula of the speed (default {TOTAL}, Qwen3's; the other is Qwen2's)"
    parser.add_argument("--formula", choices=tuple(FORMULAS), help=formula)
    depth = parser.add_argument_group("speed at depth, as llama-bench has it (docs/ladder.md)")
    add = depth.add_argument
    tokens = partial(_parse_counts, least=0, most=parsing.MOST_TOKENS, kind=_TOKENS)
    add("-d", "--depth", type=tokens, metavar="N[,N…]",
        help="measure prompt and generation speed after N cached tokens, instead of the ladder")  # fmt: skip
    levels = partial(_parse_counts, least=1, most=parsing.MOST_REQUESTS, kind=_LEVELS)
    add("--concurrency", dest="batch_sizes", type=levels, metavar="N[,N…]",
        help="batches of N requests at once at each --depth, as llama-benchy has them; --num-prompts of them "
        f"(default {BATCHES})")  # fmt: skip
    add("-p", "--n-prompt", dest="input_len", type=int, metavar="N", help=f"new tokens (default {_PROMPT})")
    add("-n", "--n-gen", dest="output_len", type=int, metavar="N", help=f"output tokens (default {_ANSWER})")
    return parser


def _parse_counts(text: str, least: int, most: int, kind: str) -> tuple[int, ...]:
    """Parse whole numbers from `least` to `most`, none twice; raises ArgumentTypeError, naming `kind`."""
    words = [word.strip() for word in text.split(",")]
    found = (untrusted.read_digits(word) for word in words)
    counts = [value for value in found if value is not None and least <= value <= most]
    if len(set(counts)) < len(words):
        raise argparse.ArgumentTypeError(f"{quote_value(text)} is not a list of {kind}")
    return tuple(counts)


def _refuse_flags(options: Options) -> None:
    """Raise UsageError for a flag of `bench` that a ladder does not heed, with advice."""
    advice = {
        "--input-len": (
            "input_len" in options.overrides and options.depth is None,
            "the profile's `ladder` has the lengths; with --depth it is that of the new tokens",
        ),
        "--formula": (options.formula is not None and options.depth is not None, "with --depth"),
        "--random-prefix-len": (
            "prefix_len" in options.overrides and options.depth is not None,
            "--depth has the lengths of what comes before",
        ),
        "--concurrency": (
            options.batch_sizes is not None and options.depth is None,
            "it is of --depth; pass --depth 0 for no context",
        ),
        "--max-concurrency": (
            options.batch_sizes is not None and "max_concurrency" in options.overrides,
            "--concurrency has the requests at once",
        ),
        "--repeat": (options.repeat > 1, "--num-prompts sets the repeats of each length"),
        "--save-result": (options.saves, "ladder.json and the run directories have every figure"),
        "--base-url": (bool(options.more_urls), "one request at a time has one server: give it once"),
        "--cluster": (options.cluster is not None, "one process is enough for one request at a time"),
    }
    refuse_flags(options, "a ladder", advice, heeded=("--live-totals", "--selftest"))


def _load_workload(options: Options) -> Profile:
    """Load the one workload: --profile, else a default; raises UsageError without a ladder or --depth."""
    names = options.profiles or (DEFAULT_PROFILE,)
    if len(names) > 1:
        raise UsageError("--profile: one ladder at a time")
    usual = {} if options.profiles or options.depth is None else _USUAL
    if usual and options.batch_sizes is not None:
        usual = {**usual, "num_prompts": BATCHES}
    workload = profile.load(names[0], {**usual, **options.overrides}, flags=True)
    if workload.ladder is None and options.depth is None:
        raise UsageError(f"--profile {names[0]} has no ladder of input lengths: run it with `loadgen bench`")
    objectives.check_workload(workload)
    return _prefer_native_api(workload, options, options.launching.engine or "")


def _climb(ladder: Climb[Any, Any], options: Options, asked: ServerSettings) -> None:
    """Start or reach the server, and measure the ladder's rungs on it."""
    inside = replace(options, run_dir=str(ladder.directory))
    with PointServers(inside, asked, ladder.directory, progress.warn) as servers:
        session = servers.session(ladder.workload)
        ladder.workload = _prefer_native_api(ladder.workload, options, session.served.engine.name)
        ladder.climb_on(servers, make_seed(options))


def _prefer_native_api(workload: Profile, options: Options, engine: str) -> Profile:
    """Return the workload for the engine's own API, if it has one and no flag names another."""
    backend = find_by_name(engine).native_backend  # takes ids and needs no tokenizer
    if not backend or "backend" in options.overrides or options.endpoint is not None:
        return workload
    return workload.model_copy(update={"backend": backend})


Rung = TypeVar("Rung")
Row = TypeVar("Row")


@dataclass
class Climb(ABC, Generic[Rung, Row]):
    """Rungs measured one after another on a server, or on its next start where it died, each with a row.

    The tables on disk are written again after each row. A subclass defines what follows the fields.
    """

    workload: Profile
    directory: Path  # of its runs and tables
    options: Options
    quiet: bool = False  # no line a rung
    rows: list[Row] = field(default_factory=list)  # of the rungs that were measured, or could not be
    left: deque[Rung] = field(init=False)
    seed: Seed = field(init=False)
    servers: PointServers = field(init=False)
    session: Session | None = None  # on which the last rung was measured

    name: ClassVar[str]  # of its directory and files
    forms: ClassVar[tuple[str, ...]]  # of the tables that are written
    speed: ClassVar[str]  # the field of a row with its speed, None or empty where it has none
    draw: ClassVar[staticmethod[[Sequence[Any], str], str]]  # draws rows in one of `forms`, or as text
    describe: ClassVar[staticmethod[[Any], str]]  # makes the line that is printed when a row's rung ends
    encode: ClassVar[staticmethod[[Any], dict[str, Any]]]  # makes a row as JSON has it

    def __post_init__(self) -> None:
        self.left = deque(self.list_rungs())

    @abstractmethod
    def list_rungs(self) -> Iterable[Rung]:
        """List all rungs, in the order in which they are measured."""

    @abstractmethod
    def list_changes(self, rung: Rung) -> dict[str, Any]:
        """List the keys of the workload that make a rung, with their values."""

    @abstractmethod
    def make_row(self, run: Result, rung: Rung, directory: str) -> Row:
        """Make the row of a rung from its run."""

    @abstractmethod
    def make_missed_row(self, rung: Rung, why: str) -> Row:
        """Make a row without a speed, with the reason."""

    def encode_rows(self) -> dict[str, Any]:
        """Return all rows as the object that JSON has; nothing is written."""
        return {"rows": list(map(self.encode, self.rows))}

    def count_measured(self) -> int:
        """Count the rows with a speed."""
        return sum(getattr(row, self.speed) not in (None, ()) for row in self.rows)

    @classmethod
    def begin(cls, workload: Profile, options: Options) -> Self:
        """Make a climb and its directory below `run_dir`, else `runs`; raises UsageError if it cannot."""
        base = Path(options.run_dir or "runs")
        return cls(workload, files.create_directory(base, cls.name, read_wall_clock()), options)

    def finish(self, measure: Callable[[Self], None]) -> int:
        """Call `measure`, print the table, and return the exit code: 0 where any rung was measured.

        On a signal it returns the signal's code. Without any row the directory is removed if empty.
        """
        try:
            measure(self)
        except KeyboardInterrupt as stop:
            return decide_exit_code(signal=signals.read_number(stop))
        finally:
            if self.rows:
                table = self.draw(self.rows, "text")
                print_text(f"\n{table}\ntables and runs: {self.directory}", sys.stdout)
            else:
                files.remove_empty(self.directory)
        return decide_exit_code(measured=self.count_measured() > 0)

    def climb_on(self, servers: PointServers, seed: Seed) -> None:
        """Measure the rungs in `left` on a server; one that cannot be measured gets a row with the reason.

        A server that dies of a rung is started again for the next, unless another owns it: raises ServerDied
        then. Raises StoreError, KeyboardInterrupt.
        """
        self.seed, self.servers = seed, servers
        point_runs.run_series(self, servers)

    def choose(self) -> Step[Rung] | None:
        """Remove the next rung from `left` and return it with its workload; None if there is none."""
        if not self.left:
            return None
        keys = {"ladder": None, "description": "", **self.list_changes(self.left[0])}
        return Step(self.left.popleft(), self.workload.model_copy(update=keys))

    def measure(self, step: Step[Rung], session: Session) -> MeasuredPoint:
        """Set `session` and measure a rung, or return why not if its tokens exceed the context."""
        self.session = session
        need = step.workload.prefix_len + step.workload.input_len + step.workload.output_len
        if 0 < (limit := session.context_limit) < need:
            return MeasuredPoint(reason=f"needs {need} tokens, the context limit is {limit}")
        return point_runs.measure_point(session, step.workload, self.seed, self.directory)

    def keep(self, step: Step[Rung], point: MeasuredPoint) -> None:
        """Add the row of a rung, from its run or with why it has none; raises errors but a MeasureError.

        Where no server could be reached, the rung and all that are left get rows with that reason.
        """
        if point.unserved:
            progress.warn(str(point.error))
            for rung in (step.what, *self.left):
                self._add(self.make_missed_row(rung, "the server did not start again"))
            self.left.clear()
            return
        if point.error is not None and not isinstance(point.error, MeasureError):
            raise point.error
        run, why = point.run, point.reason if point.run is None else ""
        if run is not None and point.died is not None and run.records.failed and not run.facts.interrupted:
            why = point.died.summary
        if why:
            self._add(self.make_missed_row(step.what, why))
        elif run is not None and point.directory is not None:
            self._add(self.make_row(run, step.what, point.directory.name))
        if point.died is not None and self.servers.restartable:
            progress.warn(clean_text(str(point.died)))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self.write_tables()
        if not self.quiet:
            print_text(self.describe(row), sys.stdout)

    def write_tables(self) -> None:
        """Write every table file again; one that cannot be written is a warning."""
        for name, text in self.list_tables().items():
            if error := run_writer.write_text(self.directory / name, text):
                progress.warn(error)  # the next rung is worth measuring all the same

    def list_tables(self) -> dict[str, str]:
        """Return the content of each table file by its name."""
        tables = {f"{self.name}.{form}": self.draw(self.rows, form) for form in self.forms}
        return tables | {f"{self.name}.json": dumps(self.encode_rows(), allow_nan=False)}


@dataclass
class LadderClimb(Climb[int, SpeedRow]):
    """The rungs of a profile's ladder of input lengths that are left, and the rows of those that are not."""

    name, forms, speed = "ladder", ("html", "rst", "md", "csv"), "speed_tok_s"
    draw = staticmethod(speed_tables.draw_ladder)
    describe = staticmethod(ladder_rows.describe_speed)
    encode = staticmethod(ladder_rows.encode_speed_row)

    def list_rungs(self) -> Iterable[int]:
        return self.workload.ladder or ()

    def list_changes(self, rung: int) -> dict[str, Any]:
        return {"input_len": rung, "name": f"{self.workload.name}-{rung}"}

    def make_row(self, run: Result, rung: int, directory: str) -> SpeedRow:
        formula = self.options.formula or TOTAL
        return replace(ladder_rows.make_speed_row(run, formula), run=directory)

    def make_missed_row(self, rung: int, why: str) -> SpeedRow:
        """Make a row with why it has no speed; model and machine are the last row's, else the session's."""
        base, quantization, backend = ladder_rows.name_served(self.session)
        previous = SpeedRow(base, backend, "", rung, quantization, None, None)
        if self.rows:
            previous = self.rows[-1]
        return replace(
            previous,
            input_length=rung,
            gpu_num=None,
            speed_tok_s=None,
            ttft_ms=None,
            decode_tok_s=None,
            gpu_memory=None,
            note=why,
            formula=self.options.formula or TOTAL,
            output_length=self.workload.output_len,
            run="",
        )


@dataclass
class DepthClimb(Climb[DepthTest, DepthRow]):
    """Prompt and generation speed of one request after ever more cached tokens: the tests that are left.

    The prefix is the same for all requests of a test: the first one puts it into the server's cache, and
    whether it was found there is read from each answer.
    """

    name, forms, speed = "depth", ("md", "csv"), "tok_s"
    draw = staticmethod(ladder_rows.draw_depths)
    describe = staticmethod(ladder_rows.describe_depth)
    encode = staticmethod(asdict)

    def list_rungs(self) -> Iterable[DepthTest]:
        tests = {PROMPT: self.workload.input_len, GENERATION: self.workload.output_len}
        depths: tuple[int, ...] = self.options.depth or ()
        return (DepthTest(kind, tokens, depth) for depth in depths for kind, tokens in tests.items())

    def list_changes(self, rung: DepthTest) -> dict[str, Any]:
        """Return the rung's lengths and name; at a depth one request more replaces the warm-up."""
        # At a depth the first request warms up: one of a warm-up would have a prefix of its own.
        return {
            "input_len": rung.input_len,
            "output_len": rung.output_len,
            "prefix_len": rung.depth,
            "num_prompts": (self.workload.num_prompts or 1) + (rung.depth > 0),
            "num_warmups": 0 if rung.depth else self.workload.num_warmups,
            "name": f"{rung.kind}{rung.tokens}-d{rung.depth}",
        }

    def make_row(self, run: Result, rung: DepthTest, directory: str) -> DepthRow:
        return replace(ladder_rows.make_depth_row(run, rung), run=directory)

    def make_missed_row(self, rung: DepthTest, why: str) -> DepthRow:
        """Make a row without a speed; the model is that of the row before."""
        names = ladder_rows.name_served(self.session)
        if self.rows:
            names = self.rows[-1].model, self.rows[-1].quantization, self.rows[-1].backend
        return DepthRow(*names, str(rung), rung.depth, note=why)


BATCHES = 3  # of each test, without --num-prompts
_REPORT = "llama-benchy.json"


class BatchRung(msgspec.Struct, frozen=True):
    """One batch of a test: its number, from 0, and whether it is the first that the test sends."""

    test: BatchTest
    number: int
    warms_up: bool


@dataclass
class BatchClimb(Climb[BatchRung, BatchRow]):
    """The batches that are left of each depth and concurrency, and a row of each test that was begun.

    At a depth a batch of the contexts alone comes before each batch; no other has the contexts of the two.
    """

    began: datetime = field(default_factory=read_wall_clock)
    ended: Counter[BatchTest] = field(default_factory=Counter)  # batches by test, those without figures too

    name, forms, speed = "depth", ("md", "csv"), "batches"
    draw = staticmethod(ladder_rows.draw_batches)
    describe = staticmethod(ladder_rows.describe_batch)
    encode = staticmethod(ladder_rows.encode_batch_row)

    def list_rungs(self) -> Iterable[BatchRung]:
        """List each test's batches, one after the other; at a depth each follows one of its contexts."""
        for depth in self.options.depth or ():
            for level in self.options.batch_sizes or ():
                test = BatchTest(self.workload.input_len, self.workload.output_len, depth, level)
                for number in range(self.batches):
                    if depth:
                        yield BatchRung(replace(test, is_context=True), number, number == 0)
                    yield BatchRung(test, number, number == 0 and not depth)

    @property
    def batches(self) -> int:
        """The number of batches of each test: --num-prompts."""
        return self.workload.num_prompts or BATCHES

    def list_changes(self, rung: BatchRung) -> dict[str, Any]:
        """Return the workload of a batch's test, all sent at once; the first batch of a test warms up."""
        warmups = "wave" if rung.warms_up and self.workload.num_warmups else 0
        return {**rung.test.workload, "request_rate": float("inf"), "num_warmups": warmups}

    def measure(self, step: Step[BatchRung], session: Session) -> MeasuredPoint:
        """Measure a batch as any rung, with prompts by its number."""
        self.seed = replace(self.seed, repeat=step.what.number)
        return super().measure(step, session)

    def make_row(self, run: Result, rung: BatchRung, directory: str) -> BatchRow:
        return ladder_rows.make_batch_row(run, rung.test, directory)

    def make_missed_row(self, rung: BatchRung, why: str) -> BatchRow:
        """Make a row without a batch; the model is that of the row before, else the session's."""
        if self.rows:
            before = self.rows[-1]
            names = before.model, before.quantization, before.backend, before.served
        else:
            served = self.session.served.model if self.session is not None else ""
            names = *ladder_rows.name_served(self.session), served
        return BatchRow(*names, rung.test, note=why)

    def _add(self, row: BatchRow) -> None:
        """Merge a row into its test's, or append it; write the tables, and print it once its test ends."""
        places = [place for place, known in enumerate(self.rows) if known.test == row.test]
        if places:
            row = self.rows[places[0]] = self.rows[places[0]].merge(row)
        else:
            self.rows.append(row)
        self.ended[row.test] += 1
        self.write_tables()
        if not self.quiet and self.ended[row.test] == self.batches:
            print_text(self.describe(row), sys.stdout)

    def list_tables(self) -> dict[str, str]:
        """Return the tables and, once a batch was measured, llama-benchy's report."""
        if not self.count_measured():
            return super().list_tables()
        report = ladder_rows.make_benchy_report(self.rows, self.began, f"loadgen {__version__}")
        return super().list_tables() | {_REPORT: dumps(report, indent=2, allow_nan=False)}
