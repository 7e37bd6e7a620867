"""`loadgen ladder`: the speed of one request at ever longer prompts, or after ever more cached tokens."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from loadgen.base import bounds, untrusted
from loadgen.base.errors import LoadgenError, MeasureError, ServerDied, UsageError
from loadgen.base.text import quote_value
from loadgen.engines.engines import find_by_name
from loadgen.plan import profile, request_sources
from loadgen.plan.plan_inputs import Seed
from loadgen.plan.profile import Profile
from loadgen.report import run_directory, run_place
from loadgen.report.printing import print_text
from loadgen.report.run_directory import Result
from loadgen.run import progress, signals
from loadgen.run.attach import attach, collect_settings
from loadgen.run.bench import check, make_seed
from loadgen.run.options import Options, bench_parser, parse
from loadgen.run.progress import warn
from loadgen.run.session import Session
from loadgen.settings.validation import ServerSettings
from loadgen.study.speed import ladder_rows, speed_tables
from loadgen.study.speed.ladder_rows import GENERATION, PROMPT, DepthRow, DepthTest
from loadgen.study.speed.speed_rows import FORMULAS, TOTAL, SpeedRow
from loadgen.verdict import requested_metrics

DEFAULT_PROFILE = "qwen-speed"
_PROMPT, _ANSWER, _REPEATS = 2048, 128, 5
_USUAL = {"input_len": _PROMPT, "output_len": _ANSWER, "num_prompts": _REPEATS}  # with --depth alone


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 where any rung was measured."""
    options = parse(argv, ladder_parser())
    _refuse_flags(options)
    workload = _load_workload(options)
    check(options)
    asked = collect_settings(options, [workload])
    if options.launching.engine == "sglang" and asked.skip_tokenizer is None:
        asked = asked.model_copy(update={"skip_tokenizer": True})
    if options.launching.dry_run:
        from loadgen.run.launched_server import dry_run

        print_text(dry_run(options, asked), sys.stdout)
        return 0
    ladder: Climb[Any, Any]
    if options.depth is None:
        ladder = begin_ladder(workload, options.run_dir, options.formula)
    else:
        ladder = begin_depths(workload, options.run_dir, options.depth)
    return finish_climb(ladder, lambda: _climb_ladder(ladder, options, asked))


def climb(session: Session, workload: Profile, seed: Seed) -> int:
    """Measure a ladder on a server that is there and print its table; the exit code."""
    ladder = begin_ladder(workload, session.options.run_dir)
    return finish_climb(ladder, lambda: ladder.on(session, seed))


def draw_throughputs(runs: Sequence[Result]) -> str:
    """Draw runs whose prompts are sent all at once as the table of the Qwen2 page."""
    return speed_tables.draw_throughput(list(map(ladder_rows.make_throughput_row, runs)), "text")


def ladder_parser() -> argparse.ArgumentParser:
    """The flags of `bench`, and which of the pages' two formulas is meant."""
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
    words = [word.strip() for word in text.split(",")]
    depths = [value for word in words if (value := untrusted.read_digits(word)) is not None]
    if len(depths) < len(words) or max(depths) > bounds.MOST_TOKENS or len(set(depths)) < len(depths):
        raise argparse.ArgumentTypeError(
            f"{quote_value(text)} is not a list of tokens, none of them twice: 0,4096"
        )
    return tuple(depths)


def _refuse_flags(options: Options) -> None:
    """Flags of `bench` that a ladder would not heed."""
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
        "--export-requests": (options.export_requests is not None, "`loadgen bench` writes one plan"),
        "--shard": (options.shard is not None, "`loadgen bench` sends one plan from several commands"),
        "--start-at": (options.start_at is not None, "`loadgen bench` begins one run at an instant"),
        "--expect-plan": (options.expect_plan is not None, "it has a plan for each length"),
        "--base-url": (bool(options.more_urls), "one request at a time has one server: give it once"),
        "--cluster": (options.cluster is not None, "one process is enough for one request at a time"),
        "--print-request": (options.print_request, "`loadgen bench` shows one"),
    }
    for flag, (given, what_to_do) in advice.items():
        if given:
            raise UsageError(f"{flag} does not apply to a ladder: {what_to_do}")


def _load_workload(options: Options) -> Profile:
    names = options.profiles or (DEFAULT_PROFILE,)
    if len(names) > 1:
        raise UsageError("--profile: one ladder at a time")
    usual = {} if options.profiles or options.depth is None else _USUAL
    workload = profile.load(names[0], {**usual, **options.overrides}, flags=True)
    if workload.ladder is None and options.depth is None:
        raise UsageError(f"--profile {names[0]} has no ladder of input lengths: run it with `loadgen bench`")
    requested_metrics.check_profile(workload)
    request_sources.check_files(workload)
    return _prefer_native_api(workload, options, options.launching.engine or "")


def _climb_ladder(ladder: Climb[Any, Any], options: Options, asked: ServerSettings) -> None:
    """Measure every length; a server that dies of one is started again for the next."""
    seed, inside = make_seed(options), replace(options, run_dir=str(ladder.directory))
    while ladder.left:
        with ExitStack() as stack:
            try:
                session = attach(inside, asked, ladder.workload, stack)
            except LoadgenError as error:
                if not ladder.rows:
                    raise
                warn(str(error))
                ladder.give_up("the server did not start again")
                return
            ladder.workload = _prefer_native_api(ladder.workload, options, session.served.engine.name)
            try:
                ladder.on(session, seed)
            except MeasureError as error:
                warn(str(error))


def _prefer_native_api(workload: Profile, options: Options, engine: str) -> Profile:
    """The workload in the engine's own API where that suits it better, unless the user chose."""
    backend = find_by_name(engine).native_backend  # takes ids and needs no tokenizer
    if not backend or "backend" in options.overrides or options.endpoint is not None:
        return workload
    return workload.model_copy(update={"backend": backend})


Rung = TypeVar("Rung")
Row = TypeVar("Row")


class Climb(Generic[Rung, Row]):
    """What is measured rung by rung on a server, and on another one where that died.

    A class of such says how a rung is measured, and what its row is where it cannot be.
    """

    workload: Profile
    directory: Path  # of its runs and tables
    rows: list[Row]  # of the rungs that were measured, or could not be
    left: deque[Rung]

    @property
    def measured(self) -> bool:
        """Whether any rung has a speed."""
        raise NotImplementedError

    def measure(self, session: Session, rung: Rung, seed: Seed) -> None:
        """Measure a rung and add its row; raises MeasureError, ServerDied and signals.Stopped."""
        raise NotImplementedError

    def missed(self, rung: Rung, why: str, session: Session | None = None) -> Row:
        """A row without a speed, with the reason; with rows before it no session is needed."""
        raise NotImplementedError

    def add(self, row: Row) -> None:
        """Keep a row, write every table again, and print the row."""
        raise NotImplementedError

    def tables(self) -> str:
        """What is printed at the end of at least one row."""
        raise NotImplementedError

    def on(self, session: Session, seed: Seed) -> None:
        """Measure what is left on a server. A rung that cannot be measured is a row with the reason.

        Raises MeasureError where the server has died of one, whose row is kept, and KeyboardInterrupt.
        """
        inside = replace(session, options=replace(session.options, run_dir=str(self.directory)))
        while self.left:
            rung = self.left.popleft()
            try:
                self.measure(inside, rung, seed)
            except MeasureError as error:
                self.add(self.missed(rung, error.summary, session))
                if isinstance(error, ServerDied):
                    raise

    def give_up(self, why: str) -> None:
        """Add a row for each rung that is left, with the reason."""
        while self.left:
            self.add(self.missed(self.left.popleft(), why))

    def ran(self, session: Session, update: Mapping[str, Any], seed: Seed) -> tuple[Result, str, int]:
        """Run the workload with some keys changed: the result, its directory's name, a signal that came."""
        changed = {"ladder": None, "description": "", **update}
        run, directory = session.run(self.workload.model_copy(update=changed), seed)
        kept = session.keep(run, directory)
        for error in kept.errors:
            progress.warn(error)
        if run.records.failed and not run.facts.interrupted:
            session.check_alive(failed=True)
        return run, directory.name, run.facts.signal or kept.signal

    def write(self, texts: Mapping[str, str]) -> None:
        """Write files by their names; the next rung is worth measuring where one cannot be."""
        for name, text in texts.items():
            if error := run_directory.write_text(self.directory / name, text):
                progress.warn(error)

    def print_tables(self) -> None:
        """Print what was measured; without rows, remove the directory."""
        if not self.rows:
            run_place.remove_empty(self.directory)
            return
        print_text(f"\n{self.tables()}\ntables and runs: {self.directory}", sys.stdout)


def check_room(session: Session, need: int) -> None:
    """Raises MeasureError where a rung needs more tokens than the server's context has."""
    if 0 < (limit := session.context_limit) < need:
        raise MeasureError(f"needs {need} tokens, the context limit is {limit}")


def finish_climb(climb: Climb[Any, Any], measure: Callable[[], None]) -> int:
    """Measure a climb and print its tables; the command's exit code, 0 where any rung was measured."""
    try:
        measure()
    except KeyboardInterrupt as stop:
        return signals.exit_code(signals.read_number(stop))
    finally:
        climb.print_tables()
    return 0 if climb.measured else MeasureError.exit_code


_LADDER_FORMS = ("html", "rst", "md", "csv")


@dataclass
class LadderClimb(Climb[int, SpeedRow]):
    """The rungs of a profile's ladder that are left, and the rows of those that are not."""

    workload: Profile
    directory: Path
    formula: str = TOTAL
    quiet: bool = False  # no line a rung
    rows: list[SpeedRow] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # the directory of each row's run; "" where nothing ran
    left: deque[int] = field(init=False)

    def __post_init__(self) -> None:
        self.left = deque(self.workload.ladder or ())

    @property
    def measured(self) -> bool:
        return any(row.speed_tok_s is not None for row in self.rows)

    def tables(self) -> str:
        """Our table and the published one."""
        drawn = (speed_tables.draw_speeds(self.rows, "text"), speed_tables.compare_published(self.rows))
        return "\n".join(filter(None, drawn))

    def measure(self, session: Session, rung: int, seed: Seed) -> None:
        check_room(session, rung + self.workload.output_len)
        update = {"input_len": rung, "name": f"{self.workload.name}-{rung}"}
        run, name, number = self.ran(session, update, seed)
        self.add(ladder_rows.make_speed_row(run, self.formula), name)
        if number:
            raise signals.Stopped(number)

    def missed(self, rung: int, why: str, session: Session | None = None) -> SpeedRow:
        """A row without a speed; model and machine are those of the row before."""
        if self.rows:
            previous = self.rows[-1]
        else:
            assert session is not None
            served = session.served
            root = "" if served.engine.simulated else served.model_root
            base, quantization = ladder_rows.split_model_name(root or served.model, session.checkpoint)
            backend = ladder_rows.name_backend(served.engine.name)
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

    def add(self, row: SpeedRow, run: str = "") -> None:
        self.rows.append(row)
        self.runs.append(run)
        listed = [
            ladder_rows.store_speed_row(row, where) for row, where in zip(self.rows, self.runs, strict=True)
        ]
        texts = {f"ladder.{form}": speed_tables.draw_speeds(self.rows, form) for form in _LADDER_FORMS}
        self.write({**texts, "ladder.json": dumps({"rows": listed}, allow_nan=False)})
        if not self.quiet:
            print_text(ladder_rows.describe_speed(row), sys.stdout)


def begin_ladder(workload: Profile, run_dir: str | None, formula: str | None = None) -> LadderClimb:
    """A climb with a directory of its own for its rows; raises UsageError where there can be none."""
    directory = run_place.create_directory(Path(run_dir or "runs"), "ladder", run_place.now())
    return LadderClimb(workload, directory, formula or TOTAL)


_DEPTH_FORMS = ("md", "csv")


@dataclass
class DepthClimb(Climb[DepthTest, DepthRow]):
    """The tests that are left, and the rows of those that are not."""

    workload: Profile
    directory: Path
    depths: Sequence[int]
    rows: list[DepthRow] = field(default_factory=list)
    left: deque[DepthTest] = field(init=False)

    def __post_init__(self) -> None:
        tests = {PROMPT: self.workload.input_len, GENERATION: self.workload.output_len}
        self.left = deque(
            DepthTest(kind, tokens, depth) for depth in self.depths for kind, tokens in tests.items()
        )

    @property
    def measured(self) -> bool:
        return any(row.tok_s is not None for row in self.rows)

    def tables(self) -> str:
        return ladder_rows.draw_depths(self.rows, "text")

    def measure(self, session: Session, rung: DepthTest, seed: Seed) -> None:
        check_room(session, rung.need)
        repeats = self.workload.num_prompts or 1
        # At a depth the first request warms up: one of a warm-up would have a prefix of its own.
        update = {
            "input_len": rung.input_len,
            "output_len": rung.output_len,
            "prefix_len": rung.depth,
            "num_prompts": repeats + (rung.depth > 0),
            "num_warmups": 0 if rung.depth else self.workload.num_warmups,
            "name": f"{rung.kind}{rung.tokens}-d{rung.depth}",
        }
        run, name, number = self.ran(session, update, seed)
        self.add(replace(ladder_rows.make_depth_row(run, rung), run=name))
        if number:
            raise signals.Stopped(number)

    def missed(self, rung: DepthTest, why: str, session: Session | None = None) -> DepthRow:
        """A row without a speed; the model is that of the row before."""
        if self.rows:
            before = self.rows[-1]
            model, quantization, backend = before.model, before.quantization, before.backend
        else:
            assert session is not None
            served = session.served
            model, quantization = ladder_rows.split_model_name(
                served.model_root or served.model, session.checkpoint
            )
            backend = ladder_rows.name_backend(served.engine.name)
        return DepthRow(model, quantization, backend, str(rung), rung.depth, note=why)

    def add(self, row: DepthRow) -> None:
        self.rows.append(row)
        texts = {f"depth.{form}": ladder_rows.draw_depths(self.rows, form) for form in _DEPTH_FORMS}
        self.write({**texts, "depth.json": dumps(ladder_rows.store_depths(self.rows), allow_nan=False)})
        print_text(ladder_rows.describe_depth(row), sys.stdout)


def begin_depths(workload: Profile, run_dir: str | None, depths: Sequence[int]) -> DepthClimb:
    """A climb with a directory of its own for its rows; raises UsageError where there can be none."""
    directory = run_place.create_directory(Path(run_dir or "runs"), "depth", run_place.now())
    return DepthClimb(workload, directory, depths)
