"""`loadgen ladder`: the speed of one request at ever longer prompts, or after ever more cached tokens."""

from __future__ import annotations

import argparse
import re
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
from loadgen.study.series.series_store import (
    SeriesStore,
    StoreError,
    refuse_flags,
    show_resume_command,
)
from loadgen.study.speed import ladder_rows, speed_rows
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
        climb = kind.begin(workload, options, options.resume)
        resume = show_resume_command("ladder", argv, climb.directory)
        code = climb.finish(lambda ladder: _climb(ladder, options, asked), resume)
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
    with PointServers(options, asked, ladder.directory, progress.warn) as servers:
        session = servers.session(ladder.workload)
        ladder.workload = _prefer_native_api(ladder.workload, options, session.served.engine.name)
        ladder.climb_on(servers, ladder.find_seed() or make_seed(options))


def _prefer_native_api(workload: Profile, options: Options, engine: str) -> Profile:
    """Return the workload for the engine's own API, if it has one and no flag names another."""
    backend = find_by_name(engine).native_backend  # takes ids and needs no tokenizer
    if not backend or "backend" in options.overrides or options.endpoint is not None:
        return workload
    return workload.model_copy(update={"backend": backend})


Test = TypeVar("Test")
Row = TypeVar("Row")


class Rung(msgspec.Struct, Generic[Test], frozen=True):
    """One run of a ladder: what it tests, and what makes it of the ladder's workload."""

    test: Test
    keys: dict[str, Any]  # of the workload
    repeat: int = 0  # of the same test, with prompts of its own
    fills: bool = False  # the cache for the next rung, with the same name: both are measured, or none


@dataclass
class Climb(ABC, Generic[Test, Row]):
    """Rungs measured one after another on a server, or on its next start where it died, each with a row.

    The tables on disk are written again after each row. A subclass defines what follows the fields.
    """

    workload: Profile
    directory: Path  # of its runs and tables
    options: Options
    quiet: bool = False  # no line a rung
    rows: list[Row] = field(default_factory=list)  # of the rungs that were measured, or could not be
    left: deque[Rung[Test]] = field(init=False)
    count: int = field(init=False)  # of all rungs
    store: SeriesStore = field(init=False)
    seed: Seed = field(init=False)
    servers: PointServers = field(init=False)
    session: Session = field(init=False)  # on which the last rung was measured

    name: ClassVar[str]  # of its directory and files
    forms: ClassVar[tuple[str, ...]]  # of the tables that are written
    speed: ClassVar[str]  # the field of a row with its speed, None or empty where it has none
    draw: ClassVar[staticmethod[[Sequence[Any], str], str]]  # draws rows in one of `forms`, or as text
    describe: ClassVar[staticmethod[[Any], str]]  # makes the line that is printed when a row's rung ends
    encode: ClassVar[staticmethod[[Any], dict[str, Any]]]  # makes a row as JSON has it

    def __post_init__(self) -> None:
        self.left = deque(self.list_rungs())
        self.count, self.store = len(self.left), SeriesStore(self.directory, "ladder", "")

    @abstractmethod
    def list_rungs(self) -> Iterable[Rung[Test]]:
        """List all rungs, in the order in which they are measured."""

    @abstractmethod
    def make_row(self, run: Result, test: Test, directory: str) -> Row:
        """Make the row of a rung from its run."""

    @abstractmethod
    def make_missed_row(self, test: Test, why: str) -> Row:
        """Make a row without a speed, with the reason."""

    def encode_rows(self) -> dict[str, Any]:
        """Return all rows as the object that JSON has; nothing is written."""
        return {"rows": list(map(self.encode, self.rows))}

    def count_measured(self) -> int:
        """Count the rows with a speed."""
        return sum(getattr(row, self.speed) not in (None, ()) for row in self.rows)

    @classmethod
    def begin(cls, workload: Profile, options: Options, resumed: str | None = None) -> Self:
        """Make a climb in the directory that is `resumed`, else in a new one below `run_dir`, else `runs`.

        Raises UsageError if there is none, or none can be made.
        """
        if resumed is None:
            base = Path(options.run_dir or "runs")
            return cls(workload, files.create_directory(base, cls.name, read_wall_clock()), options)
        if not Path(resumed).is_dir():
            raise UsageError(f"--resume: {resumed} is no directory of a ladder")
        return cls(workload, Path(resumed), options)

    def finish(self, measure: Callable[[Self], None], resume: str = "") -> int:
        """Call `measure`, print the table, and return the exit code: 0 where any rung was measured.

        On a signal it returns the signal's code. Then, and with a StoreError, it reports `resume`, the
        command that goes on. Without any row the directory is removed if empty.
        """
        signal = 0
        try:
            measure(self)
        except KeyboardInterrupt as stop:
            signal = signals.read_number(stop)
        except StoreError as error:
            raise StoreError(f"{error}; when it can be written: {resume}" if resume else str(error)) from None
        finally:
            if self.rows:
                table = self.draw(self.rows, "text")
                print_text(f"\n{table}\ntables and runs: {self.directory}", sys.stdout)
            else:
                files.remove_empty(self.directory)
        if signal and resume:
            print_text(f"interrupted; resume with: {resume}", sys.stdout)
        return decide_exit_code(signal=signal, measured=self.count_measured() > 0)

    def find_seed(self) -> Seed | None:
        """Find the seed of the runs that are there already; None without any, or raise UsageError."""
        facts = next(self.store.read_facts(""), None)
        if facts is None:
            return None
        if self.options.seed not in (None, facts["seed"]):
            raise UsageError(f"--resume: the seed of the ladder is {facts['seed']}: leave --seed out")
        return Seed(facts["seed"], chosen=self.options.seed is not None)

    def climb_on(self, servers: PointServers, seed: Seed) -> None:
        """Measure the rungs in `left` on a server; one that cannot be measured gets a row with the reason.

        A server that dies of a rung is started again for the next, unless another owns it: raises ServerDied
        then. Raises StoreError, KeyboardInterrupt.
        """
        self.servers = servers
        with self.store.lock():
            # A server that was there may have the prompts of an earlier attempt in its cache.
            attempt = 0 if self.options.base_url is None else self.store.count_attempt(self.name)
            self.seed = replace(seed, attempt=seed.attempt + attempt)
            point_runs.run_series(self, servers)

    def choose(self) -> Step[Rung[Test]] | None:
        """Remove the next rung from `left` and return it with its workload; None if there is none."""
        if not self.left:
            return None
        rung = self.left.popleft()
        keys = {"ladder": None, "description": "", **rung.keys}
        return Step(rung, self.workload.model_copy(update=keys))

    def measure(self, step: Step[Rung[Test]], session: Session) -> MeasuredPoint:
        """Set `session` and measure a rung, or return why not if its tokens exceed the context.

        One that an earlier command has measured whole is read from its directory.
        """
        self.session = session
        need = step.workload.prefix_len + step.workload.input_len + step.workload.output_len
        if 0 < (limit := session.context_limit) < need:
            return MeasuredPoint(reason=f"needs {need} tokens, the context limit is {limit}")
        number, label = self.count - len(self.left), re.sub(r"[^\w.]+", "-", step.workload.name)
        names = [f"{each:03}-{label}" for each in (number, number + 1)]
        place = self.directory / names[0]
        kept = [self._read_whole(name) for name in names[: 1 + step.what.fills]]
        if kept[0] is not None and None not in kept:
            if kept[0].facts.profile != step.workload.model_copy(update={"server": None}):
                raise UsageError(f"{place} is of another ladder: resume it with its command")
            return MeasuredPoint(kept[0], place)
        if place.exists():
            with self.store.writing():
                self.store.set_aside("", place.name)
        seed = replace(self.seed, repeat=self.seed.repeat + step.what.repeat)
        point = point_runs.measure_point(session, step.workload, seed, self.store.begin(place.name))
        if point.directory is None or point.signal or _find_death(point):
            return point
        return replace(point, directory=self.store.finish(place.name, point.directory))

    def _read_whole(self, name: str) -> Result | None:
        """Read the run of a rung; None if there is none of which every request succeeded."""
        point = point_runs.read_point(self.directory / name)
        return None if point is None or point.run is None or point.run.records.failed else point.run

    def keep(self, step: Step[Rung[Test]], point: MeasuredPoint) -> None:
        """Add the row of a rung, from its run or with why it has none; raises errors but a MeasureError.

        Where no server could be reached, the rung and all that are left get rows with that reason.
        """
        if point.unserved:
            progress.warn(str(point.error))
            for rung in (step.what, *self.left):
                self._add(self.make_missed_row(rung.test, "the server did not start again"))
            self.left.clear()
            return
        if point.error is not None and not isinstance(point.error, MeasureError):
            raise point.error
        run, why = point.run, _find_death(point) or ("" if point.run is not None else point.reason)
        if why:
            self._add(self.make_missed_row(step.what.test, why))
        elif run is not None and point.directory is not None:
            self._add(self.make_row(run, step.what.test, point.directory.name))
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


def _find_death(point: MeasuredPoint) -> str:
    """Return how the server ended during a run, whose figures are then not of the rung; "" if it did not."""
    run = point.run
    if point.died is None or run is None or not run.records.failed or run.facts.interrupted:
        return ""
    return point.died.summary


@dataclass
class LadderClimb(Climb[int, SpeedRow]):
    """The rungs of a profile's ladder of input lengths that are left, and the rows of those that are not."""

    name, forms, speed = "ladder", ("html", "rst", "md", "csv"), "speed_tok_s"
    draw = staticmethod(speed_rows.draw_ladder)
    describe = staticmethod(ladder_rows.describe_speed)
    encode = staticmethod(ladder_rows.encode_speed_row)

    def list_rungs(self) -> Iterable[Rung[int]]:
        for length in self.workload.ladder or ():
            yield Rung(length, {"input_len": length, "name": f"{self.workload.name}-{length}"})

    def make_row(self, run: Result, test: int, directory: str) -> SpeedRow:
        formula = self.options.formula or TOTAL
        return replace(ladder_rows.make_speed_row(run, formula), run=directory)

    def make_missed_row(self, test: int, why: str) -> SpeedRow:
        """Make a row with why it has no speed; machine and setting are the last row's."""
        served, before = ladder_rows.name_served(self.session), self.rows[-1] if self.rows else None
        return SpeedRow(
            served.model,
            served.backend,
            before.gpu if before else "",
            test,
            served.quantization,
            gpu_num=None,
            speed_tok_s=None,
            note=why,
            formula=self.options.formula or TOTAL,
            output_length=self.workload.output_len,
            setting=before.setting if before else None,
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

    def list_rungs(self) -> Iterable[Rung[DepthTest]]:
        """List two tests of each depth; at one, a request more replaces the warm-up."""
        given, requests = self.workload, self.workload.num_prompts or 1
        for depth in self.options.depth or ():
            for kind, tokens in ((PROMPT, given.input_len), (GENERATION, given.output_len)):
                test = DepthTest(kind, tokens, depth)
                keys = {
                    "input_len": test.input_len, "output_len": test.output_len, "prefix_len": depth,
                    # The first request at a depth warms up: one of a warm-up would have a prefix of its own.
                    "num_prompts": requests + (depth > 0), "num_warmups": 0 if depth else given.num_warmups,
                    "name": f"{kind}{tokens}-d{depth}",
                }  # fmt: skip
                yield Rung(test, keys)

    def make_row(self, run: Result, test: DepthTest, directory: str) -> DepthRow:
        return replace(ladder_rows.make_depth_row(run, test), run=directory)

    def make_missed_row(self, test: DepthTest, why: str) -> DepthRow:
        served = ladder_rows.name_served(self.session)
        return DepthRow(*served[:3], str(test), test.depth, note=why)


BATCHES = 3  # of each test, without --num-prompts
_REPORT = "llama-benchy.json"


@dataclass
class BatchClimb(Climb[BatchTest, BatchRow]):
    """The batches that are left of each depth and concurrency, and a row of each test that was begun.

    At a depth a batch of the contexts alone comes before each batch; no other has the contexts of the two.
    """

    began: datetime = field(default_factory=read_wall_clock)
    ended: Counter[BatchTest] = field(default_factory=Counter)  # batches by test, those without figures too

    name, forms, speed = "depth", ("md", "csv"), "batches"
    draw = staticmethod(ladder_rows.draw_batches)
    describe = staticmethod(ladder_rows.describe_batch)
    encode = staticmethod(ladder_rows.encode_batch_row)

    def list_rungs(self) -> Iterable[Rung[BatchTest]]:
        """List each test's batches, all sent at once; the first warms up, at a depth the first context."""
        given = self.workload
        for depth in self.options.depth or ():
            for level in self.options.batch_sizes or ():
                test = BatchTest(given.input_len, given.output_len, depth, level)
                sent = [replace(test, is_context=True), test] if depth else [test]
                for number in range(self.batches):
                    for each in sent:
                        is_first = number == 0 and each is sent[0]
                        warmups = "wave" if is_first and given.num_warmups else 0
                        keys = {**each.workload, "request_rate": float("inf"), "num_warmups": warmups}
                        yield Rung(each, keys, number, fills=each.is_context)

    @property
    def batches(self) -> int:
        """The number of batches of each test: --num-prompts."""
        return self.workload.num_prompts or BATCHES

    def make_row(self, run: Result, test: BatchTest, directory: str) -> BatchRow:
        return ladder_rows.make_batch_row(run, test, directory)

    def make_missed_row(self, test: BatchTest, why: str) -> BatchRow:
        return BatchRow(*ladder_rows.name_served(self.session), test, note=why)

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
