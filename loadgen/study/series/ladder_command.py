"""`loadgen ladder`: the speed of one request at ever longer prompts, or after ever more cached tokens."""

from __future__ import annotations

import argparse
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from msgspec.structs import asdict, replace

from loadgen.base import files, parsing, signals, untrusted
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import MeasureError, UsageError, decide_exit_code
from loadgen.base.printing import print_text
from loadgen.base.text import clean_text, quote_value
from loadgen.engines.engines import find_by_name
from loadgen.figures import objectives
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.run.attach import collect_settings
from loadgen.run.command import progress
from loadgen.run.command.bench import check, make_seed
from loadgen.run.command.options import Options, bench_parser, parse
from loadgen.run.session import Session
from loadgen.settings.validation import ServerSettings
from loadgen.study.series.point_runs import (
    GivenServer,
    MeasuredPoint,
    PointServers,
    Step,
    measure_point,
    run_series,
)
from loadgen.study.series.series_store import refuse_flags
from loadgen.study.speed import ladder_rows, speed_tables
from loadgen.study.speed.ladder_rows import GENERATION, PROMPT, DepthRow, DepthTest
from loadgen.study.speed.speed_rows import FORMULAS, TOTAL, SpeedRow

DEFAULT_PROFILE = "qwen-speed"
_PROMPT, _ANSWER, _REPEATS = 2048, 128, 5
_USUAL = {"input_len": _PROMPT, "output_len": _ANSWER, "num_prompts": _REPEATS}  # with --depth alone


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
    if options.launching.dry_run:
        from loadgen.features.launch.launched_server import dry_run

        print_text(dry_run(options, asked), sys.stdout)
        return 0
    kind: type[Climb[Any, Any]] = LadderClimb if options.depth is None else DepthClimb
    return kind.begin(workload, options).finish(lambda ladder: _climb(ladder, options, asked))


def ladder_parser() -> argparse.ArgumentParser:
    """Make the parser of `bench`, with the flags of the formula and of speed at depth."""
    parser = bench_parser()
    parser.prog = "loadgen ladder"
    parser.description = "Measure one request at a time at ever longer prompts, as the Qwen pages do."
    parser.epilog = f"Without --profile: {DEFAULT_PROFILE}. The other flags are those of `loadgen bench`."
    formula = f"of the speed (default {TOTAL}, Qwen3's; the other is Qwen2's)"
    parser.add_argument("--formula", choices=tuple(FORMULAS), help=formula)
    depth = parser.add_argument_group("speed at depth, as llama-bench has it (docs/ladder.md)")
    add = depth.add_argument
    add(
        "-d",
        "--depth",
        type=_parse_depths,
        metavar="N[,N…]",
        help="instead of the ladder: prompt and generation speed after N tokens that are cached",
    )
    add("-p", "--n-prompt", dest="input_len", type=int, metavar="N", help=f"new tokens (default {_PROMPT})")
    add("-n", "--n-gen", dest="output_len", type=int, metavar="N", help=f"generated (default {_ANSWER})")
    return parser


def _parse_depths(text: str) -> tuple[int, ...]:
    """Parse token counts between commas; raises ArgumentTypeError for a bad, too large or repeated one."""
    words = [word.strip() for word in text.split(",")]
    depths = [value for word in words if (value := untrusted.read_digits(word)) is not None]
    if len(depths) < len(words) or max(depths) > parsing.MOST_TOKENS or len(set(depths)) < len(depths):
        raise argparse.ArgumentTypeError(
            f"{quote_value(text)} is not a list of tokens, none of them twice: 0,4096"
        )
    return tuple(depths)


def _refuse_flags(options: Options) -> None:
    """Raise UsageError for a flag of `bench` that a ladder would not heed, with what to do instead."""
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
        "--repeat": (options.repeat > 1, "--num-prompts sets the repeats of each length"),
        "--save-result": (options.saves, "ladder.json and the run directories have every figure"),
        "--base-url": (bool(options.more_urls), "one request at a time has one server: give it once"),
        "--cluster": (options.cluster is not None, "one process is enough for one request at a time"),
    }
    refuse_flags(options, "a ladder", advice, heeded=("--live-totals", "--selftest"))


def _load_workload(options: Options) -> Profile:
    """Load the one profile of a ladder, else the default one, with the native API where it suits better.

    Raises UsageError for several profiles, or one without a ladder unless --depth is given.
    """
    names = options.profiles or (DEFAULT_PROFILE,)
    if len(names) > 1:
        raise UsageError("--profile: one ladder at a time")
    usual = {} if options.profiles or options.depth is None else _USUAL
    workload = profile.load(names[0], {**usual, **options.overrides}, flags=True)
    if workload.ladder is None and options.depth is None:
        raise UsageError(f"--profile {names[0]} has no ladder of input lengths: run it with `loadgen bench`")
    objectives.check_workload(workload)
    return _prefer_native_api(workload, options, options.launching.engine or "")


def _climb(ladder: Climb[Any, Any], options: Options, asked: ServerSettings) -> None:
    """Measure every rung on one server, which is started again for the next where it dies of one.

    The ladder's workload is set to the API that suits the recognised engine.
    """
    inside = replace(options, run_dir=str(ladder.directory))
    with PointServers(inside, asked, ladder.directory, progress.warn) as servers:
        session = servers.session(ladder.workload)
        ladder.workload = _prefer_native_api(ladder.workload, options, session.served.engine.name)
        ladder.climb_on(servers, make_seed(options))


def _prefer_native_api(workload: Profile, options: Options, engine: str) -> Profile:
    """Return the workload with the engine's native API, if any, unless --backend or --endpoint is given."""
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
    servers: PointServers | GivenServer = field(init=False)
    session: Session | None = None  # on which the last rung was measured

    name: ClassVar[str]  # of its directory and files
    forms: ClassVar[tuple[str, ...]]  # of the tables that are written
    speed: ClassVar[str]  # the field of a row with its speed, None where it has none

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

    @abstractmethod
    def draw(self, form: str) -> str:
        """Return all rows as a table in one of `forms`, or as text."""

    @abstractmethod
    def describe(self, row: Row) -> str:
        """Return the line that is printed when a row's rung ends."""

    @abstractmethod
    def encode_rows(self) -> dict[str, Any]:
        """Return all rows as the object that JSON has; nothing is written."""

    def count_measured(self) -> int:
        """Count the rows with a speed."""
        return sum(getattr(row, self.speed) is not None for row in self.rows)

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
                print_text(f"\n{self.draw('text')}\ntables and runs: {self.directory}", sys.stdout)
            else:
                files.remove_empty(self.directory)
        return decide_exit_code(measured=self.count_measured() > 0)

    def climb_on(self, servers: PointServers | GivenServer, seed: Seed) -> None:
        """Measure the rungs in `left` on a server; one that cannot be measured gets a row with the reason.

        A server that dies of a rung is started again for the next, unless another owns it: raises ServerDied
        then. Raises StoreError, KeyboardInterrupt.
        """
        self.seed, self.servers = seed, servers
        run_series(self, servers)

    def give_up(self, why: str) -> None:
        """Empty `left`, and add a row without a speed, with the reason `why`, for each of its rungs."""
        while self.left:
            self._add(self.make_missed_row(self.left.popleft(), why))

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
        return measure_point(session, step.workload, self.seed, self.directory)

    def keep(self, step: Step[Rung], point: MeasuredPoint) -> None:
        """Add the row of a rung, from its run or with why it has none; raises errors but a MeasureError.

        Where no server could be reached, the rung and all that are left get rows with that reason.
        """
        if point.unserved:
            progress.warn(str(point.error))
            self.left.appendleft(step.what)
            self.give_up("the server did not start again")
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
        """Add a row, write every table file again, and print the row unless quiet.

        A table that cannot be written is a warning.
        """
        self.rows.append(row)
        json = dumps(self.encode_rows(), allow_nan=False)
        texts = {form: self.draw(form) for form in self.forms} | {"json": json}
        for form, text in texts.items():  # the next rung is worth measuring where one cannot be written
            if error := run_directory.write_text(self.directory / f"{self.name}.{form}", text):
                progress.warn(error)
        if not self.quiet:
            print_text(self.describe(row), sys.stdout)


@dataclass
class LadderClimb(Climb[int, SpeedRow]):
    """The rungs of a profile's ladder of input lengths that are left, and the rows of those that are not."""

    runs: list[str] = field(default_factory=list)  # the directory of each row's run; "" where nothing ran

    name, forms, speed = "ladder", ("html", "rst", "md", "csv"), "speed_tok_s"

    @property
    def formula(self) -> str:
        """The name of the formula of the speed, Qwen3's unless --formula is given."""
        return self.options.formula or TOTAL

    def list_rungs(self) -> Iterable[int]:
        return self.workload.ladder or ()

    def list_changes(self, rung: int) -> dict[str, Any]:
        return {"input_len": rung, "name": f"{self.workload.name}-{rung}"}

    def make_row(self, run: Result, rung: int, directory: str) -> SpeedRow:
        """Make the row of a rung from its run, whose directory is added to `runs`."""
        self.runs.append(directory)
        return ladder_rows.make_speed_row(run, self.formula)

    def make_missed_row(self, rung: int, why: str) -> SpeedRow:
        """Make a row without a speed, with the reason, of the model and machine of the row before.

        Without one they are the session's. "" is added to `runs`.
        """
        self.runs.append("")
        if self.rows:
            previous = self.rows[-1]
        else:
            base, quantization, backend = ladder_rows.name_served(self.session)
            previous = SpeedRow(base, backend, "", rung, quantization, None, None)
        return replace(
            previous,
            input_length=rung,
            gpu_num=None,
            speed_tok_s=None,
            ttft_ms=None,
            decode_tok_s=None,
            gpu_memory=None,
            note=why,
            formula=self.formula,
            output_length=self.workload.output_len,
        )

    def draw(self, form: str) -> str:
        """Return all rows as a table in one of `forms`.

        As text with published speeds next to them, if any.
        """
        drawn = speed_tables.draw_speeds(self.rows, form)
        published = speed_tables.draw_next_to_published(self.rows) if form == "text" else ""
        return f"{drawn}\n{published}" if published else drawn

    def describe(self, row: SpeedRow) -> str:
        return ladder_rows.describe_speed(row)

    def encode_rows(self) -> dict[str, Any]:
        return {"rows": list(map(ladder_rows.encode_speed_row, self.rows, self.runs))}


@dataclass
class DepthClimb(Climb[DepthTest, DepthRow]):
    """Prompt and generation speed of one request after ever more cached tokens: the tests that are left.

    The prefix is the same for all requests of a test: the first one puts it into the server's cache, and
    whether it was found there is read from each answer.
    """

    name, forms, speed = "depth", ("md", "csv"), "tok_s"

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
        if self.rows:
            before = self.rows[-1]
            names = before.model, before.quantization, before.backend
        else:
            names = ladder_rows.name_served(self.session)
        return DepthRow(*names, str(rung), rung.depth, note=why)

    def draw(self, form: str) -> str:
        return ladder_rows.draw_depths(self.rows, form)

    def describe(self, row: DepthRow) -> str:
        return ladder_rows.describe_depth(row)

    def encode_rows(self) -> dict[str, Any]:
        return {"rows": list(map(asdict, self.rows))}
