"""`loadgen ladder`: the speed of one request at ever longer prompts, in the tables of the Qwen pages."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadgen import facts, profile, report, result, rungs, tables
from loadgen.attach import attach, settings
from loadgen.bench import INTERRUPTED, check, keep, seeded
from loadgen.errors import LoadgenError, MeasureError, UsageError
from loadgen.flags import Options, bench_parser, parse
from loadgen.plan import Seed
from loadgen.profile import Profile
from loadgen.rows import Row
from loadgen.run import Session
from loadgen.server_settings import ServerSettings
from loadgen.speed import FORMULAS, TOTAL
from loadgen.vllm_json import write_result

DEFAULT_PROFILE = "qwen-speed"
_FILES = ("html", "rst", "md", "csv")
_BACKENDS = {"sglang": "sglang", "SGLang": "sglang"}  # its own API takes ids and needs no tokenizer


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 where any rung was measured."""
    options = parse(argv, ladder_parser())
    _refuse(options)
    workload = _workload(options)
    check(options)
    asked = settings(options, [workload])
    if options.launching.engine == "sglang" and asked.skip_tokenizer is None:
        asked = asked.model_copy(update={"skip_tokenizer": True})
    if options.launching.dry_run:
        from loadgen.launched import dry_run

        print(dry_run(options, asked))
        return 0
    directory = result.create_directory(Path(options.run_dir or "runs"), "ladder", result.now())
    inside = replace(options, run_dir=str(directory))
    try:
        return Ladder(inside, workload, asked, directory).climb()
    finally:
        result.remove_empty(directory)


def ladder_parser() -> argparse.ArgumentParser:
    """The flags of `bench`, and which of the pages' two formulas is meant."""
    parser = bench_parser()
    parser.prog = "loadgen ladder"
    parser.description = "Measure one request at a time at ever longer prompts, as the Qwen pages do."
    parser.epilog = f"Without --profile: {DEFAULT_PROFILE}. The other flags are those of `loadgen bench`."
    formula = f"of the speed (default {TOTAL}, Qwen3's; the other is Qwen2's)"
    parser.add_argument("--formula", choices=tuple(FORMULAS), help=formula)
    return parser


def _refuse(options: Options) -> None:
    """Flags of `bench` that a ladder would not heed."""
    advice = {
        "--input-len": ("input_len" in options.overrides, "the profile's `ladder` has the lengths"),
        "--repeat": (options.repeat > 1, "--num-prompts says how often a length is measured"),
        "--save-result": (options.saves, "ladder.json and the run directories have every figure"),
        "--print-request": (options.print_request, "`loadgen bench` shows one"),
    }
    for flag, (given, what_to_do) in advice.items():
        if given:
            raise UsageError(f"{flag} is not for a ladder: {what_to_do}")


def _workload(options: Options) -> Profile:
    names = options.profiles or (DEFAULT_PROFILE,)
    if len(names) > 1:
        raise UsageError("--profile: one ladder at a time")
    workload = profile.load(names[0], options.overrides)
    if workload.ladder is None:
        raise UsageError(f"--profile {names[0]} has no ladder of input lengths: run it with `loadgen bench`")
    facts.check(workload)
    return _native(workload, options, options.launching.engine or "")


def _native(workload: Profile, options: Options, engine: str) -> Profile:
    """The workload in the engine's own API where that suits it better, unless the user chose."""
    if engine not in _BACKENDS or "backend" in options.overrides or options.endpoint is not None:
        return workload
    return workload.model_copy(update={"backend": _BACKENDS[engine]})


@dataclass
class Ladder:
    """One climb: after every rung, all rows so far are on the disk."""

    options: Options
    workload: Profile
    asked: ServerSettings
    directory: Path
    rows: list[Row] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # the directory of each row's run; "" where nothing ran

    def climb(self) -> int:
        """Measure every length; a server that dies of one is started again for the next. The exit code."""
        left = deque(self.workload.ladder or ())
        try:
            while left:
                self._climb_on(left)
        except KeyboardInterrupt:
            self._tell()
            return INTERRUPTED
        self._tell()
        return 0 if any(row.speed_tok_s is not None for row in self.rows) else MeasureError.exit_code

    def _climb_on(self, left: deque[int]) -> None:
        """Climb until nothing is left, or the server has died."""
        with ExitStack() as stack:
            try:
                session = attach(self.options, self.asked, self.workload, stack)
            except LoadgenError as error:
                if not self.rows:
                    raise
                print(f"loadgen: {error}", file=sys.stderr)
                while left:
                    self._add(self._missed(left.popleft(), "the server did not start again"))
                return
            self.workload = _native(self.workload, self.options, session.served.engine.name)
            seed = seeded(self.options)
            while left:
                length = left.popleft()
                try:
                    self._rung(session, length, seed)
                except MeasureError as error:
                    why, _, last_words = str(error).partition("; its whole log")
                    self._add(self._missed(length, why, session))
                    if last_words:
                        print(f"loadgen: {error}", file=sys.stderr)
                        return

    def _rung(self, session: Session, length: int, seed: Seed) -> None:
        """Measure one length; raises MeasureError where nothing came of it, or KeyboardInterrupt."""
        need, limit = length + self.workload.output_len, session.context_limit
        if 0 < limit < need:
            raise MeasureError(f"needs {need} tokens, the context limit is {limit}")
        update = {"ladder": None, "input_len": length, "name": f"{self.workload.name}-{length}"}
        run, directory = session.run(self.workload.model_copy(update=update), seed)
        keep(session, run, directory, report.render(run))
        if not run.records.ok.all() and not run.facts.interrupted:
            session.check_alive(failed=True)
        self._add(rungs.row(run, self._formula), directory.name)
        if run.facts.interrupted:
            raise KeyboardInterrupt

    @property
    def _formula(self) -> str:
        return self.options.formula or TOTAL

    def _missed(self, length: int, why: str, session: Session | None = None) -> Row:
        """A row that says why it has no speed; model and machine are as in the row before."""
        if self.rows:
            known = self.rows[-1]
        else:
            assert session is not None
            served = session.served
            root = "" if served.engine.simulated else served.model_root
            base, quantization = rungs.named(root or served.model, session.checkpoint)
            known = Row(base, rungs.backend(served.engine.name), "", length, quantization, None, None)
        return replace(
            known,
            input_length=length,
            gpu_num=None,
            speed_tok_s=None,
            gpu_memory=None,
            note=why,
            formula=self._formula,
            output_length=self.workload.output_len,
        )

    def _add(self, row: Row, run: str = "") -> None:
        """Keep a row, write every table anew, and say it."""
        self.rows.append(row)
        self.runs.append(run)
        for form in _FILES:
            (self.directory / f"ladder.{form}").write_text(tables.render(self.rows, form), "utf-8")
        listed = [rungs.json(known, where) for known, where in zip(self.rows, self.runs, strict=True)]
        write_result(self.directory / "ladder.json", {"rows": listed})
        said = "-" if row.speed_tok_s is None else f"{row.speed_tok_s} tok/s"
        print(f"input {row.input_length}: {said}" + f" ({row.note})" * bool(row.note), flush=True)

    def _tell(self) -> None:
        """The tables for a terminal: ours, and the published rows beside it."""
        if self.rows:
            print(
                "\n" + "\n".join(filter(None, (tables.render(self.rows, "text"), tables.beside(self.rows))))
            )
            print(f"tables and runs: {self.directory}", flush=True)
